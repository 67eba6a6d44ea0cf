"""Loads at computed positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuser.codegen.expressions import Held
from fuser.ir.dtype import DType
from fuser.ir.graph import Argument, Op
from fuser.ir.space import Affine, Index

if TYPE_CHECKING:
    from fuser.codegen.body import Body


def gathered(body: Body, op: Op, index: Index, guard: Held | None) -> Held:
    """A load at computed positions; positions outside the tensor read nothing."""
    source = op.operands[0]
    assert isinstance(source, Argument)
    value = body.graph.values[source.value]
    offset = Affine((), source.storage_offset)
    computed: list[str] = []
    level: frozenset[str] = guard.level if guard else frozenset()
    mask = guard
    for dim, (kind, which) in enumerate(op.attribute("positions")):
        stride = source.type.stride[dim]
        if kind == "axis":
            offset = offset.plus(index[which].scaled(stride, 0))
            continue
        held = body.operand(op.operands[which], index, guard)
        size = body.sizes.text(source.type.shape[dim])
        name = body.names.fresh(f"{op.name}_index")
        position = f"{held.text}.to(INDEX_TYPE)"
        body.lines.emit(held.level, f"{name} = {position}")
        if op.kind == "index":
            body.lines.emit(held.level, f"{name} = tl.where({name} < 0, {name} + {size}, {name})")
        inside = body.names.fresh(f"{name}_inside")
        test = f"({name} >= 0) & ({name} < {size})"
        wanted = body.mask(held.level, guard) or "tl.full([], True, tl.int1)"
        body.lines.emit(held.level, f"{inside} = fn.check_index({test}, {wanted})")
        mask = _both(mask, Held(inside, DType.BOOL, held.level))
        level |= held.level
        computed.append(f"{name} * {body.sizes.text(stride)}" if stride != 1 else name)
    level |= body.level_of(offset)
    fixed = [body.affine(offset)] if offset.terms or offset.offset != 0 else []
    text = " + ".join([*fixed, *computed])
    held = body.load_at(op.name, value.type, body.pointer(source.value), text, level, mask)
    return body.bind(op, Held(held.text, held.dtype, level))


def _both(left: Held | None, right: Held) -> Held:
    if left is None:
        return right
    return Held(f"{left.text} & {right.text}", DType.BOOL, left.level | right.level)
