"""Run a model fused and compare every region, then the whole model, with eager and float64.

In: a model or function and the arguments of one call; copies are run, so the originals stay as they
are. Out: a `Report`; the first difference beyond the tolerance raises `FusionMismatch` instead.
Every run starts from the same seed. A program whose kernels make random numbers is compared with
its own graphs run unfused, because eager's numbers are others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from fuser.capture.backend import Backend, CompileContext
from fuser.capture.seeds import is_random
from fuser.driver import compile_graph
from fuser.errors import FusionMismatch, InvalidArgument
from fuser.ir.region import Region
from fuser.numerics import compare
from fuser.runtime.executable import symbol_values
from fuser.runtime.interpreter import is_interpreting
from fuser.verification.recording import copied
from fuser.verification.regions import check_region, host_difference, mismatch, raise_first
from fuser.verification.report import RegionCheck, Report, TensorCheck
from fuser.verification.runs import itself, run_program, run_wide, unfused


def verify_program(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
) -> Report:
    """See the module's docstring; `options` are those the model would be compiled with."""
    need_kernels("verify", model, args, kwargs)
    record = _Record()
    backend = Backend(functools.partial(_compile_checked, record=record), options or {})

    def compiled(program: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(program, backend=backend)

    fused = run_program(model, args, kwargs, compiled)
    raise_first(record.checks)
    wrap = unfused if record.is_random else itself
    eager = run_program(model, args, kwargs, wrap)
    exact, note = run_wide(model, args, kwargs, wrap)
    tensors, notes = compare_runs(fused, eager, exact)
    report = Report(
        tuple(record.checks), tuple(tensors), record.kernels, record.ops,
        tuple(n for n in (*record.notes, note, *notes) if n),
    )  # fmt: skip
    for check in report.tensors:
        if not check.comparison.is_right:
            raise mismatch(check.name, (), "the whole model", check.comparison)
    return report


def need_kernels(function: str, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """On a CPU, switch Triton's interpreter on while that is still possible."""
    values = pytree.tree_leaves((args, kwargs))
    if isinstance(model, nn.Module):
        values += [*model.parameters(), *model.buffers()]
    if any(isinstance(v, torch.Tensor) and v.is_cuda for v in values) or is_interpreting():
        return
    raise InvalidArgument(
        function=function, argument="model", value="a model on the CPU",
        expected="a model on a GPU, or TRITON_INTERPRET=1 set before Python starts "
        "(generated kernels run on a CPU only in Triton's interpreter)",
    )  # fmt: skip


# Regions ----------------------------------------------------------------------------------------


@dataclass
class _Record:
    """What the checked graphs report while the model runs."""

    checks: list[RegionCheck] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    kernels: int = 0
    ops: int = 0
    is_random: bool = False
    """Whether a graph makes random numbers from a seed: they are not those of eager."""


def _compile_checked(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    context: CompileContext,
    record: _Record,
) -> Callable[..., Any]:
    """Compile as usual, but run region by region and compare each, then the host program."""
    compiled = compile_graph(module, inputs, context)
    record.is_random |= is_random(module)
    executable, plan = compiled.executable, compiled.plan
    if executable is None or plan is None:
        record.notes.append(f"graph {context.graph_index} runs unfused: {compiled.reason}")
        return compiled.run
    record.kernels += len(plan.regions)
    record.ops += sum(len(region.ops) for region in plan.regions)

    def run(inputs: list[Any]) -> Any:
        symbols = symbol_values(plan.graph, inputs)

        def observe(region: Region, before: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
            record.checks += check_region(plan, region, before, outputs, symbols, context)

        # A graph may write to its inputs.
        again = [copied(value) for value in inputs]
        with torch.random.fork_rng():
            walked = executable.walk(inputs, observe)
        found = host_difference(executable, again, walked)
        if found is not None:
            raise mismatch(f"host program of the {context.phase} graph", (), *found)
        return walked

    return run


def compare_runs(
    fused: Mapping[str, torch.Tensor],
    eager: Mapping[str, torch.Tensor],
    exact: Mapping[str, torch.Tensor],
) -> tuple[list[TensorCheck], list[str]]:
    checks: list[TensorCheck] = []
    notes: list[str] = []
    for name, expected in eager.items():
        if name not in fused:
            raise FusionMismatch(
                region="the whole model", operations=(), source_line="", index=(), fused_value=0.0,
                eager_value=0.0, reference_value=0.0, fused_error=0.0, eager_error=0.0,
                detail=f"{name} is missing",
            )  # fmt: skip
        is_float = expected.is_floating_point() or expected.is_complex()
        reference = exact.get(name)
        if is_float and (reference is None or reference.shape != expected.shape):
            notes.append(f"{name} has no float64 reference")
            continue
        wide = expected if reference is None else reference
        checks.append(TensorCheck(name, compare(fused[name], expected, wide, steps=64)))
    return checks, notes
