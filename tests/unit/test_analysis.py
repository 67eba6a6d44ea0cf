"""Fan-out, reachability, lifetimes and peak memory, against counts by hand and by brute force."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import networkx
import pytest

from fuser.ir.dtype import DType
from fuser.ir.graph import Argument, Effect, Graph
from fuser.passes import analysis
from fuser.passes.analysis import (
    BEFORE_ALL,
    eager_peak_bytes,
    fan_out,
    lifetimes,
    one_by_one,
    peak_bytes,
    reachability,
)
from fuser.passes.base import dependencies
from fuser.passes.pipeline import plan_graph
from support.plans import Sketch, small_graph, tensor

KIB = 1024


def random_graph(seed: int, count: int = 60) -> Graph:
    """Ops that read one or two recent values; some are opaque, ordered or barriers."""
    source = random.Random(seed)
    sketch = Sketch()
    values: list[Argument] = [sketch.input("x", 64), sketch.input("y", 64)]
    for _ in range(count):
        reads = [source.choice(values[-6:]) for _ in range(source.choice((1, 2)))]
        if source.random() < 0.25:
            effect = source.choice((Effect.NONE, Effect.ORDERED, Effect.BARRIER))
            made = sketch.call("aten.sort.default", *reads, results=[tensor(64)], effect=effect)[0]
        else:
            made = sketch.pointwise("add" if len(reads) == 2 else "exp", *reads)
        values.append(made)
    return sketch.graph(values[-1], source.choice(values))


def chain(length: int) -> Graph:
    """A residual stream: each step reads the one before it, alone and through another op."""
    sketch = Sketch()
    x = sketch.input("x", 64)
    for number in range(length // 2):
        y = sketch.pointwise("exp", x, name=f"exp{number}")
        x = sketch.pointwise("add", x, y, name=f"add{number}")
    return sketch.graph(x)


# Fan-out ----------------------------------------------------------------------------------------


def test_fan_out_lists_each_reader_once_in_program_order() -> None:
    readers = fan_out(small_graph())
    assert readers["tanh"] == ("amax", "divide")
    assert readers["x"] == ("mul",)
    assert readers["divide"] == ()
    sketch = Sketch()
    x = sketch.input("x", 8)
    assert fan_out(sketch.graph(sketch.pointwise("add", x, x)))["x"] == ("add",)


def test_a_tensor_that_only_lends_its_shape_is_not_read() -> None:
    sketch = Sketch()
    x = sketch.input("x", 8)
    sketch.full(1.0, 8)
    graph = sketch.graph(x)
    ones = replace(graph.ops[0], arguments=(x,))
    assert fan_out(replace(graph, ops=(ones,)))["x"] == ()


# Reachability -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_reachability_is_the_closure_of_the_dependencies(
    seed: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis, "CHUNK", chunk)
    graph = random_graph(seed)
    flow = networkx.DiGraph()
    for name, earlier in dependencies(graph).items():
        flow.add_node(name)
        flow.add_edges_from((before, name) for before in earlier)
    found = reachability(graph)
    for later in graph.by_name:
        ancestors = networkx.ancestors(flow, later)
        assert {op for op in graph.by_name if found.reaches(op, later)} == ancestors
        assert list(found.before(later)) == [op for op in graph.by_name if op in ancestors]


def test_an_op_does_not_reach_itself_or_what_is_before_it() -> None:
    found = reachability(small_graph())
    assert found.reaches("mul", "divide")
    assert not found.reaches("divide", "mul")
    assert not found.reaches("mul", "mul")


def test_effects_order_ops_that_share_no_value() -> None:
    sketch = Sketch()
    x = sketch.input("x", 8)
    made = [
        sketch.call(f"aten.{name}.default", x, results=[tensor(8)], effect=effect)[0]
        for name, effect in (
            ("draw", Effect.ORDERED), ("plain", Effect.NONE), ("again", Effect.ORDERED),
            ("write", Effect.BARRIER), ("after", Effect.NONE),
        )
    ]  # fmt: skip
    found = reachability(sketch.graph(*made))
    assert found.before("plain") == ()
    assert found.before("again") == ("draw",)
    assert found.before("after") == ("draw", "plain", "again", "write")


def test_a_deep_graph_takes_little_time_and_shares_what_ops_have_in_common() -> None:
    graph = chain(20_000)
    start = time.perf_counter()
    found = reachability(graph)
    seconds = time.perf_counter() - start
    assert found.reaches("exp0", "add9999")
    assert not found.reaches("add9999", "exp0")
    distinct = {id(chunk) for chunks in found.ancestors for chunk in chunks}
    assert len(distinct) < 2.5 * len(graph.ops)
    assert seconds < 5


# Lifetimes --------------------------------------------------------------------------------------


def test_lifetimes_run_from_the_op_that_makes_a_value_to_its_last_reader() -> None:
    graph = small_graph()
    found = lifetimes(graph, one_by_one(graph, [op.name for op in graph.ops]))
    assert found["x"] == (BEFORE_ALL, 0)
    assert found["mul"] == (0, 1)
    assert found["tanh"] == (3, 5)
    assert found["add"] == (2, 6)
    assert found["divide"] == (5, 6)


def test_lifetimes_follow_the_order_that_is_given() -> None:
    sketch = Sketch()
    x = sketch.input("x", 8)
    a = sketch.pointwise("exp", x, name="a")
    b = sketch.pointwise("exp", x, name="b")
    c = sketch.pointwise("exp", a, name="c")
    graph = sketch.graph(c, b)
    assert lifetimes(graph, one_by_one(graph, ["a", "b", "c"]))["a"] == (0, 2)
    assert lifetimes(graph, one_by_one(graph, ["b", "a", "c"]))["a"] == (1, 2)
    assert lifetimes(graph, one_by_one(graph, ["b", "a", "c"]))["x"] == (BEFORE_ALL, 1)


def test_an_unread_value_ends_where_it_starts() -> None:
    sketch = Sketch()
    x = sketch.input("x", 8)
    sketch.call("aten.draw.default", results=[tensor(8)], effect=Effect.ORDERED)
    graph = sketch.graph(sketch.pointwise("exp", x))
    found = lifetimes(graph, one_by_one(graph, ["draw", "exp"]))
    assert found["draw"] == (0, 0)
    assert found["exp"] == (1, 2)


# Memory -----------------------------------------------------------------------------------------


def test_peaks_by_hand() -> None:
    sketch = Sketch()
    x = sketch.input("x", 256)
    a = sketch.pointwise("exp", x)
    b = sketch.pointwise("tanh", a)
    c = sketch.pointwise("sin", b)
    graph = sketch.graph(c)
    assert eager_peak_bytes(graph) == 2 * KIB
    assert peak_bytes(plan_graph(graph, "sm_90")) == KIB


def test_a_value_kept_for_later_counts_while_it_is_kept() -> None:
    sketch = Sketch()
    x = sketch.input("x", 256)
    kept = sketch.call("aten.sort.default", x, results=[tensor(256)])[0]
    wide = sketch.call("aten.sort.default", kept, results=[tensor(1024)])[0]
    low = sketch.call("aten.sort.default", wide, results=[tensor(256)])[0]
    last = sketch.call("aten.sort.default", kept, low, results=[tensor(256)])[0]
    graph = sketch.graph(last)
    assert eager_peak_bytes(graph) == (1 + 4 + 1) * KIB
    assert peak_bytes(plan_graph(graph, "sm_90")) == (1 + 4 + 1) * KIB


def test_element_types_and_hints_count() -> None:
    sketch = Sketch()
    x = sketch.input("x", sketch.symbol("s0", 100), dtype=DType.FLOAT64)
    graph = sketch.graph(sketch.pointwise("exp", x))
    assert peak_bytes(plan_graph(graph, "sm_90")) == eager_peak_bytes(graph) == 800


def test_an_empty_graph_needs_nothing() -> None:
    sketch = Sketch()
    graph = sketch.graph(sketch.input("x", 8))
    assert eager_peak_bytes(graph) == peak_bytes(plan_graph(graph, "sm_90")) == 0


@pytest.mark.parametrize("seed", range(8))
def test_peaks_agree_with_a_walk_that_allocates_and_frees(seed: int) -> None:
    plan = plan_graph(random_graph(seed), "sm_90")
    graph = plan.graph
    made = {name: (region.outputs, region.inputs) for name, region in plan.by_name.items()}
    steps = [
        made.get(name)
        or ((name,), tuple(argument.value for argument in graph.by_name[name].arguments))
        for name in plan.order
    ]
    live: set[str] = set()
    peak = 0
    for position, (results, _) in enumerate(steps):
        live |= set(results)
        peak = max(peak, 256 * len(live))
        later = {value for _, reads in steps[position + 1 :] for value in reads}
        live = {value for value in live if value in later or value in graph.output_values}
    assert peak_bytes(plan) == peak
