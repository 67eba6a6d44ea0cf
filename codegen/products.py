"""What every kernel with a matrix product writes: the factors, and what the sum is scaled and added
to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuser.codegen.expressions import Held, convert, plain_literal
from fuser.ir.graph import Op
from fuser.ir.space import Index
from fuser.passes.contraction import factors_of

if TYPE_CHECKING:
    from fuser.codegen.body import Body


def factors(body: Body, op: Op, index: Index) -> Held:
    """The product of two elements, each as eager has stored it."""
    texts: list[str] = []
    level: frozenset[str] = frozenset()
    for operand in factors_of(op):
        held = body.as_stored(body.operand(operand, index, None), operand)
        texts.append(convert(held, op.compute))
        level |= held.level
    return Held(" * ".join(texts), op.compute, level)


def with_added(body: Body, op: Op, total: str, index: Index, guard: Held | None) -> str:
    """The sum of a product scaled by `alpha`, with its third operand scaled by `beta`."""
    text = _scaled(total, op.attribute("alpha"), op)
    if len(op.operands) > 2:
        added = body.operand(op.operands[2], index, guard)
        text += f" + {_scaled(convert(added, op.compute), op.attribute('beta'), op)}"
    return text


def _scaled(text: str, scale: float, op: Op) -> str:
    return text if scale == 1 else f"{text} * {plain_literal(scale, op.compute)}"
