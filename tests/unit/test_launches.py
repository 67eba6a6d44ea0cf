"""Short kernels share launches: which do, which cannot, and what the plan says of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import fuser
from fuser.codegen.generate import generate
from fuser.codegen.host import host_program
from fuser.codegen.host_memory import Memory
from fuser.fit import fit
from fuser.ir.graph import Graph
from fuser.ir.kernel import KernelSpec, Resources
from fuser.ir.launch import LaunchReason
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Strategy
from fuser.passes.analysis import eager_peak_bytes, peak_bytes
from fuser.passes.base import Cuts
from fuser.passes.launches import MOST_ARGUMENTS, MOST_OPS
from fuser.passes.pipeline import plan_graph
from support.graphs import assert_plan_holds, captured_graph, plan_of
from support.plans import Sketch, tensor

SHAPES = [(64, 48), (48,), (31, 7), (5,), (2, 3, 4), (129,)]


def tensors(shapes: Sequence[tuple[int, ...]] = SHAPES) -> list[Tensor]:
    return [torch.randn(shape) for shape in shapes]


def scaled(values: list[Tensor]) -> list[Tensor]:
    return [value.exp() * 2 for value in values]


def averaged(means: list[Tensor], values: list[Tensor]) -> None:
    for mean, value in zip(means, values, strict=True):
        mean.mul_(0.9).add_(value, alpha=0.1)


def clipped(values: list[Tensor]) -> None:
    norms = [torch.linalg.vector_norm(value) for value in values]
    scale = (1.0 / torch.linalg.vector_norm(torch.stack(norms))).clamp(max=1.0)
    for value in values:
        value.mul_(scale)


def planned(program: Any, *args: Any, target: str = "sm_90") -> FusionPlan:
    plan = plan_graph(captured_graph(program, *args), target)
    assert_plan_holds(plan)
    return plan


def reasons(plan: FusionPlan) -> dict[str, LaunchReason]:
    return {verdict.region: verdict.reason for verdict in plan.launch_verdicts}


# What shares a launch -----------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["sm_90", "cpu"])
def test_tensors_of_many_shapes_take_one_launch(target: str) -> None:
    plan = planned(scaled, tensors(), target=target)
    (launch,) = plan.launches
    assert len(plan.regions) == len(SHAPES)
    assert plan.steps == (launch.regions,) == (plan.order,)
    assert plan.kernel_count == len(generate(plan)) == 1
    assert set(reasons(plan).values()) == {LaunchReason.SHARED}
    assert {verdict.detail for verdict in plan.launch_verdicts} == {launch.name}
    device = fuser.device.device_spec(target)
    assert launch.saved_us == pytest.approx((len(SHAPES) - 1) * device.launch_us)


def test_updates_in_place_take_one_launch() -> None:
    plan = fuser.plan(averaged, tensors(), tensors(), target="sm_90").fusion
    (entry,) = generate(plan)
    memory = Memory(plan, {entry.regions: entry.kernels})
    assert len(memory.in_place) == len(SHAPES)
    text = host_program(plan, generate(plan)).source
    assert text.count("launch_0(") == 1
    assert text.count("in place") == len(SHAPES)
    assert "empty_strided(" not in text


def test_norms_take_one_launch_and_what_they_scale_another() -> None:
    plan = planned(clipped, tensors())
    assert [len(launch.regions) for launch in plan.launches] == [len(SHAPES)] * 2
    assert plan.kernel_count < len(SHAPES)


def test_split_rows_share_both_of_their_launches() -> None:
    plan = planned(lambda x, y: (x.sum(), y.amax()), torch.randn(200000), torch.randn(300, 400))
    assert {region.strategy for region in plan.regions} == {Strategy.SPLIT}
    (entry,) = generate(plan)
    assert [spec.name for spec in entry.kernels] == ["launch_0_partial", "launch_0_combine"]
    assert plan.kernel_count == 2


def test_blocks_of_a_launch_have_one_number_of_warps() -> None:
    plan = planned(lambda x, y, z: (x.exp(), y.softmax(1), z.sum(0)),
                   torch.randn(5), torch.randn(6, 20000), torch.randn(50, 60))  # fmt: skip
    (launch,) = plan.launches
    tiles = [plan.by_name[name].schedule.candidates for name in launch.regions]
    assert len({candidates[0][0].num_warps for candidates in tiles}) == 1
    assert all(len(candidates[0]) == 1 for candidates in tiles)


def test_a_launch_stays_within_its_limits() -> None:
    def step(*lists: list[Tensor]) -> None:
        for p, g, m, s in zip(*lists, strict=True):
            m.lerp_(g, 0.1)
            s.mul_(0.9).addcmul_(g, g, value=0.1)
            p.addcdiv_(m, s.sqrt() + 1e-8, value=-0.01)

    shapes = [(1000 + k,) for k in range(100)]
    plan = planned(step, *(tensors(shapes) for _ in range(4)))
    assert len(plan.launches) > 1
    for entry in generate(plan):
        regions = [plan.by_name[name] for name in entry.regions]
        assert sum(len(region.all_ops) for region in regions) <= MOST_OPS
        (spec,) = entry.kernels
        assert len(spec.arguments) <= MOST_ARGUMENTS
    assert plan.kernel_count < 10


# What does not ------------------------------------------------------------------------------------


def test_what_waits_for_another_has_a_launch_of_its_own() -> None:
    plan = planned(lambda x: x.softmax(0).softmax(1), torch.randn(50, 60))
    assert not plan.launches
    assert set(reasons(plan).values()) == {LaunchReason.NO_OTHER}


def test_what_waits_through_a_call_has_a_launch_of_its_own() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        other = y.exp()
        return other, torch.cumsum(x.exp(), 0).sin(), x.exp()

    plan = planned(program, torch.randn(8, 9), torch.randn(7))
    (launch,) = plan.launches
    (apart,) = (region.name for region in plan.regions if region.name not in launch.regions)
    assert plan.order[-1] == apart


def test_long_kernels_keep_their_launches() -> None:
    shapes = [(5,), (6, 7), (4096, 4096), (4096, 8192)]
    plan = plan_of(lambda *x: scaled(list(x)), *(torch.empty(shape) for shape in shapes))
    (launch,) = plan.launches
    assert len(launch.regions) == 2
    long = [v for v in plan.launch_verdicts if v.reason is LaunchReason.LONG]
    assert len(long) == 2
    assert all(verdict.detail.endswith(" us") for verdict in long)


def test_an_input_is_not_overwritten_beside_its_reader() -> None:
    """They could run at once, but then the new values would need memory of their own."""

    def program(x: Tensor, y: Tensor) -> Tensor:
        read = x[:3].exp() + y
        x.mul_(2)
        return read

    plan = fuser.plan(program, torch.randn(64, 48), torch.randn(3, 48), target="sm_90").fusion
    kernels = generate(plan)
    memory = Memory(plan, {entry.regions: entry.kernels for entry in kernels})
    assert len(memory.in_place) == 1
    assert len(plan.steps) == len(plan.regions) == 2


def waiting_calls() -> Graph:
    """Eager frees each result before the next one is made."""
    sketch = Sketch()
    x = sketch.input("x", 64)
    found = []
    for _ in range(6):
        part = sketch.call("aten.sort.default", x, results=[tensor(4096)])[0]
        found.append(sketch.reduction("sum", sketch.pointwise("exp", part), 0))
    return sketch.graph(*found)


def test_a_launch_holds_no_more_memory_than_eager() -> None:
    graph = waiting_calls()
    plan = plan_graph(graph, "sm_90")
    assert_plan_holds(plan)
    assert peak_bytes(plan) <= eager_peak_bytes(graph)
    assert LaunchReason.PEAK_MEMORY in reasons(plan).values()


# When the compiler disagrees ----------------------------------------------------------------------


@pytest.mark.parametrize("answer", [Resources(255, 8, 0), "it does not compile"], ids=str)
def test_what_cannot_share_a_kernel_is_taken_apart(answer: Resources | str) -> None:
    plan = planned(scaled, tensors())

    def compile_kernels(specs: Sequence[KernelSpec]) -> list[Resources | str]:
        return [answer if "launch" in spec.name else Resources(32, 0, 0) for spec in specs]

    def replan(cuts: Cuts, unshared: Collection[str]) -> FusionPlan:
        return plan_graph(plan.graph, "sm_90", cuts=cuts, unshared=unshared)

    found = fit(plan, compile_kernels, replan)
    assert not found.plan.launches
    assert set(reasons(found.plan).values()) == {LaunchReason.NOT_COMPILED}
    assert [entry.regions for entry in found.kernels] == [(name,) for name in plan.order]


# What is said -------------------------------------------------------------------------------------


def test_the_plan_says_what_shares_a_launch() -> None:
    plan = fuser.plan(scaled, tensors(), target="sm_90")
    text = str(plan)
    assert "in 1 kernel +" in text
    assert text.count("shares launch_0 with ") == len(SHAPES)
    assert f"launch_0: {len(SHAPES)} regions" in text
    assert list(plan.sources()) == ["launch_0"]
    record = fuser.Plan.from_json(plan.to_json())
    assert record == plan.record
    assert [launch.regions for launch in record.launches] == [plan.fusion.order]
    assert all(r.launch is not None and r.launch.code == "shared" for r in record.regions)
    assert {region.kernels for region in record.regions} == {("launch_0",)}
    apart = sum(region.cost.time_us for region in plan.regions)
    assert record.totals.predicted_us < apart
