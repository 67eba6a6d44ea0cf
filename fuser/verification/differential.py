"""Run a model fused and compare every region, then the whole model, with eager and float64.

In: a model or function and the arguments of one call; copies are run, so the originals stay as they
are. Out: a `Report`; the first difference beyond the tolerance raises `FusionMismatch` instead.
Every run starts from the same seed. A program whose kernels make random numbers is compared with
its own graphs run unfused, because eager's numbers are others.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from fuser.capture.backend import Backend, CompileContext
from fuser.capture.seeds import is_random
from fuser.driver import compile_graph
from fuser.errors import FusionMismatch, InvalidArgument
from fuser.ir.dim import evaluate
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region, Strategy
from fuser.numerics import Comparison, compare
from fuser.runtime.executable import symbol_values
from fuser.runtime.interpreter import is_interpreting
from fuser.runtime.unfused import run_ops
from fuser.verification.report import RegionCheck, Report, TensorCheck

SEED = 20_261_130

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def verify_program(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
) -> Report:
    """See the module's docstring; `options` are those the model would be compiled with."""
    _need_kernels(model, args, kwargs)
    record = _Record()
    backend = Backend(functools.partial(_compile_checked, record=record), options or {})

    def compiled(program: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(program, backend=backend)

    fused = _run(model, args, kwargs, compiled)
    _raise_first(record.checks)
    wrap = unfused if record.is_random else _itself
    eager = _run(model, args, kwargs, wrap)
    exact, note = _run_wide(model, args, kwargs, wrap)
    tensors, notes = _compare_runs(fused, eager, exact)
    report = Report(
        tuple(record.checks), tuple(tensors), record.kernels, record.ops,
        tuple(n for n in (*record.notes, note, *notes) if n),
    )  # fmt: skip
    for check in report.tensors:
        if not check.comparison.is_right:
            raise _mismatch(check.name, (), "the whole model", check.comparison)
    return report


def unfused(program: Callable[..., Any]) -> Callable[..., Any]:
    """The program with its graphs run call by call, random numbers the same functions of the seed
    as in kernels: what a fused random program is compared with."""
    return torch.compile(program, backend=Backend(_as_captured, name="fuser_unfused"))


def _as_captured(module: fx.GraphModule, _: Sequence[Any], __: CompileContext) -> fx.GraphModule:
    return module


def _itself(program: Callable[..., Any]) -> Callable[..., Any]:
    return program


def _need_kernels(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """On a CPU, switch Triton's interpreter on while that is still possible."""
    values = pytree.tree_leaves((args, kwargs))
    if isinstance(model, nn.Module):
        values += [*model.parameters(), *model.buffers()]
    if any(isinstance(v, torch.Tensor) and v.is_cuda for v in values) or is_interpreting():
        return
    raise InvalidArgument(
        function="verify", argument="model", value="a model on the CPU",
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
    """Compile as usual, but run region by region and compare each."""
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

        return executable.walk(inputs, observe)

    return run


def check_region(
    plan: FusionPlan,
    region: Region,
    before: Mapping[str, Any],
    outputs: Mapping[str, Any],
    symbols: Mapping[str, int],
    context: CompileContext,
) -> list[RegionCheck]:
    """Compare the stored values of one region with its ops run unfused on the same inputs."""
    graph = plan.graph
    eager, exact = dict(before), dict(before)
    run_ops(graph, region.all_ops, eager, symbols)
    run_ops(graph, region.all_ops, exact, symbols, precision=torch.float64)
    row = evaluate(region.space.reduced_size, symbols)
    if region.strategy is Strategy.ROWS_AND_COLUMNS:
        row = max(row, evaluate(region.space.parallel_size, symbols))
    steps = len(region.all_ops) + math.ceil(math.log2(row + 1))
    return [
        RegionCheck(
            context.graph_index, context.phase, region.name, name,
            tuple(graph.by_name[op].kind for op in region.ops),
            str(graph.by_name[name].source),
            compare(outputs[name], eager[name], exact[name], steps),
        )
        for name in region.outputs
    ]  # fmt: skip


def _raise_first(checks: Sequence[RegionCheck]) -> None:
    for check in checks:
        if not check.comparison.is_right:
            where = f"{check.region} ({check.phase} graph {check.graph}), value %{check.value}"
            raise _mismatch(where, check.operations, check.source, check.comparison)


def _mismatch(
    region: str, operations: tuple[str, ...], source: str, comparison: Comparison
) -> FusionMismatch:
    return FusionMismatch(
        region=region,
        operations=operations,
        source_line=source,
        index=comparison.index,
        fused_value=comparison.fused_value,
        eager_value=comparison.eager_value,
        reference_value=comparison.reference_value,
        fused_error=comparison.fused_error,
        eager_error=comparison.eager_error,
        detail=comparison.reason,
    )


# The whole model --------------------------------------------------------------------------------


def _run(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    wrap: Wrap = _itself,
    is_wide: bool = False,
) -> dict[str, torch.Tensor]:
    """One call on copies: outputs, changed arguments, gradients and buffers by name."""
    program = copy.deepcopy(model) if isinstance(model, nn.Module) else model
    if is_wide and isinstance(program, nn.Module):
        program = program.double()
    call_args, call_kwargs = pytree.tree_map(
        functools.partial(_copied, is_wide=is_wide), (tuple(args), dict(kwargs))
    )
    with _seeded():
        outputs = wrap(program)(*call_args, **call_kwargs)
        leaves = pytree.tree_leaves(outputs)
        found = {
            f"output {k}": leaf for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)
        }
        _backward(list(found.values()))
    inputs = pytree.tree_leaves((call_args, call_kwargs))
    for position, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            found[f"argument {position}"] = value
            if value.is_leaf and value.grad is not None:
                found[f"gradient of argument {position}"] = value.grad
    if isinstance(program, nn.Module):
        found |= {f"buffer {name}": buffer for name, buffer in program.named_buffers()}
        found |= {
            f"gradient of {name}": parameter.grad
            for name, parameter in program.named_parameters()
            if parameter.grad is not None
        }
    return {name: value.detach() for name, value in found.items()}


def _copied(value: Any, is_wide: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    fresh = value.detach().clone()
    if is_wide and fresh.is_floating_point():
        fresh = fresh.double()
    return fresh.requires_grad_(value.requires_grad)


def _backward(outputs: Sequence[torch.Tensor]) -> None:
    """Gradients of a fixed, uneven weighting of every output that has a history."""
    total: torch.Tensor | None = None
    for output in outputs:
        if output.requires_grad and output.is_floating_point():
            steps = torch.arange(output.numel(), device=output.device) % 7
            weights = (1.0 + steps).reshape(output.shape).to(output.dtype)
            part = (output * weights).sum()
            total = part if total is None else total + part
    if total is not None:
        total.backward()  # type: ignore[no-untyped-call]


def _run_wide(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], wrap: Wrap
) -> tuple[dict[str, torch.Tensor], str]:
    """The model in float64, or nothing where it does not run in it."""
    try:
        return _run(model, args, kwargs, wrap, is_wide=True), ""
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return {}, f"the whole model does not run in float64 ({reason}): only regions were compared"


def _compare_runs(
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


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        yield


__all__ = ["SEED", "check_region", "unfused", "verify_program"]
