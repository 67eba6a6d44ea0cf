"""Cheap work is computed again where it is needed rather than stored and loaded.

What the planner repeats and what it does not, that repeated work computes what eager does, around
writes too, and that kernels stay of a bounded length where an op is needed at many indices.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser.capture.from_fx import from_fx
from fuser.codegen.generate import generate
from fuser.codegen.host import host_program
from fuser.ir.graph import Effect, Graph
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Cost, Reason, Schedule, Strategy
from fuser.ir.space import Space
from fuser.numerics import compare
from fuser.passes import decide
from fuser.passes.base import Limits, dependencies, in_canonical_order
from fuser.passes.candidate import Candidate, Refused
from fuser.passes.canonicalize import merge_equal_ops, remove_unused_ops
from fuser.passes.clusters import Cluster, Clustering
from fuser.passes.groups import Tree
from fuser.passes.pipeline import plan_graph
from fuser.passes.recompute import MAX_OPS, MAX_READERS, Judge, recompute_cheap
from fuser.runtime.executable import Executable
from support.compare import poisoned
from support.graphs import assert_plan_holds, graph_of, kernels_of, partitioned, plan_of, traced
from support.plans import Sketch
from support.runtime import DEVICE, needs_kernels

Program = Callable[..., Any]

LARGE, HALF = torch.empty(4096, 4096), torch.empty(4096, 4096, dtype=torch.bfloat16)
COLUMN, ROW = torch.empty(4096, 1), torch.empty(4096)


def both_sums(y: Tensor) -> Any:
    """Two readers that can share no kernel."""
    return y.sum(0), y.sum()


def repeated(plan: FusionPlan) -> set[str]:
    """The kinds of the ops that some kernel computes again."""
    return {plan.graph.by_name[name].kind for region in plan.regions for name in region.recomputed}


# What is repeated -------------------------------------------------------------------------------


REPEATED: dict[str, tuple[Program, tuple[Tensor, ...], set[str]]] = {
    "one op": (lambda x: both_sums(x.sin()), (LARGE,), {"sin"}),
    "a chain": (lambda x: both_sums(x.sin() * 2), (LARGE,), {"sin", "mul"}),
    "a cast to a wider type": (lambda x: both_sums(x.float()), (HALF,), {"cast"}),
    "an outer product": (lambda x, y: both_sums(x * y), (COLUMN, ROW), {"mul"}),
    "slices": (
        lambda x: (lambda y: (y[:, ::2].sum(0), y[::3].sum(1)))(x.sin()), (LARGE,), {"sin"}
    ),
    "what follows a call": (lambda x, w: both_sums((x @ w).relu()), (LARGE, LARGE), {"relu"}),
}  # fmt: skip


@pytest.mark.parametrize("name", REPEATED)
def test_what_is_cheaper_to_compute_than_to_load_is_repeated(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, args, kinds = REPEATED[name]
    graph = graph_of(program, *args)
    plan = plan_graph(graph, "sm_90")
    assert_plan_holds(plan)
    assert repeated(plan) == kinds
    again = {name for region in plan.regions for name in region.recomputed}
    assert not any(again.intersection(region.outputs) for region in plan.regions)
    reasons = {v.reason for v in plan.verdicts if v.consumer not in again and v.producer in again}
    assert Reason.RECOMPUTED in reasons

    monkeypatch.setattr(decide, "recompute_cheap", lambda clustering, *_: clustering)
    stored = plan_graph(graph, "sm_90")
    assert not repeated(stored)
    times = [sum(region.cost.time_us for region in each.regions) for each in (plan, stored)]
    assert times[0] < times[1], "only what is predicted to be faster is repeated"


def expensive(x: Tensor) -> Any:
    """Arithmetic that takes longer than to store and load its result."""
    for _ in range(4):
        x = torch.pow(x.abs(), 1.7)
    return both_sums(x)


def written_between(x: Tensor) -> Any:
    """The second reader runs when what would be computed again has been overwritten."""
    y = x * 2
    total = y.sum(0)
    x.add_(1)
    return total, y.sum(1)


def many_readers(x: Tensor) -> Any:
    y = x.sin()
    return [y[k].sum() if k % 2 else y[:, k].sum() for k in range(2 * MAX_READERS + 2)]


STORED: dict[str, tuple[Program, tuple[Tensor, ...]]] = {
    "expensive": (expensive, (LARGE,)),
    "small, where a launch is all there is": (lambda x: both_sums(x.sin()), (LARGE[:64, :64],)),
    "many operands": (
        lambda x, y, z: both_sums(x * y * z),
        (LARGE, torch.empty_like(LARGE), torch.empty_like(LARGE)),
    ),
    "an output": (lambda x: (lambda y: (y, *both_sums(y)))(x.sin()), (LARGE,)),
    "read by a call": (lambda x: (lambda y: (y @ y, *both_sums(y)))(x.sin()), (LARGE,)),
    "a call": (lambda x: both_sums(x.cumsum(0)), (LARGE,)),
    "a reduction": (lambda x: both_sums(F.softmax(x, 1)), (LARGE,)),
    "written in between": (written_between, (LARGE,)),
}


@pytest.mark.parametrize("name", STORED)
def test_what_cannot_be_repeated_or_costs_more_is_stored(name: str) -> None:
    program, args = STORED[name]
    plan = plan_of(program, *args)
    assert_plan_holds(plan)
    assert not repeated(plan)
    assert Reason.RECOMPUTED not in {verdict.reason for verdict in plan.verdicts}


# Clusters by hand -------------------------------------------------------------------------------


def launches(names: frozenset[str], stored: frozenset[str]) -> Candidate:
    """A kernel takes as long as it stores values, and no time for what it computes."""
    return Candidate(Space((), {}), Schedule(Strategy.FLAT), Cost(time_us=1.0 + len(stored)))


def after(graph: Graph, *clusters: str, judge: Judge = launches) -> dict[str, set[str]]:
    """What is computed by each cluster once the most is repeated; clusters are named by the ops
    that they own."""
    made = tuple(Cluster(Tree(frozenset(names.split()))) for names in clusters)
    start = Clustering(graph, dependencies(graph), frozenset(), made)
    place = in_canonical_order(graph).position
    found = recompute_cheap(start, judge, 1 << 40, place)
    assert sorted(name for each in found.clusters for name in each.owned) == sorted(graph.by_name)
    assert len(found.order) == len(found.clusters)
    return {" ".join(sorted(each.owned)): set(each.computed) for each in found.clusters}


def two_values() -> Graph:
    """`p`, and `q` which is made of it, each read by two kernels; one of those that read p reads
    three other values as well, which a fifth kernel reads."""
    sketch = Sketch()
    x, z = sketch.input("x", 64, 64), sketch.input("z", 64, 64)
    p = sketch.pointwise("sin", x, name="p")
    q = sketch.pointwise("exp", p, name="q")
    others = [sketch.pointwise("mul", z, float(k + 2), name=f"b{k}") for k in range(3)]
    ends = [sketch.pointwise("tanh", q, name="c1"), sketch.pointwise("cos", q, name="c2")]
    first = p
    second = sketch.pointwise("cos", z, name="z1")
    for other in others:
        first = sketch.pointwise("add", first, other, name="c3")
        second = sketch.pointwise("sub", second, other, name="c4")
    ends += [first, second, sketch.pointwise("log", p, name="c5")]
    return sketch.graph(*ends)


def test_what_is_left_of_a_cluster_whose_value_others_compute_has_an_owner() -> None:
    """q is repeated in c1 and c2 first, because c3 is busy with what b0, b1 and b2 store; when p
    is repeated as well, nothing is left of the two, and q belongs to one that computes it."""
    third, fourth = "c3 c3_1 c3_2", "c4 c4_1 c4_2 z1"
    found = after(two_values(), "p q", "b0 b1 b2", "c1", "c2", third, fourth, "c5")
    assert len(found) == 5
    assert sum({"p", "q"} <= computed for computed in found.values()) == 2
    assert sum("p" in computed for computed in found.values()) == 4
    assert sum("b0" in computed for computed in found.values()) == 2


def test_a_repeat_that_leaves_another_kernel_without_a_form_is_not_made() -> None:
    graph = two_values()
    clusters = ("p q", "b0 b1 b2", "c1", "c2", "c3 c3_1 c3_2", "c4 c4_1 c4_2 z1", "c5")

    def judge(names: frozenset[str], stored: frozenset[str]) -> Candidate:
        if "q" in names and "p" in names and not {"p", "q"} <= stored:
            raise Refused(Reason.OTHER_SPACE)
        return launches(names, stored)

    found = after(graph, *clusters, judge=judge)
    assert found["p q"] == {"p", "q"}


def test_what_is_long_or_has_many_readers_is_stored() -> None:
    def fan(length: int, readers: int) -> tuple[Graph, list[str]]:
        sketch = Sketch()
        value = sketch.input("x", 64, 64)
        chain = []
        for _ in range(length):
            value = sketch.pointwise("sin", value)
            chain.append(value.value)
        ends = [sketch.pointwise("mul", value, float(k + 2)) for k in range(readers)]
        return sketch.graph(*ends), [" ".join(chain), *(end.value for end in ends)]

    for length, readers, is_repeated in [
        (MAX_OPS, 2, True), (MAX_OPS + 1, 2, False),
        (1, MAX_READERS, True), (1, MAX_READERS + 1, False),
    ]:  # fmt: skip
        graph, clusters = fan(length, readers)
        assert len(after(graph, *clusters)) == readers + (not is_repeated)


# Results ----------------------------------------------------------------------------------------


def free_launches(program: Program, *args: Tensor) -> tuple[FusionPlan, tuple[Tensor, ...]]:
    """A plan in which launches cost nothing, so that small tensors are worth repeating too."""
    graph, constants = from_fx(traced(program, *(x.clone() for x in args)))
    graph = remove_unused_ops(merge_equal_ops(graph))
    plan = partitioned(graph, launch_us=0.0)
    assert_plan_holds(plan)
    assert not constants
    return plan, args


def assert_right(plan: FusionPlan, program: Program, *args: Tensor) -> None:
    """Results, and arguments after the call, are eager's and float64's."""
    kernels = generate(plan)
    given = [x.clone().to(DEVICE) for x in args]
    eager, wide = [x.clone() for x in args], [x.double() for x in args]
    with poisoned():
        fused = Executable(plan, kernels, host_program(plan, kernels))(list(given))
    steps = len(plan.graph.ops) + max(args[0].shape)
    results = [(*fused, *given), (*program(*eager), *eager), (*program(*wide), *wide)]
    for one, other, exact in zip(*results, strict=True):
        found = compare(one.cpu(), other, exact, steps)
        assert found.is_right, found


RUN: dict[str, Program] = {
    "a chain": lambda x, y: both_sums(x.sin() * 2),
    "one that reads it turned": lambda x, y: both_sums(x.t().tanh() + 1),
    "slices": lambda x, y: (lambda z: (z[:, ::2].sum(0), z[::3].amax(1)))(x.sin()),
    "what follows a call": lambda x, y: both_sums((x.cumsum(0) * 0.1).relu()),
    "maxima": lambda x, y: (lambda z: (z.amax(0), z.amin()))(x.abs()),
}


@needs_kernels
@pytest.mark.parametrize("name", RUN)
@pytest.mark.parametrize("shape", [(33, 17), (1, 130), (65, 7)])
def test_repeated_work_computes_what_eager_does(name: str, shape: tuple[int, int]) -> None:
    plan, args = free_launches(RUN[name], torch.randn(shape), torch.randn(shape))
    if min(shape) > 1:
        assert repeated(plan)
    assert_right(plan, RUN[name], *args)


@needs_kernels
@pytest.mark.parametrize("name", ["a chain", "maxima"])
def test_repeated_work_has_eagers_infinities(name: str) -> None:
    x = torch.randn(33, 17)
    x[3, 5], x[7, 2], x[8, 8] = float("nan"), float("inf"), float("-inf")
    plan, args = free_launches(RUN[name], x, x)
    assert repeated(plan)
    assert_right(plan, RUN[name], *args)


# Writes -----------------------------------------------------------------------------------------


def with_writes(seed: int) -> Program:
    """Sums of values of which some are cheap, between writes to the arguments and to copies."""

    def program(x: Tensor, w: Tensor) -> Any:
        rng = random.Random(seed)
        values, buffers, ends = [x, w, x.sin()], [x, w], []
        for _ in range(rng.randint(4, 20)):
            choice, value = rng.random(), rng.choice(values[-5:])
            if choice < 0.3:
                ends.append(value.sum(rng.choice([0, 1])))
            elif choice < 0.4:
                rng.choice(buffers).add_(value)
            elif choice < 0.45:
                rng.choice(buffers)[1:].mul_(0.5)
            elif choice < 0.5:
                rng.choice(buffers).copy_(value.cos())
            elif choice < 0.55:
                buffers.append(value.clone())
                values.append(buffers[-1])
            elif choice < 0.65:
                values.append(value.t().reshape(value.shape))
            else:
                join = rng.choice([torch.add, torch.mul, torch.maximum])
                values.append(join(value.tanh(), rng.choice(values[-5:])))
        return (*ends, *both_sums(values[-1]))

    return program


def test_kernels_run_in_some_order_around_writes() -> None:
    """What is repeated reads memory as it was when the value was first computed: a copy is on the
    same side of every write as its owner."""
    both = 0
    for seed in range(80):
        plan, _ = free_launches(with_writes(seed), torch.empty(33, 12), torch.empty(33, 12))
        writes = [op.name for op in plan.graph.ops if op.effect is Effect.BARRIER]
        both += bool(writes) and bool(repeated(plan))
        step = {name: place for place, name in enumerate(plan.order)}
        for region in plan.regions:
            for name in region.recomputed:
                if not plan.graph.by_name[name].reads:
                    continue
                sides = [step[region.name], step[plan.region_of[name].name]]
                assert not any(min(sides) < step[write] < max(sides) for write in writes)
    assert both >= 5


@needs_kernels
@pytest.mark.parametrize("seed", range(12))
def test_repeated_work_around_writes_computes_what_eager_does(seed: int) -> None:
    shape = random.Random(seed).choice([(7, 5), (13, 9), (33, 12)])
    plan, args = free_launches(with_writes(seed), torch.randn(shape), torch.randn(shape))
    assert_right(plan, with_writes(seed), *args)


# Ops that are needed at many indices ------------------------------------------------------------


def stencil(x: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        x = (x[1:] + x[:-1]).sin()
    return x


def test_a_long_stencil_is_cut_where_it_would_recompute_too_much() -> None:
    plan = plan_of(stencil, torch.randn(100))
    assert len(plan.regions) > 1
    for spec in kernels_of(stencil, torch.randn(100)):
        assert spec.source.count("fn.sin") <= Limits().ops


def test_a_short_stencil_is_one_kernel() -> None:
    plan = plan_of(lambda x: (x[1:] + x[:-1]).sin()[2:] * 2, torch.randn(100))
    assert len(plan.regions) == 1
