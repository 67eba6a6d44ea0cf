"""Siblings, which read the same value, as one kernel: which are merged, and that it is right."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser.codegen.generate import generate
from fuser.codegen.host import host_program
from fuser.ir.graph import Graph
from fuser.ir.region import Reason
from fuser.passes.pipeline import plan_graph
from fuser.runtime.executable import Executable
from support.compare import assert_matches_eager, poisoned
from support.graphs import assert_plan_holds, only_region, plan_of, reasons
from support.plans import Sketch
from support.runtime import DEVICE, needs_kernels

Program = Callable[..., Any]
X = torch.randn(6, 32)


def heads(x: Tensor) -> Any:
    """Queries and keys are normalised, values are scaled, all from one product."""
    q, k, v = x.view(2, 5, 3, 2, 8).unbind(2)
    return F.normalize(q, dim=-1), F.normalize(k, dim=-1), v * 2


TOGETHER: dict[str, tuple[Program, tuple[Tensor, ...]]] = {
    "two reductions": (lambda x: (x.sum(1), x.amax(1)), (X,)),
    "a reduction and its position": (lambda x: (x.amax(1), x.argmax(1)), (X,)),
    "pointwise and a reduction": (lambda x: (x.exp(), x.sum(1)), (X,)),
    "softmax and layer norm": (lambda x: (F.softmax(x, -1), F.layer_norm(x, (32,))), (X,)),
    "two halves": (lambda x: (x[:, :16].exp(), x[:, 16:].sin()), (X,)),
    "sums of two halves": (lambda x: (x[:, :16].sum(1), x[:, 16:].amax(1)), (X,)),
    "every other row": (lambda x: (x[::2].exp(), x[1::2].sin()), (X,)),
    "three chunks": (
        lambda x: tuple(part.tanh() * k for k, part in enumerate(x.chunk(3, -1))),
        (torch.randn(6, 24),),
    ),
    "heads of one product": (heads, (torch.randn(2, 5, 48),)),
    "readers of a row's statistic": (
        lambda x, s: (x * s, (x.exp() - s).sum(1)),
        (X, torch.randn(6, 1)),
    ),
    "the same read another way": (lambda x: (x.exp(), x.t().sin()), (X,)),
    "rows and their columns": (lambda x: (x.exp(), x.t().contiguous()), (X,)),
    "pointwise of other rows than a sum": (lambda x: (x.exp(), x.reshape(3, 64).sum(1)), (X,)),
    "four of one": (lambda x: (x + 1, x * 2, x.sum(0), x.amax(0)), (X,)),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_siblings_are_one_kernel(name: str) -> None:
    program, args = TOGETHER[name]
    region = only_region(plan_of(program, *args))
    assert len(region.inputs) == len(args), "each value is read through one argument"


@needs_kernels
@pytest.mark.parametrize("name", TOGETHER)
def test_siblings_compute_what_eager_does(name: str) -> None:
    program, args = TOGETHER[name]
    (plan,) = assert_matches_eager(program, *args, device=DEVICE)
    assert len(plan.regions) == 1


@needs_kernels
@pytest.mark.parametrize("shape", [(2, 20000), (2100, 3), (3, 33000)], ids=str)
def test_siblings_of_long_rows_compute_what_eager_does(shape: tuple[int, ...]) -> None:
    """Rows that are split over programs, or walked in passes."""
    dim = 1 if shape[1] > shape[0] else 0
    x = torch.randn(shape)

    def program(x: Tensor) -> Any:
        return x.sum(dim), x.amax(dim), x * 2, x.narrow(dim, 1, 2) + 1

    plan = plan_of(program, x, target="sm_90")
    kernels = generate(plan)
    with poisoned():
        found = Executable(plan, kernels, host_program(plan, kernels))([x.to(DEVICE)])
    for given, wanted in zip(found, program(x), strict=True):
        torch.testing.assert_close(given.cpu(), wanted, rtol=1e-4, atol=1e-3)


def test_siblings_over_different_axes_stay_apart() -> None:
    plan = plan_of(lambda x: (x.sum(0), x.sum()), X)
    assert [len(region.ops) for region in plan.regions] == [1, 1]
    assert_plan_holds(plan)


def test_siblings_with_a_call_between_them_stay_apart() -> None:
    """Both read x, but the second waits for a call that waits for the first."""
    plan = plan_of(lambda x: (lambda y: y.cumsum(0) * x)(x.exp()), X)
    assert plan.order == ("region_0", plan.opaque[0], "region_1")
    assert reasons(plan) == {Reason.OPAQUE_READER, Reason.OPAQUE_PRODUCER}
    assert_plan_holds(plan)


def test_siblings_with_a_kernel_between_them_stay_apart() -> None:
    """The first leads to the second through a reduction over another axis."""
    plan = plan_of(lambda x: (lambda s: x.exp() * s.sum(0))(x.sum(1)), torch.randn(64, 64))
    assert len(plan.regions) > 1
    assert_plan_holds(plan)


def test_siblings_on_either_side_of_a_write_stay_apart() -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        before = x * w
        w.add_(1)
        return before, x - w

    plan = plan_of(program, X, X + 1)
    assert plan.order == ("region_0", "add_", "region_1")
    assert_plan_holds(plan)


# Time -------------------------------------------------------------------------------------------


def readers(size: int) -> Graph:
    """One value that many ops read, every other one of them a reduction."""
    sketch = Sketch()
    x = sketch.input("x", 64, 256)
    ends = [
        sketch.pointwise("mul", x, float(k)) if k % 2 else sketch.reduction("sum", x, 1, name="s")
        for k in range(size)
    ]
    return sketch.graph(*ends)


def seconds(size: int) -> float:
    graph = readers(size)
    start = time.process_time()
    plan_graph(graph, "sm_90")
    return time.process_time() - start


def test_readers_of_one_value_are_planned_in_linear_time() -> None:
    few, many = seconds(120), seconds(480)
    assert many < 10 * few, "four times the readers would take sixteen times as long"


@pytest.mark.slow
def test_five_thousand_readers_are_planned_in_time() -> None:
    assert seconds(5000) < 30


def test_a_kernel_of_siblings_keeps_the_limits() -> None:
    plan = plan_graph(readers(200), "sm_90")
    assert_plan_holds(plan)
    assert max(len(region.inputs) + len(region.outputs) for region in plan.regions) <= 48
    assert len(plan.regions) < 10
