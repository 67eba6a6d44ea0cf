"""What a plan says of kernels that read the same value and are not one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fuser.dump.record import PlanRecord
from fuser.dump.recording import record_of
from fuser.dump.to_explanation import to_explanation
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Reason
from fuser.ir.rules import no_fuse
from fuser.passes.base import Limits
from fuser.passes.pipeline import plan_graph
from support.graphs import graph_of, partitioned, plan_of, renamed
from support.plans import Sketch

Program = Callable[..., Any]
X = torch.empty(256, 256)


def other_axes(x: Tensor) -> Any:
    return x.sum(0), x.sum()


def call_between(x: Tensor) -> Any:
    y = x.exp()
    return y.cumsum(0) * x


def one_after_the_other(x: Tensor) -> Any:
    a = x.sin()
    first = (a @ a).sum()
    b = x.cos()
    return first, (b @ b).sum()


def kinds(plan: FusionPlan) -> list[tuple[str, str, Reason]]:
    ops = plan.graph.by_name
    return [(ops[s.first].kind, ops[s.second].kind, s.reason) for s in plan.siblings]


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (other_axes, [("sum", "sum", Reason.OTHER_REDUCTION)]),
        (call_between, [("exp", "mul", Reason.CYCLE)]),
        (one_after_the_other, [("sin", "cos", Reason.PEAK_MEMORY)]),
        (lambda x: (x.exp(), x.sin()), []),
        (lambda x: x.exp() * 2, []),
    ],
)
def test_siblings_that_are_not_one_kernel_say_why(program: Program, found: Any) -> None:
    plan = plan_of(program, X)
    assert kinds(plan) == found
    edges = {(verdict.producer, verdict.consumer) for verdict in plan.verdicts}
    for sibling in plan.siblings:
        assert (sibling.first, sibling.second) not in edges
        for name in (sibling.first, sibling.second):
            assert sibling.value in plan.graph.by_name[name].reads
        assert plan.region_of[sibling.first] is not plan.region_of[sibling.second]
        assert (sibling.gain_us > 0) == (sibling.reason is not Reason.CYCLE)


def test_limits_and_rules_are_said_of_siblings_too() -> None:
    graph = graph_of(lambda x: (x.exp(), x.sin()), X)
    assert kinds(partitioned(graph, Limits(ops=1))) == [("exp", "sin", Reason.TOO_MANY_OPS)]
    plan = plan_graph(graph, "sm_90", cuts={("exp", "sin"): Reason.SPILLS})
    assert kinds(plan) == [("exp", "sin", Reason.SPILLS)]
    plan = plan_graph(graph, "sm_90", rules=[no_fuse("exp")])
    assert kinds(plan) == [("exp", "sin", Reason.FORBIDDEN)]


def test_names_change_nothing() -> None:
    graph = graph_of(lambda x, y: ((x + y).sum(0), (y * x).sum(), x.exp()), X, X + 1)
    order = {name: f"v{len(graph.values) - k}" for k, name in enumerate(graph.values)}
    plans = [plan_graph(each, "sm_90") for each in (graph, renamed(graph, order.__getitem__))]
    first = [(order[s.value], order[s.first], order[s.second], s.reason) for s in plans[0].siblings]
    assert first == [(s.value, s.first, s.second, s.reason) for s in plans[1].siblings]
    assert first


def test_there_are_few_for_each_reader() -> None:
    sketch = Sketch()
    x = sketch.input("x", 64, 256)
    ends = [sketch.reduction("sum", x, k % 2, name="s") for k in range(300)]
    plan = partitioned(sketch.graph(*ends), Limits(ops=2))
    assert 0 < len(plan.siblings) < 9 * 300


def test_they_are_in_the_report_and_the_record() -> None:
    plan = plan_of(other_axes, X)
    (sibling,) = plan.siblings
    text = to_explanation(plan)
    assert "kernels that read the same value and are not one" in text
    assert f"{sibling.first}, {sibling.second} read {sibling.value}: not fused" in text
    assert "because the two reduce over different axes" in text
    record = record_of(plan)
    assert record.siblings[0].code == "other_reduction"
    assert PlanRecord.from_dict(record.to_dict()) == record
    counted = to_explanation(plan_of(call_between, X))
    assert f"1   pairs: {Reason.CYCLE.value}" in counted


def test_a_plan_that_was_saved_without_them_is_read() -> None:
    record = record_of(plan_of(other_axes, X))
    data = record.to_dict()
    del data["siblings"]
    assert PlanRecord.from_dict(data) == replace(record, siblings=())
