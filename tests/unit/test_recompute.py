"""Values that are computed again in each kernel that reads them: when, when not, and rightly so.

Ops needed at many indices are such values too: the planner counts each, so kernels stay of a
bounded length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser.codegen.generate import generate
from fuser.codegen.host import host_program
from fuser.ir.dtype import DType
from fuser.ir.graph import Argument, Effect, Graph
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Cost, Reason, Schedule, Strategy
from fuser.ir.rules import no_fuse
from fuser.ir.space import Space
from fuser.passes.analysis import eager_peak_bytes, peak_bytes
from fuser.passes.base import Limits, dependencies
from fuser.passes.candidate import Candidate
from fuser.passes.clusters import Cluster, Clustering
from fuser.passes.groups import Tree
from fuser.passes.pipeline import plan_graph
from fuser.passes.recompute import recompute_cheap
from fuser.runtime.executable import Executable
from support.compare import assert_matches_eager, poisoned
from support.graphs import assert_plan_holds, graph_of, kernels_of, plan_of
from support.plans import Sketch, tensor
from support.runtime import DEVICE, needs_kernels

Program = Callable[..., Any]
LARGE = torch.empty(2048, 2048)
HALF = LARGE.bfloat16()
ROWS = torch.zeros(2048, dtype=torch.int64)


def repeated(plan: FusionPlan) -> set[str]:
    """The kinds of the ops that are computed again, constants left out."""
    ops = plan.graph.by_name
    return {
        ops[name].kind for region in plan.regions for name in region.recomputed if ops[name].reads
    }


def sums(value: Tensor) -> tuple[Tensor, Tensor]:
    """Two readers of a value that cannot be one kernel."""
    return value.sum(0), value.sum(1)


def masked(x: Tensor, y: Tensor, lengths: Tensor) -> Any:
    """Two softmaxes over different axes under one mask."""
    mask = torch.arange(x.shape[1])[None, :] < lengths[:, None]
    return F.softmax(torch.where(mask, x, -1e9), -1), F.softmax(torch.where(mask, y, -1e9), 0)


def attention_twice(x: Tensor, lengths: Tensor, weight: Tensor) -> Tensor:
    """Two softmaxes under one mask, with a product between them."""
    mask = torch.arange(x.shape[1])[None, :] < lengths[:, None]
    first = F.softmax(torch.where(mask, x, -1e9), -1)
    return F.softmax(torch.where(mask, first @ weight, -1e9), -1)


# When -------------------------------------------------------------------------------------------

CHEAP: dict[str, tuple[Program, tuple[Tensor, ...], str]] = {
    "a cast": (lambda x: sums(x.float()), (HALF,), "cast"),
    "a mask of two softmaxes": (masked, (LARGE, LARGE.clone(), ROWS), "less"),
    "a mask on either side of a product": (attention_twice, (LARGE, ROWS, LARGE.clone()), "less"),
    "arithmetic on a row": (lambda x, row: sums(x * row + 1), (LARGE, LARGE[0].clone()), "add"),
}


@pytest.mark.parametrize("name", CHEAP)
def test_a_cheap_value_is_computed_again(name: str) -> None:
    program, args, kind = CHEAP[name]
    plan = plan_of(program, *args)
    assert_plan_holds(plan)  # among others: each op has one owner
    assert kind in repeated(plan)
    (value,) = [op.name for op in plan.graph.ops if op.kind == kind]
    assert not any(value in region.outputs for region in plan.regions), "nothing stores it"
    computing = [region for region in plan.regions if value in region.all_ops]
    assert len(computing) == 2
    for verdict in plan.verdicts:
        if verdict.producer == value:
            owner = plan.region_of[value]
            is_owned = plan.region_of[verdict.consumer] is owner
            wanted = Reason.FUSED if is_owned else Reason.RECOMPUTED
            assert verdict.fused
            assert verdict.reason is wanted


def test_repeating_is_predicted_to_save_time() -> None:
    program, args, _ = CHEAP["a cast"]
    graph = graph_of(program, *args)
    (cast,) = [op.name for op in graph.ops if op.kind == "cast"]
    (other,) = [op.name for op in graph.ops if op.reduced == (1,)]
    apart = plan_graph(graph, "sm_90", rules=(no_fuse(cast, other),))
    assert repeated(apart) == set()

    def time(plan: FusionPlan) -> float:
        return sum(region.cost.time_us for region in plan.regions)

    assert time(plan_graph(graph, "sm_90")) < 0.7 * time(apart)


# When not ---------------------------------------------------------------------------------------

KEPT: dict[str, tuple[Program, tuple[Tensor, ...]]] = {
    "a call reads it": (lambda x: (*sums(x.float()), x.float().cumsum(0)), (HALF,)),
    "it is an output": (lambda x: (*sums(x.float()), x.float()), (HALF,)),
    "a reduction makes it": (lambda x: sums(x - x.mean(1, keepdim=True)), (LARGE,)),
    "loading is as cheap": (lambda x, y: sums(x + y), (LARGE, LARGE.clone())),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_value_is_stored_where(name: str) -> None:
    program, args = KEPT[name]
    plan = plan_graph(graph_of(program, *args), "sm_90")
    assert_plan_holds(plan)
    kinds = {"a reduction makes it": {"sub"}}.get(name, set())
    assert repeated(plan) <= kinds
    for region in plan.regions:
        assert not any(plan.graph.by_name[name].reduced for name in region.recomputed)


def test_a_rule_keeps_a_reader_from_computing_it() -> None:
    program, args, _ = CHEAP["a mask of two softmaxes"]
    graph = graph_of(program, *args)
    (mask,) = [op.name for op in graph.ops if op.kind == "less"]
    reader = graph.readers[mask][-1].name
    for rule in (no_fuse(mask, reader), no_fuse(mask)):
        plan = plan_graph(graph, "sm_90", rules=(rule,))
        assert_plan_holds(plan)
        assert mask not in plan.region_of[reader].all_ops
        assert any(mask in region.outputs for region in plan.regions)


def three_halves(between: int) -> Graph:
    """A value made of three others of its size, with a call between its two readers that needs
    `between` elements."""
    sketch = Sketch()
    half = DType.BFLOAT16
    x = sketch.input("x", 2048, 2048, dtype=half)
    made = [
        sketch.call("aten.mm.default", x, results=[tensor(2048, 2048, dtype=half)])[0]
        for _ in range(3)
    ]
    wide = [sketch.pointwise("add", x, 0.0), *made]
    product = sketch.pointwise("mul", sketch.pointwise("mul", wide[1], wide[2]), wide[3])
    first = sketch.reduction("sum", product, 0)
    (large,) = sketch.call("aten.large.default", first, results=[tensor(between)])
    (small,) = sketch.call("aten.small.default", large, results=[tensor(2048, dtype=half)])
    last = sketch.pointwise("add", small, sketch.reduction("sum", product, 1))
    return sketch.graph(first, last)


def test_memory_keeps_a_reader_from_computing_it() -> None:
    """Its sources would live on in its place while the call needs much memory."""
    for between in (16, 4 * 2048 * 2048):
        plan = plan_graph(three_halves(between), "sm_90")
        assert_plan_holds(plan)
        assert peak_bytes(plan) <= eager_peak_bytes(plan.graph)
    assert repeated(plan) == set()


def test_what_is_read_before_a_write_is_not_read_again_after_it() -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        value = w * x
        total = value.sum(0)
        w.add_(1)
        return total, value.sum(1)

    x = torch.randn(512, 512)
    for target in ("sm_90", "cpu"):
        plan = plan_of(program, x, x, target=target)
        assert_plan_holds(plan)
        assert repeated(plan) == set()


# The search by itself ---------------------------------------------------------------------------


def clustering_of(graph: Graph, *groups: Sequence[str]) -> Clustering:
    clusters = tuple(Cluster(Tree(frozenset(names))) for names in groups)
    return Clustering(graph, dependencies(graph), frozenset(), clusters)


def launches(names: frozenset[str], stored: frozenset[str]) -> Candidate:
    """Every kernel takes as long as any other: whatever does without one saves time."""
    return Candidate(Space((), {}), Schedule(Strategy.FLAT), Cost(time_us=1.0))


def settled(graph: Graph, *groups: Sequence[str], most_bytes: int = 1 << 40) -> Clustering:
    clustering = clustering_of(graph, *groups)
    found = recompute_cheap(clustering, launches, most_bytes, graph.position)
    assert sorted(found.owner) == sorted(op.name for op in graph.ops)
    assert len(found.order) == len(found.clusters), "they can run in some order"
    return found


def two_steps(between: Effect | None = None) -> tuple[Graph, Argument]:
    """`base` is read by `early` and `late`, which waits for `early`; two more read `late`."""
    sketch = Sketch()
    x = sketch.input("x", 64, 64)
    start = sketch.pointwise("exp", x, name="start")
    base = sketch.pointwise("mul", x, 2.0, name="base")
    early = sketch.reduction("sum", base, 1, keepdim=True, name="early")
    if between is not None:
        sketch.call("aten.copy_.default", x, results=[tensor(64, 64)], effect=between, name="call")
    late = sketch.pointwise(
        "add", sketch.pointwise("add", start, base, name="join"), early, name="late"
    )
    ends = [sketch.reduction("sum", late, axis, name=f"end{axis}") for axis in (0, 1)]
    return sketch.graph(*ends), late


def test_who_has_a_copy_already_is_no_reader() -> None:
    """`late` takes `base` in, of which `early` has a copy; when `late` goes to its own readers,
    `early` is none of them: it runs before."""
    graph, _ = two_steps()
    found = settled(graph, ["start", "join", "late"], ["base"], ["early"], ["end0"], ["end1"])
    computed = {frozenset(cluster.computed) for cluster in found.clusters}
    again = {"start", "join", "late", "base"}
    assert computed == {frozenset({"early", "base"}), again | {"end0"}, again | {"end1"}}


def test_copies_do_not_pass_a_write() -> None:
    groups = (["start", "join", "late"], ["base"], ["early"], ["end0"], ["end1"], ["call"])
    graph, _ = two_steps(Effect.BARRIER)
    found = settled(graph, *groups)
    (early,) = [cluster for cluster in found.clusters if "early" in cluster.owned]
    assert early.computed == {"early"}, "`late` runs after the write, `base` before it"
    graph, _ = two_steps(Effect.NONE)
    found = settled(graph, *groups)
    (early,) = [cluster for cluster in found.clusters if "early" in cluster.owned]
    assert early.computed == {"early", "base"}


def test_a_reader_computes_only_what_it_needs() -> None:
    sketch = Sketch()
    x = sketch.input("x", 64, 64)
    one = sketch.pointwise("exp", x, name="one")
    other = sketch.pointwise("sin", x, name="other")
    ends = [
        sketch.reduction("sum", value, axis, name=f"{value.value}{axis}")
        for value in (one, other)
        for axis in (0, 1)
    ]
    names = [end.value for end in ends]
    found = settled(sketch.graph(*ends), ["one", "other"], *([name] for name in names))
    assert {cluster.computed for cluster in found.clusters} == {
        frozenset({name, name[:-1]}) for name in names
    }


def test_one_value_of_a_kernel_that_stays_is_computed_again() -> None:
    sketch = Sketch()
    x = sketch.input("x", 64, 64)
    value = sketch.pointwise("exp", x, name="value")
    ends = [sketch.reduction("sum", value, axis, name=f"end{axis}") for axis in (0, 1)]
    graph = sketch.graph(*ends)

    def bytes_moved(names: frozenset[str], stored: frozenset[str]) -> Candidate:
        return Candidate(
            Space((), {}), Schedule(Strategy.FLAT), Cost(time_us=float("value" in stored))
        )

    clustering = clustering_of(graph, ["value", "end0"], ["end1"])
    found = recompute_cheap(clustering, bytes_moved, 1 << 40, graph.position)
    assert [(set(c.owned), set(c.copies)) for c in found.clusters] == [
        ({"value", "end0"}, set()),
        ({"end1"}, {"value"}),
    ]


def test_as_much_as_memory_allows() -> None:
    """Of several values, those first that save most; the others stay as they are."""
    sketch = Sketch()
    x = sketch.input("x", 64, 64)
    ends = []
    for k in range(4):
        value = sketch.pointwise("mul", x, float(k), name=f"value{k}")
        ends += [sketch.reduction("sum", value, axis, name=f"end{k}{axis}") for axis in (0, 1)]
    graph = sketch.graph(*ends)
    groups = [[op.name] for op in graph.ops]
    start = clustering_of(graph, *groups).peak
    assert settled(graph, *groups, most_bytes=start).peak < start
    assert len(settled(graph, *groups).clusters) == 8
    assert len(settled(graph, *groups, most_bytes=0).clusters) == 12


# Results ----------------------------------------------------------------------------------------


def relu_between(x: Tensor, a: Tensor, b: Tensor) -> Any:
    return (x * 2).sum(0) * a, (x * 2).sum(1) * b, torch.relu(a + b[:, None])


@needs_kernels
def test_forward_and_backward_compute_what_eager_does() -> None:
    x, a, b = torch.randn(64, 48), torch.randn(48), torch.randn(64)
    plans = assert_matches_eager(
        relu_between, x, a.requires_grad_(), b.requires_grad_(), grad=True, device=DEVICE
    )
    if DEVICE == "cpu":
        again = [{n for region in plan.regions for n in region.recomputed} for plan in plans]
        assert "mul" in again[0]
        assert "where" in again[1]


@needs_kernels
@pytest.mark.parametrize("name", CHEAP)
def test_what_is_computed_again_is_what_eager_computes(name: str) -> None:
    """The plan for a GPU, which repeats it, in whatever runs kernels here."""
    program, args, _ = CHEAP[name]
    small = [
        torch.arange(len(x)) * 7 % 48 if x.dtype is torch.int64 else torch.randn(shape).to(x.dtype)
        for x in args
        for shape in [(48, 48) if x.dim() == 2 else (48,)]
    ]
    large = plan_of(program, *args)
    graph = graph_of(program, *small)
    assert [op.name for op in graph.ops] == [op.name for op in large.graph.ops]
    plan = plan_graph(graph, "cpu" if DEVICE == "cpu" else "sm_90")
    kernels = generate(plan)
    with poisoned():
        found = Executable(plan, kernels, host_program(plan, kernels))(
            [x.to(DEVICE) for x in small]
        )
    wanted = program(*small)
    for given, expected in zip(
        found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True
    ):
        torch.testing.assert_close(given.cpu(), expected, rtol=1e-4, atol=1e-3)


# Many indices -----------------------------------------------------------------------------------


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
