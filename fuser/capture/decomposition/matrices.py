"""Products of other ranks, and calls about diagonals and blocks of matrices.

In: the arguments of the aten call. Out: the products that the op table has, views, borders and
pointwise ops.
"""

# mypy: disable-error-code="no-any-return"
# (`torch.ops` is untyped, so a call of an aten op is Any to the type checker)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fuser.capture.decomposition.common import (
    as_rules,
    aten,
    axes,
    cast,
    is_contiguous,
    is_empty,
    prims,
    total,
    wide,
)


# One kind of contraction instead of three: a vector is a matrix with one column.
def _column(x: Tensor) -> Tensor:
    return aten.unsqueeze.default(x, 1)


def matrix_vector(matrix: Tensor, vector: Tensor) -> Tensor:
    return aten.squeeze.dim(aten.mm.default(matrix, _column(vector)), 1)


def add_matrix_vector(
    x: Tensor, matrix: Tensor, vector: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    spread = _column(aten.expand.default(x, [matrix.shape[0]]))
    product = aten.addmm.default(spread, matrix, _column(vector), beta=beta, alpha=alpha)
    return aten.squeeze.dim(product, 1)


def dot(x: Tensor, other: Tensor) -> Tensor:
    product = aten.mul.Tensor(wide(x), wide(other))
    return cast(total(product, axes(product, None)), x.dtype)


def conjugate_dot(x: Tensor, other: Tensor) -> Tensor:
    return NotImplemented if x.is_complex() else dot(x, other)


# A sum of products over a batch is one product over batch and inner dimension together.
def add_batched_product(
    x: Tensor, first: Tensor, second: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    batch, rows, inner = first.shape
    columns = second.shape[2]
    left = aten.reshape.default(aten.permute.default(first, [1, 0, 2]), [rows, batch * inner])
    right = aten.reshape.default(second, [batch * inner, columns])
    return aten.addmm.default(x, left, right, beta=beta, alpha=alpha)


def _along(x: Tensor, dim: int) -> Tensor:
    """The numbers 0, 1, 2, ... along a dimension of `x`, size one elsewhere."""
    places = prims.iota.default(
        x.shape[dim], start=0, step=1, dtype=torch.int64, device=x.device, requires_grad=False
    )
    return aten.view.default(places, [-1 if k == dim else 1 for k in range(x.dim())])


# Writing a diagonal is a comparison of row and column: pointwise, where a copy would be two calls.
# Of a tensor with gaps eager's result has the same gaps: that is left to it.
def diagonal_scatter(
    x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    if not is_contiguous(x):
        return NotImplemented
    if is_empty(source):
        return aten.clone.default(x)
    rows, columns = dim1 % x.dim(), dim2 % x.dim()
    before = max(-offset, 0)
    after = x.shape[rows] - before - source.shape[-1]
    # As the rows are numbered, with a column of its own again, and both where `x` has them.
    spread = aten.constant_pad_nd.default(source, [before, after])
    spread = aten.unsqueeze.default(spread, -1)
    order = [k for k in range(x.dim()) if k not in (rows, columns)] + [rows, columns]
    spread = aten.permute.default(spread, [order.index(k) for k in range(x.dim())])
    hits = aten.eq.Scalar(aten.sub.Tensor(_along(x, columns), _along(x, rows)), offset)
    return aten.where.self(hits, cast(spread, x.dtype), x)


def trace(x: Tensor) -> Tensor:
    return aten.sum.default(aten.diagonal.default(x))


def block_diagonal(tensors: Sequence[Tensor]) -> Tensor:
    blocks = [aten.view.default(x, [1] * (2 - x.dim()) + list(x.shape)) for x in tensors]
    width = sum(block.shape[1] for block in blocks)
    start: Any = 0
    rows = []
    for block in blocks:
        end = width - start - block.shape[1]
        rows.append(aten.constant_pad_nd.default(block, [start, end]))
        start = start + block.shape[1]
    return aten.cat.default(rows)


RULES = as_rules(
    {
        aten.mv.default: matrix_vector,
        aten.addmv.default: add_matrix_vector,
        aten.dot.default: dot,
        aten.vdot.default: conjugate_dot,
        aten.addbmm.default: add_batched_product,
        aten.diagonal_scatter.default: diagonal_scatter,
        aten.trace.default: trace,
        aten.block_diag.default: block_diagonal,
    }
)
