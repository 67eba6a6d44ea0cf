"""Views as linear forms over axes of their own, and linear forms as views.

In: an argument. Out: where it reads in the value, `LinearView`, or None where that is not linear;
and the same elements read where they lie in another value. Axes of a view are split as those of a
region are, so that reshapes are linear.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from fuser.ir.dim import Dim, divide, is_equal, multiply, product
from fuser.ir.graph import Argument, Value, row_major_strides
from fuser.ir.index_map import IDENTITY, Axis, IndexMap, Reshape, Strided
from fuser.ir.space import (
    Affine,
    Index,
    LoopAxis,
    NotLinear,
    SplitAxis,
    linear_index,
    memory_offset,
    through,
)


@dataclass(frozen=True, slots=True)
class LinearView:
    """A view: the axes of each of its dimensions, outermost first, and where it reads."""

    argument: Argument
    axes: tuple[tuple[LoopAxis, ...], ...]
    index: Index

    @property
    def all_axes(self) -> tuple[LoopAxis, ...]:
        return tuple(axis for axes in self.axes for axis in axes)

    def span(self, dimension: int) -> tuple[int, int] | None:
        """The first and the last index that is read along a dimension of the value, if known."""
        affine = self.index[dimension]
        sizes = {axis.name: axis.size for axis in self.all_axes}
        low = high = affine.offset
        for name, coefficient in affine.terms:
            size = sizes[name]
            if not isinstance(size, int) or not isinstance(coefficient, int):
                return None
            low += min(coefficient * (size - 1), 0)
            high += max(coefficient * (size - 1), 0)
        return (low, high) if isinstance(low, int) and isinstance(high, int) else None

    def of(self, value: Value, dimension: int, shift: Dim) -> Argument | None:
        """The same elements as a view of a contiguous value in which they lie `shift` further
        along a dimension; None where that is no view."""
        index = tuple(
            affine.scaled(1, shift) if k == dimension else affine
            for k, affine in enumerate(self.index)
        )
        place = memory_offset(index, value.type.stride)
        stride = _strides(self.axes, dict(place.terms))
        index_map = self.map_to(index)
        if stride is None or index_map is None:
            return None
        kind = replace(self.argument.type, stride=stride)
        return Argument(value.name, index_map, kind, place.offset)

    def map_to(self, index: Index) -> IndexMap | None:
        """The map to an index: the view's dimensions are split into its
        axes, those of one dimension there are put in a row and merged, and begin at an offset."""
        axes = self.all_axes
        position = {axis.name: k for k, axis in enumerate(axes)}
        split = tuple(axis.size for axis in axes)
        apart: list[str] = []
        merged: list[Dim] = []
        placed: list[Axis] = []
        for affine in index:
            if not affine.terms:
                placed.append(Axis(None, 1, affine.offset))
                continue
            digits = _digits(affine, {axis.name: axis.size for axis in axes})
            if digits is None:
                return None
            step = dict(affine.terms)[digits[-1]]
            placed.append(Axis(len(merged), step, affine.offset))
            merged.append(product(split[position[name]] for name in digits))
            apart += digits
        in_order = tuple(split[position[name]] for name in apart)
        steps = (
            Reshape(self.argument.type.shape, split),
            Strided(split, tuple(Axis(position[name]) for name in apart)),
            Reshape(in_order, tuple(merged)),
            Strided(tuple(merged), tuple(placed)),
        )
        return IDENTITY.compose(IndexMap(steps))


def linear_view(argument: Argument) -> LinearView | None:
    """The argument of a call as a linear form; None where its view is not linear or empty."""
    shape = argument.type.shape
    if 0 in shape:
        return None
    splits: dict[str, Dim] = {}
    while True:
        try:
            axes = tuple(_axes(f"d{k}", size, splits) for k, size in enumerate(shape))
            sizes = {axis.name: axis.size for dimension in axes for axis in dimension}
            own = tuple(map(_number, axes))
            return LinearView(argument, axes, through(argument.map, own, sizes))
        except SplitAxis as split:
            splits[split.axis] = split.inner
        except NotLinear:
            return None


def _axes(name: str, size: Dim, splits: Mapping[str, Dim]) -> tuple[LoopAxis, ...]:
    inner = splits.get(name)
    if inner is None:
        return (LoopAxis(name, size),)
    outer = divide(size, inner)
    if outer is None:
        raise NotLinear(f"{size} does not divide by {inner}")
    return (*_axes(f"{name}o", outer, splits), *_axes(f"{name}i", inner, splits))


def _number(axes: tuple[LoopAxis, ...]) -> Affine:
    """The index along a dimension of the view; axes of one element have no part in it."""
    digits = tuple(Affine() if a.size == 1 else Affine(((a.name, 1),)) for a in axes)
    return linear_index(digits, tuple(axis.size for axis in axes))


def _digits(affine: Affine, sizes: Mapping[str, Dim]) -> list[str] | None:
    """The axes whose elements a form walks in a row, outermost first; None where it does not."""
    remaining = dict(affine.terms)
    reach: Dim = 1 if len(remaining) > 1 else affine.terms[0][1]
    found: list[str] = []
    while remaining:
        name = next((a for a, c in remaining.items() if is_equal(c, reach)), None)
        if name is None:
            return None
        del remaining[name]
        found.insert(0, name)
        reach = multiply(reach, sizes[name])
    return found


def _strides(
    axes: tuple[tuple[LoopAxis, ...], ...], steps: Mapping[str, Dim]
) -> tuple[Dim, ...] | None:
    """The stride of each dimension of the view; None where its axes do not lie in a row."""
    contiguous = row_major_strides(tuple(product(a.size for a in dimension) for dimension in axes))
    strides: list[Dim] = []
    for dimension, otherwise in zip(axes, contiguous, strict=True):
        wide = [axis for axis in dimension if axis.size != 1]
        if not wide:
            strides.append(otherwise)
            continue
        for outer, inner in pairwise(wide):
            reach = multiply(steps.get(inner.name, 0), inner.size)
            if not is_equal(steps.get(outer.name, 0), reach):
                return None
        strides.append(steps.get(wide[-1].name, 0))
    return tuple(strides)
