"""Rows of which one element is used are not computed whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fuser.ir.graph import Graph
from fuser.passes.canonicalize import remove_unused_ops
from fuser.passes.narrow import gather_early, sum_one_hot
from fuser.runtime.unfused import run_ops, view
from support.graphs import graph_of

CLASSES = torch.tensor([[2], [0], [8], [5]])


def results(graph: Graph, *arguments: Tensor) -> list[Tensor]:
    """What the ops compute, each run as the call that it stands for."""
    names = [item.name for item in graph.inputs]
    environment = dict(zip(names, arguments, strict=True))
    run_ops(graph, [op.name for op in graph.ops], environment, {})
    found = [output.argument for output in graph.outputs if output.argument is not None]
    return [view(graph, argument, environment[argument.value], {}) for argument in found]


def assert_same_results(one: Graph, other: Graph, *arguments: Tensor) -> None:
    for left, right in zip(results(one, *arguments), results(other, *arguments), strict=True):
        assert torch.equal(left, right)


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.ops]


PICKED: dict[str, tuple[Callable[..., Any], bool]] = {
    "of elementwise work": (lambda x, t: (x.exp() * 2).gather(1, t), True),
    "with a value a row": (lambda x, t: x.log_softmax(1).gather(1, t), True),
    "twice of one value": (lambda x, t: (x.exp() - x).gather(1, t), True),
    "with a value a column": (lambda x, t: (x + x[0]).gather(1, t), False),
    "of a result of sums": (lambda x, t: x.cumsum(1).exp().gather(1, t), True),
    "of nothing computed": (lambda x, t: x.gather(1, t), False),
    "of many": (lambda x, t: x.exp().gather(1, t.expand(4, 9)), False),
    "of a part of the rows": (lambda x, t: x.exp().gather(1, t[:2]), False),
}


@pytest.mark.parametrize("case", PICKED)
def test_what_is_picked_first(case: str) -> None:
    program, moves = PICKED[case]
    arguments = torch.randn(4, 9), CLASSES
    graph = graph_of(program, *arguments)
    early = remove_unused_ops(gather_early(graph))
    assert (str(early) != str(remove_unused_ops(graph))) == moves
    if moves:
        (gather,) = (op for op in early.ops if op.kind == "gather")
        producer = early.producers.get(gather.operands[0].value)  # type: ignore[union-attr]
        assert producer is None or producer.is_opaque
    assert_same_results(early, graph, *arguments)


def one_hot(x: Tensor, t: Tensor) -> Tensor:
    hit = torch.arange(9) == t
    return torch.where(hit, x.sum(1, keepdim=True), 0.0).sum(1, keepdim=True)


def elsewhere(x: Tensor, t: Tensor) -> Tensor:
    return torch.where(torch.arange(9) == t, x.sum(1, keepdim=True), 1.0).sum(1, keepdim=True)


def two_apart(x: Tensor, t: Tensor) -> Tensor:
    hit = torch.arange(0, 18, 2) == t
    return torch.where(hit, x.sum(1, keepdim=True), 0.0).sum(1, keepdim=True)


@pytest.mark.parametrize(
    ("program", "folds"),
    [(one_hot, 1), (elsewhere, 2), (two_apart, 2)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_sums_of_one_element(program: Callable[..., Any], folds: int) -> None:
    arguments = torch.randn(4, 9), torch.tensor([[2], [-1], [9], [8]])
    graph = graph_of(program, *arguments)
    assert kinds(graph).count("sum") == 2
    summed = sum_one_hot(graph)
    assert kinds(summed).count("sum") == folds
    assert_same_results(summed, graph, *arguments)
