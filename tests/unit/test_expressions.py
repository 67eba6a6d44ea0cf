"""Values in kernel text: conversions between types and constants of one type."""

from __future__ import annotations

import pytest

from fuser.codegen.expressions import Held, convert, literal, plain_literal
from fuser.ir.dtype import DType

GENERATED = [dtype for dtype in DType if dtype.is_generated and not dtype.is_half]


@pytest.mark.parametrize("dtype", GENERATED)
def test_a_value_of_the_type_is_used_as_it_is(dtype: DType) -> None:
    assert convert(Held("a + b", dtype), dtype) == "a + b"


@pytest.mark.parametrize(
    ("text", "source", "target", "expected"),
    [
        ("a", DType.INT32, DType.FLOAT32, "a.to(tl.float32)"),
        ("a + b", DType.INT32, DType.INT64, "(a + b).to(tl.int64)"),
        ("fn.exp(a)", DType.FLOAT32, DType.FLOAT64, "fn.exp(a).to(tl.float64)"),
        ("a", DType.BOOL, DType.INT64, "a.to(tl.int64)"),
        ("a", DType.FLOAT32, DType.INT32, "fn.float_to_int(a, tl.int32)"),
        ("a + b", DType.FLOAT64, DType.UINT8, "fn.float_to_int(a + b, tl.uint8)"),
        ("a", DType.FLOAT32, DType.BOOL, "fn.to_bool(a)"),
        ("a - b", DType.INT64, DType.BOOL, "fn.to_bool(a - b)"),
    ],
)
def test_conversions(text: str, source: DType, target: DType, expected: str) -> None:
    assert convert(Held(text, source), target) == expected


def test_what_ends_in_a_call_is_not_always_a_call() -> None:
    """`a + fn.exp(b)` ends in a parenthesis that does not hold the whole of it."""
    converted = convert(Held("a + fn.exp(b)", DType.FLOAT32), DType.FLOAT64)
    assert converted == "(a + fn.exp(b)).to(tl.float64)"


@pytest.mark.parametrize(
    ("number", "dtype", "text"),
    [
        (2, DType.FLOAT32, "2.0"),
        (0.1, DType.FLOAT32, "0.1"),
        (1e-30, DType.FLOAT64, "1e-30"),
        (True, DType.FLOAT32, "1.0"),
        (2.0, DType.INT32, "2"),
        (True, DType.INT64, "1"),
        (-3, DType.INT8, "-3"),
        (2, DType.BOOL, "True"),
        (0.0, DType.BOOL, "False"),
        (float("inf"), DType.FLOAT32, 'float("inf")'),
        (float("-inf"), DType.FLOAT64, 'float("-inf")'),
        (float("nan"), DType.FLOAT32, 'float("nan")'),
        (2**62, DType.INT64, str(2**62)),
    ],
)
def test_numbers_take_the_type_of_the_computation(number: float, dtype: DType, text: str) -> None:
    assert plain_literal(number, dtype) == text
    assert literal(number, dtype) == f"tl.full([], {text}, {dtype.triton})"


def test_a_negative_zero_keeps_its_sign() -> None:
    assert "neg" in plain_literal(-0.0, DType.FLOAT32)
    assert "neg" not in plain_literal(0.0, DType.FLOAT32)
