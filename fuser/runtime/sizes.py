"""Symbolic sizes at the time of a call: expressions in, plain numbers out.

An expression is turned into Python code once and kept. Values of symbols are given by name or,
where a function is made for many calls, by position.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

from fuser.ir.dim import Dim, python_text
from fuser.ir.graph import Graph

__all__ = ["function_of", "number_at", "shape_at", "symbol_values"]

_GLOBALS = {"math": math}


def number_at(expression: Any, symbols: Mapping[str, int]) -> Any:
    """The number that a size, or any expression over size symbols, stands for."""
    if isinstance(expression, (int, float)):
        return expression
    return eval(_code(python_text(expression)), _GLOBALS, dict(symbols))


def shape_at(dims: Sequence[Dim], symbols: Mapping[str, int]) -> tuple[int, ...]:
    """Sizes or strides as numbers."""
    return tuple(int(number_at(dim, symbols)) for dim in dims)


def function_of(symbols: Sequence[str], body: str) -> Callable[..., Any]:
    """A function of the symbols' values, in order, that returns the value of `body`."""
    function: Callable[..., Any] = eval(_code(f"lambda {', '.join(symbols)}: {body}"), _GLOBALS)
    return function


@functools.lru_cache(maxsize=4096)
def _code(text: str) -> CodeType:
    return compile(text, "<size>", "eval")


def symbol_values(graph: Graph, inputs: Sequence[Any]) -> dict[str, int]:
    """The size symbols' values, from the numbers, sizes and strides of a call's inputs."""
    shown: list[tuple[Dim, int]] = []
    for item, given in zip(graph.inputs, inputs, strict=True):
        if item.number is not None:
            shown.append((item.number, given))
        elif item.value is not None:
            kind = item.value.type
            shown += zip(kind.shape, given.shape, strict=True)
            # Other layouts than strided have no strides and are planned without.
            shown += zip(kind.stride, given.stride() if kind.stride else (), strict=True)
    found: dict[str, int] = {}
    for dim, number in shown:
        if not isinstance(dim, int) and dim.is_Symbol:
            found.setdefault(str(dim), number)
    for dim, number in shown:
        if isinstance(dim, int):
            continue
        factor, rest = dim.as_coeff_Mul()
        if rest.is_Symbol and factor.is_Integer:
            found.setdefault(str(rest), number // int(factor))
    return found
