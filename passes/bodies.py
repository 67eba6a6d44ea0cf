"""What a kernel does, line by line, as code generation writes it: loads, computations, stores.

In: ops in program order, where they touch memory, and along which side of a tile each axis goes.
Out: the kernel's bodies, each a list of steps: one, or one for each pass over a row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from fuser.ir.dtype import DType
from fuser.ir.graph import Op
from fuser.ir.ops import BY_KIND, Group
from fuser.ir.region import Strategy
from fuser.ir.space import Index
from fuser.passes.approximate import weight_of
from fuser.passes.stages import needed_in_passes

ALONG_X, ALONG_R = 1, 2
"""Along which axes of a tile a value varies, as bits: rows, elements of a row, or both."""

WORD_BYTES = 4
"""Bytes of a register."""

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

_BY_INDEX = (Group.CREATION, Group.RANDOM)


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


LOAD, COMPUTE, FOLD, REDUCE, STORE, KEPT = range(6)
"""Kinds of steps. FOLD goes to an accumulator, in a loop over the row; REDUCE makes one element of
a whole row in the tile, of which other warps may have a part. KEPT is there from row to row in a
loop over rows: what is the same for all of them, and what is folded over them."""


class Step(NamedTuple):
    """One line of a body. `words` are what its value takes in registers, per element."""

    kind: int
    level: int
    words: int
    touch: Touch | None = None
    weight: int = 1


class Body(NamedTuple):
    """Lines in the order in which they run."""

    steps: Sequence[Step]
    last: Sequence[int]
    """For each step the place of the last one that needs its value, its own if none does."""


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
        along = [body for body in found if any(step.level & ALONG_R for step in body.steps)]
        return along or found[:1]
    rows = [op.name for op in stored if writer.is_row(op)]
    if combines:
        results = [op.name for op in stored if op.name not in rows]
        names = needed(ops, results, past_reductions=False)
        return [writer.body(_named(lines, names), False, True)]
    roots = [op.name for op in ops if op.reduced] + rows
    return [writer.body(_named(lines, needed(ops, roots, past_reductions=True)), True)]


def walking_bodies(
    lines: Sequence[Line],
    index: Mapping[str, Index],
    sides: Mapping[str, int],
    columns: Collection[str],
) -> list[Body]:
    """The body of a loop over rows, and what is made before it; `columns` are folded over rows."""
    writer = _Writer(index, sides, columns)
    loop = writer.body(lines, False)
    before = [line for line in lines if writer.is_made_before(writer.levels[line.op.name])]
    return [loop, _Writer(index, sides).body(before, False)] if before else [loop]


def combining_body(
    lines: Sequence[Line], index: Mapping[str, Index], sides: Mapping[str, int]
) -> Body:
    """The body of a kernel that reads a part of each reduction of `lines` for every program."""
    return _Writer(index, sides).body(lines, False, True)


def _named(lines: Sequence[Line], names: Collection[str]) -> list[Line]:
    return [line for line in lines if line.op.name in names]


class _Writer:
    """Writes bodies; the levels of values are known from one body to the next."""

    def __init__(
        self, index: Mapping[str, Index], sides: Mapping[str, int], columns: Collection[str] = ()
    ) -> None:
        self.index = index
        self.sides = sides
        self.columns = columns
        self.levels: dict[str, int] = {}
        self.words: dict[str, int] = {}

    def is_made_before(self, level: int) -> bool:
        """Whether a loop over rows finds such a value made."""
        return bool(self.columns) and not level & ALONG_X

    def is_row(self, op: Op) -> bool:
        """Whether the op's result has one element for each element of a row."""
        return not op.reduced and bool(self.index_level(op) & ALONG_R)

    def index_level(self, op: Op) -> int:
        level = 0
        for affine in self.index[op.name]:
            for axis, _ in affine.terms:
                level |= self.sides.get(axis, 0)
        return level

    def level_of(self, op: Op, operands: Sequence[str | Touch]) -> int:
        if op.reduced:
            return ALONG_X
        row = BY_KIND[op.kind]
        if row.group in _BY_INDEX:
            # A constant is the same everywhere; what follows the index is more work.
            return self.index_level(op) if row.weight > 1 else 0
        level = 0
        for operand in operands:
            if isinstance(operand, str):
                level |= self.levels.get(operand, ALONG_X)
            else:
                level |= operand.level
        return level

    def body(self, lines: Sequence[Line], folds: bool, combines: bool = False) -> Body:
        """The steps of the lines; `folds` where reductions go to accumulators."""
        steps: list[Step] = []
        places: dict[object, int] = {}
        """Where each value of the kernel and each load is made."""
        last: list[int] = []
        levels = self.levels

        def add(step: Step) -> int:
            last.append(len(steps))
            steps.append(step)
            return len(steps) - 1

        for op, operands, store in lines:
            name = op.name
            reads: list[int] = []
            level = levels[name] = self.level_of(op, operands)
            words = self.words[name] = words_of(op.results[0].type.dtype)
            if self.is_made_before(level):
                continue
            if combines and op.reduced:
                operands = ()
                reads.append(add(Step(LOAD, ALONG_X | ALONG_R, words_of(op.compute))))
            for operand in operands:
                if isinstance(operand, str):
                    if operand not in places and self.is_made_before(levels.get(operand, ALONG_X)):
                        places[operand] = add(Step(KEPT, levels[operand], self.words[operand]))
                    if operand in places:
                        reads.append(places[operand])
                    continue
                key = (operand.value, operand.form)
                place = places.get(key)
                if place is None:
                    kind = KEPT if self.is_made_before(operand.level) else LOAD
                    step = Step(kind, operand.level, operand.words, operand)
                    place = places[key] = add(step)
                reads.append(place)
            if name in self.columns:
                place = add(Step(KEPT, ALONG_X | ALONG_R, words_of(op.compute) or 1))
            elif op.reduced:
                # The best element's index is kept beside its value.
                words = (words_of(op.compute) or 1) + (INDEX_WORDS if keeps_index(op) else 0)
                place = add(Step(FOLD if folds else REDUCE, level, words))
            else:
                place = add(Step(COMPUTE, level, words, None, weight_of(op)))
            for read in reads:
                last[read] = place
            places[name] = place
            if store is not None and (not folds or self.is_row(op)):
                last[place] = add(Step(STORE, store.level | level, 0, store))
        return Body(steps, last)


def keeps_index(op: Op) -> bool:
    """Whether a reduction looks for a place: the table counts two operations an element for it."""
    row = BY_KIND[op.kind]
    return row.group is Group.REDUCTION and row.weight > 1


def needed(ops: Sequence[Op], roots: Sequence[str], past_reductions: bool) -> set[str]:
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
