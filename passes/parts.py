"""Parts of a tile's axis: slices that are read of a product, and pieces that are put together.

In: indices over loop axes. Out: the same inside a part, over the axes that run within it; which
part it is fixes the others. A rotary embedding reads the two halves of a head: a tile that holds
both has what it reads. Raises `SplitAxis` where an axis runs over the border of a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fuser.ir.dim import Dim
from fuser.ir.graph import Op
from fuser.ir.index_map import Axis, IndexMap, Reshape
from fuser.ir.ops import BY_KIND, Group
from fuser.ir.space import Affine, Index, NotLinear, SplitAxis, reshape_index

Sizes = Mapping[str, Dim]
Bound = tuple[int, int, int]
"""A dimension of a domain, and from where to where a piece reaches along it."""


class Half(NamedTuple):
    """Of an axis with two places the one at which a product is read, wherever the reader stands."""

    axis: str
    place: int


def inverse_index(
    index_map: IndexMap, index: Index, sizes: Sizes, domain: Sequence[Dim | None] = ()
) -> list[Affine | None] | str:
    """The index of a reader, given that of what it reads: None for dimensions that the map says
    nothing of. A text where there is none says why, with a place for the reader's name.

    With a reader's `domain` it may read slices, as far as they are some of the axes; None in it is
    a dimension that is not asked for.
    """
    current: list[Affine | None] = list(index)
    for step in reversed(index_map.steps):
        if isinstance(step, Reshape):
            if any(affine is None for affine in current):
                return "a broadcast behind a reshape"
            backwards = Reshape(step.producer_shape, step.reader_shape)
            known = tuple(affine for affine in current if affine is not None)
            current = list(reshape_index(known, backwards, sizes))
            continue
        found: list[Affine | None] = [Affine() if size == 1 else None for size in step.reader_shape]
        for axis, affine in zip(step.axes, current, strict=True):
            if axis.reader_axis is None:
                continue
            if step is index_map.steps[0] and domain and domain[axis.reader_axis] is None:
                continue
            is_part = axis.step != 1 or axis.offset != 0
            if is_part and domain and affine is not None:
                affine = _inside(affine, axis, step.reader_shape[axis.reader_axis], sizes)
            elif is_part:
                affine = None
            if affine is None:
                return "{} reads a part of its producer"
            met = [other.reader_axis for other in step.axes].count(axis.reader_axis)
            if met > 1 and found[axis.reader_axis] not in (None, affine):
                return "{} reads a diagonal"
            found[axis.reader_axis] = affine
        current = found
    # A slice from the start leaves no step.
    for k, size in enumerate(domain):
        affine = current[k]
        if size is None or affine is None:
            current[k] = None
            continue
        current[k] = _inside(affine, Axis(k), size, sizes)
        if current[k] is None:
            return "{} reads a part of its producer"
    return current


def _inside(whole: Affine, part: Axis, count: Dim, sizes: Sizes) -> Affine | None:
    """The index inside a slice of `count` elements of a dimension that has the index `whole`; None
    where the slice is not some of the axes."""
    is_start = part.step == 1 and part.offset == 0
    is_known = isinstance(count, int) and all(isinstance(sizes[a], int) for a in whole.axes)
    if is_start and (not is_known or _reach(whole, sizes) == count):
        return whole
    step = part.step
    if not (is_known and isinstance(count, int) and isinstance(step, int)) or step < 1:
        return None
    kept = {
        axis: coefficient // step
        for axis, coefficient in whole.terms
        if isinstance(coefficient, int)
        and (step == 1 or not _runs_below(axis, coefficient, sizes, step))
        and _runs_below(axis, coefficient, sizes, step * count)
    }
    inside = Affine(tuple(kept.items()))
    return inside if _reach(inside, sizes) == count else None


def piece_index(op: Op, position: int, index: Index, sizes: Sizes) -> Index:
    """The index of a border op over the piece that it reads from an operand; its own where the
    pieces are no equal parts of a dimension."""
    bound = _bound(op, position)
    if bound is None:
        return index
    dimension, low, high = bound
    whole, length = index[dimension], high - low
    if low % length or not all(isinstance(c, int) for _, c in whole.terms):
        return index
    kept: list[tuple[str, Dim]] = []
    offset = whole.offset
    for axis, step in whole.terms:
        size = sizes[axis]
        assert isinstance(step, int)
        if _runs_below(axis, step, sizes, length):
            kept.append((axis, step))
        elif isinstance(size, int) and isinstance(offset, int):
            offset += low // step % size * step
        else:
            return index
    return (*index[:dimension], Affine(tuple(kept), offset), *index[dimension + 1 :])


def half_of(wanted: Index, own: Index, sizes: Sizes) -> Half | None:
    """The half that is read at `wanted` of what stands at `own`; None where it is no half."""
    found: set[Half] = set()
    for there, here in zip(wanted, own, strict=True):
        if there.key() == here.key():
            continue
        left = dict(here.terms)
        if any(left.pop(axis, None) != step for axis, step in there.terms) or len(left) != 1:
            return None
        ((axis, step),) = left.items()
        moved = (there.offset, here.offset)
        if (
            sizes[axis] != 2
            or not isinstance(step, int)
            or not all(isinstance(offset, int) for offset in moved)
        ):
            return None
        place, rest = divmod(moved[0] - moved[1], step)
        if rest or place not in (0, 1):
            return None
        found.add(Half(axis, place))
    return found.pop() if len(found) == 1 else None


def piece_of(op: Op, position: int) -> int | None:
    """The dimension along which an operand is a piece of what a border op puts together."""
    bound = _bound(op, position)
    return None if bound is None else bound[0]


def _bound(op: Op, position: int) -> Bound | None:
    if BY_KIND[op.kind].group is not Group.BORDER:
        return None
    guards = op.attribute("guards")
    if not all(len(guard) == 1 for guard in guards):
        return None
    bounds = [guard[0] for guard in guards]
    ends = [0, *(high for _, _, high in bounds)]
    dimensions = {axis for axis, _, _ in bounds}
    # Pieces of one dimension, each from where the one before it ends.
    if len(dimensions) != 1 or any(
        low != end for (_, low, _), end in zip(bounds, ends, strict=False)
    ):
        return None
    (dimension,) = dimensions
    ends.append(op.domain[dimension])
    low, high = ends[position], ends[position + 1]
    if not (isinstance(low, int) and isinstance(high, int) and low < high):
        return None
    return dimension, low, high


def _runs_below(axis: str, step: Dim, sizes: Sizes, border: int) -> bool:
    """Whether an axis runs between borders, or from one to the next; raises `SplitAxis` where it
    does both."""
    size = sizes[axis]
    if not (isinstance(step, int) and isinstance(size, int)):
        raise NotLinear(f"a part of {axis}, whose size is known only at the call")
    if step * size <= border:
        return True
    if step >= border:
        return False
    inner, rest = divmod(border, step)
    if rest or size % inner:
        raise NotLinear(f"{axis} of size {size} does not divide at {border}")
    raise SplitAxis(axis, inner)


def _reach(form: Affine, sizes: Sizes) -> int:
    reach = 1
    for axis, step in form.terms:
        size = sizes[axis]
        assert isinstance(size, int)
        assert isinstance(step, int)
        reach += (size - 1) * step
    return reach
