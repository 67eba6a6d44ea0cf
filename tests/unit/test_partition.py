"""The partitioner: who owns each op, and a verdict on every edge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser import philox
from fuser.ir.graph import Graph
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Reason, RegionKind, Strategy, Verdict
from fuser.passes.live import live_values
from fuser.passes.pipeline import plan_graph
from support.graphs import (
    assert_plan_holds,
    graph_of,
    only_region,
    plan_of,
    renamed,
    verdict_on,
)
from support.plans import small_graph

Program = Callable[..., Any]
X = torch.randn(4, 6)


def block(x: Tensor, w: Tensor, bias: Tensor) -> Any:
    """A layer with everything in it: products, norms, activations, shifts, several outputs."""
    y = F.layer_norm(F.gelu(x @ w + bias), (6,))
    z = F.softmax(y.view(2, 2, 6).transpose(0, 1), -1)
    ramp = torch.arange(6, dtype=torch.float32)
    return F.pad(z, (1, 1)), (y * ramp).sum(0), y.cumsum(0) * ramp, x.flip(1).exp()


BLOCK = (X, torch.randn(6, 6), torch.randn(6))


def edges(graph: Graph) -> set[tuple[str, str]]:
    return {
        (graph.producers[value].name, op.name)
        for op in graph.ops
        for value in op.reads
        if value in graph.producers
    }


# Whole plans ------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["sm_90", "cpu", "gfx942"])
def test_every_op_has_one_owner_and_every_edge_a_verdict(target: str) -> None:
    plan = plan_of(block, *BLOCK, target=target)
    assert_plan_holds(plan)
    judged = [(verdict.producer, verdict.consumer) for verdict in plan.verdicts]
    assert len(judged) == len(set(judged))
    assert set(judged) == edges(plan.graph)


def test_verdicts_agree_with_the_regions() -> None:
    plan = plan_of(block, *BLOCK)
    for verdict in plan.verdicts:
        reader = plan.region_of.get(verdict.consumer)
        is_inside = reader is not None and verdict.producer in reader.all_ops
        assert verdict.fused == is_inside, verdict


def test_a_chain_is_one_kernel() -> None:
    region = only_region(plan_of(lambda x: F.gelu(x * 2).tanh(), X))
    assert (region.kind, region.strategy) == (RegionKind.POINTWISE, Strategy.FLAT)
    assert len(region.outputs) == 1
    assert region.inputs == ("x_1",)


def test_a_reduction_takes_its_neighbours_in() -> None:
    region = only_region(plan_of(lambda x, w: F.layer_norm(x.exp() + x, (6,), w) * 2, X, X[0]))
    assert (region.kind, region.strategy) == (RegionKind.REDUCTION, Strategy.ROW_IN_REGISTERS)
    assert len(region.inputs) == 2


def test_unrelated_programs_stay_apart() -> None:
    plan = plan_of(lambda x, y: (x.exp() + 1, y.sin() * 2), X, X[:3])
    assert [len(region.ops) for region in plan.regions] == [2, 2]


@pytest.mark.parametrize("prefix", ["a", "zz", "v9_"])
def test_names_change_nothing(prefix: str) -> None:
    graph = graph_of(block, *BLOCK)
    order = {name: f"{prefix}{len(graph.values) - k}" for k, name in enumerate(graph.values)}

    def other(name: str) -> str:
        return order.get(name, f"{prefix}_{name}")

    plan, renamed_plan = plan_graph(graph, "sm_90"), plan_graph(renamed(graph, other), "sm_90")

    def named(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name if name in plan.by_name else other(name) for name in names)

    assert named(plan.order) == renamed_plan.order
    for region, twin in zip(plan.regions, renamed_plan.regions, strict=True):
        assert named(region.ops) == twin.ops
        assert named(region.inputs) == twin.inputs
        assert named(region.outputs) == twin.outputs
        assert (region.strategy, region.space.axes, region.cost) == (
            twin.strategy,
            twin.space.axes,
            twin.cost,
        )
    assert [(v.fused, v.reason) for v in plan.verdicts] == [
        (v.fused, v.reason) for v in renamed_plan.verdicts
    ]


def test_the_same_graph_gets_the_same_plan() -> None:
    graph = graph_of(block, *BLOCK)
    plans = [replace(plan_graph(graph, "sm_90"), passes=()) for _ in range(2)]
    assert plans[0] == plans[1]


def test_the_steps_of_the_planner_are_recorded() -> None:
    plan = plan_of(lambda x: (x.exp() * 2, x.exp() + 1), X)
    names = [record.name for record in plan.passes]
    early, planned = names[:2], names[2:]
    assert early == ["gather_early", "sum_one_hot"]
    assert planned[:2] == ["merge_equal_ops", "remove_unused_ops"]
    assert planned[2:4] == ["split_products", "approximate"]
    assert planned[4:] == ["partition", "share_launches"]
    counts = [(record.before, record.after) for record in plan.passes]
    assert counts == [(4, 4), (4, 4), (4, 3), (3, 3), (3, 3), (3, 3), (3, 1), (1, 1)]
    assert all(record.milliseconds >= 0 for record in plan.passes)


# Reasons: each of them is provoked in `test_reasons.py` ------------------------------------------


def test_a_write_between_two_ops_keeps_them_apart() -> None:
    """The order of effects is part of what must run before what, so it shows as a cycle."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        y = x.exp()
        w.add_(1)
        return y * w

    plan = plan_of(program, X, X + 1)
    assert verdict_on(plan, "exp", "mul").reason is Reason.CYCLE
    assert plan.order == ("region_0", "add_", "region_1")
    assert_plan_holds(plan)


def test_a_refusal_is_read_by_people() -> None:
    verdict = verdict_on(plan_of(lambda x: x.sum(0).amax(0), X), "sum", "amax")
    assert verdict.text == "the two reduce over different axes (amax over [6])"
    assert Verdict("a", "b", True, Reason.FUSED).text == Reason.FUSED.value


# Details ----------------------------------------------------------------------------------------


def test_a_constant_is_computed_again_by_each_reader() -> None:
    plan = plan_of(lambda x, y: (x * torch.arange(6), y.sum(1) - torch.arange(6)[0]), X, X)
    first, second = plan.regions
    assert "iota" in first.ops
    assert second.recomputed == ("iota",)
    assert second.all_ops[0] == "iota"
    assert "iota" not in first.outputs + second.inputs


def test_a_constant_that_a_call_reads_is_stored() -> None:
    plan = plan_of(lambda x: x * torch.arange(4).float().cumsum(0)[:, None], X)
    (stored,) = [region for region in plan.regions if "iota" in region.ops]
    assert [plan.graph.by_name[name].kind for name in stored.outputs] == ["cast"]


def test_only_what_is_read_outside_is_stored() -> None:
    plan = plan_of(lambda x: (lambda y: (y * 2, y.cumsum(0)))(x.sin().exp()), X)
    assert [region.outputs for region in plan.regions] == [("exp", "mul")]


def test_live_values_are_counted_in_program_order() -> None:
    def count(program: Program) -> int:
        graph = graph_of(program, X, X + 1)
        return live_values(graph, list(graph.ops), graph.output_values)

    assert count(lambda x, y: x.exp().sin()) == 2
    assert count(lambda x, y: x.exp() + y.sin()) == 3
    assert count(lambda x, y: (x.exp() + 1) * x) == 3
    assert count(lambda x, y: (x + y) * (x - y)) == 4


def merged(program: Program, *args: Any) -> FusionPlan:
    return plan_graph(graph_of(program, *args), "sm_90")


def test_equal_ops_are_merged_but_not_equal_numbers() -> None:
    plan = merged(lambda x: (x / 0.0 + 1, x / 0.0 + 2, x / -0.0 + 3), X)
    divisors = [str(op.operands[1]) for op in plan.graph.ops if op.kind == "divide"]
    assert divisors == ["0.0", "-0.0"]


def test_equal_outputs_stay_two_tensors() -> None:
    plan = merged(lambda x: (x.exp(), x.exp() * 2, x.exp()), X)
    assert [op.kind for op in plan.graph.ops] == ["exp", "mul", "exp"]
    first, _, last = (output.argument for output in plan.graph.outputs)
    assert first is not None
    assert last is not None
    assert first.value != last.value


def test_what_is_written_to_is_never_merged() -> None:
    def program(x: Tensor) -> Tensor:
        written, zeros = torch.zeros(4, 6), torch.zeros(4, 6)
        written.add_(x)
        return written * 2 - zeros

    plan = merged(program, X)
    assert [op.kind for op in plan.graph.ops].count("full") == 2
    assert_plan_holds(plan)


def test_draws_are_never_merged_or_dropped() -> None:
    def program(x: Tensor) -> Tensor:
        weights = x.abs()
        torch.multinomial(weights, 2)
        return torch.multinomial(weights, 2) + torch.multinomial(weights, 2)

    plan = merged(program, X)
    assert [step for step in plan.order if step.startswith("multinomial")] == [
        op.name for op in plan.graph.ops if op.is_opaque
    ]
    assert len(plan.opaque) == 3


def test_random_numbers_are_merged_only_with_themselves() -> None:
    def program(x: Tensor) -> Tensor:
        seed = philox.seed(x.device)
        first, again, second = (
            philox.uniform(seed, number, list(x.shape), dtype=torch.float32) for number in (0, 0, 1)
        )
        return first + again + second

    plan = merged(program, X)
    numbers = [op.operands[1] for op in plan.graph.ops if op.kind == "uniform"]
    assert [str(number) for number in numbers] == ["0", "1"]


def test_a_plan_of_a_graph_by_hand() -> None:
    plan = plan_graph(small_graph(), "sm_90")
    assert_plan_holds(plan)
    assert plan.kernel_count == 3
    assert plan.order == ("region_0", "mm", "region_1")
