"""Ops that put pieces side by side: each element comes from the piece whose guard holds there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fuser.codegen.expressions import Held, convert
from fuser.ir.dim import Dim, is_equal
from fuser.ir.dtype import DType
from fuser.ir.graph import Literal, Op
from fuser.ir.space import Index

if TYPE_CHECKING:
    from fuser.codegen.body import Body


def bordered(body: Body, op: Op, index: Index, guard: Held | None) -> Held:
    """Pieces in their places, and around them what lies outside of all: each element is read under
    the guard of its own piece alone."""
    guards = [_guard(body, g, index, op.domain, guard) for g in op.attribute("guards")]
    *pieces, last = op.operands
    outside = body.names.fresh(f"{op.name}_rest")
    level = frozenset().union(*(g.level for g in guards))
    rest = " & ".join(f"fn.logical_not({g.text})" for g in guards)
    if guard is not None:
        rest, level = f"{guard.text} & {rest}", level | guard.level
    if isinstance(last, Literal):
        chosen = Held(body.literal(last, op.compute, True), op.compute, frozenset())
    else:
        elsewhere = guard
        if guards:
            body.lines.emit(level, f"{outside} = {rest}")
            elsewhere = Held(outside, DType.BOOL, level)
        there = body.piece_index(op, len(pieces), index)
        chosen = body.operand(last, there, elsewhere)
        chosen = Held(convert(chosen, op.compute), op.compute, chosen.level | level)
    for position in reversed(range(len(pieces))):
        piece, piece_guard = pieces[position], guards[position]
        held = body.operand(piece, body.piece_index(op, position, index), piece_guard)
        text = f"tl.where({piece_guard.text}, {convert(held, op.compute)}, {chosen.text})"
        chosen = Held(text, op.compute, chosen.level | held.level | piece_guard.level)
    return body.bind(op, chosen)


def _guard(
    body: Body,
    bounds: Sequence[tuple[int, Dim, Dim]],
    index: Index,
    domain: Sequence[Dim],
    outer: Held | None,
) -> Held:
    """A mask for `low <= index[axis] < high` on every bound, and the outer mask."""
    tests: list[str] = []
    level: frozenset[str] = outer.level if outer else frozenset()
    for axis, low, high in bounds:
        text = body.affine(index[axis])
        level |= body.level_of(index[axis])
        if low != 0:
            tests.append(f"({text} >= {body.sizes.text(low)})")
        if not is_equal(high, domain[axis]):
            tests.append(f"({text} < {body.sizes.text(high)})")
    if outer is not None:
        tests.append(outer.text)
    name = body.names.fresh("inside")
    body.lines.emit(level, f"{name} = {' & '.join(tests) or 'tl.full([], True, tl.int1)'}")
    return Held(name, DType.BOOL, level)
