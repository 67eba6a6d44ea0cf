"""`FUSER_SHADOW=1`: every region is checked while the program runs.

In: a compiled graph. Out: a function with the same results that runs the regions one after another
and compares each with its ops in eager and in float64. The first that is wrong raises
`FusionMismatch`, which names a program file that does the same again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx

from fuser import config
from fuser.capture.backend import CompileContext
from fuser.driver import Compiled
from fuser.ir.region import Region
from fuser.runtime.sizes import symbol_values
from fuser.verification.program_text import write_program
from fuser.verification.recording import copied
from fuser.verification.regions import check_region, raise_first

_serial = itertools.count()


def shadowed(
    module: fx.GraphModule, compiled: Compiled, context: CompileContext
) -> Callable[[list[Any]], Any]:
    """What runs in place of `compiled.run`; that itself where nothing was fused."""
    executable, plan = compiled.executable, compiled.plan
    if executable is None or plan is None:
        return compiled.run

    def run(inputs: list[Any]) -> Any:
        # A graph may write to its inputs, and a difference is shown on what they were.
        before_call = [copied(value) for value in inputs]
        symbols = symbol_values(plan.graph, inputs)

        def observe(
            region: Region,
            before: Mapping[str, torch.Tensor],
            outputs: Mapping[str, torch.Tensor],
        ) -> None:
            checks = check_region(plan, region, before, outputs, symbols, context)
            if not all(check.comparison.is_right for check in checks):
                path = _written(module, before_call, region.name, context)
                raise_first(checks, f"to see it again: fuserc verify {path}")

        given = list(inputs)
        inputs.clear()
        return executable.walk(given, observe)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _written(
    module: fx.GraphModule, inputs: list[Any], region: str, context: CompileContext
) -> Path:
    folder = config.dump_dir() or config.cache_dir() / "shadow"
    path = folder / f"shadow_{next(_serial):03}_{context.phase}_{context.graph_index}.py"
    about = f"{region} of this {context.phase} graph was wrong on the inputs saved beside this."
    write_program(module, inputs, path, about)
    return path
