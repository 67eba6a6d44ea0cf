# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# (a kernel's arguments are tiles, for which Triton has no types)
"""Real functions in few instructions, for results that eager rounds to float16 or bfloat16.

In: float32 tiles. Out: float32 tiles whose relative error is at most 2^-16.5, and at most 2^-18
where the result is in the range of float16 (docs/numerics.md has the bounds and their derivation):
a small part of half a unit in the last place of bfloat16 (2^-9) and float16 (2^-12). NaN, infinity,
signed zero and subnormal numbers are torch's. On NVIDIA the powers, logarithms and reciprocals
are single instructions; elsewhere they are Triton's own operators, which are no less accurate.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from fuser.runtime.device_math import operands, quotient

__all__ = [
    "approximate_divide",
    "approximate_erfc",
    "approximate_exp",
    "approximate_exp2",
    "approximate_log",
    "approximate_log2",
    "approximate_log10",
    "approximate_reciprocal",
    "approximate_sigmoid",
    "approximate_sqrt",
    "approximate_tanh",
]

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
LOG10_2 = tl.constexpr(0.3010299956639812)
LOG10_E = tl.constexpr(0.4342944819032518)


# **** instructions ****


@tl.core.builtin
def is_nvidia(_semantic=None):
    """Whether the kernel is compiled for NVIDIA: of the target, not of a GPU that is present."""
    options = _semantic.builder.options
    return tl.constexpr(getattr(options, "backend_name", "") == "cuda")


@triton.jit
def power_of_two(x):
    """2^x to 2 units in the last place; what is below the smallest normal number may be zero."""
    if is_nvidia():
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(x)


@triton.jit
def normal_reciprocal(x):
    """1/x to one unit in the last place, for x and 1/x that are normal, zero or infinity."""
    if is_nvidia():
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / x


@triton.jit
def binary_logarithm(x):
    """log2(x); the error is at most 2^-22, absolute for x in (0.5, 2) and relative elsewhere."""
    if is_nvidia():
        return tl.inline_asm_elementwise(
            "lg2.approx.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return libdevice.log2(x)


# **** functions ****


@triton.jit
def approximate_exp(x):
    """torch.exp"""
    # The square of half the power: no half is subnormal where the square is not zero.
    half = power_of_two(x * (0.5 * LOG2_E))
    return half * half


@triton.jit
def approximate_exp2(x):
    """torch.exp2"""
    half = power_of_two(x * 0.5)
    return half * half


@triton.jit
def approximate_sigmoid(x):
    """torch.sigmoid"""
    # 1 / (1 + e) as a fourth of 4 / (1 + e): where the result is subnormal that is not.
    fourth = power_of_two(tl.fma(x, -LOG2_E, -2.0))
    return normal_reciprocal(fourth + 0.25) * 0.25


@triton.jit
def approximate_tanh(x):
    """torch.tanh"""
    # 1 - 2 / (1 + e^2x) cancels around zero, where the first terms of the series are enough.
    power = power_of_two(x * (2.0 * LOG2_E))
    far = tl.fma(normal_reciprocal(power + 1.0), -2.0, 1.0)
    square = x * x
    near = tl.fma(tl.fma(square, 2.0 / 15.0, -1.0 / 3.0), square, 1.0) * x
    return tl.where(tl.abs(x) < 0.15, near, far)


@triton.jit
def approximate_erfc(x):
    """torch.erfc"""
    # For x = |x|, e^(-x^2) times a polynomial in t = 1 / (1 + x / 2), fitted to [0, 9.3] with an
    # error of 2^-19.7; beyond, erfc is zero in float32. The power is squared as in
    # `approximate_exp`. Of a negative x it is 2 - erfc(-x).
    t = normal_reciprocal(tl.fma(tl.abs(x), 0.5, 1.0))
    factor = tl.fma(t, 0.08950189, -0.36131763)
    factor = tl.fma(factor, t, 0.39565478)
    factor = tl.fma(factor, t, 0.03332054)
    factor = tl.fma(factor, t, 0.28322662)
    factor = tl.fma(factor, t, 0.27725751)
    factor = tl.fma(factor, t, 0.28235518)
    half = power_of_two(x * x * (-0.5 * LOG2_E))
    tail = factor * t * half * half
    return tl.where(x < 0, 2.0 - tail, tail)


@triton.jit
def _logarithm(x, unit_e, unit_2):
    # Around 1 the instruction's error is absolute, so there it is the series of log(1 + s).
    s = x - 1.0
    series = tl.fma(tl.fma(tl.fma(tl.fma(s, 0.2, -0.25), s, 1.0 / 3.0), s, -0.5), s, 1.0)
    near = series * s * unit_e
    return tl.where(tl.abs(s) < 0.0625, near, binary_logarithm(x) * unit_2)


@triton.jit
def approximate_log(x):
    """torch.log"""
    return _logarithm(x, 1.0, LN_2)


@triton.jit
def approximate_log2(x):
    """torch.log2"""
    return _logarithm(x, LOG2_E, 1.0)


@triton.jit
def approximate_log10(x):
    """torch.log10"""
    return _logarithm(x, LOG10_E, LOG10_2)


@triton.jit
def approximate_sqrt(x):
    """torch.sqrt"""
    return tl.sqrt(x)


@triton.jit
def approximate_reciprocal(x):
    """torch.reciprocal"""
    return 1.0 / x


@triton.jit
def _by_row(x, y):
    # One reciprocal serves all that y is spread over. Below 2^-100 it could overflow where the
    # quotient does not: then both are scaled first.
    scale = tl.where(tl.abs(y) < 7.888609052210118e-31, 18446744073709551616.0, 1.0)
    return (x * scale) * (1.0 / (y * scale))


@triton.jit
def approximate_divide(x, y):
    """torch.true_divide"""
    if isinstance(y, tl.tensor):
        x, y = operands(x, y)
        if y.numel < x.numel:
            return _by_row(x, y)
        else:
            return x / y
    else:
        return x * quotient(1.0, tl.full([], y, x.dtype))
