"""Reads at computed positions: embedding, index, index_select, gather.

Operand 0 is the tensor read, the others are index tensors over the result's domain. `positions` has
one entry per dimension of the tensor read: `("index", k)` takes operand k's value there,
`("axis", j)` the domain's own index j.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuser.ir.dtype import DType
from fuser.ir.graph import Argument, Operand
from fuser.ir.index_map import Axis, Shape, Strided

Position = tuple[str, int]
Gathered = tuple[tuple[Operand, ...], tuple[Position, ...]]


def gather_operands(kind: str, named: Mapping[str, Any], shape: Shape) -> Gathered | str:
    """Operands and positions, or why the call stays as it is."""
    builders = {
        "embedding": _embedding,
        "index": _index,
        "index_select": _index_select,
        "gather": _gather,
    }
    source = named["weight" if kind == "embedding" else "self"]
    if 0 in source.type.shape:
        return "reads from nothing"
    if not source.type.shape:
        return "reads from a single value"
    return builders[kind](source, named, shape)


def _over_axes(argument: Argument, domain: Shape, first: int) -> Argument:
    """The index tensor read at the domain's axes from `first` on, broadcast to them."""
    rank = len(argument.type.shape)
    axes = tuple(
        Axis(None) if size == 1 and domain[first + k] != 1 else Axis(first + k)
        for k, size in enumerate(argument.type.shape)
    )
    assert first + rank <= len(domain)
    return argument.through(Strided(domain, axes))


def _embedding(weight: Argument, named: Mapping[str, Any], shape: Shape) -> Gathered | str:
    index = _over_axes(named["indices"], shape, 0)
    return (weight, index), (("index", 1), ("axis", len(shape) - 1))


def _index_select(source: Argument, named: Mapping[str, Any], shape: Shape) -> Gathered | str:
    dim = named["dim"] % len(shape)
    index = named["index"]
    if not index.type.shape:
        return "index_select by a single value"
    positions: list[Position] = [("axis", k) for k in range(len(shape))]
    positions[dim] = ("index", 1)
    return (source, _over_axes(index, shape, dim)), tuple(positions)


def _gather(source: Argument, named: Mapping[str, Any], shape: Shape) -> Gathered | str:
    if len(source.type.shape) != len(shape) or not shape:
        return "gather from a tensor of another rank"
    dim = named["dim"] % len(shape)
    positions: list[Position] = [("axis", k) for k in range(len(shape))]
    positions[dim] = ("index", 1)
    return (source, _over_axes(named["index"], shape, 0)), tuple(positions)


def _index(source: Argument, named: Mapping[str, Any], shape: Shape) -> Gathered | str:
    given = list(named["indices"])
    given += [None] * (len(source.type.shape) - len(given))
    used = [k for k, index in enumerate(given) if index is not None]
    if any(given[k].type.dtype not in (DType.INT64, DType.INT32) for k in used):
        return "index by a mask"
    width = max(len(given[k].type.shape) for k in used)
    # Index dimensions stand together where the index tensors do, else in front: torch's rule.
    together = used == list(range(used[0], used[-1] + 1))
    first = used[0] if together else 0
    operands: list[Operand] = [source]
    positions: list[Position] = []
    axis = 0
    for index in given:
        if index is None:
            if axis == first:
                axis += width
            positions.append(("axis", axis))
            axis += 1
        else:
            lead = width - len(index.type.shape)
            operands.append(_over_axes(index, shape, first + lead))
            positions.append(("index", len(operands) - 1))
    return tuple(operands), tuple(positions)
