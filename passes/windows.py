"""Tiles that a tensor descriptor can copy: which reads of a product's operands are such.

In: where an operand is read, as a linear form over loop axes. Out: the window of memory that a
descriptor describes, and where in it a tile begins; None where a tile has to be read by pointers.
A descriptor has up to five dimensions. The innermost has neighbours in memory, the strides of the
others are multiples of 16 bytes, and so is the address of the first element. What a tile has past
the end of a dimension is read as zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuser.ir.dim import Dim, is_equal, multiply
from fuser.ir.dtype import DType
from fuser.ir.graph import Graph, Op
from fuser.ir.kernel import ALIGNMENT, Window
from fuser.ir.ops import is_contraction
from fuser.ir.space import Affine, LoopAxis, Space
from fuser.passes.access import operand_offset
from fuser.passes.contraction import COLUMNS, ROWS, Roles, read_where

DESCRIBED = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
"""What tensor cores multiply."""

BLOCKS: Mapping[str, str] = {"m": "MBLOCK", "n": "NBLOCK", "ka": "KBLOCK", "kb": "KBLOCK"}
"""The tile variables and their blocks."""

MOST_DIMENSIONS = 5


@dataclass(frozen=True, slots=True)
class TileWindow:
    """What a descriptor reads for tiles over two variables."""

    window: Window
    batch: tuple[Affine, ...]
    """Where a tile lies along the outer dimensions, in which it has one element."""
    variables: tuple[str, str]
    """The tile's own two, in the order of memory."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Axes that are walked as one: `place` counts its elements."""

    size: Dim
    stride: Dim
    place: Affine


def tile_window(
    offset: Affine, dtype: DType, variables: Sequence[str], groups: Mapping[str, Sequence[LoopAxis]]
) -> TileWindow | None:
    """The window that is read at `offset`, for tiles over the last two of the variables."""
    steps = dict(offset.terms)
    batch, *tile = variables
    sides = {name: _runs(groups[name], steps) for name in tile}
    outer = _runs([axis for axis in groups[batch] if axis.name in steps], steps)
    if any(len(runs) != 1 for runs in sides.values()):
        return None
    # The last dimension is the one with neighbours in memory.
    slow, fast = sorted(tile, key=lambda name: is_equal(sides[name][0].stride, 1))
    runs = [*outer, *sides[slow], *sides[fast]]
    strides = [run.stride for run in runs if isinstance(run.stride, int)]
    start = offset.offset
    if len(strides) < len(runs) or not isinstance(start, int) or dtype not in DESCRIBED:
        return None
    is_aligned = all(number * dtype.bytes % ALIGNMENT == 0 for number in (*strides[:-1], start))
    is_forward = start >= 0 and min(strides) > 0
    if not (is_aligned and is_forward and strides[-1] == 1 and len(runs) <= MOST_DIMENSIONS):
        return None
    blocks = (*(None for _ in outer), BLOCKS[slow], BLOCKS[fast])
    window = Window(tuple(run.size for run in runs), tuple(strides), blocks, start)
    return TileWindow(window, tuple(run.place for run in outer), (slow, fast))


def _runs(axes: Sequence[LoopAxis], steps: Mapping[str, Dim]) -> list[_Run]:
    """Neighbouring axes as one where memory has them so; none where one of them has no step."""
    if not all(axis.name in steps for axis in axes):
        return []
    groups: list[list[LoopAxis]] = []
    for axis in axes:
        follows = multiply(steps[axis.name], axis.size)
        if groups and is_equal(steps[groups[-1][-1].name], follows):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return [_run(group, steps) for group in groups]


def _run(axes: Sequence[LoopAxis], steps: Mapping[str, Dim]) -> _Run:
    place, inner = Affine(), 1
    for axis in reversed(axes):
        place = place.plus(Affine(((axis.name, inner),)))
        inner = multiply(inner, axis.size)
    return _Run(inner, steps[axes[-1].name], place)


def are_described(graph: Graph, ops: Sequence[Op], space: Space, roles: Roles) -> bool:
    """Whether descriptors read all operands of products that are read from memory, and one is."""
    groups = roles.groups(space)
    sizes = {axis.name: axis.size for axis in space.axes}
    found: list[TileWindow | None] = []
    for op in filter(is_contraction, ops):
        for side, factor in zip((ROWS, COLUMNS), roles.operands(op), strict=True):
            operand, index = read_where(graph, factor, space.index[op.name], space)
            if operand.value not in space.index:
                offset = operand_offset(operand, index, sizes)
                found.append(tile_window(offset, operand.type.dtype, side, groups))
    return bool(found) and None not in found
