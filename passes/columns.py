"""Folds over all rows of a region beside those over the elements of a row.

In: ops in program order and their iteration space, whose reduced axes are those of a row. Out:
which folds go along the other axes, what is made of them, and the schedule of the kernel that takes
both in one reading: each of its programs walks some rows and leaves its part of every column, and a
second kernel combines the parts. Beside a product, whose reduced axes are those that it sums over,
folds along the others are of no columns: they fold rows of its results.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.device import DeviceSpec
from fuser.ir.dim import evaluate
from fuser.ir.graph import Graph, Op
from fuser.ir.ops import is_contraction
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
    return frozenset() if any(map(is_contraction, ops)) else _folds_across(ops, space)


def result_folds(ops: Sequence[Op], space: Space) -> frozenset[str]:
    """The folds along axes of the results, in a region of products."""
    return _folds_across(ops, space) if any(map(is_contraction, ops)) else frozenset()


def _folds_across(ops: Sequence[Op], space: Space) -> frozenset[str]:
    parallel = {axis.name for axis in space.parallel}
    folds = (op for op in ops if op.reduced and not is_contraction(op))
    return frozenset(op.name for op in folds if folded_axes(op, space.index[op.name]) & parallel)


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
