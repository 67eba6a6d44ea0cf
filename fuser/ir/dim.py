"""Sizes, strides and offsets: plain integers, or sympy expressions over the graph's size symbols.

Every function takes and returns `Dim` and stays on the integer fast path where it can. Nothing here
asks for a concrete value of a symbol, so nothing here can add a guard: two symbolic sizes are equal
only if they are the same expression.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import sympy

from fuser.ir.dim_text import expression_text

Dim: TypeAlias = int | sympy.Expr


def as_dim(value: Any) -> Dim:
    """An int where the value is a number, else the sympy expression itself."""
    if isinstance(value, int):
        return value
    if isinstance(value, sympy.Integer):
        return int(value)
    if isinstance(value, sympy.Expr):
        return value
    raise TypeError(f"not a size: {value!r} of {type(value).__name__}")


def add(left: Dim, right: Dim) -> Dim:
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    return _simplify(sympy.Add(left, right))


def multiply(left: Dim, right: Dim) -> Dim:
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    return _simplify(sympy.Mul(left, right))


def product(dims: Iterable[Dim]) -> Dim:
    result: Dim = 1
    for dim in dims:
        result = multiply(result, dim)
    return result


def total(dims: Iterable[Dim]) -> Dim:
    result: Dim = 0
    for dim in dims:
        result = add(result, dim)
    return result


def divide(numerator: Dim, denominator: Dim) -> Dim | None:
    """The exact quotient, or None where it is not known to be a whole number."""
    if denominator == 0:
        return None
    if isinstance(numerator, int) and isinstance(denominator, int):
        return None if numerator % denominator else numerator // denominator
    return _divide_symbolic(sympy.sympify(numerator), sympy.sympify(denominator))


@functools.lru_cache(maxsize=65536)
def _divide_symbolic(numerator: sympy.Expr, denominator: sympy.Expr) -> Dim | None:
    quotient = sympy.cancel(numerator / denominator)
    # A whole number is certain only when nothing is left below the fraction bar.
    _, below = sympy.fraction(sympy.together(quotient))
    if below != 1:
        return None
    return as_dim(quotient)


def is_equal(left: Dim, right: Dim) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    if isinstance(left, int) or isinstance(right, int):
        return bool(left == right)
    return left == right or bool(sympy.expand(left - right) == 0)


def magnitude(dim: Dim) -> Dim:
    """The size without its minus sign."""
    is_negative = dim < 0 if isinstance(dim, int) else dim.could_extract_minus_sign()
    return multiply(dim, -1) if is_negative else dim


def symbols_of(dims: Iterable[Dim]) -> set[sympy.Symbol]:
    found: set[sympy.Symbol] = set()
    for dim in dims:
        if isinstance(dim, sympy.Expr):
            found |= {symbol for symbol in dim.free_symbols if isinstance(symbol, sympy.Symbol)}
    return found


def evaluate(dim: Dim, hints: Mapping[str, int], default: int = 64) -> int:
    """The size with every symbol replaced by its hint: for cost models only, never for code."""
    if isinstance(dim, int):
        return dim
    return _evaluate(dim, tuple(hints.items()), default)


@functools.lru_cache(maxsize=65536)
def _evaluate(expression: sympy.Expr, hints: tuple[tuple[str, int], ...], default: int) -> int:
    known = dict(hints)
    symbols = symbols_of([expression])
    return int(expression.subs({symbol: known.get(symbol.name, default) for symbol in symbols}))


def python_text(dim: Dim) -> str:
    """The size as a Python expression over the symbols' names (it may use `math`)."""
    return str(dim) if isinstance(dim, int) else _python_text(dim)


@functools.lru_cache(maxsize=65536)
def _python_text(expression: sympy.Expr) -> str:
    return expression_text(expression)


@functools.lru_cache(maxsize=65536)
def _simplify_cached(expression: sympy.Expr) -> Dim:
    return as_dim(sympy.expand(expression))


def _simplify(expression: sympy.Expr) -> Dim:
    return _simplify_cached(expression)
