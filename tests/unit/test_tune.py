"""Tuning: the fastest tile goes first, is remembered, and replaces the model's choice only where it
is clearly faster. Times come from a table; no GPU is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from fuser.codegen.generate import generate
from fuser.device import device_spec
from fuser.ir.kernel import Configuration, KernelSpec
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Strategy
from fuser.ir.timing import Memory
from fuser.passes.schedule import other_schedules
from fuser.tune import CLEARLY, tune
from support.graphs import plan_of

H200 = device_spec("sm_90")
Times = Callable[[Configuration], float | None]


class Bench:
    """Stands for the GPU: `times` gives a tile's microseconds; counts what was asked."""

    def __init__(self, times: Times) -> None:
        self.times = times
        self.asked: list[Configuration] = []
        self.kept: dict[str, str] = {}

    def memory(self, context: str = "a GPU") -> Memory:
        return Memory(self.kept.get, self.kept.__setitem__, context)

    def measure(self, specs: Sequence[KernelSpec]) -> list[float | None]:
        assert all(len(spec.configurations) == 1 for spec in specs)
        self.asked += [spec.configurations[0] for spec in specs]
        return [self.times(spec.configurations[0]) for spec in specs]

    def tuned(self, plan: FusionPlan, context: str = "a GPU") -> FusionPlan:
        found, kernels = tune(
            plan, generate(plan), self.measure, self.memory(context), H200.launch_us
        )
        for region, entry in zip(found.regions, kernels, strict=True):
            for tiles, spec in zip(region.schedule.candidates, entry.kernels, strict=True):
                assert spec.configurations == tiles
        return found


def long_plan(rows: int = 4096) -> FusionPlan:
    return plan_of(lambda x: x.exp() + 1, torch.empty(rows, 4096), target="sm_90")


def tiles_of(plan: FusionPlan) -> tuple[Configuration, ...]:
    return plan.regions[0].schedule.candidates[0]


def test_the_fastest_tile_goes_first() -> None:
    plan = long_plan()
    tiles = tiles_of(plan)
    wanted = tiles[2]
    found = Bench(lambda tile: 10.0 if tile == wanted else 20.0).tuned(plan)
    assert tiles_of(found) == (wanted, *(tile for tile in tiles if tile != wanted))
    assert found.regions[0].notes == (
        f"region_0: XBLOCK={wanted.block('XBLOCK')} with {wanted.num_warps} warps is fastest of "
        f"{len(tiles)}: 10.0 us",
    )


@pytest.mark.parametrize(("share", "is_replaced"), [(CLEARLY + 0.01, False), (0.9, True)])
def test_another_tile_has_to_be_clearly_faster(share: float, is_replaced: bool) -> None:
    plan = long_plan()
    first = tiles_of(plan)[0]
    found = Bench(lambda tile: 10.0 if tile == first else 10.0 * share).tuned(plan)
    assert (tiles_of(found)[0] != first) is is_replaced


def test_what_was_measured_is_remembered() -> None:
    bench = Bench(lambda tile: float(tile.block("XBLOCK")))
    first = bench.tuned(long_plan())
    count = len(bench.asked)
    assert count == len(tiles_of(first))
    assert bench.tuned(long_plan()).regions == first.regions
    assert len(bench.asked) == count
    bench.tuned(long_plan(), context="another GPU")
    assert len(bench.asked) == 2 * count


@pytest.mark.parametrize("damage", ["", "not JSON", "{}", "[1.0]", '["a", "b", "c", "d"]'])
def test_a_damaged_memory_is_measured_again(damage: str) -> None:
    bench = Bench(lambda tile: float(tile.block("XBLOCK")))
    bench.tuned(long_plan())
    count = len(bench.asked)
    bench.kept = dict.fromkeys(bench.kept, damage)
    bench.tuned(long_plan())
    assert len(bench.asked) == 2 * count


def test_a_tile_that_cannot_be_used_is_passed_over() -> None:
    plan = long_plan()
    first, second, *_ = tiles_of(plan)
    found = Bench(lambda tile: {first: None, second: 5.0}.get(tile, 6.0)).tuned(plan)
    assert tiles_of(found)[0] == second
    assert Bench(lambda tile: None).tuned(plan) == plan


def test_short_kernels_are_left_alone() -> None:
    bench = Bench(lambda tile: 1.0)
    plan = plan_of(lambda x: x.exp() + 1, torch.empty(64, 64), target="sm_90")
    assert bench.tuned(plan) is plan
    assert bench.asked == []


def test_equal_kernels_are_measured_once() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = (x.exp() + 1).cumsum(0)
        return x

    bench = Bench(lambda tile: float(tile.num_warps))
    plan = plan_of(program, torch.empty(4096, 4096), target="sm_90")
    bench.tuned(plan)
    assert len(plan.regions) == 3
    assert len(bench.asked) == len(tiles_of(plan))


def test_both_kernels_of_a_split_reduction_are_measured() -> None:
    plan = plan_of(lambda x: x.sum(0), torch.empty(65536, 4096), target="sm_90")
    bench = Bench(lambda tile: 1.0 / tile.block("XBLOCK") / tile.block("RBLOCK"))
    found = bench.tuned(plan)
    several = [tiles for tiles in plan.regions[0].schedule.candidates if len(tiles) > 1]
    assert len(bench.asked) == sum(map(len, several))
    assert len(found.regions[0].notes) == len(several)


@pytest.mark.parametrize("pointers_take", [5.0, 20.0])
def test_products_are_read_the_faster_way(pointers_take: float) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu()

    args = torch.empty(2048, 1024).half(), torch.empty(1024, 2048).half()
    plan = plan_of(program, *args, target="sm_90")
    (region,) = plan.regions
    (other,) = other_schedules(plan.graph, region, H200)
    assert region.strategy is Strategy.DESCRIBED_PRODUCT
    assert other == region.schedule.otherwise

    def measure(specs: Sequence[KernelSpec]) -> list[float | None]:
        return [pointers_take if spec.otherwise is None else 10.0 for spec in specs]

    found, _ = tune(
        plan, generate(plan), measure, Bench(lambda _: 1.0).memory(), H200.launch_us,
        others=lambda region: other_schedules(plan.graph, region, H200),
    )  # fmt: skip
    by_pointers = found.regions[0].strategy is Strategy.PRODUCT
    assert by_pointers == (pointers_take < 10.0)


@pytest.mark.parametrize("loops_take", [5.0, 9.9, 20.0])
def test_rows_are_walked_the_faster_way(loops_take: float) -> None:
    """Rows of 16,384 elements fit into registers, or a loop has them in part."""
    plan = plan_of(lambda x: x.softmax(1), torch.empty(4096, 16384), target="sm_90")
    (region,) = plan.regions
    (other,) = other_schedules(plan.graph, region, H200)
    assert {region.strategy, other.strategy} == {Strategy.ROW_IN_REGISTERS, Strategy.LOOPED}

    def measure(specs: Sequence[KernelSpec]) -> list[float | None]:
        return [loops_take if "r_start" in spec.source else 10.0 for spec in specs]

    found, kernels = tune(
        plan, generate(plan), measure, Bench(lambda _: 1.0).memory(), H200.launch_us,
        others=lambda region: other_schedules(plan.graph, region, H200),
    )  # fmt: skip
    first, second = (loops_take, 10.0)[:: 1 if region.strategy is Strategy.LOOPED else -1]
    expected = other.strategy if second < CLEARLY * first else region.strategy
    assert found.regions[0].strategy is expected
    assert ("r_start" in kernels[0].kernels[0].source) == (expected is Strategy.LOOPED)
