"""What the planner's steps share: the dependencies between ops and the limits of a region."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from fuser.ir.graph import Effect, Graph, Op
from fuser.ir.region import Reason


@dataclass(frozen=True, slots=True)
class Limits:
    """Hard limits of one kernel. A merge that would pass one is refused with that reason."""

    arguments: int = 48
    """Pointers and sizes: beyond this, parameter space and addressing registers run short."""
    ops: int = 96
    """Computed ops: longer kernels compile slowly and hide their cost."""
    registers: int = 240
    """32-bit registers of a thread, predicted: what is above this the compiler may spill."""
    shared_bytes: int = 1 << 30
    """Shared memory of a block; the device's own limit holds as well."""
    occupancy: float = 0.12
    """Resident threads as a fraction of what a processor holds: one block of eight warps."""


NO_LIMITS = Limits(arguments=1 << 30, ops=1 << 30, registers=1 << 30, occupancy=0.0)
"""For what is there already, which nothing is gained by refusing."""

Cuts: TypeAlias = Mapping[tuple[str, str], Reason]
"""Pairs of ops that must not share a kernel, and why."""

NO_CUTS: Cuts = MappingProxyType({})

OF_THIS_ORDER = "as the program's statements are ordered"
"""What is said of what another order of independent statements would not have needed: how much
eager holds at once depends on it, and the plan must not hold more."""


def dependencies(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Op name to the ops that must run before it: data first, then order of effects."""
    found: dict[str, tuple[str, ...]] = {}
    last_ordered: str | None = None
    barrier: str | None = None
    since_barrier: list[str] = []
    for op in graph.ops:
        before = [graph.producers[value].name for value in op.reads if value in graph.producers]
        if barrier is not None:
            before.append(barrier)
        if op.effect is Effect.BARRIER:
            before.extend(since_barrier)
            barrier, since_barrier = op.name, []
        elif op.effect is Effect.ORDERED:
            if last_ordered is not None:
                before.append(last_ordered)
            last_ordered = op.name
        # What reads nothing is the same on both sides of a barrier.
        if op.reads or op.effect is not Effect.NONE:
            since_barrier.append(op.name)
        found[op.name] = tuple(dict.fromkeys(before))
    return found


def in_canonical_order(graph: Graph) -> Graph:
    """The same graph with its ops in an order that no rearrangement of the program changes.

    The order in which a walk from the outputs, each operand before the next one, first needs them.
    Ops with effects come first, because theirs is an order that the program cannot change either.
    Ops that nothing needs keep their places behind all others.
    """
    producers = graph.producers
    effects = [op.name for op in graph.ops if op.effect is not Effect.NONE]
    outputs = [o.argument.value for o in graph.outputs if o.argument is not None]
    roots = [*effects, *(producers[value].name for value in outputs if value in producers)]
    everything = [*roots, *(op.name for op in graph.ops)]
    reads = {
        op.name: [producers[value].name for value in op.reads if value in producers]
        for op in graph.ops
    }
    rank = {name: position for position, name in enumerate(_walk(everything, reads))}
    needs = dependencies(graph)
    for name, before in needs.items():
        # What a barrier waits for is listed as the program has it.
        data = set(reads[name])
        others = sorted((b for b in before if b not in data), key=rank.__getitem__)
        reads[name] += others
    by_name = graph.by_name
    return replace(graph, ops=tuple(by_name[name] for name in _walk(everything, reads)))


def _walk(roots: Iterable[str], needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Every name that the roots need and the roots themselves, each after what it needs."""
    found: dict[str, None] = {}
    for root in roots:
        waiting = [(root, 0)]
        while waiting:
            name, position = waiting.pop()
            if name in found:
                continue
            if position < len(needs[name]):
                waiting.append((name, position + 1))
                if needs[name][position] not in found:
                    waiting.append((needs[name][position], 0))
            else:
                found[name] = None
    return list(found)


def after(ops: Sequence[Op], is_first: Callable[[Op], bool]) -> frozenset[str]:
    """The ops of a kind, and all that waits for one."""
    found: set[str] = set()
    for op in ops:
        if is_first(op) or any(value in found for value in op.reads):
            found.add(op.name)
    return frozenset(found)
