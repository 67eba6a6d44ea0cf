# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# (a kernel's arguments are tiles, for which Triton has no types)
"""Bits, logic and casts for use inside kernels, with eager's results in every corner.

In: tiles of float32, float64, an integer type or int1 (bool); two operands have one type, and one
of them may be a literal. Out: tiles of that type, of int1 where torch gives bool, or of the type
that a cast names.
"""

import triton
import triton.language as tl

from fuser.runtime.device_math import operands

__all__ = [
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "check_index",
    "convert",
    "float_to_int",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "round_to",
    "shift_left",
    "shift_right",
    "to_bool",
    "where",
]


# **** bits and logic ****


@triton.jit
def bitwise_not(x):
    """torch.bitwise_not"""
    return ~x


@triton.jit
def bitwise_and(x, y):
    """torch.bitwise_and"""
    x, y = operands(x, y)
    return x & y


@triton.jit
def bitwise_or(x, y):
    """torch.bitwise_or"""
    x, y = operands(x, y)
    return x | y


@triton.jit
def bitwise_xor(x, y):
    """torch.bitwise_xor"""
    x, y = operands(x, y)
    return x ^ y


@triton.jit
def shift_left(x, y):
    """torch.bitwise_left_shift: 0 for a count that is negative or not below the width"""
    x, y = operands(x, y)
    width: tl.constexpr = x.dtype.primitive_bitwidth
    inside = (y >= 0) & (y < width)
    return tl.where(inside, x << tl.where(inside, y, 0), 0)


@triton.jit
def shift_right(x, y):
    """torch.bitwise_right_shift: only the sign is left for a count that is not below the width"""
    x, y = operands(x, y)
    width: tl.constexpr = x.dtype.primitive_bitwidth
    inside = (y >= 0) & (y < width)
    if x.dtype.is_int_signed():
        return x >> tl.where(inside, y, width - 1)
    else:
        return tl.where(inside, x >> tl.where(inside, y, 0), 0)


@triton.jit
def to_bool(x):
    """Tensor.to(torch.bool): not zero, so that NaN is true"""
    return x != 0


@triton.jit
def logical_not(x):
    """torch.logical_not"""
    return x == 0


@triton.jit
def logical_and(x, y):
    """torch.logical_and"""
    x, y = operands(x, y)
    return (x != 0) & (y != 0)


@triton.jit
def logical_or(x, y):
    """torch.logical_or"""
    x, y = operands(x, y)
    return (x != 0) | (y != 0)


@triton.jit
def logical_xor(x, y):
    """torch.logical_xor"""
    x, y = operands(x, y)
    return (x != 0) ^ (y != 0)


@triton.jit
def where(condition, x, y):
    """torch.where"""
    x, y = operands(x, y)
    return tl.where(condition != 0, x, y)


@triton.jit
def check_index(is_inside, is_wanted):
    """IndexError: a device-side assertion that every wanted lane is inside; returns is_inside"""
    is_inside = is_inside != 0
    tl.device_assert(is_inside | (is_wanted == 0), "index out of range")
    return is_inside


# **** casts ****


@triton.jit
def float_to_int(x, dtype: tl.constexpr):
    """Tensor.to of an integer type, from floats: toward zero, and narrow types wrap around"""
    if x.dtype.primitive_bitwidth < 32:
        return float_to_int(x.to(tl.float32), dtype)
    elif dtype == tl.uint8:
        return x.to(tl.int64).to(dtype)
    elif dtype.primitive_bitwidth < 32:
        return x.to(tl.int32).to(dtype)
    else:
        return x.to(dtype)


@triton.jit
def _to_float32(x):
    # torch rounds twice on the way from a wide type to a narrow float. The sum, which changes
    # nothing, keeps the compiler from fusing two conversions, the first from an integer, into one.
    if x.dtype.is_int():
        return x.to(tl.float32) + 0.0
    else:
        return x.to(tl.float32)


@triton.jit
def convert(x, dtype: tl.constexpr):
    """Tensor.to(dtype), between any two of the types"""
    if dtype.is_bool():
        return x != 0
    elif dtype.is_floating():
        if dtype.primitive_bitwidth < 32:
            return _to_float32(x).to(dtype)
        else:
            return x.to(dtype)
    elif x.dtype.is_floating():
        return float_to_int(x, dtype)
    else:
        return x.to(dtype)


@triton.jit
def round_to(x, dtype: tl.constexpr):
    """Tensor.to(dtype) and back, for a narrower float type"""
    return convert(x, dtype).to(x.dtype)
