"""Which functions may be computed in fewer instructions, because eager rounds their results.

In: a graph. Out: the graph with `approximate` among the attributes of those ops. Eager rounds the
value to float16, bfloat16 or float8: at once, or, where the op is a part of a decomposed call that
computes in float32, at that call's end. Then everything in between has to keep relative errors
small, which products and sums of numbers of one sign do and differences do not.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from fuser.ir.dtype import DType
from fuser.ir.graph import Argument, Graph, Literal, Op
from fuser.ir.ops import BY_KIND

APPROXIMATE = ("approximate", True)
"""The attribute of an op that generated code may approximate."""

_FACTORS = frozenset(
    {"abs", "convert", "copy", "divide", "mul", "neg", "reciprocal", "rsqrt", "sqrt", "where"}
)
"""Their relative error is at most the sum of their operands'."""
_TOTALS = frozenset({"add", "amax", "amin", "maximum", "minimum", "sum"})
"""Their relative error is the largest of their operands', if those are of one sign."""

_NEVER_NEGATIVE = frozenset({"abs", "erfc", "exp", "exp2", "relu", "rsqrt", "sigmoid", "sqrt"})
_KEEP_SIGNS = frozenset({"convert", "copy", "divide", "mul", "reciprocal", *_TOTALS})
"""Of operands that are never negative they make results that never are."""


def approximate(graph: Graph) -> Graph:
    """The same ops; those with an approximate form that eager rounds to a half type are marked."""
    rounded = _rounded(graph)
    ops = tuple(
        replace(op, attributes=(*op.attributes, APPROXIMATE))
        if op.name in rounded and BY_KIND[op.kind].approximate and not is_approximate(op)
        else op
        for op in graph.ops
    )
    return replace(graph, ops=ops)


def is_approximate(op: Op) -> bool:
    return APPROXIMATE in op.attributes


def weight_of(op: Op) -> int:
    """Arithmetic operations for an element of a generated op."""
    row = BY_KIND[op.kind]
    return row.approximate_weight if is_approximate(op) else row.weight


def _rounded(graph: Graph) -> frozenset[str]:
    """Values that may have a small relative error, since eager's have that of a half type."""
    positive = _never_negative(graph)
    found: set[str] = set()
    for op in reversed(graph.ops):
        if op.is_opaque:
            continue
        if op.type.dtype.is_half:
            found.add(op.name)
        elif op.type.dtype is DType.FLOAT32 and op.name not in graph.output_values:
            readers = graph.readers[op.name]
            if readers and all(
                _casts_to_float8(reader) or _passes_on(op, reader, found, positive)
                for reader in readers
            ):
                found.add(op.name)
    return frozenset(found)


def _casts_to_float8(reader: Op) -> bool:
    """Whether all that is read is rounded to four bits at most. What the user casts from float32 to
    a half type stays exact: that the numbers are in float32 until then is asked for."""
    return reader.kind in ("cast", "convert") and reader.type.dtype.is_float8


def _passes_on(op: Op, reader: Op, rounded: Set[str], positive: Set[str]) -> bool:
    """Whether an error of `op` is at most as large in the reader, which eager rounds in the end."""
    if not op.origin or reader.origin != op.origin or reader.name not in rounded:
        return False
    if reader.kind in _TOTALS:
        return all(_is_positive(operand, positive) for operand in reader.operands)
    return reader.kind in _FACTORS


def _never_negative(graph: Graph) -> frozenset[str]:
    found: set[str] = set()
    for op in graph.ops:
        if op.is_opaque:
            continue
        keeps = op.kind in _KEEP_SIGNS and all(_is_positive(o, found) for o in op.operands)
        if op.kind in _NEVER_NEGATIVE or keeps:
            found.add(op.name)
    return frozenset(found)


def _is_positive(operand: object, positive: Set[str]) -> bool:
    if isinstance(operand, Argument):
        return operand.value in positive
    return (
        isinstance(operand, Literal)
        and isinstance(operand.value, (bool, int, float))
        and operand.value >= 0
    )
