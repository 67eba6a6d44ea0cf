"""A plan is changed until the compiler fits its kernels: smaller tiles, then cuts.

The tests answer in the compiler's place: which kernels really spill changes with its version.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser.codegen.generate import generate
from fuser.codegen.host import host_program
from fuser.errors import AssertFusedError
from fuser.fit import MOST_CUTS, Fitted, fit
from fuser.ir.graph import Graph
from fuser.ir.kernel import Configuration, KernelSpec, Resources
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Reason, Strategy
from fuser.ir.rules import FusionRule, assert_fused, must_fuse
from fuser.passes.base import Cuts
from fuser.passes.pipeline import plan_graph
from fuser.runtime.executable import Executable
from support.compare import poisoned
from support.graphs import assert_plan_holds, graph_of
from support.runtime import DEVICE, needs_kernels

FITS = Resources(registers=32, spills=0, shared_bytes=0)
SPILLS = Resources(registers=255, spills=8, shared_bytes=0)
Answer = Callable[[KernelSpec], Resources | str]


@dataclass
class Compiler:
    """Answers in the compiler's place and keeps what it was asked."""

    answer: Answer
    asked: list[tuple[str, Configuration]] = field(default_factory=list)
    calls: int = 0

    def __call__(self, specs: Sequence[KernelSpec]) -> list[Resources | str]:
        self.calls += 1
        self.asked += [(spec.key, spec.configurations[0]) for spec in specs]
        return [self.answer(spec) for spec in specs]


def fitted(graph: Graph, compiler: Compiler, *rules: FusionRule, target: str = "sm_90") -> Fitted:
    plan = plan_graph(graph, target, rules=rules)

    def replan(cuts: Cuts, unshared: Collection[str]) -> FusionPlan:
        return plan_graph(plan.graph, target, rules=rules, cuts=cuts, unshared=unshared)

    found = fit(plan, compiler, replan, rules=rules)
    assert_plan_holds(found.plan)
    kernels = [spec for entry in found.kernels for spec in entry.kernels]
    assert kernels == [spec for entry in generate(found.plan) for spec in entry.kernels]
    assert found.resources.keys() == {spec.name for spec in kernels}
    assert len(compiler.asked) == len(set(compiler.asked)), "nothing is compiled twice"
    return found


def spills_with(*words: str) -> Answer:
    """A compiler that spills at every tile of a kernel that has all these functions."""
    return lambda spec: SPILLS if all(f"fn.{word}(" in spec.source for word in words) else FITS


def waves(x: Tensor) -> Any:
    """A chain, so that any two of its ops can be cut apart."""
    return x.sin().exp().cos().tanh()


def normed(x: Tensor, w: Tensor) -> Any:
    return F.softmax(F.layer_norm(x.sin(), w.shape, w), -1).cos()


X = torch.randn(64, 64)
# Rows that are long enough for several tiles.
ROWS, W = torch.randn(63, 1000), torch.randn(1000)
WAVES = graph_of(waves, X)
ROW = graph_of(normed, ROWS, W)


# Tiles ------------------------------------------------------------------------------------------


def test_a_plan_that_fits_stays_as_it_is() -> None:
    compiler = Compiler(lambda _: FITS)
    plan = plan_graph(ROW, "sm_90")
    found = fit(plan, compiler, pytest.fail)
    assert found.plan is plan
    assert set(found.resources.values()) == {FITS}
    assert compiler.calls == 1


@pytest.mark.parametrize("graph", [WAVES, ROW, graph_of(lambda x: x.sin().sum(0), X)])
def test_a_kernel_that_spills_gets_the_next_tile(graph: Graph) -> None:
    (before,) = plan_graph(graph, "sm_90").regions
    first, second, *_ = before.schedule.candidates[0]
    compiler = Compiler(lambda spec: SPILLS if spec.configurations[0] == first else FITS)
    found = fitted(graph, compiler)
    (region,) = found.plan.regions
    assert region.schedule.candidates == (before.schedule.candidates[0][1:],)
    assert replace(region, schedule=before.schedule, notes=()) == before
    (kernel,) = found.kernels[0].kernels
    assert kernel.configurations[0] == second
    (note,) = region.notes
    assert kernel.name in note
    assert f"with {first.num_warps} warps spilled 8 registers" in note
    assert all(f"{name}={size}" in note for name, size in first.blocks)
    assert [configuration for _, configuration in compiler.asked] == [first, second]


def test_pointers_take_over_where_descriptors_spill_at_every_tile() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).relu()

    graph = graph_of(program, torch.empty(2048, 1024).half(), torch.empty(1024, 2048).half())
    (before,) = plan_graph(graph, "sm_90").regions
    assert before.strategy is Strategy.DESCRIBED_PRODUCT
    compiler = Compiler(lambda spec: SPILLS if spec.otherwise is not None else FITS)
    (region,) = fitted(graph, compiler).plan.regions
    assert region.strategy is Strategy.PRODUCT
    assert region.schedule == before.schedule.otherwise
    assert len(region.notes) == len(before.schedule.candidates[0])
    assert region.ops == before.ops


def test_each_tile_that_spills_is_a_note() -> None:
    (before,) = plan_graph(WAVES, "sm_90").regions
    tiles = before.schedule.candidates[0]
    last = tiles[-1]
    found = fitted(WAVES, Compiler(lambda s: FITS if s.configurations[0] == last else SPILLS))
    (region,) = found.plan.regions
    assert len(region.notes) == len(tiles) - 1
    assert region.schedule.candidates == ((last,),)


def test_each_kernel_of_a_split_reduction_has_its_own_tile() -> None:
    graph = graph_of(lambda x: x.sin().sum(1), torch.empty(4, 1 << 18))
    (before,) = plan_graph(graph, "sm_90").regions
    assert before.strategy is Strategy.SPLIT
    first, combine = before.schedule.candidates
    compiler = Compiler(lambda spec: SPILLS if spec.configurations[0] == first[0] else FITS)
    (region,) = fitted(graph, compiler).plan.regions
    assert region.schedule.candidates == (first[1:], combine)


def test_what_does_not_compile_is_left_alone() -> None:
    """It runs unfused, with one warning, when it is launched."""
    compiler = Compiler(lambda _: "error: out of luck")
    plan = plan_graph(ROW, "sm_90")
    found = fit(plan, compiler, pytest.fail)
    assert found.plan is plan
    assert set(found.resources.values()) == {"error: out of luck"}
    assert compiler.calls == 1


# Cuts -------------------------------------------------------------------------------------------


def cut_edges(plan: FusionPlan) -> set[tuple[str, str]]:
    return {(v.producer, v.consumer) for v in plan.verdicts if v.reason is Reason.SPILLS}


def test_a_region_of_which_every_tile_spills_is_cut() -> None:
    compiler = Compiler(spills_with("sin", "tanh"))
    found = fitted(WAVES, compiler)
    assert [len(region.ops) for region in found.plan.regions] in ([1, 3], [2, 2], [3, 1])
    (edge,) = cut_edges(found.plan)
    left, right = found.plan.regions
    assert edge == (left.ops[-1], right.ops[0])
    assert left.outputs == (edge[0],)
    (verdict,) = [v for v in found.plan.verdicts if not v.fused]
    assert verdict.gain_us > 0
    assert "spilling registers" in verdict.text
    assert set(found.resources.values()) == {FITS}


def test_sides_that_spill_are_cut_again() -> None:
    found = fitted(WAVES, Compiler(lambda spec: SPILLS if spec.source.count("fn.") > 1 else FITS))
    assert [len(region.ops) for region in found.plan.regions] == [1, 1, 1, 1]
    assert cut_edges(found.plan) == {(v.producer, v.consumer) for v in found.plan.verdicts}


def test_a_row_is_cut_where_it_moves_least() -> None:
    """Between normalisation and softmax, or beside them: not across a statistic and its row."""
    found = fitted(ROW, Compiler(spills_with("sin", "cos")))
    assert len(found.plan.regions) == 2
    assert cut_edges(found.plan)
    assert [len(region.outputs) for region in found.plan.regions] == [1, 1]


def test_other_regions_keep_their_tiles() -> None:
    """A cut plans everything again; what the compiler said before is not asked again."""

    def program(x: Tensor, w: Tensor) -> Any:
        return waves(x).cumsum(0), (x * w).cumsum(0).log().log1p()

    graph = graph_of(program, X, X)

    def answer(spec: KernelSpec) -> Resources:
        if "fn.log(" in spec.source and spec.configurations[0].block("XBLOCK") > 64:
            return SPILLS
        both = "fn.sin(" in spec.source and "fn.tanh(" in spec.source
        return SPILLS if both else FITS

    found = fitted(graph, Compiler(answer))
    assert cut_edges(found.plan)
    (region,) = [r for r in found.plan.regions if any("log" in name for name in r.ops)]
    assert region.notes
    assert set(found.resources.values()) == {FITS}


@pytest.mark.parametrize("graph", [WAVES, ROW, graph_of(lambda x: (x.sin(), x.cos(), x + 1), X)])
def test_it_ends_where_everything_spills(graph: Graph) -> None:
    compiler = Compiler(lambda _: SPILLS)
    found = fitted(graph, compiler)
    assert set(found.resources.values()) == {SPILLS}
    constants = {op.name for op in found.plan.graph.ops if not op.reads}
    assert all(len(set(region.all_ops) - constants) == 1 for region in found.plan.regions)
    tiles = sum(len(tiles) for r in found.plan.regions for tiles in r.schedule.candidates)
    assert compiler.calls < 20 * len(graph.ops) + tiles


def test_the_rest_is_left_as_it_is() -> None:
    """More regions than are cut: those that are left keep their smallest tile."""
    count = MOST_CUTS + 6

    def program(x: Tensor) -> Tensor:
        for _ in range(count):
            x = x.sin().cos().cumsum(0)
        return x

    graph = graph_of(program, torch.empty(16, 16))
    found = fitted(graph, Compiler(spills_with("sin", "cos")))
    whole = [region for region in found.plan.regions if len(region.ops) == 2]
    assert len(whole) == 6
    assert all(len(region.schedule.candidates[0]) == 1 for region in whole)
    assert all(region.notes for region in whole)


def test_the_same_answers_give_the_same_plan() -> None:
    """Whether they come from the compiler or from what it said another time."""
    answer = spills_with("sin", "cos")
    known: dict[tuple[str, Configuration], Resources | str] = {}

    def cached(spec: KernelSpec) -> Resources | str:
        return known.setdefault((spec.key, spec.configurations[0]), answer(spec))

    plans = [fitted(ROW, Compiler(each)).plan for each in (answer, cached, cached)]
    assert len({repr(replace(plan, passes=())) for plan in plans}) == 1


def test_the_order_of_the_program_does_not_move_a_cut() -> None:
    def one(x: Tensor) -> Any:
        a, b = x.sin(), x.exp()
        return a.cos() * b.tanh()

    def other(x: Tensor) -> Any:
        b, a = x.exp(), x.sin()
        d, c = b.tanh(), a.cos()
        return c * d

    compiler = Compiler(spills_with("sin", "tanh"))
    found = [fitted(graph_of(program, X), Compiler(compiler.answer)) for program in (one, other)]
    regions = [{frozenset(region.ops) for region in each.plan.regions} for each in found]
    assert len(regions[0]) > 1
    assert regions[0] == regions[1]


# Rules ------------------------------------------------------------------------------------------


def test_what_a_rule_wants_together_is_cut_elsewhere() -> None:
    for left, right in (("sin", "exp"), ("exp", "cos"), ("cos", "tanh")):
        found = fitted(WAVES, Compiler(spills_with("sin", "tanh")), must_fuse(left, right))
        assert len(found.plan.regions) == 2
        assert found.plan.region_of[left] is found.plan.region_of[right]


def test_a_rule_is_kept_where_every_tile_spills() -> None:
    rules = [must_fuse(*pair) for pair in (("sin", "exp"), ("exp", "cos"), ("cos", "tanh"))]
    found = fitted(WAVES, Compiler(lambda _: SPILLS), *rules)
    (region,) = found.plan.regions
    assert len(region.schedule.candidates[0]) == 1
    assert region.notes


def test_an_assertion_about_a_cut_edge_fails() -> None:
    with pytest.raises(AssertFusedError, match="spilling registers"):
        fitted(WAVES, Compiler(lambda _: SPILLS), assert_fused("sin", "exp"))


# Results ----------------------------------------------------------------------------------------


def run(found: Fitted, *args: Tensor) -> tuple[Tensor, ...]:
    program = host_program(found.plan, found.kernels)
    with poisoned():
        return Executable(found.plan, found.kernels, program)([x.to(DEVICE) for x in args])


@needs_kernels
@pytest.mark.parametrize(
    "answer",
    [
        spills_with("sin", "cos"),
        lambda _: SPILLS,
        lambda spec: SPILLS if spec.configurations[0].num_warps < 16 else FITS,
    ],
    ids=["cut", "ops", "tiles"],
)
def test_fitted_plans_compute_what_eager_does(answer: Answer) -> None:
    found = fitted(ROW, Compiler(answer))
    (given,) = run(found, ROWS, W)
    torch.testing.assert_close(given.cpu(), normed(ROWS, W))
