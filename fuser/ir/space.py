"""Iteration spaces: the loop axes of a region and where each of its ops stands in them.

An `Affine` is a linear form over loop axes; an op's index is one affine per dimension of its
domain. Axes are split until every reshape inside a region is linear, so code needs no division to
follow a view, and every memory access is a sum of axis times stride that can be read off and
costed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fuser.ir.dim import Dim, add, divide, is_equal, magnitude, multiply, product, python_text
from fuser.ir.index_map import IndexMap, Reshape, Shape, Strided


@dataclass(frozen=True, slots=True)
class LoopAxis:
    """One loop of a region. `is_reduced` axes are folded by the region's reductions."""

    name: str
    size: Dim
    is_reduced: bool = False


@dataclass(frozen=True, slots=True)
class Affine:
    """`offset + sum(coefficient * axis)`; terms are in no particular order."""

    terms: tuple[tuple[str, Dim], ...] = ()
    offset: Dim = 0

    def scaled(self, step: Dim, offset: Dim) -> Affine:
        if step == 1 and offset == 0:
            return self
        if step == 0:
            return Affine((), offset)
        return Affine(
            tuple((axis, multiply(coefficient, step)) for axis, coefficient in self.terms),
            add(multiply(self.offset, step), offset),
        )

    def plus(self, other: Affine) -> Affine:
        if not self.terms and self.offset == 0:
            return other
        merged: dict[str, Dim] = dict(self.terms)
        for axis, coefficient in other.terms:
            merged[axis] = add(merged.get(axis, 0), coefficient)
        terms = tuple((axis, c) for axis, c in merged.items() if c != 0)
        return Affine(terms, add(self.offset, other.offset))

    @property
    def axes(self) -> frozenset[str]:
        return frozenset(axis for axis, _ in self.terms)

    def key(self) -> tuple[object, ...]:
        """Equal for equal forms, whatever the order of their terms."""
        return (tuple(sorted((axis, str(c)) for axis, c in self.terms)), str(self.offset))

    def __str__(self) -> str:
        parts = [axis if c == 1 else f"{python_text(c)}*{axis}" for axis, c in self.terms]
        if self.offset != 0 or not parts:
            parts.append(python_text(self.offset))
        return " + ".join(parts)


Index = tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Space:
    """The axes of a region, outermost first, and the index at which each op computes its result.

    `index[op]` has one affine per dimension of the op's domain: for a reduction that is what it
    reads, so the index of its result leaves the reduced dimensions out.
    """

    axes: tuple[LoopAxis, ...]
    index: Mapping[str, Index]
    halved: frozenset[str] = frozenset()
    """Axes with two places of which a product is read at one alone: a tile holds both."""

    @property
    def parallel(self) -> tuple[LoopAxis, ...]:
        return tuple(axis for axis in self.axes if not axis.is_reduced)

    @property
    def reduced(self) -> tuple[LoopAxis, ...]:
        return tuple(axis for axis in self.axes if axis.is_reduced)

    @property
    def parallel_size(self) -> Dim:
        return product(axis.size for axis in self.parallel)

    @property
    def reduced_size(self) -> Dim:
        return product(axis.size for axis in self.reduced)


class SplitAxis(Exception):
    """A reshape needs `axis` in two parts, the inner one of size `inner`."""

    def __init__(self, axis: str, inner: Dim) -> None:
        super().__init__(axis, inner)
        self.axis = axis
        self.inner = inner


class NotLinear(Exception):
    """A view cannot be written as a linear form over the axes, however they are split."""


def linear_index(index: Index, shape: Shape) -> Affine:
    """The row-major number of the element at `index` of a tensor of `shape`."""
    steps: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        steps.append(step)
        step = multiply(step, size)
    return memory_offset(tuple(reversed(index)), tuple(steps))


def memory_offset(index: Index, stride: Shape) -> Affine:
    """The element offset in memory of `index` in a tensor with these strides."""
    terms: dict[str, Dim] = {}
    offset: Dim = 0
    for affine, step in zip(index, stride, strict=True):
        if step == 0:
            continue
        offset = add(offset, multiply(affine.offset, step))
        for axis, coefficient in affine.terms:
            terms[axis] = add(terms.get(axis, 0), multiply(coefficient, step))
            if terms[axis] == 0:
                del terms[axis]
    return Affine(tuple(terms.items()), offset)


def through(index_map: IndexMap, index: Index, sizes: Mapping[str, Dim]) -> Index:
    """The producer's index for a reader at `index`; raises `SplitAxis` or `NotLinear`."""
    for step in index_map.steps:
        if isinstance(step, Strided):
            index = tuple(
                Affine((), axis.offset)
                if axis.reader_axis is None
                else index[axis.reader_axis].scaled(axis.step, axis.offset)
                for axis in step.axes
            )
        else:
            index = reshape_index(index, step, sizes)
    return index


def reshape_index(index: Index, step: Reshape, sizes: Mapping[str, Dim]) -> Index:
    return regroup(linear_index(index, step.reader_shape), step.producer_shape, sizes)


def regroup(linear: Affine, shape: Shape, sizes: Mapping[str, Dim]) -> Index:
    """Write a row-major element number as an index of `shape`, digit by digit.

    A term belongs to the dimension whose stride range holds its coefficient. A term that reaches
    over the end of that range asks for its axis to be split there.
    """
    remaining = list(linear.terms)
    offset = linear.offset
    result: list[Affine] = []
    inner: Dim = 1
    wide = [position for position, size in enumerate(shape) if size != 1]
    outermost = wide[0] if wide else None
    for position in range(len(shape) - 1, -1, -1):
        size = shape[position]
        if size == 1:
            result.append(Affine())
            continue
        outer = multiply(inner, size)
        digits: list[tuple[str, Dim]] = []
        left: list[tuple[str, Dim]] = []
        for axis, coefficient in remaining:
            step = divide(coefficient, inner)
            beyond = divide(coefficient, outer) if position != outermost else None
            if step is None or beyond is not None:
                left.append((axis, coefficient))
                continue
            if position != outermost:
                room = divide(outer, magnitude(coefficient))
                if room is None:
                    raise NotLinear(f"{axis} with step {coefficient} crosses a row of {outer}")
                if divide(room, sizes[axis]) is None:
                    if divide(sizes[axis], room) is None:
                        raise NotLinear(f"{axis} of size {sizes[axis]} does not divide at {room}")
                    raise SplitAxis(axis, room)
            digits.append((axis, step))
        digit_offset: Dim = 0
        if position == outermost:
            quotient = divide(offset, inner)
            if quotient is None:
                raise NotLinear(f"offset {offset} is not a multiple of {inner}")
            digit_offset, offset = quotient, 0
        elif offset != 0 and divide(offset, outer) is None:
            if not (isinstance(offset, int) and isinstance(outer, int) and isinstance(inner, int)):
                raise NotLinear(f"offset {offset} in a reshape of symbolic size")
            digit_offset = (offset % outer) // inner
            offset -= digit_offset * inner
        if position != outermost and (
            digit_offset != 0 or any(magnitude(c) != c for _, c in digits)
        ):
            reach = [0, *(multiply(c, add(sizes[axis], -1)) for axis, c in digits)]
            if not all(isinstance(end, int) for end in (size, *reach)) or not (
                digit_offset + sum(min(r, 0) for r in reach) >= 0
                and digit_offset + sum(max(r, 0) for r in reach) < size
            ):
                raise NotLinear(f"offset {linear.offset} carries over a dimension of {size}")
        result.append(Affine(tuple(digits), digit_offset))
        remaining = left
        inner = outer
    if remaining or offset != 0:
        raise NotLinear(f"{linear} does not fit in a shape of {len(shape)} dimensions")
    return tuple(reversed(result))


def covers_once(index: Index, shape: Shape, sizes: Mapping[str, Dim], axes: Iterable[str]) -> bool:
    """Whether each point of `shape` is met exactly once while `axes` run over their sizes."""
    seen: list[str] = []
    for affine, size in zip(index, shape, strict=True):
        if affine.offset != 0:
            return False
        remaining = dict(affine.terms)
        reach: Dim = 1
        while remaining:
            found = next((a for a, c in remaining.items() if is_equal(c, reach)), None)
            if found is None:
                return False
            del remaining[found]
            seen.append(found)
            reach = multiply(reach, sizes[found])
        if not is_equal(reach, size):
            return False
    return len(seen) == len(set(seen)) and set(seen) == set(axes)
