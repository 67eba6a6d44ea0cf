"""How a region walks its rows: by row length, row count, and what waits for what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser.ir.region import Region, Strategy
from fuser.passes.strategy import (
    MAX_ROW_IN_REGISTERS,
    MAX_SPLIT_ROWS,
    MIN_LOOPED_ROW,
    MIN_SPLIT_ROW,
    can_split,
)
from support.graphs import graph_of, only_region, plan_of

Program = Callable[..., Any]


def region_of(program: Program, *shape: int, dynamic: bool = False) -> Region:
    return only_region(plan_of(program, torch.empty(shape), dynamic=dynamic))


def total(x: Tensor) -> Tensor:
    return x.sum(1)


def softmax(x: Tensor) -> Tensor:
    return x.softmax(1)


@pytest.mark.parametrize(
    ("rows", "row", "strategy"),
    [
        (4096, 64, Strategy.ROW_IN_REGISTERS),
        (4096, MIN_LOOPED_ROW, Strategy.ROW_IN_REGISTERS),
        # One block a processor has it in registers, and loads nothing while it adds.
        (4096, MAX_ROW_IN_REGISTERS, Strategy.LOOPED),
        (4096, MAX_ROW_IN_REGISTERS + 1, Strategy.LOOPED),
        (MAX_SPLIT_ROWS, MIN_SPLIT_ROW, Strategy.SPLIT),
        (MAX_SPLIT_ROWS, MIN_SPLIT_ROW - 1, Strategy.ROW_IN_REGISTERS),
        (MAX_SPLIT_ROWS + 1, MIN_SPLIT_ROW, Strategy.ROW_IN_REGISTERS),
        (1, 1 << 20, Strategy.SPLIT),
    ],
)
def test_rows_decide(rows: int, row: int, strategy: Strategy) -> None:
    assert region_of(total, rows, row).strategy is strategy


@pytest.mark.parametrize(
    ("row", "strategy"),
    [
        (64, Strategy.ROW_IN_REGISTERS),
        (MIN_LOOPED_ROW, Strategy.ROW_IN_REGISTERS),
        (MAX_ROW_IN_REGISTERS, Strategy.LOOPED),
        (40000, Strategy.LOOPED),
    ],
)
def test_a_softmax_is_never_split(row: int, strategy: Strategy) -> None:
    # With many rows: of few, the folds are cut off and split by themselves.
    assert region_of(softmax, 4096, row).strategy is strategy


def test_a_row_of_unknown_length_is_looped() -> None:
    assert region_of(softmax, 8, 64, dynamic=True).strategy is Strategy.LOOPED
    assert region_of(total, 8, 64, dynamic=True).strategy is Strategy.LOOPED


def test_hints_say_whether_rows_of_unknown_length_are_split() -> None:
    assert region_of(total, 8, 40000, dynamic=True).strategy is Strategy.SPLIT


def test_without_reductions_there_are_no_rows() -> None:
    assert region_of(torch.exp, 8, 40000).strategy is Strategy.FLAT


def test_a_single_element_is_a_row() -> None:
    region = region_of(lambda x: x.sum(1).exp(), 4, 1)
    assert region.strategy is Strategy.ROW_IN_REGISTERS
    assert region.space.reduced == ()


def test_columns_and_whole_tensors_are_rows_too() -> None:
    assert region_of(lambda x: x.sum(0), 40000, 8).strategy is Strategy.SPLIT
    assert region_of(lambda x: x.sum(), 300, 300).strategy is Strategy.SPLIT
    assert region_of(lambda x: x.sum((0, 2)), 200, 8, 200).strategy is Strategy.SPLIT


SPLITTABLE: dict[str, tuple[Program, bool]] = {
    "a sum": (lambda x: x.sum(1), True),
    "several at once": (lambda x: (lambda y: (y.sum(1), y.amax(1)))(x.exp()), True),
    "a value of each row after": (lambda x: x.mean(1).exp() + 1, True),
    "a long value before": (lambda x: (lambda y: (y, y.sum(1)))(x.exp()), True),
    "a long value after": (lambda x: x - x.mean(1, keepdim=True), False),
    "a reduction after another": (lambda x: (x * x.amax(1, keepdim=True)).sum(1), False),
    "a spread": (lambda x: x.var(1), True),
    "a sum of exponentials": (lambda x: x.logsumexp(1), True),
    "an exponential after its sum": (lambda x: x.softmax(1), False),
    "a position": (lambda x: x.argmax(1), False),
    "a loss": (lambda x: F.mse_loss(x, x.sin()), True),
}


@pytest.mark.parametrize("case", SPLITTABLE)
def test_what_can_be_split(case: str) -> None:
    program, expected = SPLITTABLE[case]
    x = torch.empty(4, 6)
    region = only_region(plan_of(program, x))
    graph = graph_of(program, x)
    assert can_split(graph, graph.ops, frozenset(region.outputs), region.space) is expected
