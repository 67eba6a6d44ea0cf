"""Which sums a pass can form before their shift is known, and in how many passes rows are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fuser.passes.online import Rule, shifted_sums
from fuser.passes.stages import needed_in_passes, online_sums, reduction_stages
from support.graphs import graph_of

Program = Callable[[Tensor], Any]


def weighed(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(1, keepdim=True))
    return torch.where(x > 0, -e * x, 0).sum(1) / 3


def squared(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(1, keepdim=True))
    return (e * e).sum(1)


def divided_by(x: Tensor) -> Tensor:
    return (x / torch.exp(x - x.amax(1, keepdim=True))).sum(1)


def from_another_mean(x: Tensor) -> Tensor:
    return ((x - x.exp().mean(1, keepdim=True)) ** 2).sum(1)


def from_a_sum(x: Tensor) -> Tensor:
    return ((x - x.sum(1, keepdim=True) / 7) ** 2).sum(1)


def past_a_half(x: Tensor) -> Tensor:
    return torch.exp((x - x.amax(1, keepdim=True)).half().float()).sum(1)


CASES: dict[str, tuple[Program, list[Rule], int]] = {
    # Of each program its rules and the passes over a row.
    "softmax": (lambda x: x.softmax(1), [Rule.EXPONENTIAL], 2),
    "logsumexp": (lambda x: x.logsumexp(1), [Rule.EXPONENTIAL], 1),
    "log_softmax": (lambda x: x.log_softmax(1), [Rule.EXPONENTIAL], 2),
    "linear in the exponential": (weighed, [Rule.EXPONENTIAL], 1),
    "not linear": (squared, [], 2),
    "a divisor": (divided_by, [], 2),
    "a rounded distance": (past_a_half, [], 2),
    "var": (lambda x: x.var(1), [Rule.SQUARE], 1),
    "a norm": (lambda x: torch.layer_norm(x, x.shape[1:]), [Rule.SQUARE], 2),
    "the mean of something else": (from_another_mean, [], 2),
    "a sum that is no mean": (from_a_sum, [], 2),
}


@pytest.mark.parametrize("case", CASES)
def test_rules_and_passes(case: str) -> None:
    program, rules, passes = CASES[case]
    graph = graph_of(program, torch.empty(4, 9))
    found = shifted_sums(graph.ops)
    assert [each.rule for each in found.values()] == rules
    assert set(online_sums(graph.ops)) == set(found)
    (row,) = (item.name for item in graph.inputs)
    needed = needed_in_passes(graph.ops, graph.output_values)
    walks = [names for names in needed if any(row in graph.by_name[n].reads for n in names)]
    assert len(walks) == passes
    stages = reduction_stages(graph.ops)
    assert all(stages[name] == 0 for name in found)


def test_what_is_rounded_is_no_matter_of_algebra() -> None:
    graph = graph_of(lambda x: x.softmax(1), torch.empty(4, 9))
    assert shifted_sums(graph.ops, rounds=lambda op: op.kind == "exp") == {}


def test_a_shift_that_is_known_needs_no_rule() -> None:
    # The mean's pass is complete when that of the exponentials begins, for another reason.
    def program(x: Tensor) -> Tensor:
        low = x.amax(1, keepdim=True)
        y = x * x.sum(1, keepdim=True)
        return (torch.exp(x - low) * y).sum(1)

    graph = graph_of(program, torch.empty(4, 9))
    assert shifted_sums(graph.ops)
    assert online_sums(graph.ops) == {}
