# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# (a kernel's arguments are tiles, for which Triton has no types)
"""Values of a tile from the other half of an axis with two places, as rotary embeddings read them.

In: a tile whose columns, or rows, run over pairs of halves of `INNER` elements each. Out: the tile
with the values of one half in both. The functions serve a GPU, where an element and its partner lie
in the registers of one thread for tiles that tensor cores leave, and Triton's interpreter alike.
"""

import triton
import triton.language as tl

__all__ = ["half_of_columns", "half_of_rows"]


@triton.jit
def half_of_columns(x, PLACE: tl.constexpr, INNER: tl.constexpr):
    """x [rows, columns]: at each column the value of half `PLACE` of its pair."""
    halves = tl.reshape(x, [x.shape[0], x.shape[1] // (2 * INNER), 2, INNER])
    both = _in_both(tl.permute(halves, [0, 1, 3, 2]), PLACE)
    return tl.reshape(tl.permute(both, [0, 1, 3, 2]), [x.shape[0], x.shape[1]])


@triton.jit
def half_of_rows(x, PLACE: tl.constexpr, INNER: tl.constexpr):
    """x [rows, columns]: at each row the value of half `PLACE` of its pair."""
    halves = tl.reshape(x, [x.shape[0] // (2 * INNER), 2, INNER, x.shape[1]])
    both = _in_both(tl.permute(halves, [0, 2, 3, 1]), PLACE)
    return tl.reshape(tl.permute(both, [0, 3, 1, 2]), [x.shape[0], x.shape[1]])


@triton.jit
def _in_both(halves, PLACE: tl.constexpr):
    """halves [..., 2]: both places with the values of `PLACE`."""
    first, second = tl.split(halves)
    if PLACE == 0:
        both = tl.join(first, first)
    else:
        both = tl.join(second, second)
    return both
