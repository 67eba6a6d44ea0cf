"""Sizes: the integer fast path, exact division, equality, hints."""

from __future__ import annotations

from typing import Any

import pytest
import sympy

from fuser.ir.dim import (
    Dim,
    add,
    as_dim,
    divide,
    evaluate,
    is_equal,
    magnitude,
    multiply,
    product,
    python_text,
    symbols_of,
    total,
)

S, T = sympy.symbols("s t", positive=True, integer=True)


@pytest.mark.parametrize(
    ("value", "dim"), [(3, 3), (sympy.Integer(3), 3), (S, S), (S + 1, S + 1), (True, True)]
)
def test_numbers_become_ints_and_expressions_stay(value: Any, dim: Dim) -> None:
    found = as_dim(value)
    assert found == dim
    assert type(found) is type(dim)


@pytest.mark.parametrize("value", [None, "s", 2.5, (1,)])
def test_what_is_not_a_size_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="not a size"):
        as_dim(value)


def test_arithmetic_on_ints_stays_on_ints() -> None:
    results = [add(2, 3), multiply(2, 3), product([2, 3, 4]), total([2, 3, 4])]
    assert results == [5, 6, 24, 9]
    assert all(type(result) is int for result in results)
    assert (product([]), total([])) == (1, 0)


def test_arithmetic_on_symbols_has_one_form_for_one_size() -> None:
    assert multiply(S, add(T, 1)) == add(multiply(S, T), S)
    assert add(S, multiply(-1, S)) == 0
    assert type(add(S, multiply(-1, S))) is int
    assert product([S, 2, T]) == 2 * S * T
    assert total([S, 2, T, -2]) == S + T


@pytest.mark.parametrize(
    ("numerator", "denominator", "quotient"),
    [
        (12, 4, 3),
        (12, 5, None),
        (12, -4, -3),
        (0, 5, 0),
        (12, 0, None),
        (0, 0, None),
        (S, 0, None),
        (S, S, 1),
        (S * T, S, T),
        (6 * S, 3, 2 * S),
        (6 * S, 4, None),
        (S, 2, None),
        (2, S, None),
        (0, S, 0),
        (S * T + S, S, T + 1),
        (S * T + S, T + 1, S),
        (S**2 - 1, S + 1, S - 1),
        (S + 1, S, None),
        (S, T, None),
    ],
)
def test_division_is_exact_or_not_known(
    numerator: Dim, denominator: Dim, quotient: Dim | None
) -> None:
    found = divide(numerator, denominator)
    assert found == quotient
    assert type(found) is type(as_dim(quotient) if quotient is not None else None)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (3, 3, True),
        (3, 4, False),
        (S, S, True),
        (S, 3, False),
        (S, T, False),
        (S * (T + 1), S * T + S, True),
        (S * (T + 1), S * T + T, False),
    ],
)
def test_symbolic_sizes_are_equal_only_as_expressions(
    left: Dim, right: Dim, expected: bool
) -> None:
    assert is_equal(left, right) is expected
    assert is_equal(right, left) is expected


@pytest.mark.parametrize(
    ("dim", "size"), [(3, 3), (-3, 3), (0, 0), (S, S), (-S, S), (-2 * S, 2 * S)]
)
def test_magnitude_drops_the_sign(dim: Dim, size: Dim) -> None:
    assert magnitude(dim) == size


def test_symbols_are_collected_from_all_sizes() -> None:
    assert symbols_of([1, S, S * T + 2]) == {S, T}
    assert symbols_of([1, 2]) == set()


def test_hints_stand_in_for_symbols() -> None:
    assert evaluate(7, {}) == 7
    assert evaluate(S * T + 1, {"s": 3, "t": 5}) == 16
    assert evaluate(S + T, {"s": 3}) == 67
    assert evaluate(S + T, {"s": 3}, default=1) == 4


def test_text_is_python_over_the_symbols_names() -> None:
    assert python_text(12) == "12"
    assert eval(python_text(S * T + 2 * S - 3), {"s": 4, "t": 5}) == 25
