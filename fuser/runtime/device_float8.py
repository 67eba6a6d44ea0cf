# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# (a kernel's arguments are tiles, for which Triton has no types)
"""float8 as bytes, for use inside kernels: conversions with torch's rounding, overflow and NaN.

In: float32 tiles, or uint8 tiles of bits. Out: the other of the two. Kernels know float8 tensors as
bytes, because not every GPU has the types. One that has them converts to e4m3fn by an instruction;
elsewhere, and for e5m2, where the instruction has no infinity, the bits are worked out.
"""

import torch
import triton
import triton.language as tl

__all__ = ["from_float8_e4m3fn", "from_float8_e5m2", "to_float8_e4m3fn", "to_float8_e5m2"]

# Newer versions of torch keep the largest number where older ones overflow to NaN.
E4M3FN_SATURATES = tl.constexpr(bool(torch.tensor(1e9).to(torch.float8_e4m3fn).float().isfinite()))
E5M2_SATURATES = tl.constexpr(bool(torch.tensor(1e9).to(torch.float8_e5m2).float().isfinite()))


@tl.core.builtin
def _has_instruction(_semantic=None):
    """Whether the target has it: what is compiled for, not a GPU that is present."""
    options = _semantic.builder.options
    number = "".join(filter(str.isdigit, str(getattr(options, "arch", ""))))
    is_nvidia = getattr(options, "backend_name", "") == "cuda"
    return tl.constexpr(is_nvidia and int(number or 0) >= 89)


@triton.jit
def _bits(x, MANTISSA: tl.constexpr, BIAS: tl.constexpr):
    # To nearest even, of the absolute value; past the largest number it counts on.
    wide = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    CUT: tl.constexpr = 23 - MANTISSA
    odd = (wide >> CUT) & 1
    normal = (wide - ((127 - BIAS) << 23) + ((1 << (CUT - 1)) - 1) + odd) >> CUT
    # Adding a power of two shifts a subnormal's bits to the end, rounded.
    UNIT: tl.constexpr = (127 - BIAS + CUT + 1) << 23
    moved = wide.to(tl.float32, bitcast=True) + 2.0 ** (CUT + 1 - BIAS)
    subnormal = moved.to(tl.int32, bitcast=True) - UNIT
    return tl.where(wide < ((128 - BIAS) << 23), subnormal, normal)


@triton.jit
def _signed(bits, x):
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (bits | sign).to(tl.uint8)


@triton.jit
def to_float8_e4m3fn(x):
    """Tensor.to(torch.float8_e4m3fn)"""
    x = x.to(tl.float32)
    if _has_instruction():
        if not E4M3FN_SATURATES:
            # Halfway from the largest number to the next one it still rounds down.
            x = tl.where((x > 464) | (x < -464), float("nan"), x)
        # Each number beside a zero: ptxas 12 takes a pair that is used apart afterwards for the
        # contents of another register.
        pair = tl.inline_asm_elementwise(
            "cvt.rn.satfinite.e4m3x2.f32 $0, 0f00000000, $1;", "=h,f", [x], tl.uint16, True, 1
        )
        return pair.to(tl.uint8)
    else:
        bits = _bits(x, 3, 7)
        limit: tl.constexpr = 0x7E if E4M3FN_SATURATES else 0x7F
        bits = tl.where(bits > limit, limit, bits)
        return _signed(tl.where(x == x, bits, 0x7F), x)


@triton.jit
def to_float8_e5m2(x):
    """Tensor.to(torch.float8_e5m2)"""
    x = x.to(tl.float32)
    bits = _bits(x, 2, 15)
    limit: tl.constexpr = 0x7B if E5M2_SATURATES else 0x7C
    bits = tl.where(bits > limit, limit, bits)
    return _signed(tl.where(x == x, bits, 0x7F), x)


@triton.jit
def from_float8_e4m3fn(bits):
    """Tensor.float() of a float8_e4m3fn"""
    wide = bits.to(tl.int32)
    value = ((wide & 0x7F) << 20).to(tl.float32, bitcast=True) * 2.0**120
    value = tl.where((wide & 0x7F) == 0x7F, float("nan"), value)
    return (value.to(tl.int32, bitcast=True) | ((wide & 0x80) << 24)).to(tl.float32, bitcast=True)


@triton.jit
def from_float8_e5m2(bits):
    """Tensor.float() of a float8_e5m2"""
    # The upper byte of a half float.
    return (bits.to(tl.int16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
