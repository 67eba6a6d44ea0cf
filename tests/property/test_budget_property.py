"""Plans of random graphs within eager's memory, and what the search for repeated work makes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fuser.ir.graph import Argument, Effect, Graph
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Cost, Reason, Schedule, Strategy
from fuser.ir.space import Space
from fuser.passes.analysis import eager_peak_bytes, op_by_op_peak_bytes, peak_bytes
from fuser.passes.base import OF_THIS_ORDER, dependencies, in_canonical_order
from fuser.passes.candidate import Candidate
from fuser.passes.canonicalize import merge_equal_ops, remove_unused_ops
from fuser.passes.clusters import Cluster, Clustering
from fuser.passes.groups import Groups, Tree
from fuser.passes.pipeline import plan_graph
from fuser.passes.recompute import needed, recompute_cheap
from support.graphs import assert_plan_holds
from support.plans import Sketch, tensor

SEEDS = st.integers(0, 2**32)
SIDES = (16, 64, 128)


def random_graph(seed: int, size: int) -> Graph:
    """Values of several sizes, each read often: pointwise ops, reductions, sums over all, calls
    with large and small results, some of which write."""
    rng, sketch = random.Random(seed), Sketch()
    values = {side: [sketch.input(f"x{side}", side, side)] for side in SIDES}
    ends: list[Argument] = []

    def pick(side: int) -> Argument:
        return rng.choice(values[side][-6:])

    for _ in range(size):
        side, choice = rng.choice(SIDES), rng.random()
        if choice < 0.25:
            total = sketch.reduction("sum", pick(side), rng.choice([0, 1]), keepdim=True)
            values[side].append(sketch.pointwise("mul", pick(side), total))
        elif choice < 0.35:
            ends.append(sketch.reduction("sum", pick(side), 0, 1))
        elif choice < 0.5:
            other = rng.choice(SIDES)
            effect = rng.choice([Effect.NONE, Effect.NONE, Effect.ORDERED, Effect.BARRIER])
            (made,) = sketch.call(
                "aten.mm.default", pick(side), results=[tensor(other, other)], effect=effect
            )
            values[other].append(made)
        elif choice < 0.6:
            ends += sketch.call("aten.norm.default", pick(side), results=[tensor(4)])
        else:
            kind = rng.choice(["add", "mul", "maximum"])
            values[side].append(sketch.pointwise(kind, pick(side), pick(side)))
    outputs = [*ends, *(made[-1] for made in values.values())]
    return remove_unused_ops(merge_equal_ops(sketch.graph(*outputs)))


def shuffled(graph: Graph, rng: random.Random) -> Graph:
    """The same ops in another order that keeps every dependency."""
    needs = {name: set(before) for name, before in dependencies(graph).items()}
    left, order, done = list(graph.ops), [], set[str]()
    while left:
        op = rng.choice([op for op in left if needs[op.name] <= done])
        left.remove(op)
        order.append(op)
        done.add(op.name)
    return replace(graph, ops=tuple(order))


# Memory -----------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, derandomize=True)
@given(SEEDS, st.integers(2, 40), st.sampled_from(["sm_90", "cpu", "gfx942"]))
def test_no_plan_holds_more_than_eager(seed: int, size: int, target: str) -> None:
    graph = random_graph(seed, size)
    plan = plan_graph(graph, target)
    assert_plan_holds(plan)
    assert peak_bytes(plan) <= max(eager_peak_bytes(graph), op_by_op_peak_bytes(graph))
    for verdict in plan.verdicts:
        if verdict.reason is Reason.PEAK_MEMORY:
            assert not verdict.fused
            assert verdict.producer not in plan.region_of[verdict.consumer].all_ops
        if verdict.reason is Reason.RECOMPUTED:
            assert verdict.fused
            assert verdict.producer in plan.region_of[verdict.consumer].recomputed


# Order ------------------------------------------------------------------------------------------


def essence(plan: FusionPlan) -> Any:
    """Kernels and verdicts, with ops as places in canonical order."""
    place = in_canonical_order(plan.graph).position

    def places(names: Sequence[str]) -> frozenset[int]:
        return frozenset(map(place.__getitem__, names))

    regions = {
        (places(region.ops), places(region.recomputed), places(region.outputs))
        for region in plan.regions
    }
    verdicts = {(place[v.producer], place[v.consumer], v.reason) for v in plan.verdicts}
    return regions, verdicts


def is_tight(plan: FusionPlan) -> bool:
    """Whether memory asked for a cut that another order would not have needed."""
    return any(OF_THIS_ORDER in note for region in plan.regions for note in region.notes)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(SEEDS, st.integers(2, 30), SEEDS)
def test_plans_with_cuts_do_not_depend_on_the_order(seed: int, size: int, order: int) -> None:
    """Cuts for the compiler and for memory, and repeated work."""
    graph, rng = random_graph(seed, size), random.Random(order)
    edges = [
        (graph.producers[value].name, op.name)
        for op in graph.ops
        for value in op.reads
        if value in graph.producers
    ]
    cuts = dict.fromkeys(rng.sample(edges, k=min(3, len(edges))), Reason.SPILLS)
    plans = [plan_graph(each, "sm_90", cuts=cuts) for each in (graph, shuffled(graph, rng))]
    for plan in plans:
        assert_plan_holds(plan)
        for left, right in cuts:
            region = plan.region_of.get(right)
            assert region is None or left not in region.all_ops or not graph.by_name[left].reads
    if not any(map(is_tight, plans)):
        assert essence(plans[0]) == essence(plans[1])


# Repeated work ----------------------------------------------------------------------------------


def random_clustering(graph: Graph, rng: random.Random) -> Clustering:
    """Groups that could run, merged at random."""
    needs = dependencies(graph)
    ordered = in_canonical_order(graph)
    groups = Groups(ordered, needs, frozenset())
    for _ in range(rng.randrange(len(graph.ops))):
        pairs = [
            (key, other)
            for key, group in groups.groups.items()
            for other in group.after
            if not any(graph.by_name[n].is_opaque for n in group.ops | groups.groups[other].ops)
            and not groups.would_cycle(key, other)
        ]
        if not pairs:
            break
        groups.merge(*rng.choice(sorted(pairs)))
    clusters = tuple(Cluster(Tree(frozenset(group.ops))) for group in groups.groups.values())
    return Clustering(graph, needs, frozenset(), clusters)


def launches(names: frozenset[str], stored: frozenset[str]) -> Candidate:
    """A kernel takes as long as it stores values, and no time for what it computes."""
    return Candidate(Space((), {}), Schedule(Strategy.FLAT), Cost(time_us=1.0 + len(stored)))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(SEEDS, st.integers(2, 40), SEEDS, st.sampled_from([0, 1 << 40]))
def test_whatever_is_repeated_can_run(seed: int, size: int, merges: int, most: int) -> None:
    """Kernels in which the most is repeated run in some order, each op has one owner, and all that
    is read has been computed or stored before; writes come after every copy of what waits for
    them; nothing is computed that is not stored or needed for what is."""
    graph = random_graph(seed, size)
    start = random_clustering(graph, random.Random(merges))
    place = in_canonical_order(graph).position
    found = recompute_cheap(start, launches, most, place)
    assert sorted(name for each in found.clusters for name in each.owned) == sorted(graph.by_name)
    assert len(found.order) == len(found.clusters)
    if most == 0:
        assert found.clusters == start.clusters
    there = {item.value.name for item in graph.inputs if item.value}
    runs: dict[str, list[int]] = {}
    for step, number in enumerate(found.order):
        cluster = found.clusters[number]
        assert not cluster.owned & cluster.copies
        for name in cluster.computed:
            runs.setdefault(name, []).append(step)
            reads = graph.by_name[name].reads
            assert all(value in cluster.computed or value in there for value in reads)
        values = {value.name for name in cluster.owned for value in graph.by_name[name].results}
        is_call = any(graph.by_name[name].is_opaque for name in cluster.owned)
        stored = found.stored(number)
        there |= values if is_call else stored
        assert is_call or needed(graph, cluster.computed, stored) | stored == cluster.computed
    for op in graph.ops:
        if op.effect is Effect.BARRIER:
            (own,) = runs[op.name]
            assert all(step < own for before in found.needs[op.name] for step in runs[before])
