# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# (a kernel's arguments are tiles, for which Triton has no types)
"""Random numbers for use inside kernels: the functions of `fuser/philox.py`, tile by tile.

In: the seed, the op's number, a tile of row-major element numbers and the type of the result
(tl.float32 or tl.float64). Out: a tile of that type. One Philox call makes four numbers. Where
`axis` is given, the tile has the numbers of every fourth element along it, each a multiple of four,
and the result is four times as long there; elsewhere every element makes four and keeps one.

Only operations that Triton's interpreter runs as well, so it needs no second version.
"""

import triton
import triton.language as tl

from fuser.runtime.interpreter import is_interpreting

if is_interpreting():
    from fuser.runtime.interpreter_functions import cos, log, sin, sqrt
else:
    from fuser.runtime.device_math import cos, log, sin, sqrt

__all__ = ["normal", "uniform"]


@triton.jit
def _words(seed, number, quarter, stream: tl.constexpr):
    """The four words of each quarter."""
    low = quarter.to(tl.uint32)
    zero = low & 0
    if quarter.dtype.primitive_bitwidth == 64:
        high = (quarter >> 32).to(tl.uint32)
    else:
        high = zero
    return tl.philox(seed, low, high, zero + number, zero + stream)


@triton.jit
def _in_order(a, b, c, d, axis: tl.constexpr):
    """The elements 0, 4, ..., those after them, and so on, as one tile along the axis."""
    joined = tl.join(tl.join(a, c), tl.join(b, d))  # [..., 2, 2]
    if len(a.shape) == 1:
        return tl.reshape(joined, [a.shape[0] * 4])
    elif axis == 1:
        return tl.reshape(joined, [a.shape[0], a.shape[1] * 4])
    else:
        moved = tl.permute(joined, (0, 2, 3, 1))
        return tl.reshape(moved, [a.shape[0] * 4, a.shape[1]])


@triton.jit
def _pick(a, b, c, d, lane):
    return tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d))


@triton.jit
def _leading(high, low):
    """The upper 53 of 64 bits."""
    return (high.to(tl.int64) << 21) | (low >> 11).to(tl.int64)


@triton.jit
def _unit(high, low, dtype: tl.constexpr):
    """[0, 1) in steps of 2**-24 or 2**-53"""
    if dtype == tl.float64:
        return _leading(high, low).to(tl.float64) * 1.1102230246251565e-16
    else:
        return (high >> 8).to(tl.float32) * 5.960464477539063e-08


@triton.jit
def uniform(seed, number, index, dtype: tl.constexpr, axis: tl.constexpr = -1):
    """fuser::uniform"""
    a, b, c, d = _words(seed, number, index >> 2, 0)
    if dtype == tl.float64:
        e, f, g, h = _words(seed, number, index >> 2, 1)
    else:
        e, f, g, h = a, b, c, d
    if axis >= 0:
        return _in_order(
            _unit(a, e, dtype), _unit(b, f, dtype), _unit(c, g, dtype), _unit(d, h, dtype), axis
        )
    else:
        lane = index & 3
        return _unit(_pick(a, b, c, d, lane), _pick(e, f, g, h, lane), dtype)


@triton.jit
def _radius(high, low, dtype: tl.constexpr):
    """sqrt(-2 log u) for u in (0, 1]"""
    if dtype == tl.float64:
        unit = _unit(high, low, dtype) + 5.551115123125783e-17
    else:
        unit = high.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    return sqrt(log(unit) * -2.0)


@triton.jit
def normal(seed, number, index, dtype: tl.constexpr, axis: tl.constexpr = -1):
    """fuser::normal: Box and Muller's transform of each two words"""
    a, b, c, d = _words(seed, number, index >> 2, 0)
    if dtype == tl.float64:
        e, f, g, h = _words(seed, number, index >> 2, 1)
    else:
        e, f, g, h = a, b, c, d
    turn: tl.constexpr = 6.283185307179586
    if axis >= 0:
        first, second = _radius(a, e, dtype), _radius(c, g, dtype)
        angle, other = _unit(b, f, dtype) * turn, _unit(d, h, dtype) * turn
        return _in_order(
            first * cos(angle), first * sin(angle), second * cos(other), second * sin(other), axis
        )
    else:
        lane = index & 3
        radius = _radius(tl.where(lane < 2, a, c), tl.where(lane < 2, e, g), dtype)
        angle = _unit(tl.where(lane < 2, b, d), tl.where(lane < 2, f, h), dtype) * turn
        return radius * tl.where((lane & 1) == 0, cos(angle), sin(angle))
