"""The lines of a random op: its numbers at an index, four of them from one Philox call if possible.

In: the body that is being written, the op, its index. Out: a value whose element is what
`fuser/philox.py` defines for the row-major number of that element, however the kernel is tiled.
Where the elements that four numbers belong to lie next to each other along one tile variable, the
body computes with a second variable that has every fourth element; elsewhere each element makes
four numbers and keeps one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fuser.codegen.axes import AxisText, KernelAxis
from fuser.codegen.expressions import Held
from fuser.ir.dim import Dim, divide, is_equal, multiply
from fuser.ir.dtype import DType
from fuser.ir.graph import Literal, Op, row_major_strides
from fuser.ir.ops import BY_KIND
from fuser.ir.space import Affine, Index, memory_offset

if TYPE_CHECKING:
    from fuser.codegen.body import Body

__all__ = ["random_numbers"]

LANES = 4
"""Numbers of a Philox call."""


def random_numbers(body: Body, op: Op, index: Index) -> Held:
    """The op's numbers at `index`, under no guard: they touch no memory but the seed."""
    seed, number = op.operands
    assert isinstance(number, Literal)
    held = body.operand(seed, index, None)
    position = memory_offset(index, row_major_strides(op.domain))
    # Noted as an access: axes that this form does not walk as one are not merged.
    text = body.affine(position)
    if not position.axes:
        text = f"tl.full([], {text}, INDEX_TYPE)"
    place = f"{text}, {op.compute.triton}"
    for variable, tile in body.tiles.items():
        axes = _walked(body, position, variable)
        if _is_quartered(body, position, axes):
            firsts = _every_fourth(body, variable, axes).affine(position)
            place = f"{firsts}, {op.compute.triton}, axis={tile.axis}"
            break
    row = BY_KIND[op.kind]
    expression = row.expression.format(held.text, number.value, index=place)
    return body.bind(op, Held(expression, op.compute, body.level_of(position) | held.level))


def _walked(body: Body, position: Affine, variable: str) -> list[KernelAxis]:
    """The axes of a tile variable as the form needs them: one, where it counts up with the tile."""
    axes = [axis for axis in body.axis_text.axes if axis.level == variable]
    parts = tuple(part for axis in axes for part in axis.parts)
    steps = dict(position.terms)
    count: Dim = 1
    for part in reversed(parts):
        if part.size != 1 and not is_equal(steps.get(part.name, 0), count):
            return axes
        count = multiply(count, part.size)
    return [KernelAxis(variable, count, parts)] if parts else []


def _is_quartered(body: Body, position: Affine, axes: Sequence[KernelAxis]) -> bool:
    """Whether each four elements of the tile from a multiple of four on are those of one call."""
    if not axes:
        return False
    text = _text(body, axes)
    steps = {text.innermost[a]: s for a, s in position.terms if a not in text.inner_parts}
    if steps.pop(axes[-1].name, None) != 1:
        return False
    is_whole = len(axes) == 1 or _in_fours(axes[-1].size)
    return is_whole and all(map(_in_fours, (*steps.values(), position.offset)))


def _in_fours(dim: Dim) -> bool:
    return dim == 0 or divide(dim, LANES) is not None


def _text(body: Body, axes: Sequence[KernelAxis]) -> AxisText:
    """Writes forms with these axes in place of those of their tile variable."""
    variable = axes[0].level
    others = [axis for axis in body.axis_text.axes if axis.level != variable]
    return AxisText([*others, *axes], body.sizes)


def _every_fourth(body: Body, variable: str, axes: Sequence[KernelAxis]) -> AxisText:
    """Writes forms over every fourth element of a tile variable; the first time sets them."""
    linear, is_new = _name(body, variable, variable)
    if is_new:
        _emit(body, variable, f"{linear} = {body.tiles[variable].every(LANES)}")
    if len(axes) == 1:
        return _text(body, [replace(axes[0], name=linear)])
    named = [_name(body, axis.name, variable) for axis in axes]
    renamed = [replace(axis, name=name) for axis, (name, _) in zip(axes, named, strict=True)]
    if any(is_new for _, is_new in named):
        for line in body.axis_text.decomposition(linear, renamed):
            _emit(body, variable, line)
    return _text(body, renamed)


def _name(body: Body, axis: str, variable: str) -> tuple[str, bool]:
    """What every fourth value of an axis or variable is called, and whether nothing sets it yet."""
    what = ("every fourth", axis)
    known = body.recall(what, None)
    if known is not None:
        return known.text, False
    name = body.names.fresh(f"{axis}_fourths")
    body.known[what, ""] = Held(name, DType.INT64, frozenset({variable}))
    return name, True


def _emit(body: Body, variable: str, line: str) -> None:
    body.lines.emit(frozenset({variable}), line)
