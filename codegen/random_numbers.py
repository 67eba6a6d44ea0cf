"""The lines of a random op: its numbers at an index, four of them from one Philox call if possible.

In: the body that is being written, the op, its index. Out: a value whose element is what
`fuser/philox.py` defines for the row-major number of that element, however the kernel is tiled.
Where the elements that four numbers belong to lie next to each other along one tile variable, the
body computes with a second variable that has every fourth element; elsewhere each element makes
four numbers and keeps one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fuser.codegen.axes import AxisText, KernelAxis
from fuser.codegen.expressions import Held
from fuser.ir.dim import Dim, divide
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
    variable = next((name for name in body.tiles if _is_quartered(body, position, name)), None)
    if variable is not None:
        firsts = _every_fourth(body, variable).affine(position)
        place = f"{firsts}, {op.compute.triton}, axis={body.tiles[variable].axis}"
    row = BY_KIND[op.kind]
    expression = row.expression.format(held.text, number.value, index=place)
    return body.bind(op, Held(expression, op.compute, body.level_of(position) | held.level))


def _axes(body: Body, variable: str) -> list[KernelAxis]:
    return [axis for axis in body.axis_text.axes if axis.level == variable]


def _is_quartered(body: Body, position: Affine, variable: str) -> bool:
    """Whether each four elements of the tile from a multiple of four on are those of one call."""
    text = body.axis_text
    axes = _axes(body, variable)
    if not axes:
        return False
    fast = axes[-1]
    steps = {text.innermost[a]: s for a, s in position.terms if a not in text.inner_parts}
    if steps.pop(fast.name, None) != 1:
        return False
    is_whole = len(axes) == 1 or _in_fours(fast.size)
    return is_whole and all(map(_in_fours, (*steps.values(), position.offset)))


def _in_fours(dim: Dim) -> bool:
    return dim == 0 or divide(dim, LANES) is not None


def _every_fourth(body: Body, variable: str) -> AxisText:
    """Writes forms over every fourth element of a tile variable; sets that variable at first."""
    axes = _axes(body, variable)
    what = ("every fourth", variable)
    level = frozenset({variable})
    if body.recall(what, None) is None:
        linear = body.names.fresh(f"{variable}_fourths")
        body.lines.emit(level, f"{linear} = {body.tiles[variable].every(LANES)}")
        body.known[what, ""] = Held(linear, DType.INT64, level)
        renamed = _renamed(axes, linear)
        for line in body.axis_text.decomposition(linear, renamed):
            body.lines.emit(level, line)
    renamed = _renamed(axes, body.known[what, ""].text)
    others = [axis for axis in body.axis_text.axes if axis.level != variable]
    return AxisText([*others, *renamed], body.sizes)


def _renamed(axes: list[KernelAxis], linear: str) -> list[KernelAxis]:
    """The axes that a variable is taken apart into, under names of their own."""
    if len(axes) == 1:
        return [replace(axes[0], name=linear)]
    return [replace(axis, name=f"{linear}_{k}") for k, axis in enumerate(axes)]
