"""Which ops are approximated: those whose value eager rounds to a half type, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser.ir.ops import TABLE
from fuser.passes.approximate import approximate, is_approximate, weight_of
from fuser.passes.pipeline import plan_graph
from support.graphs import captured_graph, graph_of, kernels_of, op_of

HALVES = (torch.float16, torch.bfloat16)


def marked(fn: Callable[..., Any], *args: Tensor) -> list[str]:
    """The kinds of the ops that are approximated, in program order."""
    return [op.kind for op in approximate(captured_graph(fn, *args)).ops if is_approximate(op)]


def half(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.ones(shape or (7, 33), dtype=dtype)


ROUNDED_AT_ONCE: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erfc": torch.erfc,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "reciprocal": torch.reciprocal,
    "divide": lambda x: x / (x + 1),
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("kind", ROUNDED_AT_ONCE)
def test_a_result_of_a_half_type(kind: str, dtype: torch.dtype) -> None:
    assert marked(ROUNDED_AT_ONCE[kind], half(dtype=dtype)) == [kind]
    for wide in (torch.float32, torch.float64):
        assert marked(ROUNDED_AT_ONCE[kind], half(dtype=wide)) == []


ROUNDED_IN_THE_END: dict[str, tuple[Callable[[Tensor], Tensor], list[str]]] = {
    "softmax": (lambda x: F.softmax(x, -1), ["exp", "divide"]),
    "silu": (F.silu, ["sigmoid"]),
    "gelu": (F.gelu, ["erfc"]),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), ["sigmoid"]),
}


@pytest.mark.parametrize("name", ROUNDED_IN_THE_END)
def test_a_call_that_rounds_in_the_end(name: str) -> None:
    call, kinds = ROUNDED_IN_THE_END[name]
    assert marked(call, half()) == kinds
    assert marked(call, half(dtype=torch.float32)) == []


def test_a_quotient_that_is_stored_as_float8() -> None:
    def quantised(x: Tensor, scale: Tensor) -> Any:
        return (x.float() / scale).to(torch.float8_e4m3fn)

    scale = half(7, 1, dtype=torch.float32)
    assert marked(quantised, half(), scale) == ["divide"]
    assert marked(lambda x, y: (x.float() / y).bfloat16(), half(), scale) == []


EXACT: dict[str, Callable[[Tensor], Any]] = {
    "the user computes in float32": lambda x: torch.exp(x.float()).bfloat16(),
    "softmax in float32": lambda x: F.softmax(x, -1, dtype=torch.float32).bfloat16(),
    "a difference": lambda x: F.log_softmax(x, -1),
    "a sum with a number of either sign": lambda x: F.elu(x),
    "no approximate form": lambda x: torch.lgamma(torch.sin(x)),
}


@pytest.mark.parametrize("name", EXACT)
def test_what_stays_exact(name: str) -> None:
    assert marked(EXACT[name], half()) == []


def test_a_value_of_a_call_that_leaves_the_graph_stays_exact() -> None:
    graph = graph_of(lambda x: F.softmax(x, -1, dtype=torch.float32), half())
    assert not any(map(is_approximate, approximate(graph).ops))


def test_marking_twice_changes_nothing() -> None:
    once = approximate(graph_of(torch.exp, half()))
    assert approximate(once).ops == once.ops


def test_costs_follow() -> None:
    graph = graph_of(torch.sigmoid, half())
    exact, fewer = op_of(graph, "sigmoid"), op_of(approximate(graph), "sigmoid")
    assert weight_of(fewer) < weight_of(exact)
    for row in TABLE:
        assert bool(row.approximate) == bool(row.approximate_weight)
        assert row.approximate_weight <= row.weight


def test_kernels_call_the_approximate_form() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.sigmoid(x) / torch.exp(x)

    for dtype, expected in ((torch.float16, True), (torch.float32, False)):
        (kernel,) = kernels_of(program, half(dtype=dtype))
        for kind in ("sigmoid", "divide", "exp"):
            assert (f"fn.approximate_{kind}(" in kernel.source) is expected
            assert (f"fn.{kind}(" in kernel.source) is not expected


def test_eager_precision_approximates_nothing() -> None:
    plan = plan_graph(graph_of(torch.exp, half()), "sm_90", rounds_everywhere=True)
    assert not any(map(is_approximate, plan.graph.ops))


STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "floor": torch.floor,
    "sign": torch.sign,
    "remainder": lambda y: y % 1.0,
    "floor_divide": lambda y: y // 1.0,
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_reads_a_rounded_value(name: str) -> None:
    """6 / 3 may be a little less than 2, and the floor of that is 1."""

    def program(x: Tensor, y: Tensor) -> Tensor:
        return STEPS[name](x / y)

    (kernel,) = kernels_of(program, half(), half())
    (line,) = [line for line in kernel.source.splitlines() if "fn.approximate_divide" in line]
    quotient = line.split("=")[0].strip()
    assert f"fn.round_to({quotient}, tl.bfloat16)" in kernel.source
