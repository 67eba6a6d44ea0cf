"""Folds over all rows of a region beside those over the elements of a row.

In: ops in program order and their iteration space, whose reduced axes are those of a row. Out:
which folds go along the other axes, what is made of them, and the schedule of the kernel that takes
both in one reading: each of its programs walks some rows and leaves its part of every column, and a
second kernel combines the parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.device import DeviceSpec
from fuser.ir.dim import evaluate
from fuser.ir.graph import Graph, Op
from fuser.ir.region import Schedule, Strategy
from fuser.ir.space import Index, Space
from fuser.passes.configurations import (
    combine_columns_configurations,
    rows_and_columns_configurations,
    walking_programs,
)

MAX_ROW = 16384
"""Elements of a row beyond which its accumulators leave too few registers for the row itself."""


def folded_axes(op: Op, index: Index) -> frozenset[str]:
    """The axes that an op with this domain index folds."""
    return frozenset(axis for k in op.reduced for axis in index[k].axes)


def column_folds(ops: Sequence[Op], space: Space) -> frozenset[str]:
    """The folds over all rows: one result for each element of a row."""
    rows = {axis.name for axis in space.parallel}
    return frozenset(
        op.name for op in ops if op.reduced and folded_axes(op, space.index[op.name]) & rows
    )


def column_values(ops: Sequence[Op], space: Space) -> frozenset[str]:
    """Those folds, and all that waits for one."""
    found = set(column_folds(ops, space))
    if found:
        for op in ops:
            if not found.isdisjoint(op.reads):
                found.add(op.name)
    return frozenset(found)


def part_bytes(graph: Graph, ops: Sequence[Op], space: Space, schedule: Schedule) -> int:
    """Bytes that the programs of the first kernel leave for the second one."""
    folds = column_folds(ops, space)
    each = sum(
        op.compute.bytes * evaluate(op.type.numel, graph.hints) for op in ops if op.name in folds
    )
    return schedule.parts * each


def obstacle(ops: Sequence[Op], space: Space) -> str:
    """Why folds over rows and over columns cannot share a kernel, empty where they can."""
    folds = column_folds(ops, space)
    if not folds:
        return ""
    row = space.reduced_size
    if not isinstance(row, int):
        return f"columns beside rows of {row} elements, which is not known"
    if row > MAX_ROW:
        return f"columns beside rows of {row} elements, more than {MAX_ROW}"
    places = [op.name for op in ops if op.name in folds and op.kind in ("argmax", "argmin")]
    return f"{places[0]} looks for a place in a column" if places else ""


def rows_and_columns_schedule(
    graph: Graph, space: Space, by_column: bool, device: DeviceSpec
) -> Schedule:
    """How both are walked; `by_column` where neighbours in memory are other rows."""
    assert isinstance(space.reduced_size, int)
    row, rows = space.reduced_size, space.parallel_size
    usual = evaluate(rows, graph.hints)
    tiles = rows_and_columns_configurations(usual, row, by_column, device)
    programs = walking_programs(rows if isinstance(rows, int) else None, tiles[0], device)
    second = combine_columns_configurations(row, programs, device)
    return Schedule(Strategy.ROWS_AND_COLUMNS, (tiles, second), programs)
