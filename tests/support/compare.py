"""One helper that runs a program by eager, in float64 and fused, and compares everything.

In: a function or module and its arguments. Compared are the outputs (structure, values, element
types, strides, what shares memory with what), the arguments and buffers after the call and, where
asked for, gradients. Memory that generated code writes to is poisoned first, so that an element
that it leaves out is seen. All tolerances come from `fuser.numerics`.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import fuser
from fuser.ir.dim import evaluate
from fuser.ir.region import Strategy
from fuser.numerics import Comparison, compare
from fuser.report import Plan
from fuser.runtime.executable import Executable, poison
from fuser.verification.differential import unfused

__all__ = [
    "Invocation",
    "Rules",
    "assert_matches_eager",
    "copied",
    "generated_kinds",
    "opaque_calls",
    "poisoned",
    "steps_of",
]

SEED = 7
BINADES = 8
"""Elementwise results are compared in groups of magnitudes this many powers of two wide, so that a
large element does not lend its tolerance to a small one."""

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def _itself(program: Callable[..., Any]) -> Callable[..., Any]:
    return program


def assert_matches_eager(
    program: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    grad: bool = False,
    device: str = "cpu",
    dynamic: bool | None = None,
    expect_opaque: Iterable[str] | None = None,
    elementwise: bool = False,
    signed_zeros: bool = True,
    layouts: bool = True,
    is_random: bool = False,
    **options: Any,
) -> tuple[Plan, ...]:
    """Compare `fuser.compile(program, **options)` with eager and float64; return its plans.

    Tensors and modules are copied to `device`; copies keep strides and shared memory.
    `expect_opaque` are the original calls that must be left, no more and no fewer. `elementwise`
    says that an output element depends on few inputs: each magnitude then has its own tolerance,
    and zeros have eager's sign unless `signed_zeros` is false. `layouts=False` leaves strides out.
    An `is_random` program is compared with its own graphs run unfused from the same seed.
    """
    torch.compiler.reset()
    call = Invocation(program, args, dict(kwargs or {}), device, grad)
    reference = unfused if is_random else _itself
    eager, exact = call.run(reference), call.run(reference, is_wide=True)
    handles: list[Any] = []

    def fused_program(target: Callable[..., Any]) -> Callable[..., Any]:
        handles.append(fuser.compile(target, dynamic=dynamic, **options))
        return handles[0]  # type: ignore[no-any-return]

    with poisoned():
        fused = call.run(fused_program)
    plans: tuple[Plan, ...] = fuser.plans(handles[0])
    rules = Rules(steps_of(plans), elementwise, signed_zeros, layouts)
    rules.assert_same_run(fused, eager, exact)
    if expect_opaque is not None:
        assert opaque_calls(plans) == set(expect_opaque), _reasons(plans)
    return plans


def generated_kinds(plans: Iterable[Plan]) -> set[str]:
    """The rows of the op table that the plans' kernels compute."""
    return {
        plan.graph.by_name[name].kind
        for plan in plans
        for region in plan.regions
        for name in region.all_ops
    }


def opaque_calls(plans: Iterable[Plan]) -> set[str]:
    """The names of the original calls that are left in the plans."""
    return {op.call.name for plan in plans for op in plan.opaque}


def steps_of(plans: Iterable[Plan]) -> int:
    """Roundings from inputs to outputs: one an op, and a fold's as many as its tree is deep."""
    steps = 0
    for plan in plans:
        for region in plan.regions:
            row = evaluate(region.space.reduced_size, plan.graph.hints)
            if region.strategy is Strategy.ROWS_AND_COLUMNS:
                row = max(row, evaluate(region.space.parallel_size, plan.graph.hints))
            steps += len(region.all_ops) + math.ceil(math.log2(row + 1))
        steps += len(plan.opaque)
    return max(steps, 1)


def _reasons(plans: Iterable[Plan]) -> str:
    return "; ".join(f"{op.call.name}: {op.reason}" for plan in plans for op in plan.opaque)


# Running ------------------------------------------------------------------------------------------


@dataclass
class Run:
    """What one call left: tensors by name, the rest of its output, and who shares memory."""

    tensors: dict[str, torch.Tensor]
    structure: Any
    others: list[Any]
    shared: set[tuple[str, str]] = field(default_factory=set)
    differentiable: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Invocation:
    """A program and its arguments. `declared`: only tensors that ask for a gradient get one."""

    program: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: str
    grad: bool
    declared: bool = False

    def run(
        self,
        wrap: Wrap = _itself,
        is_wide: bool = False,
    ) -> Run:
        program = self.program
        if isinstance(program, nn.Module):
            program = copy.deepcopy(program).to(self.device)
            program = program.double() if is_wide else program
        given = self.args, self.kwargs
        args, kwargs = copied(given, self.device, is_wide, self.grad, self.declared)
        with torch.random.fork_rng(), torch.set_grad_enabled(self.grad):
            torch.manual_seed(SEED)
            output = wrap(program)(*args, **kwargs)
            leaves = pytree.tree_leaves_with_path(output)
            tensors = {
                f"output{pytree.keystr(path)}": leaf
                for path, leaf in leaves
                if isinstance(leaf, torch.Tensor)
            }
            others = [leaf for _, leaf in leaves if not isinstance(leaf, torch.Tensor)]
            result = Run(tensors, pytree.tree_structure(output), others)
            if self.grad:
                result.differentiable = {n for n, t in tensors.items() if t.requires_grad}
                _backward(list(tensors.values()))
        self.collect(result, program, (args, kwargs))
        return result

    def collect(self, result: Run, program: Callable[..., Any], given: Any) -> None:
        """Add arguments, buffers and gradients to the outputs."""
        tensors = result.tensors
        outputs = dict(tensors)
        inputs = {
            f"argument{pytree.keystr(path)}": leaf
            for path, leaf in pytree.tree_leaves_with_path(given)
            if isinstance(leaf, torch.Tensor)
        }
        state = dict(inputs)
        if isinstance(program, nn.Module):
            state |= {f"parameter {name}": p for name, p in program.named_parameters()}
            state |= {f"buffer {name}": b for name, b in program.named_buffers()}
        names = list({**outputs, **state})
        every = {**outputs, **state}
        result.shared = {
            (first, second)
            for position, first in enumerate(outputs)
            for second in names[position + 1 :]
            if _share_memory(every[first], every[second])
        }
        gradients = {
            f"gradient of {name}": value.grad
            for name, value in state.items()
            if value.is_leaf and value.grad is not None
        }
        result.tensors = {name: value.detach() for name, value in {**every, **gradients}.items()}


_WIDE = {torch.complex64: torch.complex128}


def copied(
    values: Any, device: str, is_wide: bool = False, grad: bool = False, declared: bool = False
) -> Any:
    """Copies of all tensors in `values`, with their strides and with memory shared as it is."""
    storages: dict[int, torch.Tensor] = {}

    def copy_of(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = value.resolve_conj().resolve_neg()
        key = value.untyped_storage()._cdata
        dtype = value.dtype
        if is_wide:
            dtype = torch.float64 if dtype.is_floating_point else _WIDE.get(dtype, dtype)
        if key not in storages:
            whole = torch.empty(0, dtype=value.dtype, device=value.device)
            whole.set_(value.untyped_storage())
            storages[key] = whole.to(device, dtype, copy=True)
        memory = storages[key].untyped_storage()
        fresh = torch.empty(0, dtype=dtype, device=device)
        fresh.set_(memory, value.storage_offset(), value.shape, value.stride())
        wanted = value.requires_grad if declared else fresh.is_floating_point()
        return fresh.requires_grad_(grad and wanted)

    return pytree.tree_map(copy_of, values)


def _backward(outputs: list[torch.Tensor]) -> None:
    """Gradients of a fixed, uneven weighting of every output that has a history."""
    chosen = [t for t in outputs if t.requires_grad and t.is_floating_point()]
    weights = [
        (1.0 + torch.arange(t.numel(), device=t.device) % 5).reshape(t.shape).to(t.dtype)
        for t in chosen
    ]
    torch.autograd.backward(chosen, weights)


def _share_memory(first: torch.Tensor, second: torch.Tensor) -> bool:
    if not first.numel() or not second.numel():
        return False
    return first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


# Poison -------------------------------------------------------------------------------------------


def _filling(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def filled(*arguments: Any, **options: Any) -> torch.Tensor:
        return poison(allocate(*arguments, **options))

    return filled


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Executables made in here get memory full of NaN (integers: 0x7f bytes) to write to."""
    bind = Executable.bind

    def poisoned_bind(
        self: Executable, hooked: bool = False
    ) -> Callable[[list[Any]], tuple[Any, ...]]:
        call = bind(self, hooked)
        for name in {"empty_strided", "empty_on_gpu"} & call.__globals__.keys():
            call.__globals__[name] = _filling(call.__globals__[name])
        return call

    Executable.bind = poisoned_bind  # type: ignore[method-assign]
    try:
        yield
    finally:
        Executable.bind = bind  # type: ignore[method-assign]


# Comparing ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rules:
    steps: int
    elementwise: bool
    signed_zeros: bool
    layouts: bool

    def assert_same_run(self, fused: Run, eager: Run, exact: Run) -> None:
        """All of what two calls left is the same, up to the tolerance of `fuser.numerics`."""
        assert fused.structure == eager.structure, f"structure: {fused.structure}"
        assert fused.others == eager.others, f"{fused.others} for {eager.others}"
        assert fused.tensors.keys() == eager.tensors.keys()
        assert fused.shared == eager.shared, f"shared memory: {fused.shared} for {eager.shared}"
        assert fused.differentiable == eager.differentiable
        for name, expected in eager.tensors.items():
            given = fused.tensors[name]
            for what in ("dtype", "shape", "device"):
                pair = getattr(given, what), getattr(expected, what)
                assert pair[0] == pair[1], f"{name}: {what} {pair[0]} for {pair[1]}"
            # The layout of a gradient is autograd's choice; values are all that counts there.
            if self.layouts and not name.startswith("gradient"):
                strides = _strides(given), _strides(expected)
                assert strides[0] == strides[1], f"{name}: strides {strides[0]} for {strides[1]}"
            self.assert_close(name, given, expected, exact.tensors.get(name, expected))

    def assert_close(
        self, name: str, fused: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor
    ) -> None:
        found = compare(fused, eager, exact, self.steps)
        assert found.is_right, f"{name}{list(found.index)}: {_text(found)}"
        if not self.elementwise or not fused.is_floating_point() or not fused.numel():
            return
        exponents = torch.frexp(exact.to(torch.float64)).exponent
        finite = torch.isfinite(exact) & torch.isfinite(eager)
        groups = torch.where(finite, exponents.div(BINADES, rounding_mode="floor"), 10**6)
        for group in sorted(set(groups.flatten().tolist())):
            members = groups == group
            found = compare(fused[members], eager[members], exact[members], self.steps)
            if not found.is_right:
                place = members.nonzero()[found.index[0]].tolist()
                raise AssertionError(f"{name}{place}: {_text(found)}")
        if self.signed_zeros:
            zeros = (fused == 0) & (eager == 0) & (exact == 0)
            wrong = (zeros & (torch.signbit(fused) != torch.signbit(eager))).nonzero().tolist()
            assert not wrong, f"{name}{wrong[0]}: a zero of the other sign"


def _strides(tensor: torch.Tensor) -> list[int | None]:
    """Strides that mean something: of dimensions with a second element."""
    if not tensor.numel():
        return []
    return [s if n > 1 else None for s, n in zip(tensor.stride(), tensor.shape, strict=True)]


def _text(found: Comparison) -> str:
    return (
        f"fused {found.fused_value!r}, eager {found.eager_value!r}, "
        f"float64 {found.reference_value!r}; allowed {found.allowed:.3g}: {found.reason}"
    )
