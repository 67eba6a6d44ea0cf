"""The plan as people hold it: what `fuser.plan` returns.

In: a plan and the kernels of its regions. Out: the plan as text, JSON, DOT or a networkx graph, the
kernels' sources, and what the kernels compile to. A `Plan` shows what was decided; it runs nothing
and does not change.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

import networkx

from fuser.driver import Options, fit_plan
from fuser.dump.facts import edges
from fuser.dump.record import Peaks, PlanRecord
from fuser.dump.recording import record_of
from fuser.dump.to_dot import to_dot
from fuser.dump.to_html import to_html
from fuser.dump.to_json import dumps, load, loads
from fuser.dump.to_networkx import to_networkx
from fuser.dump.to_text import edge_line, headline, to_text, write_text
from fuser.errors import InvalidArgument, KernelCompilationError
from fuser.ir.graph import Graph, Op
from fuser.ir.kernel import RegionKernels, Resources
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region, Verdict
from fuser.passes.analysis import eager_peak_bytes, peak_bytes

__all__ = ["Calls", "Plan", "PlanRecord"]


@dataclass(frozen=True)
class Calls:
    """How the calls of a compiled graph have run so far."""

    direct: int
    """Compiled variants of kernels that are launched directly."""
    indirect: Mapping[str, int]
    """Launches that went through Triton, which takes longer, by the reason."""
    unfused: Mapping[str, str]
    """Regions that run op by op, with the reason."""

    def __str__(self) -> str:
        lines = []
        if self.direct:
            lines.append(f"launches: {self.direct} compiled kernels are launched directly")
        lines += [f"launches: {n} went through Triton: {why}" for why, n in self.indirect.items()]
        lines += [f"{region} runs unfused: {why}" for region, why in self.unfused.items()]
        return "\n".join(lines)


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """What is fused for one graph and one target, and why. `print(plan)` shows all of it."""

    fusion: FusionPlan
    """The decisions as the compiler holds them."""
    kernels: tuple[RegionKernels, ...] = ()
    """The generated kernels of each region."""
    resources: Mapping[str, Resources] = field(default_factory=dict)
    """Kernel name to what it compiled to; empty before `with_resources`."""
    options: Options = field(default_factory=Options)
    """What it was planned with."""
    cuda_graphs: str = ""
    """Whether calls replay CUDA graphs or why not; empty unless `mode` asks for them."""
    calls: Calls | None = None
    """What calls have done up to now; None for a plan that nothing has been compiled from."""

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

    def with_resources(self, on_kernel: Callable[[str], None] | None = None) -> Plan:
        """The plan with each kernel compiled for its target, which need not be present.

        It is the same plan unless a kernel spills registers: that one gets a smaller tile, or its
        region is cut in two. `Region.notes` and the verdicts of the plan that is returned say so.

        `on_kernel` is called with the name of each kernel that is done. Raises
        `KernelCompilationError` where one does not compile, and `InvalidArgument` for a plan for
        the CPU, whose kernels are interpreted.
        """
        if self.target == "cpu":
            raise InvalidArgument(
                function="Plan.with_resources",
                argument="target",
                value=self.target,
                expected="a plan for a GPU: fuser.plan(..., target='sm_90')",
            )
        fitted = fit_plan(self.fusion, self.options, on_kernel)
        found: dict[str, Resources] = {}
        for name, result in fitted.resources.items():
            if isinstance(result, str):
                raise KernelCompilationError(kernel=name, cause=result)
            found[name] = result
        return replace(self, fusion=fitted.plan, kernels=fitted.kernels, resources=found)

    @property
    def peaks(self) -> Peaks:
        """The most bytes held at once by the plan and by eager, with hints for unknown sizes."""
        return Peaks(planned=peak_bytes(self.fusion), eager=eager_peak_bytes(self.graph))

    @property
    def record(self) -> PlanRecord:
        """The plan as plain records, as JSON saves them: equal for equal plans."""
        return record_of(self.fusion, self.kernels, self.resources, self.peaks)

    def show(self, stream: TextIO | None = None, *, verbose: bool = False) -> None:
        """Print the plan, in colours where the stream (standard output) is a terminal.

        `verbose` lists every refused edge and the time of each pass.
        """
        write_text(
            self.fusion,
            stream or sys.stdout,
            self.kernels,
            self.resources,
            self.peaks,
            verbose=verbose,
        )
        if notes := self._notes():
            print(notes, file=stream or sys.stdout)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The plan as JSON text, also written to `path` where one is given."""
        return _write(dumps(self.record), path)

    @staticmethod
    def from_json(source: str | os.PathLike[str]) -> PlanRecord:
        """The record in a JSON text or in the file that holds one; raises `InvalidPlan`.

        `Plan.from_json(plan.to_json())` equals `plan.record`.
        """
        if isinstance(source, str) and source.lstrip().startswith("{"):
            return loads(source)
        return load(source)

    def to_dot(self, path: str | os.PathLike[str] | None = None) -> str:
        """The plan as DOT text for Graphviz, also written to `path` where one is given."""
        return _write(to_dot(self.fusion, self.kernels, self.resources), path)

    def to_html(self, path: str | os.PathLike[str] | None = None, *, model: str = "") -> str:
        """The plan as one page that works offline, also written to `path` where one is given.

        `model` is the page's title. Needs the extra `html`; `MissingPackage` says so.
        """
        page = to_html(self.fusion, self.kernels, self.resources, self.peaks, model=model)
        return _write(page, path)

    def to_networkx(self) -> networkx.MultiDiGraph:
        """The ops and the values between them as a networkx graph."""
        return to_networkx(self.fusion)

    def __str__(self) -> str:
        text = to_text(self.fusion, self.kernels, self.resources, self.peaks)
        notes = self._notes()
        return f"{text}\n{notes}" if notes else text

    def _notes(self) -> str:
        """What is known of calls, on lines of its own."""
        known = (self.cuda_graphs, "" if self.calls is None else str(self.calls))
        return "\n".join(text for text in known if text)

    def __repr__(self) -> str:
        return f"<fuser plan for {self.target}: {headline(self.fusion, self.kernels)}>"


def _write(text: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
