"""No plan holds more memory at once than eager: what is cut for it, and what the plan says."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser.errors import MustFuseError
from fuser.ir.graph import Graph
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Reason
from fuser.ir.rules import must_fuse
from fuser.passes import decide
from fuser.passes.analysis import eager_peak_bytes, op_by_op_peak_bytes, peak_bytes
from fuser.passes.base import dependencies
from fuser.passes.clusters import Cluster, Clustering
from fuser.passes.groups import Tree
from fuser.passes.memory import Allowed, Cheapest, within_peak
from fuser.passes.pipeline import plan_graph
from fuser.passes.split import Cut, cuts
from support.compare import assert_matches_eager
from support.graphs import assert_plan_holds, captured_graph, graph_of, verdict_on
from support.plans import Sketch, tensor

Program = Callable[..., Any]

X, W = torch.empty(2, 257, 257, dtype=torch.float64)  # their products are calls


def early(x: Tensor) -> Any:
    """`b * 2` would be computed with b, and kept while the first product runs."""
    b = x.sin().exp()
    first = (b @ b).sum()
    d = b * 2
    return first, (d @ d).sum()


def early_siblings(x: Tensor) -> Any:
    """Both read x; together they hold two large values where eager holds one after the other."""
    a = x.sin()
    first = (a @ a).sum()
    b = x.cos()
    return first, (b @ b).sum()


def many_early(x: Tensor) -> Any:
    """Five large values, each of which is used up before the next one is made."""
    found = []
    for k in range(5):
        y = (x * (k + 2)).tanh()
        found.append((y @ y).sum())
    return found


def late_output(x: Tensor, w: Tensor) -> Any:
    """The sum belongs to the row of the first value, which would be kept until the end."""
    y = x.exp()
    z = (y @ w).relu()
    for _ in range(3):
        z = (z @ w).relu()
    return z + x.sin()


def block(x: Tensor, w: Tensor) -> Any:
    y = F.layer_norm(x + F.gelu(x @ w) @ w, (257,))
    return F.softmax(y @ w, -1) @ x, y.sum(0)


PROGRAMS: dict[str, tuple[Program, tuple[Tensor, ...]]] = {
    "early": (early, (X,)),
    "early siblings": (early_siblings, (X,)),
    "many early": (many_early, (X,)),
    "late output": (late_output, (X, W)),
    "block": (block, (X, W)),
}
CUT = ("early", "early siblings", "many early")


def peaks(plan: FusionPlan) -> tuple[int, int]:
    graph = plan.graph
    return peak_bytes(plan), max(eager_peak_bytes(graph), op_by_op_peak_bytes(graph))


def without_limit(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> FusionPlan:
    """The plan of a machine that has all the memory there is."""
    with monkeypatch.context() as patch:
        patch.setattr(decide, "within_peak", lambda clustering, *_: (clustering, ()))
        return plan_graph(graph, "sm_90")


# Plans ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["sm_90", "cpu", "gfx942"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_plan_holds_more_than_eager(name: str, target: str) -> None:
    program, args = PROGRAMS[name]
    for graph in (graph_of(program, *args), captured_graph(program, *args)):
        plan = plan_graph(graph, target)
        assert_plan_holds(plan)
        planned, eager = peaks(plan)
        assert planned <= eager


@pytest.mark.parametrize("name", CUT)
def test_what_is_cut_would_have_held_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, args = PROGRAMS[name]
    graph = graph_of(program, *args)
    plan, free = plan_graph(graph, "sm_90"), without_limit(graph, monkeypatch)
    planned, eager = peaks(free)
    assert planned > eager, "the program is no test of the limit"
    assert len(free.regions) < len(plan.regions)
    noted = [note for region in plan.regions for note in region.notes]
    assert noted
    assert set(noted) == {"cut to hold no more memory than eager"}
    assert not any(region.notes for region in free.regions)


def test_an_edge_that_is_cut_says_why() -> None:
    plan = plan_graph(graph_of(early, X), "sm_90")
    verdict = verdict_on(plan, "exp", "mul")
    assert not verdict.fused
    assert verdict.reason is Reason.PEAK_MEMORY
    assert verdict.gain_us > 0
    assert verdict_on(plan, "sin", "exp").reason is Reason.FUSED


def test_what_holds_no_more_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROGRAMS.keys() - set(CUT):
        program, args = PROGRAMS[name]
        graph = graph_of(program, *args)
        plan = plan_graph(graph, "sm_90")
        assert plan.regions == without_limit(graph, monkeypatch).regions
        assert Reason.PEAK_MEMORY not in {verdict.reason for verdict in plan.verdicts}


def test_a_rule_that_would_hold_more_is_an_error() -> None:
    with pytest.raises(MustFuseError, match="hold more memory"):
        plan_graph(graph_of(early, X), "sm_90", rules=[must_fuse("exp", "mul")])


@pytest.mark.parametrize("name", CUT)
def test_what_is_cut_computes_what_eager_does(name: str) -> None:
    program, args = PROGRAMS[name]
    fresh = [torch.randn(33, 33) / 6 for _ in args]
    assert_matches_eager(program, *fresh)


# The pass alone ---------------------------------------------------------------------------------


def waves(count: int) -> Graph:
    """Values of 64 x 64, each summed by a call before the next one is made."""
    sketch = Sketch()
    x = sketch.input("x", 64, 64)
    ends = []
    for k in range(count):
        made = sketch.pointwise("mul", x, float(k + 2), name=f"wave{k}")
        ends += sketch.call("aten.norm.default", made, results=[tensor()], name=f"norm{k}")
    return sketch.graph(*ends)


def together(graph: Graph, *names: str) -> Clustering:
    """All ops alone except for the named ones."""
    alone = [frozenset({op.name}) for op in graph.ops if op.name not in names]
    owned = [frozenset(names), *alone]
    clusters = tuple(Cluster(Tree(names)) for names in owned)
    return Clustering(graph, dependencies(graph), frozenset(), clusters)


def narrowest(graph: Graph) -> Cheapest:
    def chosen(
        ops: frozenset[str], stored: frozenset[str], allowed: Allowed, along: Graph | None = None
    ) -> Cut | None:
        found = filter(allowed, cuts(along or graph, ops, stored))
        return min(found, key=lambda cut: cut.crossing, default=None)

    return chosen


@pytest.mark.parametrize("most", range(1, 9))
def test_no_more_is_cut_than_the_limit_asks_for(most: int) -> None:
    """Of eight values of equal size as many stay together as may be held."""
    graph = waves(8)
    start = together(graph, *(f"wave{k}" for k in range(8)))
    size = 64 * 64 * 4
    limit = most * size + 8 * 4
    found, made = within_peak(start, limit, narrowest(graph), lambda _: pytest.fail("no way"))
    assert found.peak <= limit
    assert bool(made) == (most < 8)
    owned = [cluster.owned for cluster in found.clusters]
    assert sorted(name for names in owned for name in names) == sorted(graph.by_name)
    assert max(sum(name.startswith("wave") for name in names) for names in owned) <= most


def test_what_cannot_be_cut_is_reported() -> None:
    graph = waves(3)
    start = together(graph, "wave0", "wave1", "wave2")
    told: list[frozenset[str]] = []
    found, made = within_peak(start, 64 * 64 * 4, lambda *_: None, told.append)
    assert (found, made) == (start, ())
    assert told == [frozenset({"wave0", "wave1", "wave2"})]
    assert within_peak(start, 64 * 64 * 4, lambda *_: None) == (start, ())


@pytest.mark.parametrize("seed", range(10))
def test_any_grouping_gets_down_to_what_ops_hold_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    graph = waves(rng.randint(2, 12))
    names = [op.name for op in graph.ops if not op.is_opaque]
    start = together(graph, *rng.sample(names, rng.randint(1, len(names))))
    limit = op_by_op_peak_bytes(graph)
    found, _ = within_peak(start, limit, narrowest(graph), lambda _: pytest.fail("no way"))
    assert found.peak <= limit
    assert len(found.order) == len(found.clusters)


def test_a_rule_that_only_the_ops_one_by_one_could_afford_is_an_error() -> None:
    """A softmax is one call of eager's, which holds nothing of what goes on inside it: with the sum
    of everything in its kernel, the sums of its rows would be held as well."""

    def program(x: Tensor) -> Any:
        y = F.softmax(F.gelu(x), -1)
        return y, y.sum()

    graph = captured_graph(program, torch.empty(4096, 512))
    plan = plan_graph(graph, "sm_90")
    assert peak_bytes(plan) <= eager_peak_bytes(plan.graph)
    with pytest.raises(MustFuseError, match="peak_memory"):
        plan_graph(graph, "sm_90", rules=[must_fuse("div", "sum_2")])
