"""Cuts of one kernel in two: their numbers against a count by hand, and which one is chosen."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

import pytest

from fuser.ir.graph import Argument, Graph
from fuser.ir.region import Cost, Reason, Schedule, Strategy
from fuser.ir.space import Space
from fuser.passes.base import dependencies
from fuser.passes.candidate import Candidate, Refused
from fuser.passes.clusters import Cluster, Clustering, leaving
from fuser.passes.decide import cut_region
from fuser.passes.groups import Tree
from fuser.passes.pipeline import plan_graph
from fuser.passes.split import MOST_JUDGED, Cut, apart, cheapest_cut, crossing_pairs, cuts
from support.graphs import assert_plan_holds
from support.plans import Sketch


def random_graph(seed: int, size: int) -> Graph:
    """Pointwise ops and reductions of values of several sizes."""
    rng, sketch = random.Random(seed), Sketch()
    shape = (4, 6)
    values = [sketch.input(f"x{k}", *shape) for k in range(2)]
    small: list[Argument] = []
    for _ in range(size):
        if rng.random() < 0.3:
            axis = rng.choice([0, 1])
            small.append(sketch.reduction("sum", rng.choice(values), axis, keepdim=True))
        other = rng.choice([*values, *small])
        values.append(sketch.pointwise("add", rng.choice(values), other))
    outputs = rng.sample(values[2:], k=min(2, size))
    return sketch.graph(*outputs)


def size_of(graph: Graph, names: Collection[str]) -> int:
    return sum(int(graph.by_name[name].type.bytes) for name in names)


def some_ops(graph: Graph, seed: int) -> frozenset[str]:
    rng = random.Random(seed)
    names = [op.name for op in graph.ops]
    return frozenset(rng.sample(names, k=rng.randint(1, len(names))))


@pytest.mark.parametrize("seed", range(60))
def test_the_numbers_of_a_cut_are_what_a_count_gives(seed: int) -> None:
    graph = random_graph(seed, 3 + seed % 9)
    ops = some_ops(graph, seed) if seed % 2 else frozenset(op.name for op in graph.ops)
    stored = leaving(graph, ops)
    names = sorted(ops, key=graph.position.__getitem__)
    found = list(cuts(graph, ops, stored))
    assert len(found) == len(names) - 1
    for position, cut in enumerate(found):
        left, right = set(names[: position + 1]), set(names[position + 1 :])
        assert (cut.left, cut.right) == (left, right)
        for_right = {
            name for name in left if any(reader.name in right for reader in graph.readers[name])
        }
        assert cut.crossing == size_of(graph, for_right - stored)
        assert cut.held_left == size_of(graph, for_right | (stored & left))
        assert cut.held_right == size_of(graph, for_right | stored)


# The one that is chosen -------------------------------------------------------------------------


def took(time_us: float) -> Candidate:
    return Candidate(Space((), {}), Schedule(Strategy.FLAT), Cost(time_us=time_us))


def all_ops(graph: Graph) -> frozenset[str]:
    return frozenset(op.name for op in graph.ops)


@pytest.mark.parametrize("seed", range(20))
def test_the_cut_with_the_fastest_kernels_is_chosen(seed: int) -> None:
    graph = random_graph(seed, 4)
    ops = all_ops(graph)
    stored = leaving(graph, ops)
    rng = random.Random(seed)
    times: dict[frozenset[str], float] = {}

    def judge(names: frozenset[str], kept: frozenset[str]) -> Candidate:
        if names != ops:
            assert kept >= leaving(graph, names) & stored
            assert all(
                name in kept
                for name in names
                if any(reader.name in ops - names for reader in graph.readers[name])
            )
        return took(times.setdefault(names, rng.random()))

    cut = cheapest_cut(graph, ops, stored, judge)
    assert cut is not None
    judged = [each for each in cuts(graph, ops, stored) if each.left in times]
    assert len(judged) == min(MOST_JUDGED, len(ops) - 1)
    least = min(times[each.left] + times[each.right] for each in judged)
    assert cut.cost_us == pytest.approx(least - times[ops])
    crossing = sorted(each.crossing for each in cuts(graph, ops, stored))
    assert sorted(each.crossing for each in judged) == crossing[: len(judged)]


def test_only_allowed_cuts_are_chosen() -> None:
    graph = random_graph(1, 6)
    ops = all_ops(graph)
    stored = leaving(graph, ops)
    first = next(iter(cuts(graph, ops, stored)))
    cut = cheapest_cut(graph, ops, stored, lambda *_: took(1.0), lambda cut: len(cut.left) == 1)
    assert cut is not None
    assert cut.left == first.left
    assert cheapest_cut(graph, ops, stored, lambda *_: took(1.0), lambda _: False) is None


def test_as_many_refused_sides_as_there_are_do_not_hide_a_cut() -> None:
    """However many cuts give a side that is no kernel, one that gives two is found."""
    sketch = Sketch()
    value = sketch.input("x", 4, 6)
    for _ in range(20):
        value = sketch.pointwise("exp", value)
    graph = sketch.graph(value)
    ops = all_ops(graph)

    def judge(names: frozenset[str], stored: frozenset[str]) -> Candidate:
        if len(names) not in (3, 17, 20):
            raise Refused(Reason.OTHER_SPACE)
        return took(1.0)

    cut = cheapest_cut(graph, ops, leaving(graph, ops), judge)
    assert cut is not None
    assert {len(cut.left), len(cut.right)} == {3, 17}


def test_one_op_has_no_cut() -> None:
    graph = random_graph(0, 5)
    for op in graph.ops:
        ops = frozenset({op.name})
        assert cheapest_cut(graph, ops, leaving(graph, ops), lambda *_: took(1.0)) is None


# What becomes of it -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_every_edge_across_a_cut_is_a_pair(seed: int) -> None:
    graph = random_graph(seed, 8)
    ops = all_ops(graph)
    for cut in cuts(graph, ops, leaving(graph, ops)):
        edges = {
            (name, reader.name)
            for name in cut.left
            for reader in graph.readers[name]
            if reader.name in cut.right
        }
        pairs = crossing_pairs(graph, cut)
        assert pairs == sorted(pairs)
        if edges:
            assert set(pairs) == edges
        else:
            ((left, right),) = pairs
            assert left in cut.left
            assert right in cut.right


def test_sides_of_siblings_are_kept_apart_by_two_of_them() -> None:
    sketch = Sketch()
    x = sketch.input("x", 4, 6)
    ends = [sketch.pointwise("mul", x, float(k), name=f"end{k}") for k in range(4)]
    graph = sketch.graph(*ends)
    cut = Cut(frozenset({"end0", "end1"}), frozenset({"end2", "end3"}), 0, 0, 0)
    assert crossing_pairs(graph, cut) == [("end0", "end2")]


def test_cut_clusters_are_two() -> None:
    graph = random_graph(3, 6)
    ops = all_ops(graph)
    clustering = Clustering(graph, dependencies(graph), frozenset(), (Cluster(Tree(ops)),))
    (cut, *_) = cuts(graph, ops, clustering.stored(0))
    found = apart(clustering, {0: cut})
    assert [cluster.owned for cluster in found.clusters] == [cut.left, cut.right]
    assert len(found.order) == 2
    assert apart(clustering, {}).clusters == clustering.clusters


@pytest.mark.parametrize("make", [lambda seed: random_graph(seed, 6)])
def test_a_region_that_is_planned_again_has_lost_a_part(make: Callable[[int], Graph]) -> None:
    """As often as it takes: in the end every op is a kernel of its own."""
    for seed in range(6):
        graph = make(seed)
        forbidden: dict[tuple[str, str], Reason] = {}
        plan = plan_graph(graph, "sm_90")
        while any(len(region.ops) > 1 for region in plan.regions):
            region = next(region for region in plan.regions if len(region.ops) > 1)
            pairs = cut_region(plan, region)
            assert pairs
            forbidden |= dict.fromkeys(pairs, Reason.SPILLS)
            plan = plan_graph(graph, "sm_90", cuts=forbidden)
            assert_plan_holds(plan)
            for left, right in forbidden:
                if left in plan.region_of:
                    assert right not in plan.region_of[left].all_ops
        assert {v.reason for v in plan.verdicts if (v.producer, v.consumer) in forbidden} == {
            Reason.SPILLS
        }
