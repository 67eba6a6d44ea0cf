"""Products of one input in one launch: which are, with which tiles, and in which order they run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser.codegen.axes import SizeArguments
from fuser.codegen.emit.program_order import program_order, programs_of
from fuser.device import device_spec
from fuser.ir.kernel import Configuration, GridAxis, KernelSpec
from fuser.ir.launch import LaunchReason
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Strategy
from fuser.passes.library import ALONE
from fuser.passes.pipeline import plan_graph
from support.graphs import assert_plan_holds, plan_of


def halves(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)


def grouped(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    return tuple(F.linear(x, weight) for weight in weights)


def steps(plan: FusionPlan) -> list[int]:
    return [len(step) for step in plan.steps]


def checked(program: Any, *args: Any, target: str = "sm_90", **options: Any) -> FusionPlan:
    plan = plan_of(program, *args, target=target, **options)
    assert_plan_holds(plan)
    return plan


# What shares a launch -----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [16, 128, 1024])
def test_queries_keys_and_values_take_one_launch(rows: int) -> None:
    plan = checked(grouped, halves(rows, 1024), halves(1024, 1024), halves(256, 1024),
                   halves(256, 1024))  # fmt: skip
    (launch,) = plan.launches
    assert not plan.opaque
    # Keys and values are of one width, and share tiles as well.
    assert sorted(len(plan.by_name[name].ops) for name in launch.regions) == [1, 2]
    tiles = [plan.by_name[name].schedule.candidates for name in launch.regions]
    assert all(len(each) == len(each[0]) == 1 for each in tiles)
    common = {(t[0][0].block("MBLOCK"), t[0][0].num_warps, t[0][0].num_stages) for t in tiles}
    assert len(common) == 1


def test_what_it_saves_is_at_least_the_launches() -> None:
    """And a last round of each product in which processors have no tile."""
    plan = checked(grouped, halves(4096, 2048), halves(2048, 2048), halves(512, 2048),
                   halves(512, 2048), target="sm_80")  # fmt: skip
    (launch,) = plan.launches
    assert launch.saved_us >= device_spec("sm_80").launch_us


def test_descriptors_give_way_where_pointers_in_one_launch_are_faster() -> None:
    plan = checked(grouped, halves(4096, 2048), halves(2048, 2048), halves(512, 2048),
                   halves(512, 2048))  # fmt: skip
    (launch,) = plan.launches
    assert launch.saved_us > 0
    assert {plan.by_name[name].strategy for name in launch.regions} == {Strategy.PRODUCT}


def test_calls_stay_where_they_are_predicted_to_be_faster() -> None:
    """Tiles of one height would leave more processors idle than a launch takes."""
    plan = checked(grouped, halves(2048, 1024), halves(1024, 1024), halves(256, 1024),
                   halves(256, 1024))  # fmt: skip
    assert not plan.launches
    assert len(plan.opaque) == 1


def test_a_product_of_another_input_is_the_librarys() -> None:
    plan = checked(
        lambda x, y, v, w: (x @ v, y @ w),
        *(halves(512, 512), halves(512, 512), halves(512, 512), halves(512, 256)),
    )
    assert len(plan.opaque) == 2
    assert not plan.launches
    assert all(plan.graph.by_name[name].reason.startswith(ALONE) for name in plan.opaque)


def test_products_that_wait_for_each_other_take_a_launch_each() -> None:
    def program(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.gelu(x @ v)
        return hidden, F.gelu((x + hidden) @ w)

    plan = checked(program, halves(512, 512), halves(512, 512), halves(512, 256))
    assert not plan.launches
    reasons = {v.region: v.reason for v in plan.launch_verdicts}
    assert set(reasons.values()) == {LaunchReason.PRODUCT}


def test_batches_take_a_launch_each() -> None:
    """Their tiles of the same rows do not follow each other."""
    plan = checked(
        lambda x, v, w: ((x @ v).relu(), (x @ w).relu()),
        *(halves(8, 256, 128), halves(8, 128, 256), halves(8, 128, 64)),
    )
    assert not plan.launches


def test_a_launch_that_spills_leaves_lone_products_to_the_library() -> None:
    args = halves(512, 1024), halves(1024, 1024), halves(256, 1024)
    plan = checked(grouped, *args)
    assert plan.launches
    unshared = [op.name for op in plan.graph.ops]
    again = plan_graph(plan.graph, "sm_90", unshared=unshared)
    assert not again.launches
    assert len(again.opaque) == 2


# In which order -----------------------------------------------------------------------------------


def product_spec(rows: int, columns: int, wide: int, high: int = 16, group: int = 8) -> KernelSpec:
    axis = GridAxis(rows, "MBLOCK", (GridAxis(columns, "NBLOCK"), GridAxis(1)))
    tile = Configuration((("MBLOCK", high), ("NBLOCK", wide), ("GROUP", group)))
    return KernelSpec("kernel", "", "", (), (axis,), (tile,), 0)


def run(specs: list[KernelSpec]) -> list[tuple[int, int]]:
    """The region that each program works for, and its number there, as the kernel finds them."""
    order = program_order(specs, SizeArguments())
    found = []
    for program in range(sum(int(programs_of(spec)) for spec in specs)):
        scope: dict[str, Any] = {"program": program, "tl": _Triton}
        exec("\n".join(order.lines), scope)
        ends = [eval(end, scope) for end in order.ends]
        region = next(k for k, end in enumerate(ends) if eval(order.number, scope) < end)
        (number,) = order.numbers[region]
        found.append((region, eval(number, scope)))
    return found


class _Triton:
    minimum = min

    @staticmethod
    def cdiv(size: int, block: int) -> int:
        return -(-size // block)


@pytest.mark.parametrize("rows", [16, 100, 128, 129, 1000])
@pytest.mark.parametrize("columns", [(64, 16), (16, 64, 80), (1, 1)])
def test_every_tile_has_one_program(rows: int, columns: tuple[int, ...]) -> None:
    specs = [product_spec(rows, width, 16) for width in columns]
    expected = [(k, n) for k, spec in enumerate(specs) for n in range(int(programs_of(spec)))]
    assert sorted(run(specs)) == expected


def test_tiles_of_the_same_rows_follow_each_other() -> None:
    specs = [product_spec(1000, 64, 16), product_spec(1000, 32, 16)]
    bands = [number // (8 * count) for (region, number) in run(specs) for count in [(4, 2)[region]]]
    assert bands == sorted(bands)


def test_tiles_of_other_heights_follow_by_region() -> None:
    specs = [product_spec(100, 64, 16), product_spec(100, 32, 16, high=32)]
    assert [region for region, _ in run(specs)] == [0] * 28 + [1] * 8
