# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# (a kernel's arguments are tiles, for which Triton has no types)
"""Real functions for use inside kernels, with the values and special cases of torch on the device.

In: float32 or float64 tiles. Out: tiles of the same type. Everything goes to the device library's
accurate functions: Triton's own `tl.exp`, `tl.sqrt` and `/` become `ex2.approx`, `sqrt.approx` and
`div.full`. Two of Triton's compile options have to be off: `enable_reflect_ftz` makes the library
take subnormal numbers for zero, and `enable_fp_fusion` makes its power function in float32 err by
16 units in the last place instead of 3 (H200, Triton 3.6).
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "hypot",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "log10",
    "rsqrt",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
]


@triton.jit
def operands(x, y):
    """The pair, a literal turned into a scalar of the other operand's type without rounding."""
    if isinstance(x, tl.tensor):
        if isinstance(y, tl.tensor):
            return x, y
        else:
            return x, tl.full([], y, x.dtype)
    else:
        return tl.full([], x, y.dtype), y


@triton.jit
def quotient(x, y):
    """IEEE division of floats."""
    x, y = operands(x, y)
    if x.dtype.is_fp64():
        return x / y
    else:
        return tl.div_rn(x, y)


@triton.jit
def exp(x):
    """torch.exp"""
    return libdevice.exp(x)


@triton.jit
def exp2(x):
    """torch.exp2"""
    return libdevice.exp2(x)


@triton.jit
def expm1(x):
    """torch.expm1"""
    return libdevice.expm1(x)


@triton.jit
def log(x):
    """torch.log"""
    return libdevice.log(x)


@triton.jit
def log2(x):
    """torch.log2"""
    return libdevice.log2(x)


@triton.jit
def log10(x):
    """torch.log10"""
    return libdevice.log10(x)


@triton.jit
def log1p(x):
    """torch.log1p"""
    return libdevice.log1p(x)


@triton.jit
def sqrt(x):
    """torch.sqrt, correctly rounded"""
    if x.dtype.is_fp64():
        return tl.sqrt(x)
    else:
        return tl.sqrt_rn(x)


@triton.jit
def rsqrt(x):
    """torch.rsqrt"""
    return libdevice.rsqrt(x)


@triton.jit
def sin(x):
    """torch.sin"""
    return libdevice.sin(x)


@triton.jit
def cos(x):
    """torch.cos"""
    return libdevice.cos(x)


@triton.jit
def tan(x):
    """torch.tan"""
    return libdevice.tan(x)


@triton.jit
def asin(x):
    """torch.asin"""
    return libdevice.asin(x)


@triton.jit
def acos(x):
    """torch.acos"""
    return libdevice.acos(x)


@triton.jit
def atan(x):
    """torch.atan"""
    return libdevice.atan(x)


@triton.jit
def atan2(x, y):
    """torch.atan2"""
    x, y = operands(x, y)
    return libdevice.atan2(x, y)


@triton.jit
def sinh(x):
    """torch.sinh"""
    return libdevice.sinh(x)


@triton.jit
def cosh(x):
    """torch.cosh"""
    return libdevice.cosh(x)


@triton.jit
def tanh(x):
    """torch.tanh"""
    return libdevice.tanh(x)


@triton.jit
def asinh(x):
    """torch.asinh"""
    return libdevice.asinh(x)


@triton.jit
def acosh(x):
    """torch.acosh"""
    return libdevice.acosh(x)


@triton.jit
def atanh(x):
    """torch.atanh"""
    return libdevice.atanh(x)


@triton.jit
def erf(x):
    """torch.erf"""
    return libdevice.erf(x)


@triton.jit
def erfc(x):
    """torch.erfc"""
    return libdevice.erfc(x)


@triton.jit
def erfinv(x):
    """torch.erfinv"""
    return libdevice.erfinv(x)


@triton.jit
def lgamma(x):
    """torch.lgamma"""
    return libdevice.lgamma(x)


@triton.jit
def sigmoid(x):
    """torch.sigmoid, by the formula that eager uses"""
    return quotient(1.0, 1.0 + libdevice.exp(-x))


@triton.jit
def hypot(x, y):
    """torch.hypot"""
    x, y = operands(x, y)
    return libdevice.hypot(x, y)
