"""Reductions with eager's numerics: sums, means, variances, extremes, norms, softmax.

In: the arguments of the aten call. Out: sum, amax, amin, argmax, any, all, prod and pointwise ops,
accumulated in float32 for half inputs, results in eager's element type and layout.
"""

# mypy: disable-error-code="no-any-return"
# (`torch.ops` is untyped, so a call of an aten op is Any to the type checker)

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fuser.capture.decomposition.common import (
    Rule,
    as_rules,
    aten,
    average,
    axes,
    cast,
    constant,
    contiguous,
    count,
    is_empty,
    total,
    wide,
)

Dims = int | Sequence[int] | None


def _accumulator(x: Tensor, dtype: torch.dtype | None) -> tuple[torch.dtype, torch.dtype]:
    """The types a sum or product is formed in and returned in."""
    exact = not (x.is_floating_point() or x.is_complex())
    out = dtype or (torch.int64 if exact else x.dtype)
    return out if out.is_floating_point or out.is_complex else torch.int64, out


def _truth(x: Tensor) -> Tensor:
    """Booleans, because "any" and "all" of bytes are bytes."""
    return x if x.dtype is torch.bool else aten.ne.Scalar(x, 0)


# torch's entries keep `dtype=` on the reduction and leave bool sums to a kernel that cannot add
# bools. Here casts stand alone, integers are summed in int64, and a bool sum (product) is the
# "any" ("all") that eager computes.
def sum_dims(
    x: Tensor, dims: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    inner, out = _accumulator(x, dtype)
    reduced = axes(x, dims)
    if out is torch.bool:
        return aten.any.dims(_truth(x), reduced, keepdim)
    if inner == out == x.dtype and dims == reduced and dtype is None:
        return NotImplemented
    return cast(total(cast(x, inner), reduced, keepdim), out)


def sum_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return sum_dims(x, None, dtype=dtype)


def prod_dim(
    x: Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    inner, out = _accumulator(x, dtype)
    if out is torch.bool:
        return aten.all.dims(_truth(x), axes(x, dim), keepdim)
    if inner == out == x.dtype and dtype is None:
        return NotImplemented
    return cast(aten.prod.dim_int(cast(x, inner), dim, keepdim), out)


def prod_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    inner, out = _accumulator(x, dtype)
    if out is torch.bool:
        return aten.all.dims(_truth(x), axes(x, None))
    if inner == out == x.dtype and dtype is None:
        return NotImplemented
    return cast(aten.prod.default(cast(x, inner)), out)


# torch's entry divides after rounding the sum to half; eager rounds once, after the division.
def mean_dims(
    x: Tensor, dims: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    out = dtype or x.dtype
    return cast(average(wide(cast(x, out)), axes(x, dims), keepdim), out)


def mean_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return mean_dims(x, None, dtype=dtype)


def deviations(x: Tensor, reduced: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Of a wide tensor: its mean (axes kept), its distance from it, and the sum of squares."""
    mean = average(x, reduced, True)
    centred = aten.sub.Tensor(x, mean)
    return mean, centred, total(aten.mul.Tensor(centred, centred), reduced, True)


def divided(squares: Tensor, n: Any, correction: float) -> Tensor:
    """The variance. Eager's divisor is max(0, n - correction); 0 / 0 is its NaN."""
    return aten.div.Tensor(squares, n - correction if n > correction else 0)


def moments(
    x: Tensor, dims: Dims, correction: float | None, keepdim: bool
) -> tuple[Tensor, Tensor]:
    """Variance and mean of a wide tensor, in two passes."""
    reduced = axes(x, dims)
    mean, _, squares = deviations(x, reduced)
    less = 1 if correction is None else correction
    if less == int(less):
        less = int(less)  # n - 1.0 would be a symbolic float
    variance = divided(squares, count(x, reduced), less)
    if keepdim or not reduced:
        return variance, mean
    return aten.squeeze.dims(variance, reduced), aten.squeeze.dims(mean, reduced)


# torch's entries end in prims.var, which has no row, and the one-pass form cancels.
def var_mean(
    x: Tensor, dims: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    if x.is_complex():
        return NotImplemented
    variance, mean = moments(wide(x), dims, correction, keepdim)
    return cast(variance, x.dtype), cast(mean, x.dtype)


def var(
    x: Tensor, dims: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    both: Any = var_mean(x, dims, correction=correction, keepdim=keepdim)
    return both if both is NotImplemented else both[0]


def std_mean(
    x: Tensor, dims: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    if x.is_complex():
        return NotImplemented
    variance, mean = moments(wide(x), dims, correction, keepdim)
    return cast(aten.sqrt.default(variance), x.dtype), cast(mean, x.dtype)


def std(
    x: Tensor, dims: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    both: Any = std_mean(x, dims, correction=correction, keepdim=keepdim)
    return both if both is NotImplemented else both[0]


# Two reductions of one row fuse; the library's pair kernel does not. Both see NaN as the extreme
# and report its first position. There is no argmax of bools.
def _extreme_dim(value: Rule, position: Rule) -> Rule:
    def extreme(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        ordered = cast(x, torch.uint8) if x.dtype is torch.bool else x
        return value(x, [dim], keepdim), position(ordered, dim, keepdim)

    return extreme


max_dim = _extreme_dim(aten.amax.default, aten.argmax.default)
min_dim = _extreme_dim(aten.amin.default, aten.argmin.default)


def max_all(x: Tensor) -> Tensor:
    return aten.amax.default(x, axes(x, None))


def min_all(x: Tensor) -> Tensor:
    return aten.amin.default(x, axes(x, None))


def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    reduced = axes(x, dim)
    return aten.amin.default(x, reduced, keepdim), aten.amax.default(x, reduced, keepdim)


# torch's entry reduces in half and subtracts infinities from each other before it masks them.
def logsumexp(x: Tensor, dims: Dims, keepdim: bool = False) -> Tensor:
    if x.is_complex() or is_empty(x):
        return NotImplemented
    reduced = axes(x, dims)
    out = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    values = wide(cast(x, out))
    largest = aten.amax.default(values, reduced, True)
    finite = aten.ne.Scalar(aten.abs.default(largest), math.inf)
    shift = aten.where.self(finite, largest, constant(0.0, largest))
    powers = total(aten.exp.default(aten.sub.Tensor(values, shift)), reduced, keepdim)
    if not keepdim:
        shift = aten.squeeze.dims(shift, reduced)
    return cast(aten.add.Tensor(aten.log.default(powers), shift), out)


# torch's entry rounds |x|**p to half before it adds.
def vector_norm(
    x: Tensor,
    order: float = 2,
    dims: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    out = dtype or x.dtype
    if x.is_complex() or out.is_complex or is_empty(x):
        return NotImplemented
    reduced = axes(x, dims)
    values = wide(cast(x, out))
    if order == 2:
        result = aten.sqrt.default(total(aten.mul.Tensor(values, values), reduced, keepdim))
    elif order == 0:
        result = total(cast(aten.ne.Scalar(values, 0), values.dtype), reduced, keepdim)
    else:
        size = aten.abs.default(values)
        if order == math.inf:
            result = aten.amax.default(size, reduced, keepdim)
        elif order == -math.inf:
            result = aten.amin.default(size, reduced, keepdim)
        elif order == 1:
            result = total(size, reduced, keepdim)
        else:
            powers = total(aten.pow.Tensor_Scalar(size, order), reduced, keepdim)
            result = aten.pow.Tensor_Scalar(powers, 1.0 / order)
    return cast(result, out)


def norm(
    x: Tensor,
    order: float | None = 2,
    dims: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    return vector_norm(x, 2 if order is None else order, dims, keepdim, dtype=dtype)


def count_nonzero(x: Tensor, dims: Dims = None) -> Tensor:
    return sum_dims(aten.ne.Scalar(x, 0), dims)


def _exponentials(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    largest = aten.amax.default(x, [dim], True)
    return largest, aten.sub.Tensor(x, largest)


# The softmax family: torch's entries copy a non-contiguous input first; here only the result is
# laid out as eager does it. `is_empty` stands in for the reduction over no elements.
def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    values = wide(x)
    if is_empty(x):
        result = contiguous(aten.exp.default(values))
    else:
        _, shifted = _exponentials(values, dim)
        powers = aten.exp.default(shifted)
        result = contiguous(aten.div.Tensor(powers, total(powers, axes(x, dim), True)))
    return result if half_to_float else cast(result, x.dtype)


def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    values = wide(x)
    if is_empty(x):
        result = contiguous(aten.exp.default(values))
    else:
        _, shifted = _exponentials(values, dim)
        powers = total(aten.exp.default(shifted), axes(x, dim), True)
        result = contiguous(aten.sub.Tensor(shifted, aten.log.default(powers)))
    return result if half_to_float else cast(result, x.dtype)


# torch's entry adds an "all" reduction; a row without any finite key has the maximum -inf.
def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    out = dtype or x.dtype
    values = wide(cast(x, out))
    if is_empty(x):
        return cast(aten.exp.default(values), out)
    largest, shifted = _exponentials(values, dim)
    powers = aten.exp.default(shifted)
    result = aten.div.Tensor(powers, total(powers, axes(x, dim), True))
    nothing = aten.eq.Scalar(largest, -math.inf)
    return cast(aten.where.self(nothing, constant(0.0, result), result), out)


def softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    g, y = wide(grad), wide(output)
    inner = total(aten.mul.Tensor(g, y), axes(y, dim), True)
    return cast(contiguous(aten.mul.Tensor(aten.sub.Tensor(g, inner), y)), input_dtype)


def log_softmax_backward(
    grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    g, y = wide(grad), wide(output)
    share = aten.mul.Tensor(aten.exp.default(y), total(g, axes(y, dim), True))
    return cast(contiguous(aten.sub.Tensor(g, share)), input_dtype)


RULES = as_rules(
    {
        aten.sum.default: sum_all,
        aten.sum.dim_IntList: sum_dims,
        aten.prod.default: prod_all,
        aten.prod.dim_int: prod_dim,
        aten.mean.default: mean_all,
        aten.mean.dim: mean_dims,
        aten.var.correction: var,
        aten.var_mean.correction: var_mean,
        aten.std.correction: std,
        aten.std_mean.correction: std_mean,
        aten.max.default: max_all,
        aten.max.dim: max_dim,
        aten.min.default: min_all,
        aten.min.dim: min_dim,
        aten.aminmax.default: aminmax,
        aten.logsumexp.default: logsumexp,
        aten.linalg_vector_norm.default: vector_norm,
        aten.norm.Scalar: norm,
        aten.norm.ScalarOpt_dim: norm,
        aten.norm.ScalarOpt_dtype: norm,
        aten.norm.ScalarOpt_dim_dtype: norm,
        aten.count_nonzero.default: count_nonzero,
        aten.count_nonzero.dim_IntList: count_nonzero,
        aten._softmax.default: softmax,
        aten._log_softmax.default: log_softmax,
        aten._safe_softmax.default: safe_softmax,
        aten._softmax_backward_data.default: softmax_backward,
        aten._log_softmax_backward_data.default: log_softmax_backward,
    }
)
