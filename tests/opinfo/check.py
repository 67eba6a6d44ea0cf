"""One call through fuser, by eager and in float64: whether all agrees, and what became of it.

In: a `Case`. Out: an `Outcome`. Values, element types, shapes, strides, shared memory, what is
written to arguments, gradients and exceptions are compared by `support.compare`, with the
tolerances of `fuser.numerics`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException
from torch.utils import _pytree as pytree

import fuser
from fuser.passes.library import ALONE
from fuser.philox import draw_seed
from fuser.report import Plan
from fuser.verification.differential import unfused
from opinfo.cases import Case
from support.compare import Invocation, Rules, Run, generated_kinds, poisoned, steps_of
from support.random_programs import RANDOM

__all__ = ["Outcome", "check"]

FAILED, KNOWN, FUSED, MIXED, OPAQUE, RAISED, BEYOND, UNTRACED = (
    "failed", "known", "fused", "mixed", "opaque", "raised", "beyond", "untraced",
)  # fmt: skip
"""What becomes of a call: it differs from eager, or does for a reason that `opinfo.known` has; all
of it is in kernels (views need none, and lone products are the library's); kernels and original
calls; original calls; eager raises and so does fuser; eager has no kernel for a valid sample and
fuser does; Dynamo or AOTAutograd left it to eager."""


@dataclass(frozen=True)
class Outcome:
    """What became of one call. `calls` are the original calls that are left in the graphs, without
    products that nothing is fused into: those are the library's by choice, and in `products`."""

    name: str
    status: str
    detail: str = ""
    calls: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    kernels: int = 0
    is_traced: bool = False
    """Strides or shared memory are not eager's, but those of the graph that torch traced."""


def check(case: Case, device: str, dynamic: bool | None = None) -> Outcome:
    """Run one call in all ways; a difference is an outcome, not an error."""
    torch.compiler.reset()
    call = Invocation(case.program, case.args, case.kwargs, device, case.grad, declared=True)
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")
        stack.enter_context(poisoned())
        handles: list[Any] = []

        def fused_program(target: Callable[..., Any]) -> Callable[..., Any]:
            handles.append(fuser.compile(target, dynamic=dynamic))
            return handles[0]  # type: ignore[no-any-return]

        eager = _attempt(lambda: call.run())
        if isinstance(eager, Exception) and case.grad:
            # Some samples have no gradient: they are compared without.
            return check(replace(case, grad=False), device, dynamic)
        fused = _attempt(lambda: call.run(fused_program))
        if isinstance(eager, Exception) or isinstance(fused, Exception):
            return _compare_errors(case, eager, fused)
        plans: tuple[Plan, ...] = fuser.plans(handles[0])
        if generated_kinds(plans) & RANDOM:
            torch.compiler.reset()
            eager = call.run(unfused)
        outcome = _outcome(case.name, plans)
        args, kwargs = case.widened
        wide = replace(call, args=args, kwargs=kwargs)
        exact = _attempt(lambda: wide.run(is_wide=True))
        if isinstance(exact, Exception):
            exact = eager
        if not case.has_values:
            fused, exact = _without_values(fused), _without_values(exact)
            eager = _without_values(eager)
        difference = _difference(case, plans, (fused, eager, exact))
        if difference.partition(": ")[0] == "shared memory" or ": strides" in difference:
            torch.compiler.reset()
            traced = _attempt(lambda: call.run(_as_traced))
            if not isinstance(traced, Exception):
                eager = _with_layouts(eager, traced)
                difference = _difference(case, plans, (fused, eager, exact))
                outcome = replace(outcome, is_traced=not difference)
        if "beyond the tolerance" in difference:
            moved = _attempt(lambda: replace(wide, args=_moved(args)).run(is_wide=True))
            if not isinstance(moved, Exception):
                difference = _difference(case, plans, (fused, _farther(eager, moved, exact), exact))
        return replace(outcome, status=FAILED, detail=difference) if difference else outcome


def _as_traced(program: Callable[..., Any]) -> Callable[..., Any]:
    """The program as torch traces it, its calls run one by one without fuser."""
    return torch.compile(program, backend="aot_eager")


def _attempt(run: Callable[[], Run]) -> Run | Exception:
    try:
        return run()
    except Exception as error:
        return error


def _compare_errors(case: Case, eager: Run | Exception, fused: Run | Exception) -> Outcome:
    if isinstance(fused, Exception) and isinstance(eager, Exception):
        if isinstance(fused, type(eager)):
            return Outcome(case.name, RAISED)
        if isinstance(fused, TorchDynamoException):
            # What a traced call raises, Dynamo wraps: no backend sees it.
            return Outcome(case.name, RAISED, f"{type(fused).__name__} for {_named(eager)}")
        return Outcome(case.name, FAILED, f"raises {_named(fused)} for {_named(eager)}")
    if isinstance(fused, Exception):
        return Outcome(case.name, FAILED, f"raises {_named(fused)}")
    assert isinstance(eager, Exception)
    status = FAILED if case.is_error else BEYOND
    return Outcome(case.name, status, f"does not raise {_named(eager)}")


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _outcome(name: str, plans: tuple[Plan, ...]) -> Outcome:
    if not plans:
        return Outcome(name, UNTRACED)
    kernels = sum(len(plan.regions) for plan in plans)
    left = [op for plan in plans for op in plan.opaque if op.call.target is not draw_seed]
    products = {op.call.name for op in left if op.reason.startswith(ALONE)}
    calls = {op.call.name for op in left if not op.reason.startswith(ALONE)}
    status = FUSED if not calls else MIXED if kernels else OPAQUE
    return Outcome(name, status, "", tuple(sorted(calls)), tuple(sorted(products)), kernels)


def _difference(case: Case, plans: tuple[Plan, ...], runs: tuple[Run, Run, Run]) -> str:
    rules = Rules(steps_of(plans), case.is_elementwise, signed_zeros=False, layouts=True)
    try:
        rules.assert_same_run(*runs)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""


def _moved(args: Any) -> Any:
    """The arguments in float64, each number changed by one rounding of its type. What that changes
    in exact results is the error that a backward-stable computation may have (Higham, Accuracy and
    Stability of Numerical Algorithms, chapter 1), although eager's order of additions may happen to
    give none. Half types are rounded again between a forward pass and its gradient."""
    generator = torch.Generator().manual_seed(3)

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        sign = torch.randint(0, 2, value.shape, generator=generator).to(value.device) * 2 - 1
        wide = value.detach().double() * (1 + torch.finfo(value.dtype).eps * sign)
        return wide.requires_grad_(value.requires_grad)

    return pytree.tree_map(moved, args)


def _farther(eager: Run, moved: Run, exact: Run) -> Run:
    """Eager's run with the values of the other where those are farther from the exact ones."""

    def farther(name: str, value: Tensor) -> Tensor:
        other, right = moved.tensors.get(name), exact.tensors.get(name)
        if other is None or right is None or not value.is_floating_point():
            return value
        is_farther = (other - right).abs() > (value.double() - right).abs()
        return torch.where(is_farther, other.to(value.dtype), value)

    values = {name: farther(name, value) for name, value in eager.tensors.items()}
    return _with_layouts(replace(eager, tensors=values), eager)


def _with_layouts(values: Run, layouts: Run) -> Run:
    """The values of one run in the strides, and with the shared memory, of another."""

    def laid_out(value: Tensor, like: Tensor) -> Tensor:
        if value.shape != like.shape or value.dtype != like.dtype:
            return value
        return torch.empty_strided(
            like.shape, like.stride(), dtype=like.dtype, device=like.device
        ).copy_(value)

    names = values.tensors.keys() & layouts.tensors.keys()
    changed = {n: laid_out(values.tensors[n], layouts.tensors[n]) for n in names}
    return replace(values, tensors={**values.tensors, **changed}, shared=layouts.shared)


def _without_values(run: Run) -> Run:
    """The run with zeros in place of what was in memory before."""
    outputs = {n: t.clone().zero_() for n, t in run.tensors.items() if n.startswith("output")}
    return replace(run, tensors={**run.tensors, **outputs})
