"""Which row of the op table a call takes, and the operands that generated code computes with.

The answer is a `Row`, or a sentence that says why the call stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes

from fuser.capture.borders import border_operands
from fuser.capture.gathers import gather_operands
from fuser.capture.products import product_operands
from fuser.capture.views import ViewStep
from fuser.ir.dtype import DType, dtype_from_name
from fuser.ir.graph import Argument, Literal, Operand, Value
from fuser.ir.index_map import Shape, broadcast
from fuser.ir.ops import BY_TARGET, Group, OpSpec, Promotion


@dataclass(frozen=True, slots=True)
class Row:
    """A call in the terms of the op table."""

    kind: str
    operands: tuple[Operand, ...]
    domain: Shape
    compute: DType
    reduced: tuple[int, ...] = ()
    keepdim: bool = False
    attributes: tuple[tuple[str, Any], ...] = ()


def row_for(
    target: str,
    named: Mapping[str, Any],
    arguments: Sequence[Argument],
    results: Sequence[Value],
    moves: Mapping[str, ViewStep],
) -> Row | str:
    """The row for a call with these arguments and results, or why there is none."""
    if target in moves:
        viewed = named["self"]
        kind = results[0].type
        step = moves[target](viewed.type.shape, kind.shape, named)
        moved = viewed.through(step)
        return _checked(Row("copy", (moved,), kind.shape, kind.dtype), arguments, results)
    candidates = BY_TARGET.get(target, ())
    if not candidates:
        return "no generated form"
    spec = next((row for row in candidates if _holds(row, named)), None)
    if spec is None:
        return "no generated form for these options"
    builders = {
        Group.POINTWISE: _pointwise,
        Group.CREATION: _pointwise,
        Group.RANDOM: _pointwise,
        Group.REDUCTION: _reduction,
        Group.CONTRACTION: _product,
        Group.BORDER: _border,
        Group.GATHER: _gather,
    }
    row = builders[spec.group](spec, named, results[0])
    return row if isinstance(row, str) else _checked(row, arguments, results)


def _holds(row: OpSpec, named: Mapping[str, Any]) -> bool:
    return all(named.get(name, wanted) == wanted for name, wanted in row.requires)


def _checked(row: Row, arguments: Sequence[Argument], results: Sequence[Value]) -> Row | str:
    types = [argument.type for argument in arguments] + [value.type for value in results]
    foreign = next((t.dtype for t in types if not t.dtype.is_generated), None)
    if foreign is not None:
        return f"element type {foreign.value} has no generated form"
    narrow = next((t.dtype for t in types if t.dtype.is_float8), None)
    if narrow is not None and row.kind not in ("cast", "convert", "copy"):
        return f"element type {narrow.value} is only cast and copied in generated kernels"
    if len({t.device for t in types}) > 1:
        return "operands on different devices"
    if not row.compute.is_generated:
        return f"computes in {row.compute.value}"
    return row


def _pointwise(spec: OpSpec, named: Mapping[str, Any], result: Value) -> Row | str:
    shape = result.type.shape
    operands: list[Operand] = []
    for name in spec.operands:
        given = named[name]
        if isinstance(given, Argument):
            operands.append(read(given, shape))
        elif given is None or isinstance(given, (complex, str)):
            return f"operand {name} is {given!r}"
        else:
            operands.append(Literal(given))
    if spec.by_spacing and result.type.dtype.is_half:
        return f"depends on the spacing of {result.type.dtype.value} numbers"
    compute = compute_type(spec, operands, result)
    if compute is DType.BOOL and not spec.bool_expression:
        return "arithmetic on booleans"
    common = _compared_in(spec, operands)
    if common is None:
        return Row(spec.kind, tuple(operands), shape, compute)
    numbers = tuple(_rounded(operand, common) for operand in operands)
    return Row(spec.kind, numbers, shape, compute, attributes=(("compared_in", common.value),))


def _compared_in(spec: OpSpec, operands: Sequence[Operand]) -> DType | None:
    """The half type that eager converts operands of other types to before it compares them."""
    if spec.promotion is not Promotion.COMPARE:
        return None
    common, _ = elementwise_dtypes(*map(_sample, operands), type_promotion_kind=KIND.NO_OPMATH)
    dtype = dtype_from_name(str(common))
    same = all(isinstance(o, Argument) and o.type.dtype is dtype for o in operands)
    return dtype if dtype.is_half and not same else None


def _rounded(operand: Operand, dtype: DType) -> Operand:
    if isinstance(operand, Literal) and isinstance(operand.value, (bool, int, float)):
        return Literal(float(torch.tensor(operand.value, dtype=getattr(torch, dtype.value))))
    return operand


def read(argument: Argument, domain: Shape) -> Argument:
    """The argument as an operand of a pointwise op over `domain`."""
    return argument.through(broadcast(argument.type.shape, domain))


_PROMOTION_KINDS = {
    Promotion.DEFAULT: KIND.DEFAULT,
    Promotion.INT_TO_FLOAT: KIND.INT_TO_FLOAT,
    Promotion.NO_OPMATH: KIND.NO_OPMATH,
    Promotion.COMPARE: KIND.NO_OPMATH,
}


def compute_type(spec: OpSpec, operands: Sequence[Operand], result: Value) -> DType:
    """The type an op computes in before its result is rounded (float32 for half types)."""
    if spec.promotion is Promotion.RESULT:
        return result.type.dtype.compute
    if spec.promotion is Promotion.TO_BOOL:
        return DType.BOOL
    samples = [_sample(o) for k, o in enumerate(operands) if k not in spec.keeps]
    kind = _PROMOTION_KINDS[spec.promotion]
    computed, _ = elementwise_dtypes(*samples, type_promotion_kind=kind)
    compute = dtype_from_name(str(computed)).compute
    compares_bools = compute is DType.BOOL and spec.promotion is Promotion.COMPARE
    # A one-bit integer is signed in Triton: true would be less than false.
    return DType.INT32 if compares_bools else compute


def _sample(operand: Operand) -> Any:
    """Something torch's promotion rules treat as they would the operand."""
    if isinstance(operand, Argument):
        # Whether an operand has dimensions decides its rank in promotion, not how many.
        dims = (1,) if operand.type.shape else ()
        return torch.empty(dims, dtype=getattr(torch, operand.type.dtype.value), device="meta")
    value = operand.value
    return value if isinstance(value, (bool, int, float)) else 1


def _reduction(spec: OpSpec, named: Mapping[str, Any], result: Value) -> Row | str:
    source = named["self"]
    shape = source.type.shape
    reduced = _axes(named.get("dim"), len(shape))
    if spec.kind in ("argmax", "argmin") and len(reduced) not in (1, len(shape)):
        return "argument reduction over several axes"
    keepdim = bool(named.get("keepdim", False))
    if spec.promotion is Promotion.NO_OPMATH:
        compute = source.type.dtype.compute
        compute = DType.INT32 if compute is DType.BOOL else compute
    elif spec.promotion is Promotion.TO_BOOL:
        compute = DType.BOOL
    else:
        compute = result.type.dtype.compute
    if compute is DType.BOOL and spec.promotion is Promotion.RESULT:
        return "arithmetic on booleans"
    if not reduced:
        if spec.kind in ("argmax", "argmin"):
            return Row("full", (Literal(0),), shape, result.type.dtype)
        return Row("cast", (source,), shape, compute)
    if any(shape[axis] == 0 for axis in reduced):
        return "reduction over no elements"
    return Row(spec.kind, (source,), shape, compute, reduced, keepdim)


def _product(spec: OpSpec, named: Mapping[str, Any], result: Value) -> Row | str:
    found = product_operands(named, result)
    if isinstance(found, str):
        return found
    inner = len(found.domain) - 1
    compute = result.type.dtype.compute
    return Row(
        spec.kind, found.operands, found.domain, compute, (inner,), attributes=found.attributes
    )


def _axes(dim: Any, rank: int) -> tuple[int, ...]:
    if dim is None or dim == []:
        return tuple(range(rank))
    dims = dim if isinstance(dim, (list, tuple)) else [dim]
    if rank == 0:
        return ()
    return tuple(sorted(d % rank for d in dims))


def _border(spec: OpSpec, named: Mapping[str, Any], result: Value) -> Row | str:
    found = border_operands(spec.kind, named, result.type.shape)
    if isinstance(found, str):
        return found
    operands, guards = found
    compute = result.type.dtype.compute
    return Row(spec.kind, operands, result.type.shape, compute, attributes=(("guards", guards),))


def _gather(spec: OpSpec, named: Mapping[str, Any], result: Value) -> Row | str:
    found = gather_operands(spec.kind, named, result.type.shape)
    if isinstance(found, str):
        return found
    operands, positions = found
    compute = result.type.dtype.compute
    return Row(
        spec.kind, operands, result.type.shape, compute, attributes=(("positions", positions),)
    )
