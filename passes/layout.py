"""How the tile of a kernel lies over threads, and what of it passes through shared memory.

In: a kernel as the model sees it, and a tile. Out: its `Layout` and the bytes of shared memory.
Triton deals a tile out to lanes in the order of memory, in vectors of what the widest load can
take, and moves elements between lanes through shared memory: for reductions over several warps, and
where a load and a store want vectors of different length.
"""

from __future__ import annotations

from typing import NamedTuple

from fuser.device import DeviceSpec
from fuser.ir.kernel import Configuration
from fuser.passes.bodies import ALONG_R, ALONG_X, KEPT, LOAD, WORD_BYTES
from fuser.passes.kernel_model import VECTOR_BYTES, Kernel

STAGED_ALIGNMENT = 16
"""Bytes at whose multiples the buffers of staged loads begin."""


class Layout(NamedTuple):
    """How a tile lies over the lanes of a block. Sizes are logarithms of powers of two.

    Elements are dealt out in the order of memory: a vector to each lane of a warp, then to the next
    warp, and after the last warp the first lane has its turn again.
    """

    axis: int
    """The axis along which neighbours lie in memory: `ALONG_X` or `ALONG_R`."""
    x: int
    r: int
    vector: int
    lanes: int
    """Of a block."""
    row_warps: int
    """Warps that share a row."""
    column_warps: int
    """Warps that share a column."""
    counts: tuple[int, int, int, int]
    """Elements of a lane (themselves, no logarithms) of a value by level."""

    @property
    def whole(self) -> int:
        """The level of what varies over the whole tile."""
        return (ALONG_X if self.x else 0) | (ALONG_R if self.r else 0) or ALONG_X


def layout_of(kernel: Kernel, tile: Configuration, device: DeviceSpec) -> Layout:
    """The layout that most of a kernel's values have."""
    sizes = dict(tile.blocks)
    x, r = _log(sizes["XBLOCK"]), _log(sizes.get("RBLOCK", 1))
    warp = _log(device.warp_size)
    lanes = warp + _log(tile.num_warps)
    axis, widest = _order(kernel, x, r)
    fast, slow = (r, x) if axis == ALONG_R else (x, r)
    vector = max(0, min(_log(widest), x + r - lanes, fast))
    # The bits of an element's number, lowest first: vector, lane, warp, and again the lane's own.
    again = vector + lanes
    own_fast = vector + max(0, fast - again)
    own_slow = max(0, fast + slow - max(again, fast))
    warps_fast = max(0, min(fast, again) - min(fast, vector + warp))
    warps_slow = max(0, min(fast + slow, again) - max(fast, vector + warp))
    own_x, own_r = (own_slow, own_fast) if axis == ALONG_R else (own_fast, own_slow)
    sharing = (warps_fast, warps_slow) if axis == ALONG_R else (warps_slow, warps_fast)
    counts = (1, 1 << own_x, 1 << own_r, 1 << own_x + own_r)
    return Layout(axis, x, r, vector, lanes, *sharing, counts)


def _log(size: int) -> int:
    return max(size, 1).bit_length() - 1


def _order(kernel: Kernel, x: int, r: int) -> tuple[int, int]:
    """The axis that lanes follow, and the longest vector along it that an access asks for."""
    if kernel.combines:
        # Parts of a row are neighbours, or those of neighbouring columns.
        return ALONG_X if kernel.is_column else ALONG_R, VECTOR_BYTES // WORD_BYTES
    whole = (ALONG_X if x else 0) | (ALONG_R if r else 0) or ALONG_X
    along_x = along_r = 0
    for body in kernel.bodies:
        for step in body.steps:
            touch = step.touch
            if touch is not None and touch.level & whole == whole and not touch.is_scattered:
                along_x = max(along_x, touch.vector_x)
                along_r = max(along_r, touch.vector_r)
    if not r or (along_x and (kernel.is_column or not along_r)):
        return ALONG_X, max(1, along_x)
    return ALONG_R, max(1, along_r)


def shared_bytes(kernel: Kernel, layout: Layout) -> tuple[int, bool]:
    """Bytes of shared memory of a block, and whether whole tiles change lanes in it.

    Buffers do not live at the same time, so the largest counts.
    """
    rows, whole = 1 << layout.x, layout.whole
    most = 0
    if layout.row_warps and kernel.folds:
        # Each warp leaves what it has of a row for the others.
        most = max((rows << layout.row_warps) * size for size in kernel.folds)
    if kernel.results and rows > 1:
        most = max(most, rows * WORD_BYTES)
    for size in kernel.columns:
        most = max(most, _left_bytes(layout, size))
    is_mixed = False
    for body in kernel.bodies:
        vectors: list[int] = []
        for step in body.steps:
            touch = step.touch
            if touch is None:
                continue
            if touch.lies_across(layout.axis) and touch.level == ALONG_X | ALONG_R:
                # The tile is turned over: no lane keeps an element.
                is_mixed = True
                most = max(most, touch.width << layout.x + layout.r)
            elif step.kind in (LOAD, KEPT):
                if touch.level == ALONG_R and rows > 1:
                    vectors.append(touch.vector_r)
            elif step.level & whole == whole:
                own = min(_log(touch.vector(layout.axis)), layout.vector)
                if own < layout.vector:
                    is_mixed = True
                    most = max(most, _exchanged(layout, own, touch.width))
            elif rows > 1 and layout.r:
                # One element a row, dealt out anew to all lanes.
                most = max(most, rows * max(WORD_BYTES, touch.width))
        if vectors and layout.axis == ALONG_R and layout.r >= layout.lanes:
            own = min(_log(max(vectors)), layout.r - layout.lanes)
            if own != layout.vector or layout.r < layout.vector + layout.lanes:
                # What all rows share is dealt out as a row of its own and has to become a row of
                # the tile. From two on, the tile comes to them.
                one = WORD_BYTES << layout.r
                most = max(most, one if len(vectors) == 1 else _exchanged(layout, own, WORD_BYTES))
    return most, is_mixed


def staged_bytes(kernel: Kernel, layout: Layout, stages: int) -> int:
    """Bytes of shared memory of a loop over rows whose loads arrive there ahead of their step,
    with what warps exchange beside them; 0 where nothing is ahead."""
    sizes = {ALONG_X: layout.x, ALONG_X | ALONG_R: layout.x + layout.r}
    total = 0
    seen: set[object] = set()
    for body in kernel.bodies if stages > 1 else ():
        for step in body.steps:
            touch = step.touch
            if touch is None or step.kind != LOAD or touch.level not in sizes:
                continue
            together = max(1, touch.vector(layout.axis)) if touch.level & layout.axis else 1
            key = (touch.value, touch.level)
            # What is no whole word for a lane cannot be copied by itself.
            if together * touch.width >= WORD_BYTES and not touch.is_scattered and key not in seen:
                seen.add(key)
                total = -(-total // STAGED_ALIGNMENT) * STAGED_ALIGNMENT
                total += (stages - 1) * touch.width << sizes[touch.level]
    if total and layout.row_warps and kernel.folds:
        total += (1 << layout.x + layout.row_warps) * max(kernel.folds)
    return total


def _left_bytes(layout: Layout, width: int) -> int:
    """Bytes through which the columns' accumulators become one row, dealt out to be stored."""
    most = 0
    if layout.column_warps:
        # Each warp leaves what its rows have of a column for the others.
        most = width << layout.r + layout.column_warps
    own = max(0, min(_log(VECTOR_BYTES // width), layout.r - layout.lanes))
    if own < layout.vector:
        most = max(most, _exchanged(layout._replace(x=0), own, width))
    return most


def _exchanged(layout: Layout, own: int, width: int) -> int:
    """Bytes through which a tile goes from the layout's vector to one of `own`.

    What both give to the same lane goes one after the other, beyond what one vector holds.
    """
    size = layout.x + layout.r
    common = own + max(0, size - layout.vector - layout.lanes)
    turns = max(0, common - _log(VECTOR_BYTES // width))
    if (width, own, layout.vector) == (WORD_BYTES, 2, 4):
        turns += 2  # measured: from 16 neighbours to 4 words in quarters
    return (width << size) >> turns
