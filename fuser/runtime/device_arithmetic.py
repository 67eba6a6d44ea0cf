# ruff: noqa: A001 - the functions are called what torch calls them
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# (a kernel's arguments are tiles, for which Triton has no types)
"""Arithmetic for use inside kernels, with eager's results in every corner.

In: tiles of float32, float64, an integer type or int1 (bool); two operands have one type, and one
of them may be a literal. Out: tiles of that type, or of int1 where torch gives bool. Integers wrap
around. A divisor of zero in a masked lane is harmless, and the compiler never gets to conclude from
a division that its divisor is not zero.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from fuser.runtime.device_math import operands, quotient, sqrt

__all__ = [
    "abs",
    "ceil",
    "copysign",
    "divide",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "frac",
    "isfinite",
    "isinf",
    "isnan",
    "ldexp",
    "maximum",
    "minimum",
    "neg",
    "nextafter",
    "pow",
    "reciprocal",
    "remainder",
    "round",
    "sign",
    "signbit",
    "trunc",
    "trunc_divide",
]


# **** sign, rounding, classification ****


@triton.jit
def neg(x):
    """torch.neg (Triton's own `-x` is `0 - x`, which has no -0.0)"""
    if x.dtype.is_floating():
        return x * -1.0
    else:
        return 0 - x


@triton.jit
def abs(x):
    """torch.abs"""
    return tl.abs(x)


@triton.jit
def sign(x):
    """torch.sign: 0 for NaN and for both zeros"""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def signbit(x):
    """torch.signbit"""
    if x.dtype.is_fp64():
        return x.to(tl.int64, bitcast=True) < 0
    elif x.dtype.is_floating():
        return x.to(tl.int32, bitcast=True) < 0
    else:
        return x < 0


@triton.jit
def copysign(x, y):
    """torch.copysign"""
    x, y = operands(x, y)
    return libdevice.copysign(x, y)


@triton.jit
def floor(x):
    """torch.floor"""
    if x.dtype.is_floating():
        return tl.floor(x)
    else:
        return x


@triton.jit
def ceil(x):
    """torch.ceil"""
    if x.dtype.is_floating():
        return tl.ceil(x)
    else:
        return x


@triton.jit
def trunc(x):
    """torch.trunc"""
    if x.dtype.is_floating():
        return libdevice.trunc(x)
    else:
        return x


@triton.jit
def round(x):
    """torch.round: a half goes to the even neighbour"""
    if x.dtype.is_floating():
        return libdevice.nearbyint(x)
    else:
        return x


@triton.jit
def frac(x):
    """torch.frac"""
    return x - libdevice.trunc(x)


@triton.jit
def isnan(x):
    """torch.isnan"""
    return x != x


@triton.jit
def isinf(x):
    """torch.isinf"""
    if x.dtype.is_floating():
        return tl.abs(x) == float("inf")
    else:
        return x != x


@triton.jit
def isfinite(x):
    """torch.isfinite"""
    if x.dtype.is_floating():
        return tl.abs(x) < float("inf")
    else:
        return x == x


@triton.jit
def nextafter(x, y):
    """torch.nextafter"""
    x, y = operands(x, y)
    width: tl.constexpr = x.dtype.primitive_bitwidth
    integer: tl.constexpr = tl.int64 if width == 64 else (tl.int32 if width == 32 else tl.int16)
    x, y = tl.broadcast(x, y)
    bits = x.to(integer, bitcast=True)
    # Away from zero is up in the bits, for both signs; from zero it is the smallest number of y's.
    step = tl.where((x < y) == (x > 0), 1, -1).to(integer)
    bits = tl.where(
        x == 0, ((y.to(integer, bitcast=True) >> (width - 1)) << (width - 1)) | 1, bits + step
    )
    moved = tl.where(x == y, y, bits.to(x.dtype, bitcast=True))
    return tl.where((x != x) | (y != y), x + y, moved)


# **** division ****


@triton.jit
def _integer_quotient(x, y):
    # Rounds toward zero. x // 0 and the smallest integer // -1 never reach the instruction.
    if x.dtype.is_int_signed():
        safe = tl.where((y == 0) | (y == -1), 1, y)
        return tl.where(y == -1, 0 - x, x // safe)
    else:
        return x // tl.where(y == 0, 1, y)


@triton.jit
def _ratio(x, y):
    # By a literal, eager multiplies with the reciprocal on a GPU, and so rounds twice.
    if isinstance(y, tl.tensor):
        return quotient(x, y)
    else:
        return x * quotient(1.0, tl.full([], y, x.dtype))


@triton.jit
def divide(x, y):
    """torch.true_divide of floats, correctly rounded unless y is a literal"""
    return _ratio(x, y)


@triton.jit
def reciprocal(x):
    """torch.reciprocal, correctly rounded"""
    return quotient(1.0, x)


@triton.jit
def trunc_divide(x, y):
    """torch.div(rounding_mode="trunc")"""
    if operands(x, y)[0].dtype.is_floating():
        return libdevice.trunc(_ratio(x, y))
    else:
        x, y = operands(x, y)
        return _integer_quotient(x, y)


@triton.jit
def floor_divide(x, y):
    """torch.floor_divide, torch.div(rounding_mode="floor"): 1.0 // 0.1 is 9"""
    dividend, divisor = operands(x, y)
    if dividend.dtype.is_floating():
        rest = libdevice.fmod(dividend, divisor)
        # By zero the rest is NaN and the quotient itself is the result: infinity or NaN.
        exact = _ratio(tl.where(divisor == 0, dividend, dividend - rest), y)
        exact = tl.where((rest != 0) & ((divisor < 0) != (rest < 0)), exact - 1.0, exact)
        floored = tl.floor(exact)
        floored = tl.where(exact - floored > 0.5, floored + 1.0, floored)
        zero = libdevice.copysign(exact, dividend)
        return tl.where(exact != 0, floored, tl.where(divisor < 0, zero * -1.0, zero))
    else:
        whole = _integer_quotient(dividend, divisor)
        rest = dividend - whole * divisor
        return tl.where((rest != 0) & ((rest < 0) != (divisor < 0)), whole - 1, whole)


@triton.jit
def fmod(x, y):
    """torch.fmod: the sign of x"""
    x, y = operands(x, y)
    if x.dtype.is_floating():
        return libdevice.fmod(x, y)
    else:
        return x - _integer_quotient(x, y) * y


@triton.jit
def remainder(x, y):
    """torch.remainder: the sign of y"""
    x, y = operands(x, y)
    if x.dtype.is_floating():
        rest = libdevice.fmod(x, y)
    else:
        rest = x - _integer_quotient(x, y) * y
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


# **** powers ****


@triton.jit
def _integer_power(x, y):
    # Square and multiply. A loop and not unrolled: 64 rounds would be long code.
    x, y = tl.broadcast(x, y)
    result = x * 0 + 1
    base = x
    left = y
    for _ in range(x.dtype.primitive_bitwidth):
        result = tl.where((left & 1) != 0, result * base, result)
        base = base * base
        left = left >> 1
    if x.dtype.is_int_signed():
        odd = tl.where((y & 1) != 0, x, x * x)
        return tl.where(y < 0, tl.where((x == 1) | (x == -1), odd, x * 0), result)
    else:
        return result


@triton.jit
def pow(x, y):
    """torch.pow; like eager, by products or roots for the literals 0, 1, 2, 3, -1, -2, 0.5, -0.5"""
    base, exponent = operands(x, y)
    special: tl.constexpr = None if isinstance(y, tl.tensor) else y
    if special == 0:
        return tl.full(base.shape, 1, base.dtype)
    elif special == 1:
        return base
    elif special == 2:
        return base * base
    elif special == 3:
        return base * base * base
    elif base.dtype.is_int():
        return _integer_power(base, exponent)
    elif special == -1:
        return quotient(1.0, base)
    elif special == -2:
        return quotient(1.0, base * base)
    elif special == 0.5:
        return sqrt(base)
    elif special == -0.5:
        return libdevice.rsqrt(base)
    else:
        return libdevice.pow(base, exponent)


@triton.jit
def ldexp(x, y):
    """torch.ldexp, for an integer y"""
    # Past these limits every float has become 0 or infinity.
    exponent = tl.minimum(tl.maximum(tl.cast(y, tl.int64), -5000), 5000)
    return libdevice.ldexp(x, exponent.to(tl.int32))


# **** order ****


@triton.jit
def maximum(x, y):
    """torch.maximum: NaN wins"""
    x, y = operands(x, y)
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(x, y):
    """torch.minimum: NaN wins"""
    x, y = operands(x, y)
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def fmax(x, y):
    """torch.fmax: a number wins over NaN"""
    x, y = operands(x, y)
    return tl.maximum(x, y)


@triton.jit
def fmin(x, y):
    """torch.fmin: a number wins over NaN"""
    x, y = operands(x, y)
    return tl.minimum(x, y)
