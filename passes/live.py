"""What a kernel holds at once: its values in the order in which they come and go.

In: a graph, ops in program order, which of them are stored, and where they touch memory. Out: the
kernel's bodies, each a list of steps (loads, computations, stores) as code generation writes them,
and from a body and the elements of a lane the 32-bit words that are held.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from fuser.ir.dtype import DType
from fuser.ir.graph import Argument, Graph, Op
from fuser.ir.ops import BY_KIND, Group
from fuser.ir.region import Strategy
from fuser.ir.space import Space
from fuser.passes.stages import needed_in_passes

SLOW_WEIGHT = 8
"""Operations from which a function of the op table is a routine of its own: division, roots,
exponentials. Lanes may branch in it, and no value is moved past a branch."""

ALONG_X, ALONG_R = 1, 2
"""Along which axes of a tile a value varies, as bits: rows, elements of a row, or both."""

WORDS: Mapping[DType, int] = {
    dtype: 0 if dtype is DType.BOOL else max(1, dtype.compute.bytes // 4) for dtype in DType
}
"""32-bit registers of one element in a kernel: half types are held as float32, booleans as
predicates."""


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
            live |= {op.name, *op.reads}
        most = max(most, len(live))
        live = {value for value in live if last.get(value, -1) > position}
    return most


# Bodies -----------------------------------------------------------------------------------------


class Touch(NamedTuple):
    """One access to memory, as a tile makes it."""

    value: str
    form: object
    """Equal for accesses to the same offsets, whatever the tensor."""
    level: int
    width: int
    """Bytes of an element."""
    vector_x: int
    """Elements along x that one instruction can move: 0 where all are the same element, -1 where
    they are not neighbours in memory."""
    vector_r: int
    """The same along r."""
    is_symbolic: bool
    """Whether its strides are known only at the call."""
    is_scattered: bool

    def vector(self, axis: int) -> int:
        return self.vector_r if axis == ALONG_R else self.vector_x


class Kind(IntEnum):
    """What a step does."""

    LOAD = 0
    COMPUTE = 1
    FOLD = 2
    """Into an accumulator, in a loop over the row."""
    REDUCE = 3
    """A whole row in the tile to one element: other warps may have a part of it."""
    STORE = 4


class Step(NamedTuple):
    """One line of a body. `words` are what its value takes in a register, per element."""

    kind: Kind
    value: object
    level: int
    words: int
    reads: Sequence[object] = ()
    touch: Touch | None = None
    weight: int = 1


Body = Sequence[Step]
Touches = Mapping[tuple[str, int], Touch]
"""By op and operand position; the store of an op's result is at position -1."""


def bodies(
    ops: Sequence[Op],
    stored: Collection[str],
    space: Space,
    touches: Touches,
    strategy: Strategy,
    second: bool = False,
) -> list[list[Step]]:
    """The bodies of a kernel: one, or one for each pass over the row of a looped one.

    `second` asks for the kernel of a split reduction that combines the parts.
    """
    reduced = {axis.name for axis in space.axes if axis.is_reduced}
    writer = _Writer(ops, space, touches, reduced)
    if second:
        return [writer.body(_after_reductions(ops, stored, writer.is_row), False, True)]
    if strategy is Strategy.LOOPED:
        passes = needed_in_passes(ops, stored)
        found = [writer.body(needed, True) for needed in passes]
        return [body for body in found if any(step.level & ALONG_R for step in body)] or found[:1]
    if strategy is Strategy.SPLIT:
        roots = [op.name for op in ops if op.reduced or (op.name in stored and writer.is_row(op))]
        return [writer.body(_needed(ops, roots, stop=False), True)]
    return [writer.body({op.name for op in ops}, False)]


class _Writer:
    """Writes bodies; levels of values are kept from one body to the next."""

    def __init__(
        self, ops: Sequence[Op], space: Space, touches: Touches, reduced: Collection[str]
    ) -> None:
        self.ops = ops
        self.space = space
        self.touches = touches
        self.reduced = reduced
        self.levels: dict[str, int] = {}

    def is_row(self, op: Op) -> bool:
        """Whether the op's result has one element for each element of a row."""
        return not op.reduced and bool(self.index_level(op) & ALONG_R)

    def index_level(self, op: Op) -> int:
        level = 0
        for affine in self.space.index[op.name]:
            for axis, _ in affine.terms:
                level |= ALONG_R if axis in self.reduced else ALONG_X
        return level

    def body(self, names: Collection[str], folds: bool, second: bool = False) -> list[Step]:
        """The steps of the named ops; `folds` where reductions go to accumulators."""
        steps: list[Step] = []
        loaded: set[object] = set()
        inside = self.space.index
        for op in self.ops:
            if op.name not in names:
                continue
            name, reads, level = op.name, [], 0
            if op.reduced and second:
                level, part = ALONG_X | ALONG_R, ("part", name)
                steps.append(Step(Kind.LOAD, part, level, WORDS[op.compute]))
                reads = [part]
            else:
                for position, operand in enumerate(op.operands):
                    if not isinstance(operand, Argument):
                        continue
                    if operand.value in inside:
                        reads.append(operand.value)
                        level |= self.levels.get(operand.value, ALONG_X)
                        continue
                    touch = self.touches[name, position]
                    key = (touch.value, touch.form)
                    if key not in loaded:
                        loaded.add(key)
                        words = WORDS[operand.type.dtype]
                        steps.append(Step(Kind.LOAD, key, touch.level, words, (), touch))
                    reads.append(key)
                    level |= touch.level
            row = BY_KIND[op.kind]
            if op.reduced:
                # The index of the best element is kept beside an argument reduction's value.
                words = WORDS[op.compute] or 1
                words += WORDS[DType.INT64] if op.kind.startswith("arg") else 0
                kind = Kind.FOLD if folds else Kind.REDUCE
                steps.append(Step(kind, name, ALONG_X, words, reads, None, op.compute.bytes))
                level = ALONG_X
            else:
                if row.group is Group.CREATION:
                    level = self.index_level(op) if row.weight > 1 else 0
                words = WORDS[op.type.dtype]
                steps.append(Step(Kind.COMPUTE, name, level, words, reads, None, row.weight))
            self.levels[name] = level
            store = self.touches.get((name, -1))
            if store is not None and (not folds or self.is_row(op)):
                steps.append(Step(Kind.STORE, name, store.level | level, 0, (name,), store))
        return steps


def _needed(ops: Sequence[Op], roots: Sequence[str], stop: bool) -> set[str]:
    """The roots and what they read; `stop` goes no further back than to a reduction."""
    by_name = {op.name: op for op in ops}
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if not (stop and by_name[name].reduced):
            waiting += [value for value in by_name[name].reads if value in by_name]
    return found


def _after_reductions(
    ops: Sequence[Op], stored: Collection[str], is_row: Callable[[Op], bool]
) -> set[str]:
    """What the combining kernel computes: the stored values with one element a row."""
    roots = [op.name for op in ops if op.name in stored and not is_row(op)]
    return _needed(ops, roots, stop=True)


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
    """Whether stored values change lanes first, because a load wants more neighbours than they."""


class Held(NamedTuple):
    """32-bit words of a lane, the most at once over a kernel's bodies."""

    kept: float
    """Accumulators, or what is needed on both sides of a reduction: no order makes these fewer."""
    moving: float
    """What is there where loads have been issued early or lanes may branch, with the above. The
    compiler moves loads and computations until fewer are."""
    addresses: float
    """64-bit addresses that are not a constant away from another one."""


def held(body: Body, lane: Lane) -> Held:
    """What a lane holds when the body runs."""
    counts = lane.counts
    last: dict[object, int] = {}
    accumulators = 0.0
    for position, step in enumerate(body):
        for value in step.reads:
            last[value] = position
        if step.kind is Kind.FOLD:
            accumulators += step.words * counts[ALONG_X | ALONG_R]
    kept = moving = accumulators
    addresses = 0.0
    live: dict[object, float] = {}
    now = accumulators
    """Words of live values and accumulators."""
    for first, end in _segments(body):
        coming = sum(_loaded(step, lane) for step in body[first:end] if step.kind is Kind.LOAD)
        addresses = max(addresses, _addresses(body[first:end], lane))
        moving = max(moving, now + coming)
        for position in range(first, end):
            step = body[position]
            if step.kind is Kind.STORE:
                size = 0.0
            elif step.kind is Kind.LOAD:
                coming -= _loaded(step, lane)
                size = step.words * counts[step.level] * _shared(step, lane)
            else:
                size = step.words * counts[step.level]
            now += size
            if step.kind is Kind.COMPUTE and counts[step.level] > 1:
                if step.weight >= SLOW_WEIGHT:
                    moving = max(moving, now + coming)
                elif lane.is_mixed:
                    moving = max(moving, now)
            if last.get(step.value, -1) > position:
                live[step.value] = size
            elif step.kind is not Kind.STORE:
                now -= size
            for value in step.reads:
                if last[value] == position:
                    now -= live.pop(value, 0.0)
            if step.kind is Kind.REDUCE:
                # Rows that no other warp waits for are worked on one after the other.
                kept = max(kept, now if lane.exchanges else now / 2)
    return Held(kept, moving, addresses)


def _segments(body: Body) -> Iterator[tuple[int, int]]:
    """Stretches without a reduction, which nothing is moved past."""
    first = 0
    for position, step in enumerate(body):
        if step.kind is Kind.REDUCE:
            yield first, position + 1
            first = position + 1
    yield first, len(body)


def _loaded(step: Step, lane: Lane) -> float:
    """Words of a load that has been issued: narrow elements share a word if they come together."""
    count, touch = lane.counts[step.level] * _shared(step, lane), step.touch
    if touch is None:
        return float(count * step.words)
    if touch.width >= 4:
        return count * touch.width / 4
    together = max(1, min(touch.vector(lane.axis), lane.vector, lane.aligned))
    return count * max(touch.width / 4, 1 / together)


def _shared(step: Step, lane: Lane) -> float:
    """The share of a load's elements that the compiler keeps: copies of one may be merged."""
    touch = step.touch
    is_copied = touch is not None and step.level & lane.axis and touch.vector(lane.axis) == 0
    return 0.5 if is_copied else 1.0


def _addresses(steps: Sequence[Step], lane: Lane) -> float:
    """Words of addresses: for loads or for stores, which do not overlap."""
    sums = [0.0, 0.0]
    seen: set[object] = set()
    for step in steps:
        touch = step.touch
        if touch is None or not step.level & lane.axis:
            continue
        is_store = step.kind is Kind.STORE
        key = (touch.form, is_store)
        if key in seen:
            continue
        seen.add(key)
        if touch.is_scattered or touch.is_symbolic:
            sums[is_store] += 2 * lane.counts[step.level]
        elif lane.is_split:
            sums[is_store] += 2 * lane.counts[step.level] / lane.run
    return max(sums)
