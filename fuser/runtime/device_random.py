# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# (a kernel's arguments are tiles, for which Triton has no types)
"""Random numbers for use inside kernels: the bits of `fuser.random_ops`, on every GPU.

In: a seed, the number of a stream, and for each element the number of its Philox block and its
place in the block, which is one of four. Out: a tile of float32. Only integers are computed with
until the last step, so that the interpreter and all compilers agree.

One evaluation of Philox gives four numbers. FOURS is the axis along which each four neighbours of
the tile share a block. Where a thread holds the four, the compiler computes once what is the same
for them, if it can see that it is: so their block is made one value. Where it does not, which
JOINED says, the numbers are computed on a quarter of the tile and move to their places through
shared memory. Without an axis every element has its own evaluation.
"""

import triton
import triton.language as tl

__all__ = ["uniform", "uniform_positive"]


@triton.jit
def _product(x, FACTOR: tl.constexpr):
    # One multiplication of 64 bits is one instruction where a half each would be two.
    wide = x.to(tl.uint64) * FACTOR
    return (wide >> 32).to(tl.uint32), wide.to(tl.uint32)


@triton.jit
def _philox(seed, stream, block):
    # Philox4x32-10: see `fuser.random_ops.philox`.
    c0 = block.to(tl.uint32)
    c1 = tl.full([], 0, tl.uint32)
    if block.dtype.primitive_bitwidth == 64:
        c1 = (block >> 32).to(tl.uint32)
    c2 = tl.cast(stream, tl.uint32)
    c3 = tl.full([], 0, tl.uint32)
    k0 = seed.to(tl.uint32)
    k1 = (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        high0, low0 = _product(c0, 0xD2511F53)
        high1, low1 = _product(c2, 0xCD9E8D57)
        c0 = high1 ^ c1 ^ k0
        c2 = high0 ^ c3 ^ k1
        c1 = low1
        c3 = low0
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def _first_of_four(tile, AXIS: tl.constexpr):
    if len(tile.shape) == 1:
        parts = tl.reshape(tile, [tile.shape[0] // 4, 2, 2])
    elif AXIS == 1:
        parts = tl.reshape(tile, [tile.shape[0], tile.shape[1] // 4, 2, 2])
    else:
        parts = tl.reshape(tile, [tile.shape[0] // 4, 2, 2, tile.shape[1]])
        parts = tl.permute(parts, (0, 3, 1, 2))
    evens, _ = tl.split(parts)
    first, _ = tl.split(evens)
    return first


@triton.jit
def _in_fours(a, b, c, d, like, AXIS: tl.constexpr):
    parts = tl.join(tl.join(a, c), tl.join(b, d))
    if len(like.shape) == 2 and AXIS == 0:
        parts = tl.permute(parts, (0, 2, 3, 1))
    return tl.reshape(parts, like.shape)


@triton.jit
def _word(seed, stream, block, lane, FOURS: tl.constexpr, JOINED: tl.constexpr):
    shares: tl.constexpr = FOURS is not None and block.shape[FOURS or 0] >= 4
    if shares:
        first = _first_of_four(block, FOURS)
        if JOINED:
            a, b, c, d = _philox(seed, stream, first)
            return _in_fours(a, b, c, d, block, FOURS)
        block = _in_fours(first, first, first, first, block, FOURS)
    a, b, c, d = _philox(seed, stream, block)
    return tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d))


@triton.jit
def uniform(
    seed, stream, block, lane, FOURS: tl.constexpr = None, JOINED: tl.constexpr = False
):  # fmt: skip
    """torch.ops.fuser.uniform"""
    word = _word(seed, stream, block, lane, FOURS, JOINED)
    return (word >> 8).to(tl.float32) * (2.0**-24)


@triton.jit
def uniform_positive(
    seed, stream, block, lane, FOURS: tl.constexpr = None, JOINED: tl.constexpr = False
):  # fmt: skip
    """torch.ops.fuser.uniform_positive"""
    word = _word(seed, stream, block, lane, FOURS, JOINED)
    return word.to(tl.float32) * (2.0**-32) + (2.0**-33)
