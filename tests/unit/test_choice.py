"""Generated products and the library's: the faster is kept. Times come from a table."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser.choice import MEASURED, Choice, Way, choose
from fuser.codegen.generate import generate
from fuser.ir.graph import Op
from fuser.ir.kernel import KernelSpec
from fuser.ir.plan import FusionPlan
from fuser.ir.timing import Memory
from fuser.passes.library import as_calls
from fuser.passes.pipeline import plan_graph
from support.graphs import plan_of


class Races:
    """Stands for the GPU: a kernel that multiplies takes `ours`, a call `theirs`, the rest 1 us."""

    def __init__(self, ours: float | None, theirs: float | None) -> None:
        self.ours, self.theirs = ours, theirs
        self.run: list[list[str]] = []
        self.kept: dict[str, str] = {}

    def time(self, step: KernelSpec | Op) -> float | None:
        if isinstance(step, Op):
            return self.theirs
        return self.ours if "tl.dot" in step.source else 1.0

    def race(self, ways: Sequence[Way]) -> list[float | None]:
        found: list[float | None] = []
        for way in ways:
            self.run.append([type(step).__name__ for step in way.steps])
            times = [self.time(step) for step in way.steps]
            found.append(None if None in times else sum(t for t in times if t is not None))
        return found

    def choice(self, plan: FusionPlan) -> Choice:
        memory = Memory(self.kept.get, self.kept.__setitem__, "a GPU")
        return choose(plan, generate(plan), self.race, memory)


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b)) * 2


@pytest.fixture
def plan() -> FusionPlan:
    args = torch.empty(512, 256), torch.empty(1024, 256), torch.empty(1024)
    return plan_of(layer, *(each.bfloat16() for each in args), target="sm_90")


def test_a_faster_kernel_stays(plan: FusionPlan) -> None:
    races = Races(ours=5.0, theirs=5.0)
    found = races.choice(plan)
    assert not found.calls
    assert races.run == [["KernelSpec"], ["Op", "KernelSpec"]]
    (region,) = found.plan.regions
    assert region.notes == ("region_0: the library and the rest 6.0 us, one kernel 5.0 us",)


def test_a_faster_library_gets_the_product_alone(plan: FusionPlan) -> None:
    found = Races(ours=9.0, theirs=5.0).choice(plan)
    assert found.calls == {
        "addmm": f"{MEASURED} and the rest 6.0 us, one kernel 9.0 us",
    }
    again = plan_graph(as_calls(plan.graph, found.calls), plan.target)
    assert again.opaque == ("addmm",)
    (region,) = again.regions
    assert set(plan.regions[0].ops) == {"addmm", *region.ops}
    assert "one kernel 9.0 us" in again.graph.by_name["addmm"].reason


@pytest.mark.parametrize(("ours", "theirs"), [(None, 5.0), (5.0, None), (5.0, 3.95)])
def test_without_a_clear_winner_the_plan_stays(
    plan: FusionPlan, ours: float | None, theirs: float | None
) -> None:
    assert not Races(ours, theirs).choice(plan).calls


def test_the_same_race_is_run_once(plan: FusionPlan) -> None:
    races = Races(ours=9.0, theirs=5.0)
    first, count = races.choice(plan), len(races.run)
    races.ours = 1.0
    assert races.choice(plan).calls == first.calls
    assert len(races.run) == count


def test_plans_without_products_have_no_race() -> None:
    races = Races(1.0, 1.0)
    plan = plan_of(lambda x: x.exp() + 1, torch.empty(64, 64), target="sm_90")
    assert races.choice(plan).plan == plan
    assert not races.run


class SlowLaunches(Races):
    """A kernel takes `ours` for each product that it multiplies."""

    def time(self, step: KernelSpec | Op) -> float | None:
        time = super().time(step)
        if time is None or isinstance(step, Op):
            return time
        return time * max(1, step.source.count("tl.dot"))


def grouped(x: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return F.linear(x, q), F.linear(x, k).relu()


@pytest.mark.parametrize(("theirs", "calls"), [(9.0, set()), (2.0, {"mm"})])
def test_products_of_a_launch_are_raced_together(theirs: float, calls: set[str]) -> None:
    """With the library's call for what nothing is fused into, and a kernel for the rest."""
    args = torch.empty(512, 256), torch.empty(512, 256), torch.empty(128, 256)
    plan = plan_of(grouped, *(each.bfloat16() for each in args), target="sm_90")
    (launch,) = plan.launches
    assert len(launch.regions) == 2
    races = SlowLaunches(ours=5.0, theirs=theirs)
    found = races.choice(plan)
    assert set(found.calls) == calls
    assert races.run == [["KernelSpec"], ["Op", "KernelSpec"]]
    assert len(found.plan.regions) == 2
    assert all(region.notes for region in found.plan.regions)
