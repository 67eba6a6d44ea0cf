# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (a kernel's arguments are tiles, for which Triton has no types)
"""Tiles of products inside kernels: parts of the sums."""

import triton
import triton.language as tl

__all__ = ["part_of"]


@triton.jit
def part_of(tile, part: tl.constexpr, PARTS: tl.constexpr):
    """The part-th of one or two equal parts of the columns of a tile [rows, columns]."""
    if PARTS == 1:
        return tile
    else:
        halves = tl.reshape(tile, [tile.shape[0], 2, tile.shape[1] // 2])
        left, right = tl.split(tl.permute(halves, (0, 2, 1)))
        if part == 0:
            return left
        else:
            return right
