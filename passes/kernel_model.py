"""The kernels of a schedule as the model of the compiler sees them.

In: ops with their space, accesses and schedule. Out: for each kernel its bodies of steps, how its
tiles walk memory, and what its reductions exchange: all that does not depend on the tile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from fuser.ir.dim import evaluate
from fuser.ir.dtype import DType
from fuser.ir.graph import Argument, Graph, Op
from fuser.ir.region import Schedule, Strategy
from fuser.ir.space import LoopAxis, Space
from fuser.passes.access import Access, accesses, is_column, order_axes, primary_access
from fuser.passes.bodies import (
    ALONG_R,
    ALONG_X,
    WORD_BYTES,
    Body,
    Line,
    Touch,
    bodies,
    combining_body,
    keeps_index,
    needed,
    walking_bodies,
    words_of,
)
from fuser.passes.columns import column_folds, column_values

VECTOR_BYTES = 16
"""What one instruction moves at most between a lane and memory."""

INDEX_BYTES = 8
"""The index that an argument reduction exchanges beside its value."""

UNBOUNDED = 1 << 30


class Walk(NamedTuple):
    """How one axis of a tile, x or r, walks memory."""

    fast: str = ""
    """The innermost loop axis, empty without one."""
    together: frozenset[str] = frozenset()
    """The loop axes that are one kernel axis with it."""
    run: int = UNBOUNDED
    """A power of two: so many elements at least lie in one step of the other kernel axes."""
    aligned: int = UNBOUNDED
    """The largest power of two that divides the whole size, 1 where it is not known."""
    is_split: bool = False
    """Whether there are several kernel axes."""


class Kernel(NamedTuple):
    """One kernel of a schedule, ready to be predicted for any tile."""

    bodies: Sequence[Body]
    walks: Mapping[int, Walk]
    """Of x and of r."""
    is_column: bool = False
    """Whether neighbours in memory are rows."""
    has_loop: bool = False
    """Whether it walks its rows in a loop."""
    combines: bool = False
    """Whether it folds the parts that the first kernel of a split reduction left."""
    folds: tuple[int, ...] = ()
    """For each reduction, the bytes that warps exchange for a row."""
    results: int = 0
    """Values with one element a row that are written after the loop."""
    columns: tuple[int, ...] = ()
    """For each fold over all rows, the bytes of an element that a program leaves."""


def kernels_of(
    graph: Graph,
    ops: Sequence[Op],
    stored: Collection[str],
    space: Space,
    schedule: Schedule,
    found: Sequence[Access] | None = None,
) -> tuple[Kernel, ...]:
    """The kernels of a schedule in launch order. `found` are the accesses of `ops`."""
    if found is None:
        found = accesses(graph, ops, stored, space)
    primary = primary_access(found)
    sides = _sides(space, schedule)
    axes = (*order_axes(space.parallel, primary), *order_axes(space.reduced, primary))
    walks = {
        side: _walk([axis for axis in axes if sides.get(axis.name) == side], found, graph.hints)
        for side in (ALONG_X, ALONG_R)
    }
    if schedule.strategy is Strategy.ROWS_AND_COLUMNS:
        first = Kernel((), walks, is_column(primary, space))
        return _rows_and_columns(graph, ops, stored, space, found, first, sides)
    lines = _lines(graph, ops, space, found, sides, walks)
    folds = tuple(_exchanged(op) for op in ops if op.reduced)
    first = Kernel(
        bodies(lines, space.index, sides, schedule.strategy),
        walks,
        is_column=bool(folds) and is_column(primary, space),
        folds=folds,
    )
    if schedule.strategy is Strategy.LOOPED:
        stores = [line.store for line in lines if line.store is not None]
        results = sum(not store.level & ALONG_R for store in stores)
        return (first._replace(has_loop=True, results=results),)
    if schedule.strategy is Strategy.SPLIT:
        rest = bodies(lines, space.index, sides, schedule.strategy, True)
        return (
            first._replace(has_loop=True, results=len(folds)),
            Kernel(rest, walks, combines=True, folds=folds),
        )
    return (first,)


def _rows_and_columns(
    graph: Graph,
    ops: Sequence[Op],
    stored: Collection[str],
    space: Space,
    found: Sequence[Access],
    first: Kernel,
    sides: Mapping[str, int],
) -> tuple[Kernel, ...]:
    """The kernel that walks rows, from one whose bodies are missing, and the one that combines what
    its programs leave of the columns: a row of that is what was an element."""
    columns, after = column_folds(ops, space), column_values(ops, space)
    by_name = {op.name: op for op in ops}

    def lines(roots: Collection[str], sides: Mapping[str, int], is_first: bool) -> list[Line]:
        names = needed(ops, list(roots), past_reductions=is_first)
        mine = [op for op in ops if op.name in names]
        touched = [access for access in found if access.op in names]
        return _lines(graph, mine, space, touched, sides, walks)

    walks = first.walks
    walked = [
        line._replace(store=None) if line.op.name in columns else line
        for line in lines(columns | (set(stored) - after), sides, True)
    ]
    walking = first._replace(
        bodies=walking_bodies(walked, space.index, sides, columns),
        has_loop=True,
        folds=tuple(_exchanged(op) for op in ops if op.reduced and op.name not in columns),
        columns=tuple(_exchanged(by_name[name]) for name in sorted(columns)),
    )
    sides = {axis.name: ALONG_X for axis in space.reduced}
    walks = {ALONG_X: walks[ALONG_R], ALONG_R: Walk()}
    rest = combining_body(lines(after & set(stored), sides, False), space.index, sides)
    return walking, Kernel([rest], walks, is_column=True, combines=True, folds=walking.columns)


def _exchanged(op: Op) -> int:
    """The bytes of one result that warps exchange."""
    return max(WORD_BYTES, op.compute.bytes) + (INDEX_BYTES if keeps_index(op) else 0)


def _sides(space: Space, schedule: Schedule) -> Mapping[str, int]:
    """Loop axis to the side of a tile that it is a part of; others are numbers of the program."""
    if schedule.strategy is Strategy.TILED:
        return {
            **dict.fromkeys(schedule.across, ALONG_X),
            **dict.fromkeys(schedule.along, ALONG_R),
        }
    return {axis.name: ALONG_R if axis.is_reduced else ALONG_X for axis in space.axes}


def _walk(axes: Sequence[LoopAxis], found: Sequence[Access], hints: Mapping[str, int]) -> Walk:
    """Axes in the order of memory as a tile walks them: those that all accesses walk together are
    one kernel axis, as in code generation."""
    if not axes:
        return Walk()
    groups: list[list[LoopAxis]] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if groups and _is_one(groups[-1][-1], axis, evaluate(axis.size, hints), found):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if not groups:
        return Walk()
    inner = groups[-1]
    is_split = len(groups) > 1
    return Walk(
        inner[-1].name,
        frozenset(axis.name for axis in inner),
        _alignment(inner) if is_split else UNBOUNDED,
        _alignment([axis for group in groups for axis in group]),
        is_split,
    )


def _is_one(outer: LoopAxis, inner: LoopAxis, size: int, found: Sequence[Access]) -> bool:
    for access in found:
        if not access.is_scattered:
            step = access.steps.get(inner.name)
            if access.steps.get(outer.name) != (None if step is None else step * size):
                return False
    return True


def _alignment(axes: Sequence[LoopAxis]) -> int:
    """The largest power of two that divides the axes' common size, 1 where it is not known."""
    size = 1
    for axis in axes:
        if not isinstance(axis.size, int):
            return 1
        size *= axis.size
    return power(size) or UNBOUNDED


def power(number: int) -> int:
    """The largest power of two that divides a number; 0 for 0, which all divide."""
    return number & -number


def _lines(
    graph: Graph,
    ops: Sequence[Op],
    space: Space,
    found: Sequence[Access],
    sides: Mapping[str, int],
    walks: Mapping[int, Walk],
) -> list[Line]:
    """The ops with their accesses, which `found` has in the same order."""
    lines: list[Line] = []
    forms: dict[object, int] = {}
    reach: dict[object, tuple[int, int, int, bool]] = {}

    def touch(access: Access, dtype: DType, offset: object) -> Touch:
        steps = tuple(access.steps.items())
        scattered = access.is_scattered
        key = (steps, access.width, scattered, access.value if graph.symbols else "")
        if key not in reach:
            reach[key] = _reach(graph, access, sides, walks)
        form = forms.setdefault(access.op if scattered else (steps, offset), len(forms))
        return Touch(access.value, form, access.width, words_of(dtype), scattered, *reach[key])

    remaining = iter(found)
    following = next(remaining, None)
    for op in ops:
        reads: list[str | Touch] = []
        store: Touch | None = None
        for operand in op.operands:
            if not isinstance(operand, Argument):
                continue
            if operand.value in space.index:
                reads.append(operand.value)
                continue
            assert following is not None
            offset = (operand.storage_offset, operand.window)
            reads.append(touch(following, operand.type.dtype, offset))
            following = next(remaining, None)
        if following is not None and following.is_store and following.op == op.name:
            store = touch(following, op.type.dtype, None)
            following = next(remaining, None)
        lines.append(Line(op, reads, store))
    return lines


def _reach(
    graph: Graph, access: Access, sides: Mapping[str, int], walks: Mapping[int, Walk]
) -> tuple[int, int, int, bool]:
    """The last fields of a `Touch`: level, vectors, and whether strides are not known."""
    level = 0
    for axis in access.steps:
        level |= sides.get(axis, 0)
    is_symbolic = False
    if graph.symbols and not any(access.steps.keys() <= walk.together for walk in walks.values()):
        strides = graph.values[access.value].type.stride
        is_symbolic = not all(isinstance(stride, int) for stride in strides)
    vector_x = _vector(access, walks[ALONG_X], is_symbolic) if level & ALONG_X else 0
    vector_r = _vector(access, walks[ALONG_R], is_symbolic) if level & ALONG_R else 0
    return level, vector_x, vector_r, is_symbolic


def _vector(access: Access, walk: Walk, is_symbolic: bool) -> int:
    """Neighbours along an axis that one instruction can move: `Touch.vector_x`."""
    step = access.steps.get(walk.fast)
    if step is None or access.is_scattered:
        return 0
    if step != 1:
        return -1
    most = min(VECTOR_BYTES // access.width, walk.run)
    for axis, other in access.steps.items():
        if axis not in walk.together:
            most = min(most, 1 if is_symbolic else power(other) or most)
    return max(1, most)
