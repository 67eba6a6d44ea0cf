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
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

import fuser
from fuser.report import Plan
from fuser.verification.differential import unfused
from opinfo.cases import Case
from support.compare import Invocation, Rules, Run, generated_kinds, poisoned, steps_of
from support.random_programs import RANDOM

__all__ = ["Outcome", "check"]

FAILED, FUSED, MIXED, OPAQUE, RAISED, UNTRACED = (
    "failed", "fused", "mixed", "opaque", "raised", "untraced",
)  # fmt: skip
"""What becomes of a call: something differs from eager; all of it is in kernels (or views, that
need none); kernels and original calls; original calls; eager raises and so does fuser; Dynamo or
AOTAutograd left it to eager."""


@dataclass(frozen=True)
class Outcome:
    """What became of one call. `calls` are the original calls that are left in the graphs."""

    name: str
    status: str
    detail: str = ""
    calls: tuple[str, ...] = ()
    kernels: int = 0
    traced_layout: bool = False
    """Strides are not eager's but those that torch's own shape functions give."""


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
            return _compare_errors(case.name, eager, fused)
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
        return _compare(case, outcome, plans, (fused, eager, exact))


def _attempt(run: Callable[[], Run]) -> Run | Exception:
    try:
        return run()
    except Exception as error:
        return error


def _compare_errors(name: str, eager: Run | Exception, fused: Run | Exception) -> Outcome:
    if isinstance(eager, Exception) and isinstance(fused, Exception):
        if isinstance(fused, type(eager)):
            return Outcome(name, RAISED)
        return Outcome(name, FAILED, f"raises {_named(fused)} for {_named(eager)}")
    if isinstance(fused, Exception):
        return Outcome(name, FAILED, f"raises {_named(fused)}")
    assert isinstance(eager, Exception)
    return Outcome(name, FAILED, f"does not raise {_named(eager)}")


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _outcome(name: str, plans: tuple[Plan, ...]) -> Outcome:
    kernels = sum(len(plan.regions) for plan in plans)
    calls = tuple(sorted({op.call.name for plan in plans for op in plan.opaque}))
    if not plans:
        return Outcome(name, UNTRACED)
    status = FUSED if not calls else MIXED if kernels else OPAQUE
    return Outcome(name, status, "", calls, kernels)


def _compare(
    case: Case, outcome: Outcome, plans: tuple[Plan, ...], runs: tuple[Run, Run, Run]
) -> Outcome:
    difference = _difference(plans, runs, layouts=True)
    if difference.partition(": ")[2].startswith("strides") and _is_traced_layout(case, runs[0]):
        difference = _difference(plans, runs, layouts=False)
        outcome = replace(outcome, traced_layout=True)
    if difference:
        return replace(outcome, status=FAILED, detail=difference)
    return outcome


def _difference(plans: tuple[Plan, ...], runs: tuple[Run, Run, Run], layouts: bool) -> str:
    rules = Rules(steps_of(plans), elementwise=False, signed_zeros=True, layouts=layouts)
    try:
        rules.assert_same_run(*runs)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""


def _is_traced_layout(case: Case, fused: Run) -> bool:
    """Whether the results' strides are those of torch's own shape functions."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        args, kwargs = pytree.tree_map(
            lambda x: mode.from_tensor(x.detach()) if isinstance(x, Tensor) else x,
            (case.args, case.kwargs),
        )
        expected = pytree.tree_leaves(case.program(*args, **kwargs))
    strides = [x.stride() for x in expected if isinstance(x, Tensor)]
    given = [x.stride() for name, x in fused.tensors.items() if name.startswith("output")]
    return strides == given


def _without_values(run: Run) -> Run:
    """The run with zeros in place of what was in memory before."""
    outputs = {n: t.clone().zero_() for n, t in run.tensors.items() if n.startswith("output")}
    return replace(run, tensors={**run.tensors, **outputs})
