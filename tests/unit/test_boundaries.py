"""Boundaries between kernels: where they are moved to, and what keeps them in place."""

from __future__ import annotations

import torch
from torch import Tensor

from fuser import no_fuse
from fuser.ir.region import Cost, Reason, Schedule, Strategy
from fuser.ir.space import Space
from fuser.passes.analysis import eager_peak_bytes, peak_bytes
from fuser.passes.base import dependencies
from fuser.passes.boundaries import move_boundaries
from fuser.passes.candidate import Candidate, Refused
from fuser.passes.clusters import Cluster, Clustering
from fuser.passes.groups import Tree
from fuser.passes.pipeline import plan_graph
from fuser.passes.split import Cut
from support.graphs import assert_plan_holds, graph_of, plan_of
from support.plans import Sketch

ROWS = torch.empty(64, 1024)


def rows_then_columns(x: Tensor, y: Tensor) -> Tensor:
    return (x.softmax(1) * y).softmax(0)


def test_the_last_op_of_a_softmax_is_not_left_to_its_reader() -> None:
    """By gain it is merged with the columns that read it, and the row's sum is stored for it."""
    plan = plan_of(rows_then_columns, ROWS, ROWS)
    assert_plan_holds(plan)
    assert [len(region.outputs) for region in plan.regions] == [1, 1]
    refused = [verdict for verdict in plan.verdicts if not verdict.fused]
    assert {verdict.reason for verdict in refused} == {Reason.OTHER_REDUCTION}
    assert peak_bytes(plan) <= eager_peak_bytes(plan.graph)


def test_a_rule_keeps_a_boundary_in_place() -> None:
    graph = graph_of(rows_then_columns, ROWS, ROWS)
    plan = plan_graph(graph, "sm_90", rules=[no_fuse("exp", "divide")])
    assert_plan_holds(plan)
    kinds = {op.name: op.kind for op in plan.graph.ops}
    edges = [
        v for v in plan.verdicts if (kinds[v.producer], kinds[v.consumer]) == ("exp", "divide")
    ]
    assert [verdict.reason for verdict in edges] == [Reason.FORBIDDEN] * len(edges)
    assert edges


def narrowing() -> Clustering:
    """Two clusters of a chain of four ops; what the second op makes is the smallest."""
    sketch = Sketch()
    first = sketch.pointwise("exp", sketch.input("x", 64, 256), name="first")
    second = sketch.reduction("sum", first, 1, keepdim=True)
    third = sketch.pointwise("mul", sketch.input("y", 64, 256), second, name="third")
    graph = sketch.graph(sketch.pointwise("exp", third, name="fourth"))
    names = [op.name for op in graph.ops]
    sides = (frozenset(names[:1]), frozenset(names[1:]))
    clusters = tuple(Cluster(Tree(side)) for side in sides)
    return Clustering(graph, dependencies(graph), frozenset(), clusters)


def took(time_us: float) -> Candidate:
    return Candidate(Space((), {}), Schedule(Strategy.FLAT), Cost(time_us=time_us))


def any_cut(_: Cut) -> bool:
    return True


def test_where_one_kernel_cannot_be_the_fewest_bytes_cross() -> None:
    def judge(names: frozenset[str], _: frozenset[str]) -> Candidate:
        if len(names) == 4:
            raise Refused(Reason.TOO_MANY_OPS, "4 > 3")
        return took(1.0)

    found, (moved,) = move_boundaries(narrowing(), judge, 1 << 30, any_cut)
    assert [len(cluster.owned) for cluster in found.clusters] == [2, 2]
    assert moved.cut.crossing == 64 * 4
    assert (moved.reason, moved.detail) == (Reason.TOO_MANY_OPS, "4 > 3")


def test_one_kernel_is_best_where_it_is_fastest_and_memory_allows() -> None:
    before = narrowing()
    found, moved = move_boundaries(before, lambda *_: took(1.0), 1 << 30, any_cut)
    assert ([len(cluster.owned) for cluster in found.clusters], moved) == ([4], ())


def test_a_slower_boundary_stays_where_it_is() -> None:
    before = narrowing()
    sides = [cluster.owned for cluster in before.clusters]

    def judge(names: frozenset[str], _: frozenset[str]) -> Candidate:
        return took(1.0 if names in sides else 2.1)

    assert move_boundaries(before, judge, 1 << 30, any_cut) == (before, ())
