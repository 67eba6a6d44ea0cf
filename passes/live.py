"""What a kernel holds at once: its values in the order in which they come and go.

In: a graph, ops in program order, which of them are stored, and where they touch memory. Out: the
kernel's bodies, each a list of steps (loads, computations, stores) as code generation writes them,
and from a body and the elements of a lane the 32-bit words that are held.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from fuser.ir.dtype import DType
from fuser.ir.graph import Graph, Op
from fuser.ir.ops import BY_KIND, Group
from fuser.ir.region import Strategy
from fuser.ir.space import Index
from fuser.passes.approximate import weight_of
from fuser.passes.stages import needed_in_passes

SLOW_WEIGHT = 8
"""Operations from which a function of the op table is a routine of its own: division, roots,
exponentials. Lanes may branch in it, and no value is moved past a branch."""

ALONG_X, ALONG_R = 1, 2
"""Along which axes of a tile a value varies, as bits: rows, elements of a row, or both."""

WORD_BYTES = 4
"""Bytes of a register."""

ADDRESS_WORDS = 2
"""Registers of an address."""

COPIES_SHARE = 0.5
"""Of a load whose neighbours are copies of one element, what the compiler keeps on average: between
one for each and one for all, as it can prove."""

_WORDS: Mapping[str, int] = {
    dtype.value: 0 if dtype is DType.BOOL else max(1, dtype.compute.bytes // WORD_BYTES)
    for dtype in DType
}


def words_of(dtype: DType) -> int:
    """32-bit registers of one element in a kernel: half types are held as float32, booleans as
    predicates."""
    # By the plain attribute: the property, and hashing a member, take several times as long.
    return _WORDS[dtype._value_]


INDEX_WORDS = words_of(DType.INT64)

_CREATION = Group.CREATION
_BY_INDEX = (Group.CREATION, Group.RANDOM)


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
        if BY_KIND[op.kind].group is not _CREATION:
            live.add(op.name)
            live.update(op.reads)
        most = max(most, len(live))
        live.difference_update([value for value in op.reads if last[value] == position])
        if op.name not in last:
            live.discard(op.name)
    return most


# Bodies -----------------------------------------------------------------------------------------


class Touch(NamedTuple):
    """One access to memory, as a tile makes it."""

    value: str
    form: int
    """The same number for accesses to the same offsets, whatever the tensor."""
    width: int
    """Bytes of an element."""
    words: int
    """Registers of an element."""
    is_scattered: bool
    level: int
    vector_x: int
    """Elements along x that one instruction can move: 0 where all are the same element, -1 where
    they are not neighbours in memory."""
    vector_r: int
    """The same along r."""
    is_symbolic: bool
    """Whether its strides are known only at the call."""

    def vector(self, axis: int) -> int:
        return self.vector_r if axis == ALONG_R else self.vector_x

    def lies_across(self, axis: int) -> bool:
        """Whether neighbours in memory are neighbours along the other axis alone."""
        return self.vector(axis) < 0 < self.vector(ALONG_X + ALONG_R - axis)


LOAD, COMPUTE, FOLD, REDUCE, STORE = range(5)
"""Kinds of steps. FOLD goes to an accumulator, in a loop over the row; REDUCE makes one element of
a whole row in the tile, of which other warps may have a part."""


class Step(NamedTuple):
    """One line of a body. `words` are what its value takes in registers, per element."""

    kind: int
    level: int
    words: int
    frees: list[int]
    """Places in the body of the steps whose values nothing needs after this one."""
    touch: Touch | None = None
    weight: int = 1


Body = Sequence[Step]


class Line(NamedTuple):
    """An op with what it touches."""

    op: Op
    reads: Sequence[str | Touch]
    """Of each tensor operand the value inside the kernel, or the load."""
    store: Touch | None


def bodies(
    lines: Sequence[Line],
    index: Mapping[str, Index],
    sides: Mapping[str, int],
    strategy: Strategy,
    combines: bool = False,
) -> list[Body]:
    """The bodies of a kernel: one, or one for each pass over the row of a looped one.

    `index` and `sides` say where an op stands and along which side of a tile an axis goes.
    `combines` asks for the second kernel of a split reduction. What a loop leaves to be written
    after it is in no body.
    """
    writer = _Writer(index, sides)
    if strategy not in (Strategy.LOOPED, Strategy.SPLIT):
        return [writer.body(lines, False)]
    ops = [line.op for line in lines]
    stored = [line.op for line in lines if line.store is not None]
    if strategy is Strategy.LOOPED:
        passes = needed_in_passes(ops, [op.name for op in stored])
        found = [writer.body(_named(lines, names), True) for names in passes]
        return [body for body in found if any(step.level & ALONG_R for step in body)] or found[:1]
    rows = [op.name for op in stored if writer.is_row(op)]
    if combines:
        results = [op.name for op in stored if op.name not in rows]
        needed = _needed(ops, results, past_reductions=False)
        return [writer.body(_named(lines, needed), False, True)]
    roots = [op.name for op in ops if op.reduced] + rows
    return [writer.body(_named(lines, _needed(ops, roots, past_reductions=True)), True)]


def _named(lines: Sequence[Line], names: Collection[str]) -> list[Line]:
    return [line for line in lines if line.op.name in names]


class _Writer:
    """Writes bodies; the levels of values are known from one body to the next."""

    def __init__(self, index: Mapping[str, Index], sides: Mapping[str, int]) -> None:
        self.index = index
        self.sides = sides
        self.levels: dict[str, int] = {}

    def is_row(self, op: Op) -> bool:
        """Whether the op's result has one element for each element of a row."""
        return not op.reduced and bool(self.index_level(op) & ALONG_R)

    def index_level(self, op: Op) -> int:
        level = 0
        for affine in self.index[op.name]:
            for axis, _ in affine.terms:
                level |= self.sides.get(axis, 0)
        return level

    def body(self, lines: Sequence[Line], folds: bool, combines: bool = False) -> Body:
        """The steps of the lines; `folds` where reductions go to accumulators."""
        steps: list[Step] = []
        places: dict[object, int] = {}
        """Where each value of the kernel and each load is made."""
        last: list[int] = []
        """For each step the last one that reads its value, itself if none does."""
        levels = self.levels

        def add(step: Step) -> int:
            last.append(len(steps))
            steps.append(step)
            return len(steps) - 1

        for op, operands, store in lines:
            name = op.name
            reads: list[int] = []
            level = 0
            if combines and op.reduced:
                operands = ()
                reads.append(add(Step(LOAD, ALONG_X | ALONG_R, words_of(op.compute), [])))
            for operand in operands:
                if isinstance(operand, str):
                    level |= levels.get(operand, ALONG_X)
                    if operand in places:
                        reads.append(places[operand])
                    continue
                level |= operand.level
                key = (operand.value, operand.form)
                place = places.get(key)
                if place is None:
                    step = Step(LOAD, operand.level, operand.words, [], operand)
                    place = places[key] = add(step)
                reads.append(place)
            row = BY_KIND[op.kind]
            if op.reduced:
                # The best element's index is kept beside its value.
                words = (words_of(op.compute) or 1) + (INDEX_WORDS if keeps_index(op) else 0)
                level = ALONG_X
                place = add(Step(FOLD if folds else REDUCE, level, words, []))
            else:
                if row.group in _BY_INDEX:
                    # A constant is the same everywhere; what follows the index is more work.
                    level = self.index_level(op) if row.weight > 1 else 0
                words = words_of(op.results[0].type.dtype)
                place = add(Step(COMPUTE, level, words, [], None, weight_of(op)))
            for read in reads:
                last[read] = place
            levels[name] = level
            places[name] = place
            if store is not None and (not folds or self.is_row(op)):
                last[place] = add(Step(STORE, store.level | level, 0, [], store))
        for place, end in enumerate(last):
            steps[end].frees.append(place)
        return steps


def keeps_index(op: Op) -> bool:
    """Whether a reduction looks for a place: the table counts two operations an element for it."""
    row = BY_KIND[op.kind]
    return row.group is Group.REDUCTION and row.weight > 1


def _needed(ops: Sequence[Op], roots: Sequence[str], past_reductions: bool) -> set[str]:
    """The roots and what they are made of, back to the loads or only to the reductions."""
    by_name = {op.name: op for op in ops}
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            if past_reductions or not by_name[name].reduced:
                waiting += [value for value in by_name[name].reads if value in by_name]
    return found


# Words ------------------------------------------------------------------------------------------


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
    for step in body:
        kind = step.kind
        if kind == LOAD:
            flight = _flight(step, lane)
            flights.append(flight)
            coming[-1] += flight[0]
        elif kind == FOLD:
            now += step.words * counts[ALONG_X | ALONG_R]
        elif kind == REDUCE:
            coming.append(0.0)
    kept, moving = now, now + coming[0]
    sizes: list[float] = []
    remaining = iter(flights)
    ahead, stretch = coming[0], 0
    for step in body:
        kind, level, words, frees, touch, weight = step
        size: float = words * counts[level]
        arriving = 0.0
        if kind == LOAD:
            arriving, size = next(remaining)
            ahead -= arriving
        if touch is not None and lane.is_mixed and _changes_lanes(step, touch, lane):
            kept = max(kept, now + arriving)
        sizes.append(size)
        now += size
        if weight >= SLOW_WEIGHT and counts[level] > 1:
            moving = max(moving, now + ahead)
        for place in frees:
            now -= sizes[place]
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


def _changes_lanes(step: Step, touch: Touch, lane: Lane) -> bool:
    """Whether a tile goes to other lanes after a load or before a store: all of them wait."""
    if step.kind == LOAD:
        return touch.lies_across(lane.axis)
    return bool(step.level & lane.axis) and touch.vector(lane.axis) < lane.vector


def _addresses(body: Body, lane: Lane) -> float:
    """Words of addresses: for loads or for stores, which do not overlap."""
    loads = stores = 0.0
    seen: set[object] = set()
    for step in body:
        touch = step.touch
        if touch is None or not step.level & lane.axis:
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
