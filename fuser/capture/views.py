"""View calls as index maps: one function per aten view, from its arguments to a `Step`.

Input: the shape that is viewed and the call's arguments; output: the step from the reader's index
to the viewed tensor's. Views that reinterpret memory (dtype views, as_strided) are not here: they
stay original calls on a stored value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fuser.ir.dim import Dim, add, as_dim
from fuser.ir.index_map import Axis, Reshape, Shape, Step, Strided, broadcast


def _wrap(dim: int, rank: int) -> int:
    return dim + max(rank, 1) if dim < 0 else dim


def _permutation(shape: Shape, reader_shape: Shape, order: list[int]) -> Strided:
    """`order[j]` is the viewed dimension that the reader's dimension j shows."""
    axes = [Axis(order.index(k)) for k in range(len(shape))]
    return Strided(reader_shape, tuple(axes))


def _permute(shape: Shape, reader: Shape, arguments: Mapping[str, Any]) -> Step:
    order = [_wrap(d, len(shape)) for d in arguments["dims"]]
    return _permutation(shape, reader, order)


def _transpose(shape: Shape, reader: Shape, arguments: Mapping[str, Any]) -> Step:
    order = list(range(len(shape)))
    if order:
        a, b = _wrap(arguments["dim0"], len(shape)), _wrap(arguments["dim1"], len(shape))
        order[a], order[b] = order[b], order[a]
    return _permutation(shape, reader, order)


def _t(shape: Shape, reader: Shape, arguments: Mapping[str, Any]) -> Step:
    return _permutation(shape, reader, list(range(len(shape)))[::-1])


def _expand(shape: Shape, reader: Shape, arguments: Mapping[str, Any]) -> Step:
    return broadcast(shape, reader)


def _slice(shape: Shape, reader: Shape, arguments: Mapping[str, Any]) -> Step:
    dim = _wrap(arguments["dim"], len(shape))
    start = clamped_start(arguments["start"], shape[dim])
    axes = [Axis(k) for k in range(len(shape))]
    axes[dim] = Axis(dim, as_dim(arguments["step"]), start)
    return Strided(reader, tuple(axes))


def clamped_start(start: Any, size: Dim) -> Dim:
    """The start of a slice as torch reads it: negative from the end, never outside."""
    if start is None:
        return 0
    start = as_dim(start)
    if not isinstance(start, int):
        return start
    if isinstance(size, int):
        return min(max(start + size if start < 0 else start, 0), size)
    return add(size, start) if start < 0 else start


def _select(shape: Shape, reader: Shape, arguments: Mapping[str, Any]) -> Step:
    dim = _wrap(arguments["dim"], len(shape))
    position = as_dim(arguments["index"])
    if isinstance(position, int) and position < 0:
        position = add(shape[dim], position)
    axes = [Axis(k if k < dim else k - 1) for k in range(len(shape))]
    axes[dim] = Axis(None, 1, position)
    return Strided(reader, tuple(axes))


def _diagonal(shape: Shape, reader: Shape, arguments: Mapping[str, Any]) -> Step:
    """The last dimension of the reader walks two of the viewed ones at once."""
    rows, columns = (_wrap(arguments[name], len(shape)) for name in ("dim1", "dim2"))
    offset = arguments["offset"]
    others = iter(range(len(reader) - 1))
    axes = [
        Axis(len(reader) - 1) if k in (rows, columns) else Axis(next(others))
        for k in range(len(shape))
    ]
    axes[rows] = Axis(len(reader) - 1, 1, max(-offset, 0))
    axes[columns] = Axis(len(reader) - 1, 1, max(offset, 0))
    return Strided(reader, tuple(axes))


def _drop_or_add_ones(shape: Shape, reader: Shape, arguments: Mapping[str, Any]) -> Step:
    """Squeeze and unsqueeze: the dimensions that are not 1 keep their order."""
    if 0 in shape:
        return Reshape(reader, shape)
    wide = [j for j, size in enumerate(reader) if size != 1]
    axes: list[Axis] = []
    for size in shape:
        axes.append(Axis(None) if size == 1 else Axis(wide.pop(0)))
    return Strided(reader, tuple(axes))


def _reshape(shape: Shape, reader: Shape, arguments: Mapping[str, Any]) -> Step:
    if [s for s in shape if s != 1] == [s for s in reader if s != 1]:
        return _drop_or_add_ones(shape, reader, arguments)
    return Reshape(reader, shape)


def _flip(shape: Shape, reader: Shape, arguments: Mapping[str, Any]) -> Step:
    axes = [Axis(k) for k in range(len(shape))]
    for dim in arguments["dims"] if shape else ():
        k = _wrap(dim, len(shape))
        axes[k] = Axis(k, -1, add(shape[k], -1))
    return Strided(reader, tuple(axes))


def _same(shape: Shape, reader: Shape, arguments: Mapping[str, Any]) -> Step:
    return Strided(reader, tuple(Axis(k) for k in range(len(shape))))


ViewStep = Callable[[Shape, Shape, Mapping[str, Any]], Step]

VIEWS: Mapping[str, ViewStep] = {
    "aten.permute.default": _permute,
    "aten.transpose.int": _transpose,
    "aten.t.default": _t,
    "aten.expand.default": _expand,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.diagonal.default": _diagonal,
    "aten.squeeze.default": _drop_or_add_ones,
    "aten.squeeze.dim": _drop_or_add_ones,
    "aten.squeeze.dims": _drop_or_add_ones,
    "aten.unsqueeze.default": _drop_or_add_ones,
    "aten.view.default": _reshape,
    "aten._unsafe_view.default": _reshape,
    "aten.detach.default": _same,
    "aten.alias.default": _same,
    "aten.lift_fresh.default": _same,
}
"""Calls whose result shares the memory of their first argument, with the map they stand for."""

MOVES: Mapping[str, ViewStep] = {"aten.flip.default": _flip}
"""Calls that return new memory but only move elements: a copy read through the map."""
