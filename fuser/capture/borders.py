"""Cat, pad and scatter into a slice: a result put together from pieces.

Operand k is read where its guard holds, the last operand elsewhere. A guard is a tuple of
`(axis, low, high)`: the piece covers `low <= index[axis] < high`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuser.capture.views import clamped_start
from fuser.ir.dim import Dim, add, as_dim, multiply
from fuser.ir.graph import Argument, Literal, Operand
from fuser.ir.index_map import Axis, Shape, Strided

Guard = tuple[tuple[int, Dim, Dim], ...]
Pieces = tuple[tuple[Operand, ...], tuple[Guard, ...]]


def border_operands(kind: str, named: Mapping[str, Any], shape: Shape) -> Pieces | str:
    """Operands and the guards of all but the last, or why the call stays as it is."""
    builders = {
        "cat": _cat,
        "pad": _pad,
        "slice_scatter": _slice_scatter,
        "select_scatter": _select,
    }
    return builders[kind](named, shape)


def _shifted(argument: Argument, domain: Shape, low: Mapping[int, Dim]) -> Argument:
    """The argument read at the domain's index less `low`."""
    axes = tuple(
        Axis(k, 1, multiply(-1, low[k]) if k in low else 0) for k in range(len(argument.type.shape))
    )
    return argument.through(Strided(domain, axes))


def _cat(named: Mapping[str, Any], shape: Shape) -> Pieces | str:
    # Old torch lets an empty 1-D tensor join a cat of any rank; it adds nothing.
    parts = [part for part in named["tensors"] if len(part.type.shape) == len(shape)]
    parts = [part for part in parts if 0 not in part.type.shape]
    if not parts:
        return "nothing to concatenate"
    dim = named["dim"] % len(shape)
    operands: list[Operand] = []
    guards: list[Guard] = []
    low: Dim = 0
    for part in parts:
        high = add(low, part.type.shape[dim])
        operands.append(_shifted(part, shape, {dim: low}))
        guards.append(((dim, low, high),))
        low = high
    return tuple(operands), tuple(guards[:-1])


def _pad(named: Mapping[str, Any], shape: Shape) -> Pieces | str:
    source = named["self"]
    if 0 in source.type.shape:
        return "padding of nothing"
    pads = [as_dim(p) for p in named["pad"]]
    rank = len(shape)
    low: dict[int, Dim] = {}
    guard: list[tuple[int, Dim, Dim]] = []
    for pair in range(len(pads) // 2):
        axis = rank - 1 - pair
        before = pads[2 * pair]
        low[axis] = before
        guard.append((axis, before, add(before, source.type.shape[axis])))
    value = named["value"]
    fill = Literal(0 if value is None else value)
    return (_shifted(source, shape, low), fill), (tuple(guard),)


def _slice_scatter(named: Mapping[str, Any], shape: Shape) -> Pieces | str:
    if named["step"] != 1:
        return "scatter into a slice with a step"
    dim = named["dim"] % len(shape)
    low = clamped_start(named["start"], shape[dim])
    source = named["src"]
    high = add(low, source.type.shape[dim])
    if isinstance(high, int) and isinstance(shape[dim], int) and high > shape[dim]:
        return "slice beyond the end"
    return (_shifted(source, shape, {dim: low}), named["self"]), (((dim, low, high),),)


def _select(named: Mapping[str, Any], shape: Shape) -> Pieces | str:
    dim = named["dim"] % len(shape)
    position = as_dim(named["index"])
    if isinstance(position, int) and position < 0:
        position = add(shape[dim], position)
    source = named["src"]
    axes = tuple(Axis(k if k < dim else k + 1) for k in range(len(source.type.shape)))
    piece = source.through(Strided(shape, axes))
    return (piece, named["self"]), (((dim, position, add(position, 1)),),)
