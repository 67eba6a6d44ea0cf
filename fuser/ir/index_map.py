"""Views as index maps: where a reader's element lies in the value it reads.

A map is a chain of steps from the reader's index to the producer's. `Strided` covers permute,
expand, slice, select, diagonal, squeeze, flip and shifts; `Reshape` covers view and reshape.
Adjacent steps of one kind merge, so that the same view written differently gives the same map.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuser.ir.dim import Dim, add, is_equal, multiply, python_text

Shape = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """One producer dimension: `offset + step * index[reader_axis]`, or only `offset`."""

    reader_axis: int | None
    step: Dim = 1
    offset: Dim = 0

    def __str__(self) -> str:
        if self.reader_axis is None:
            return python_text(self.offset)
        text = f"i{self.reader_axis}"
        if self.step != 1:
            text = f"{python_text(self.step)}*{text}"
        if self.offset != 0:
            text = f"{text}+{python_text(self.offset)}"
        return text


@dataclass(frozen=True, slots=True)
class Strided:
    """Each producer dimension is affine in at most one reader dimension; two of them may follow the
    same one, as in a diagonal."""

    reader_shape: Shape
    axes: tuple[Axis, ...]

    def __str__(self) -> str:
        return "[" + ", ".join(map(str, self.axes)) + "]"


@dataclass(frozen=True, slots=True)
class Reshape:
    """Reader and producer number their elements alike in row-major order."""

    reader_shape: Shape
    producer_shape: Shape

    def __str__(self) -> str:
        return ".view(" + ", ".join(map(python_text, self.reader_shape)) + ")"


Step = Strided | Reshape


@dataclass(frozen=True, slots=True)
class IndexMap:
    """Steps from the reader's index (first) to the producer's (last); empty means identity."""

    steps: tuple[Step, ...] = ()

    @property
    def is_identity(self) -> bool:
        return not self.steps

    def after(self, step: Step) -> IndexMap:
        """The map of a reader that looks at this map's reader through `step`."""
        if _is_identity(step):
            return self
        if not self.steps:
            return IndexMap((step,))
        merged = _merge(step, self.steps[0])
        if merged is None:
            return IndexMap((step, *self.steps))
        rest = IndexMap(self.steps[1:])
        return rest if _is_identity(merged) else rest.after(merged)

    def compose(self, outer: IndexMap) -> IndexMap:
        """The map of a reader that looks at this map's reader through `outer`."""
        result = self
        for step in reversed(outer.steps):
            result = result.after(step)
        return result

    def __str__(self) -> str:
        return "".join(str(step) for step in reversed(self.steps))


IDENTITY = IndexMap()


def _is_identity(step: Step) -> bool:
    if isinstance(step, Reshape):
        return same_shape(step.reader_shape, step.producer_shape)
    return len(step.axes) == len(step.reader_shape) and all(
        axis == Axis(position) for position, axis in enumerate(step.axes)
    )


def _merge(outer: Step, inner: Step) -> Step | None:
    if isinstance(outer, Reshape) and isinstance(inner, Reshape):
        # A slice from the start leaves no step, and may have stood between the two.
        if not same_shape(outer.producer_shape, inner.reader_shape):
            return None
        return Reshape(outer.reader_shape, inner.producer_shape)
    if isinstance(outer, Strided) and isinstance(inner, Strided):
        return Strided(outer.reader_shape, tuple(_substitute(a, outer.axes) for a in inner.axes))
    return None


def _substitute(axis: Axis, outer: tuple[Axis, ...]) -> Axis:
    if axis.reader_axis is None:
        return axis
    through = outer[axis.reader_axis]
    return Axis(
        through.reader_axis,
        multiply(axis.step, through.step) if through.reader_axis is not None else 1,
        add(axis.offset, multiply(axis.step, through.offset)),
    )


def same_shape(left: Shape, right: Shape) -> bool:
    return len(left) == len(right) and all(map(is_equal, left, right))


def broadcast(producer_shape: Shape, reader_shape: Shape) -> Strided:
    """How an operand of a pointwise op is read: trailing dimensions align, size 1 repeats."""
    lead = len(reader_shape) - len(producer_shape)
    axes = tuple(
        Axis(None) if size == 1 and reader_shape[lead + k] != 1 else Axis(lead + k)
        for k, size in enumerate(producer_shape)
    )
    return Strided(reader_shape, axes)
