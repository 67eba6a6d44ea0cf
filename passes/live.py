"""What a lane of a kernel holds at once, as its values come and go.

In: a body of steps and the elements of a lane. Out: the 32-bit words that are held. For the choice
of a tile, before there are steps, also a count of values.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from fuser.ir.graph import Graph, Op
from fuser.ir.ops import BY_KIND, Group
from fuser.passes.bodies import (
    ALONG_R,
    ALONG_X,
    FOLD,
    KEPT,
    LOAD,
    REDUCE,
    STORE,
    WORD_BYTES,
    Body,
    Step,
)

SLOW_WEIGHT = 8
"""Operations from which a function of the op table is a routine of its own: division, roots,
exponentials. Lanes may branch in it, and no value is moved past a branch."""

ADDRESS_WORDS = 2
"""Registers of an address."""

COPIES_SHARE = 0.5
"""Of a load whose neighbours are copies of one element, what the compiler keeps on average: between
one for each and one for all, as it can prove."""


def live_values(graph: Graph, ops: Sequence[Op], stored: Collection[str]) -> int:
    """The most tile values held at once when the ops run in program order.

    Constants cost nothing; a value lives from its op to its last reader in the group.
    """
    last: dict[str, int] = {}
    for position, op in enumerate(ops):
        for value in op.reads:
            last[value] = position
    live: set[str] = set()
    most = 0
    for position, op in enumerate(ops):
        if BY_KIND[op.kind].group is not Group.CREATION:
            live.add(op.name)
            live.update(op.reads)
        most = max(most, len(live))
        live.difference_update([value for value in op.reads if last[value] == position])
        if op.name not in last:
            live.discard(op.name)
    return most


class Lane(NamedTuple):
    """What one thread holds of a tile."""

    counts: Sequence[int]
    """Elements of a value by level."""
    axis: int
    """The axis along which neighbours lie in memory: `ALONG_X` or `ALONG_R`."""
    vector: int
    """Neighbours along that axis."""
    aligned: int
    """How many of them a mask treats alike."""
    run: int
    """How many of them have one address: those in one step of the innermost kernel axis."""
    is_split: bool
    """Whether the axis is several kernel axes, so that addresses take divisions."""
    exchanges: bool
    """Whether a reduction waits for other warps."""
    is_mixed: bool
    """Whether whole tiles change lanes between loads and stores."""


class Held(NamedTuple):
    """32-bit words of a lane, the most at once while a body runs."""

    kept: float
    """What is needed on both sides of a barrier, and accumulators: no order makes these fewer."""
    moving: float
    """What is there, in program order, when all loads have been issued or lanes may branch. The
    compiler moves loads and computations until fewer are there together."""
    addresses: float
    """64-bit addresses that are not a constant away from another one."""


def held(body: Body, lane: Lane) -> Held:
    """What a lane holds when the body runs."""
    counts = lane.counts
    flights: list[tuple[float, float]] = []
    """Of each load the words in flight, and those of the value it gives."""
    coming = [0.0]
    """Words in flight by stretch between reductions, which no load is moved past."""
    now = 0.0
    """Words of accumulators and of values that are needed later."""
    for step in body.steps:
        kind = step.kind
        if kind == LOAD:
            flight = _flight(step, lane)
            flights.append(flight)
            coming[-1] += flight[0]
        elif kind == FOLD:
            now += step.words * counts[ALONG_X | ALONG_R]
        elif kind == KEPT:
            now += step.words * counts[step.level]
        elif kind == REDUCE:
            coming.append(0.0)
    kept, moving = now, now + coming[0]
    freed = [0.0] * len(body.steps)
    """Words that nothing needs after each step."""
    remaining = iter(flights)
    ahead, stretch = coming[0], 0
    for place, (step, last) in enumerate(zip(*body, strict=True)):
        kind, level, words, _, weight = step
        size: float = words * counts[level] if kind != KEPT else 0
        arriving = 0.0
        if kind == LOAD:
            arriving, size = next(remaining)
            ahead -= arriving
        if kind != KEPT and lane.is_mixed and _changes_lanes(step, lane):
            kept = max(kept, now + arriving)
        freed[last] += size
        now += size
        if weight >= SLOW_WEIGHT and counts[level] > 1:
            moving = max(moving, now + ahead)
        now -= freed[place]
        if kind == REDUCE:
            # Rows that no other warp waits for are worked on one after the other.
            kept = max(kept, now if lane.exchanges else now / 2)
            stretch += 1
            ahead = coming[stretch]
            moving = max(moving, now + ahead)
    return Held(kept, moving, _addresses(body, lane))


def _flight(step: Step, lane: Lane) -> tuple[float, float]:
    """Words of a load that has been issued, and of its value.

    Narrow elements share a word in flight where they come together.
    """
    touch, count = step.touch, lane.counts[step.level]
    if touch is None:
        return count * step.words, count * step.words
    is_across = touch.lies_across(lane.axis)
    vector = max(touch.vector_x, touch.vector_r) if is_across else touch.vector(lane.axis)
    share = 1.0
    if vector == 0 and step.level & lane.axis and not touch.is_scattered:
        share = COPIES_SHARE
    words = touch.width / WORD_BYTES
    if words < 1:
        together = vector if is_across else min(vector, lane.vector, lane.aligned)
        words = max(words, 1 / max(1, together))
    return share * count * words, share * count * step.words


def _changes_lanes(step: Step, lane: Lane) -> bool:
    """Whether a tile goes to other lanes after a load or before a store: all of them wait."""
    touch = step.touch
    if touch is None:
        return False
    if step.kind == LOAD:
        return touch.lies_across(lane.axis)
    return bool(step.level & lane.axis) and touch.vector(lane.axis) < lane.vector


def _addresses(body: Body, lane: Lane) -> float:
    """Words of addresses: for loads or for stores, which do not overlap."""
    loads = stores = 0.0
    seen: set[object] = set()
    for step in body.steps:
        touch = step.touch
        if touch is None or step.kind == KEPT or not step.level & lane.axis:
            continue
        is_strided = touch.vector(lane.axis) < 0 and not touch.lies_across(lane.axis)
        is_odd = touch.is_symbolic or is_strided
        if not (is_odd or lane.is_split) or (touch.form, step.kind) in seen:
            continue
        seen.add((touch.form, step.kind))
        words = ADDRESS_WORDS * lane.counts[step.level] / (1 if is_odd else lane.run)
        if step.kind == STORE:
            stores += words
        else:
            loads += words
    return max(loads, stores)
