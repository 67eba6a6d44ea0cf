"""How a reduction's kernel walks its rows, from the size of a row and what is stored.

Measured on an H200: rows of up to 32768 elements are fastest kept in registers; longer ones in
passes, the later ones served from L2; few long rows are split over blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.ir.dim import evaluate
from fuser.ir.graph import Argument, Graph, Op
from fuser.ir.region import Strategy
from fuser.ir.space import Space
from fuser.passes.stages import online_sums

MAX_ROW_IN_REGISTERS = 32768
"""Elements: 16 warps then hold 64 a thread."""

MIN_LOOPED_ROW = 8192
"""Elements of a row above which a loop may be faster: registers for it leave room for few blocks,
and nothing is loaded while they compute."""

MIN_SPLIT_ROW = 16384
"""Elements of a row below which one block reads it faster than two launches start."""

MAX_SPLIT_ROWS = 64
"""Rows: with more, whole rows fill the processors."""

MAX_COLUMN_IN_REGISTERS = 128
"""Elements of a column: a tile of 64 columns is then 8192 elements."""

MIN_SPLIT_COLUMN = 2048
"""Elements of a column from which sharing it between programs pays for a second launch."""

MAX_SPLIT_COLUMNS = 16384
"""Columns: with more, programs of 64 columns fill the processors."""


def strategy_for(
    graph: Graph, ops: Sequence[Op], stored: frozenset[str], space: Space, by_column: bool
) -> Strategy:
    """The strategy of a region with reductions; `by_column` where neighbours are other rows."""
    row = evaluate(space.reduced_size, graph.hints)
    rows = evaluate(space.parallel_size, graph.hints)
    is_long = not isinstance(space.reduced_size, int) or row > MAX_ROW_IN_REGISTERS
    if by_column:
        # A column kernel's program has many rows, so there are few programs.
        is_few = row >= MIN_SPLIT_COLUMN and rows <= MAX_SPLIT_COLUMNS
        is_long = is_long or row > MAX_COLUMN_IN_REGISTERS
    else:
        is_few = row >= MIN_SPLIT_ROW and rows <= MAX_SPLIT_ROWS
    if is_few and can_split(graph, ops, stored, space):
        return Strategy.SPLIT
    return Strategy.LOOPED if is_long else Strategy.ROW_IN_REGISTERS


def can_split(graph: Graph, ops: Sequence[Op], stored: frozenset[str], space: Space) -> bool:
    """Whether partial results can be combined by a second kernel.

    That needs reductions that do not wait for each other (but for shifts that a part has of its
    own), combinable one by one (not arguments), and nothing of row length after them.
    """
    reduced = {axis.name for axis in space.reduced}
    # What some precision rounds is left out: the kernel has to be right in every one.
    online = online_sums(ops, rounds=lambda op: op.type.dtype.is_half)
    shifts = {op.name for each in online.values() for op in each.chain}
    after: set[str] = set()
    for op in ops:
        depends = any(isinstance(o, Argument) and o.value in after for o in op.operands)
        if op.reduced and (op.kind in ("argmax", "argmin") or (depends and op.name not in online)):
            return False
        is_row = not op.reduced and any(a.axes & reduced for a in space.index[op.name])
        if depends and is_row and not (op.name in shifts and op.name not in stored):
            return False
        if op.reduced or depends:
            after.add(op.name)
    # What leads to a shifted sum has no other reader: those would need the shift.
    inside = {op.name for op in ops if op.reduced or op.name in shifts}
    return all(
        reader.name in inside
        for name in shifts & after
        for reader in graph.readers[name]
        if reader.name in space.index
    )
