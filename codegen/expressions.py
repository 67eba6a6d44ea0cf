"""Values in kernel text: what a name holds, conversions between element types, literals."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from fuser.ir.dtype import DType

_CALL = re.compile(r"[\w.]+\([^()]*\)")


@dataclass(frozen=True, slots=True)
class Held:
    """A value in a kernel: its text and the type it is held in (half types as float32).

    `level` says which tile axes it varies over: none, `x`, `r` or both.
    """

    text: str
    dtype: DType
    level: frozenset[str] = frozenset()


def convert(value: Held, dtype: DType) -> str:
    """The value's text in another compute type."""
    if value.dtype is dtype:
        return value.text
    if dtype is DType.BOOL:
        return f"fn.to_bool({value.text})"
    if value.dtype.is_float and dtype.is_integer:
        return f"fn.float_to_int({value.text}, {dtype.triton})"
    return f"{_grouped(value.text)}.to({dtype.triton})"


def rounded(text: str, dtype: DType) -> str:
    """A float32 value rounded to a narrower type."""
    if dtype.is_float8:
        return f"fn.from_{dtype.value}(fn.to_{dtype.value}({text}))"
    return f"fn.round_to({text}, {dtype.triton})"


def literal(number: bool | int | float, dtype: DType) -> str:
    """A constant of exactly this type."""
    return f"tl.full([], {plain_literal(number, dtype)}, {dtype.triton})"


def plain_literal(number: bool | int | float, dtype: DType) -> str:
    if dtype is DType.BOOL:
        return str(bool(number))
    if dtype.is_integer:
        return str(int(number))
    number = float(number)
    if math.isnan(number):
        return 'float("nan")'
    if math.isinf(number):
        return 'float("inf")' if number > 0 else 'float("-inf")'
    if number == 0 and math.copysign(1.0, number) < 0:
        # Triton loses the sign of a negative zero in a constant.
        return f"fn.neg(tl.full([], 0.0, {dtype.triton}))"
    return repr(number)


def _grouped(text: str) -> str:
    return text if text.isidentifier() or _CALL.fullmatch(text) else f"({text})"
