"""Matrix products: a sum over the inner axis of two operands' products, and of a third one.

The domain of a product is `[batch, rows, columns, inner]`; its operands read the parts of that
index that they depend on. `alpha` scales the sum and `beta` the third operand, which is not read
where `beta` is 0, as in eager.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fuser.ir.dtype import DType
from fuser.ir.graph import Argument, Operand, Value
from fuser.ir.index_map import Axis, Shape, Strided, broadcast

TYPES = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)
"""What tensor cores multiply in generated kernels; the sum is float32."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product in the terms of the op table; the last axis of the domain is summed over."""

    operands: tuple[Operand, ...]
    domain: Shape
    attributes: tuple[tuple[str, Any], ...]


def product_operands(named: Mapping[str, Any], result: Value) -> Product | str:
    """Operands, domain and attributes of a call of mm, bmm, addmm or baddbmm, or why it stays."""
    left, right, added = _tensors(named)
    kind = result.type
    types = {argument.type.dtype for argument in (left, right, added) if argument is not None}
    if types != {kind.dtype} or kind.dtype not in TYPES:
        return f"a product of {', '.join(sorted(t.value for t in types))} has no generated form"
    domain = (*kind.shape, left.type.shape[-1])
    if 0 in domain:
        return "a product of no elements"
    batch = tuple(range(len(domain) - 3))
    rows, columns, inner = range(len(batch), len(domain))
    operands = [
        _reading(left, domain, (*batch, rows, inner)),
        _reading(right, domain, (*batch, inner, columns)),
    ]
    alpha, beta = named.get("alpha", 1), named.get("beta", 1)
    if not isinstance(alpha, (int, float)) or not isinstance(beta, (int, float)):
        return "a scale that is known only at the call"
    if added is not None and beta != 0:
        spread = added.through(broadcast(added.type.shape, kind.shape))
        operands.append(_reading(spread, domain, (*batch, rows, columns)))
    attributes = (("alpha", alpha), ("beta", beta), ("precision", _precision(kind.dtype)))
    return Product(tuple(operands), domain, attributes)


def _tensors(named: Mapping[str, Any]) -> tuple[Argument, Argument, Argument | None]:
    for left, right in (("mat1", "mat2"), ("batch1", "batch2")):
        if left in named:
            return named[left], named[right], named["self"]
    return named["self"], named["mat2"], None


def _reading(argument: Argument, domain: Shape, axes: tuple[int, ...]) -> Argument:
    """The argument with its dimensions at these axes of the domain."""
    return argument.through(Strided(domain, tuple(map(Axis, axes))))


def _precision(dtype: DType) -> str:
    """How the operands are multiplied: float32 as TF32 only where torch is allowed to."""
    if dtype is not DType.FLOAT32:
        return str(dtype.value)
    allowed = str(torch.get_float32_matmul_precision())
    return "ieee" if allowed == "highest" else "tf32"
