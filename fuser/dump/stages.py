"""Numbered files of each step of one compilation, for FUSER_DUMP.

In: the folder of one graph and what a step made. Out: `00-import.txt`, `01-<pass>.txt`, ...,
`plan.txt`, `plan.json`, `plan.dot`, `kernels/<name>.py` and `host.py` in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from fuser.dump.record import Peaks
from fuser.dump.to_dot import to_dot
from fuser.dump.to_json import to_json
from fuser.dump.to_text import to_text
from fuser.ir.graph import Graph
from fuser.ir.kernel import RegionKernels
from fuser.ir.plan import FusionPlan

_graphs = itertools.count()


class Stages:
    """Where one graph's steps are written; does nothing without a folder."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self.folder = None if folder is None else folder / f"{next(_graphs):03}-{name}"
        self.steps = itertools.count()

    def graph(self, step: str, graph: Graph) -> None:
        """The graph after a step."""
        if self.folder is not None:
            self.write(f"{next(self.steps):02}-{step}.txt", f"{graph}\n")

    def plan(
        self, plan: FusionPlan, kernels: Sequence[RegionKernels], peaks: Peaks | None = None
    ) -> None:
        """The plan in its forms, and every kernel."""
        if self.folder is None:
            return
        self.write("plan.txt", to_text(plan, tuple(kernels), peaks=peaks, verbose=True) + "\n")
        self.write("plan.json", to_json(plan, tuple(kernels), peaks=peaks))
        self.write("plan.dot", to_dot(plan))
        for entry in kernels:
            for spec in entry.kernels:
                self.write(f"kernels/{spec.name}.py", spec.source)

    def write(self, name: str, text: str) -> None:
        if self.folder is not None:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


NO_STAGES = Stages(None, "")
