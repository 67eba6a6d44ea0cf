"""A plan does not depend on the order of independent statements, and large graphs plan in time.

Graphs are rearranged into other orders in which they may run as well. Plans are compared by the
places of their ops in canonical order, because a merge of equal ops keeps the name of the first.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import networkx
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuser.device import device_spec
from fuser.ir.graph import Argument, Effect, Graph
from fuser.ir.launch import LaunchReason
from fuser.ir.plan import FusionPlan
from fuser.ir.rules import must_fuse, no_fuse
from fuser.passes.base import OF_THIS_ORDER, dependencies, in_canonical_order
from fuser.passes.canonicalize import merge_equal_ops, remove_unused_ops
from fuser.passes.clusters import leaving
from fuser.passes.groups import Groups
from fuser.passes.partition import Partition
from fuser.passes.pipeline import plan_graph
from support.graphs import assert_plan_holds, captured_graph, graph_of
from support.plans import Sketch, tensor, transposed


def shuffled(graph: Graph, rng: random.Random) -> Graph:
    """The same ops in another order that keeps every dependency."""
    needs = {name: set(before) for name, before in dependencies(graph).items()}
    left = list(graph.ops)
    order = []
    done: set[str] = set()
    while left:
        op = rng.choice([op for op in left if needs[op.name] <= done])
        left.remove(op)
        order.append(op)
        done.add(op.name)
    return replace(graph, ops=tuple(order))


def essence(plan: FusionPlan) -> Any:
    """All decisions of a plan, with ops as places in canonical order."""
    place = in_canonical_order(plan.graph).position
    regions = {
        (
            frozenset(map(place.__getitem__, region.ops)),
            frozenset(map(place.__getitem__, region.recomputed)),
            frozenset(map(place.__getitem__, region.outputs)),
            region.kind,
            region.strategy,
            region.space.axes,
            tuple(sorted((place[name], str(at)) for name, at in region.space.index.items())),
            region.cost,
        )
        for region in plan.regions
    }
    verdicts = {
        (place[v.producer], place[v.consumer], v.fused, v.reason, v.gain_us) for v in plan.verdicts
    }
    siblings = {
        (place[s.first], place[s.second], s.reason, round(s.gain_us, 9)) for s in plan.siblings
    }
    launches = {
        frozenset(place[op] for name in launch.regions for op in plan.by_name[name].ops)
        for launch in plan.launches
    }
    alone = {
        (frozenset(place[op] for op in plan.by_name[v.region].ops), v.reason)
        for v in plan.launch_verdicts
        if v.reason is not LaunchReason.SHARED
    }
    return regions, verdicts, siblings, launches, alone


def random_graph(seed: int, size: int) -> Graph:
    """Pointwise ops, reductions, views, constants and calls with and without effects."""
    rng = random.Random(seed)
    sketch = Sketch()
    values = [sketch.input(f"x{k}", 64, 64) for k in range(3)]

    def pick() -> Argument:
        return rng.choice(values[-8:])

    for _ in range(size):
        choice = rng.random()
        if choice < 0.2:
            total = sketch.reduction("sum", pick(), rng.choice([0, 1]), keepdim=True)
            values.append(sketch.pointwise("mul", pick(), total))
        elif choice < 0.3:
            values.append(sketch.pointwise("add", pick(), transposed(pick())))
        elif choice < 0.4:
            ramp = sketch.full(float(rng.randrange(3)), 64, 64)
            values.append(sketch.pointwise("sub", pick(), ramp))
        elif choice < 0.5:
            effect = rng.choice([Effect.NONE, Effect.ORDERED, Effect.BARRIER])
            target = rng.choice(["aten.mm.default", "aten.cumsum.default"])
            values += sketch.call(target, pick(), results=[tensor(64, 64)], effect=effect)
        else:
            kind = rng.choice(["add", "mul", "maximum"])
            values.append(sketch.pointwise(kind, pick(), pick()))
    return sketch.graph(*values[-3:])


def is_tight(plan: FusionPlan) -> bool:
    """Whether memory forced a cut that another order would not have needed: how much eager holds
    at once depends on the order of independent statements, and the plan may not hold more."""
    notes = [note for region in plan.regions for note in region.notes]
    notes += [verdict.detail for verdict in plan.launch_verdicts]
    return any(OF_THIS_ORDER in note for note in notes)


def test_the_order_of_a_random_graph_changes_nothing() -> None:
    tight = 0

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(st.integers(0, 2**32), st.integers(2, 40), st.integers(0, 2**32))
    def check(seed: int, size: int, order: int) -> None:
        nonlocal tight
        graph = remove_unused_ops(merge_equal_ops(random_graph(seed, size)))
        plan = plan_graph(graph, "sm_90")
        again = plan_graph(shuffled(graph, random.Random(order)), "sm_90")
        assert_plan_holds(again)
        if is_tight(plan) or is_tight(again):
            tight += 1
            return
        assert essence(plan) == essence(again)
        assert {frozenset(region.ops) for region in plan.regions} == {
            frozenset(region.ops) for region in again.regions
        }

    check()
    assert tight < 30


# Programs ---------------------------------------------------------------------------------------


def encoder_layer(x: Tensor, qkv: Tensor, out: Tensor, up: Tensor, down: Tensor) -> Tensor:
    q, k, v = (x @ qkv).view(2, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
    scores = F.softmax(q @ k.transpose(-1, -2) * 0.35, -1)
    mixed = (scores @ v).transpose(1, 2).reshape(2, 16, 32) @ out
    y = F.layer_norm(x + mixed, (32,))
    return F.layer_norm(y + F.gelu(y @ up) @ down, (32,))


def decoder_block(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, cos: Tensor) -> Tensor:
    normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    left, right = normed.chunk(2, -1)
    turned = normed * cos + torch.cat([-right, left], -1) * (1 - cos)
    return x + (F.silu(turned @ gate) * (turned @ up)) @ down


def training_loss(x: Tensor, weight: Tensor, labels: Tensor) -> Any:
    weight = weight.detach().requires_grad_()
    loss = F.cross_entropy(F.gelu(x @ weight), labels)
    return loss, *torch.autograd.grad(loss, weight)


def with_noise(x: Tensor) -> Any:
    kept = x * (torch.rand_like(x) > 0.1)
    return kept + torch.rand_like(x), F.softmax(kept, 0), kept.var(1)


def with_slices(x: Tensor, w: Tensor) -> Any:
    first, second, third = (x @ w).chunk(3, -1)
    left, right = (x.sin() @ w)[:, :18], (x.sin() @ w)[:, 18:]
    return third.exp() * second, first + second, left.cos() * right.square()


def with_writes(x: Tensor, total: Tensor) -> Any:
    y = x.exp() * 2
    total.add_(y)
    return y.sum(0) + total.sin(), (y - total).amax(1)


def small_tensors(*values: Tensor) -> tuple[Tensor, ...]:
    """As many kernels as there are shapes, twice, and a wait in between."""
    total = torch.stack([value.square().sum() for value in values]).sum()
    return tuple(value / total for value in values)


PROGRAMS: dict[str, Callable[[], Graph]] = {
    "encoder_layer": lambda: captured_graph(
        encoder_layer,
        torch.randn(2, 16, 32), torch.randn(32, 96), torch.randn(32, 32),
        torch.randn(32, 64), torch.randn(64, 32),
    ),
    "decoder_block": lambda: captured_graph(
        decoder_block,
        torch.randn(2, 16, 32), torch.randn(32, 64), torch.randn(32, 64),
        torch.randn(64, 32), torch.randn(16, 32),
    ),
    "training_loss": lambda: graph_of(
        training_loss, torch.randn(8, 16), torch.randn(16, 10), torch.zeros(8, dtype=torch.int64)
    ),
    "with_noise": lambda: captured_graph(with_noise, torch.randn(16, 16)),
    "small_tensors": lambda: graph_of(
        small_tensors, *(torch.randn(shape) for shape in [(5, 7), (3,), (2, 9), (11,), (64, 3)])
    ),
    "with_slices": lambda: graph_of(with_slices, torch.randn(16, 24), torch.randn(24, 36)),
    "with_writes": lambda: graph_of(with_writes, torch.randn(16, 16), torch.randn(16, 16)),
}  # fmt: skip


@pytest.mark.parametrize("target", ["sm_90", "cpu"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_order_of_a_program_changes_nothing(name: str, target: str) -> None:
    graph = PROGRAMS[name]()
    found = [plan_graph(shuffled(graph, random.Random(seed)), target) for seed in range(12)]
    free = [plan for plan in (plan_graph(graph, target), *found) if not is_tight(plan)]
    assert len(free) >= 6
    assert all(essence(plan) == essence(free[0]) for plan in free)


def test_rules_are_obeyed_in_any_order() -> None:
    graph = PROGRAMS["encoder_layer"]()
    rules = (no_fuse("sub", "exp"), must_fuse("exp", "sum"), must_fuse("erf"))
    wanted = essence(plan_graph(graph, "sm_90", rules=rules))
    assert wanted != essence(plan_graph(graph, "sm_90"))
    for seed in range(8):
        plan = plan_graph(shuffled(graph, random.Random(seed)), "sm_90", rules=rules)
        assert is_tight(plan) or essence(plan) == wanted


def test_the_canonical_order_keeps_every_dependency() -> None:
    for seed in range(50):
        graph = random_graph(seed, 30)
        ordered = in_canonical_order(graph)
        assert sorted(op.name for op in ordered.ops) == sorted(op.name for op in graph.ops)
        for name, before in dependencies(graph).items():
            assert all(ordered.position[b] < ordered.position[name] for b in before)
        # Twice is once, and the effects are in their own order still.
        assert in_canonical_order(ordered).ops == ordered.ops
        effects = [op.name for op in graph.ops if op.effect is not Effect.NONE]
        assert [op.name for op in ordered.ops if op.effect is not Effect.NONE] == effects


def test_groups_know_what_stands_between_them() -> None:
    """Merges at random, against a search through the whole graph of groups."""
    for seed in range(60):
        rng = random.Random(seed)
        graph = in_canonical_order(random_graph(seed, 25))
        groups = Groups(graph, dependencies(graph), frozenset())
        for _ in range(15):
            flow = networkx.DiGraph(
                (key, after) for key, group in groups.groups.items() for after in group.after
            )
            pairs = sorted(flow.edges)
            assert all(groups.groups[a].rank < groups.groups[b].rank for a, b in pairs)
            for a, b in pairs:
                flow.remove_edge(a, b)
                assert groups.would_cycle(a, b) == networkx.has_path(flow, a, b)
                between = networkx.descendants(flow, a) & networkx.ancestors(flow, b)
                assert groups.between(a, b) == between
                flow.add_edge(a, b)
            free = [pair for pair in pairs if not groups.would_cycle(*pair)]
            if not free:
                break
            key = groups.merge(*rng.choice(free))
            group = groups.groups[key]
            inside = {value for name in group.ops for value in graph.by_name[name].reads}
            made = {v.name for name in group.ops for v in graph.by_name[name].results}
            if not any(graph.by_name[name].is_opaque for name in group.ops):
                assert group.readers.keys() == inside - made
                assert group.stored.keys() == leaving(graph, frozenset(group.ops))


def test_what_a_pair_reads_and_stores_is_what_its_ops_do() -> None:
    """The planner's shortcut for two groups gives the time of the merged group."""
    for seed in range(30):
        partition = Partition(random_graph(seed, 20), device_spec("sm_90"))
        groups = partition.groups
        while True:
            free = [
                (min(pair), max(pair))
                for key in groups.groups
                for pair in ((key, other) for other in partition.neighbours(key))
                if not groups.would_cycle(*partition.in_rank_order(pair))
            ]
            if not free:
                break
            pair = free[seed % len(free)]
            apart = sum(map(partition.quick_time, pair))
            gain = partition.quick_gain(*pair)
            kept = partition.merge(pair, gain)
            assert partition.quick_time(kept) == pytest.approx(apart - gain)


# Time -------------------------------------------------------------------------------------------


def layers(size: int) -> Graph:
    """Normalisations with residuals, one after another."""
    sketch = Sketch()
    x, weight = sketch.input("x", 64, 256), sketch.input("w", 256)
    while len(sketch.ops) < size:
        centred = sketch.pointwise("sub", x, sketch.reduction("sum", x, 1, keepdim=True))
        square = sketch.pointwise("mul", centred, centred)
        scale = sketch.pointwise("rsqrt", sketch.reduction("sum", square, 1, keepdim=True))
        y = sketch.pointwise("mul", sketch.pointwise("mul", centred, scale), weight)
        x = sketch.pointwise("add", x, sketch.pointwise("tanh", y))
    return sketch.graph(x)


def tangle(size: int) -> Graph:
    """Pointwise ops and reductions of what was made lately."""
    rng, sketch = random.Random(0), Sketch()
    values = [sketch.input(f"x{k}", 64, 256) for k in range(4)]
    while len(sketch.ops) < size:
        recent = values[-12:]
        if rng.random() < 0.2:
            total = sketch.reduction("sum", rng.choice(recent), 1, keepdim=True)
            values.append(sketch.pointwise("mul", rng.choice(recent), total))
        else:
            kind = rng.choice(["add", "mul", "maximum"])
            values.append(sketch.pointwise(kind, rng.choice(recent), rng.choice(recent)))
    return sketch.graph(*values[-12:])


def star(size: int) -> Graph:
    """One value that many pairs of ops read."""
    sketch = Sketch()
    x = sketch.input("x", 64, 256)
    centre = sketch.pointwise("tanh", x)
    ends = [
        sketch.reduction("sum", sketch.pointwise("mul", centre, float(k)), 1)
        for k in range(size // 2)
    ]
    return sketch.graph(*ends)


def seconds(graph: Graph) -> float:
    """Time of this process, so that what else runs on the machine does not count."""
    start = time.process_time()
    plan_graph(graph, "sm_90")
    return time.process_time() - start


REFERENCE_S = 0.5
"""Seconds of `calibration` on a core of the kind that the limit is meant for."""

ATTEMPTS = 3
"""What else runs on the machine only makes times longer, so the best of some is taken."""


def calibration() -> float:
    """Seconds for a fixed piece of work like the planner's: tuples, dictionaries, sorting."""
    start = time.process_time()
    for turn in range(12):
        found = {}
        for k in range(20_000):
            name = f"op_{k % 997}"
            found[name, k % 31] = frozenset((name, k & turn))
        ranked = sorted(found, key=lambda item: (item[1], item[0]))
        assert sum(len(found[item]) for item in ranked)
    return time.process_time() - start


@pytest.mark.slow
@pytest.mark.parametrize("make", [layers, tangle, star])
def test_ten_thousand_ops_are_planned_in_time(make: Callable[[int], Graph]) -> None:
    """In under 20 seconds of a core of today, whatever core this one is."""
    whole = half = float("inf")
    for _ in range(ATTEMPTS):
        slower = calibration() / REFERENCE_S
        half = min(half, seconds(make(5000)) / slower)
        whole = min(whole, seconds(make(10000)) / slower)
        if whole < 20 and whole < 3 * half:
            return
    assert whole < 20
    assert whole < 3 * half
