"""The plan as people hold it: what `fuser.plan` returns.

In: a plan and the kernels of its regions. Out: the plan as text, JSON, DOT or a networkx graph, and
the kernels' sources. A `Plan` only shows what was decided; it runs nothing and changes nothing.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import networkx

from fuser.dump.to_dot import to_dot
from fuser.dump.to_json import edges, to_json
from fuser.dump.to_networkx import to_networkx
from fuser.dump.to_text import edge_line, headline, to_text, write_text
from fuser.ir.graph import Graph, Op
from fuser.ir.kernel import RegionKernels
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region, Verdict

__all__ = ["Plan"]


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """What is fused for one graph and one target, and why. `print(plan)` shows all of it."""

    fusion: FusionPlan
    """The decisions as the compiler holds them."""
    kernels: tuple[RegionKernels, ...] = ()
    """The generated kernels of each region."""

    @property
    def graph(self) -> Graph:
        """The ops and values that were planned, after the planner's rewrites."""
        return self.fusion.graph

    @property
    def target(self) -> str:
        return self.fusion.target

    @property
    def regions(self) -> tuple[Region, ...]:
        """The groups of ops that become kernels, with their costs."""
        return self.fusion.regions

    @property
    def opaque(self) -> tuple[Op, ...]:
        """The ops that run as their original torch calls; `op.reason` says why."""
        return tuple(self.graph.by_name[name] for name in self.fusion.opaque)

    @property
    def edges(self) -> tuple[Verdict, ...]:
        """The decision on each producer-consumer edge, in program order."""
        return edges(self.fusion)

    def explain_edges(self) -> str:
        """Every edge on a line with its decision; `edges` has the same as data."""
        return "\n".join(map(edge_line, self.edges))

    def sources(self) -> dict[str, str]:
        """Kernel name to its source text, in the order in which the regions are listed."""
        return {spec.name: spec.source for item in self.kernels for spec in item.kernels}

    def show(self, stream: TextIO | None = None, *, verbose: bool = False) -> None:
        """Print the plan, in colours where the stream (standard output) is a terminal.

        `verbose` lists every refused edge and the time of each pass.
        """
        write_text(self.fusion, stream or sys.stdout, self.kernels, verbose=verbose)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The plan as JSON text, also written to `path` where one is given."""
        return _write(to_json(self.fusion, self.kernels), path)

    def to_dot(self, path: str | os.PathLike[str] | None = None) -> str:
        """The plan as DOT text for Graphviz, also written to `path` where one is given."""
        return _write(to_dot(self.fusion), path)

    def to_networkx(self) -> networkx.MultiDiGraph:
        """The ops and the values between them as a networkx graph."""
        return to_networkx(self.fusion)

    def __str__(self) -> str:
        return to_text(self.fusion, self.kernels)

    def __repr__(self) -> str:
        return f"<fuser plan for {self.target}: {headline(self.fusion, self.kernels)}>"


def _write(text: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
