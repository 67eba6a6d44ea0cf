"""Normalisations, forward and backward: layer, RMS, group and batch norm.

In: the arguments of the aten call. Out: two-pass statistics in float32 for half inputs, pointwise
ops, and results in eager's element type and layout. The backward passes are written with averages
(dx = rstd * (g - avg(g) - x_hat * avg(g * x_hat))), which needs no factor n that could overflow
or turn into a symbolic float, and no per-channel coefficients that cancel.
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
    average,
    cast,
    contiguous,
    count,
    like_input_format,
    total,
    unsqueeze_to,
    wide,
    wide_dtype,
)
from fuser.capture.decomposition.reductions import deviations, divided

Optional = Tensor | None
Grads = tuple[Optional, Optional, Optional]


def _statistics_dtype(x: Tensor, *parameters: Optional) -> torch.dtype:
    """Eager keeps statistics wide, except on the CPU when input and parameters share a type."""
    mixed = any(p is not None and p.dtype != x.dtype for p in parameters)
    return x.dtype if x.device.type == "cpu" and not mixed else wide_dtype(x.dtype)


def _normalise(
    x: Tensor, reduced: Sequence[int], eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The standardised wide tensor, mean, reciprocal deviation, sum of squares (axes kept)."""
    mean, centred, squares = deviations(x, reduced)
    variance = divided(squares, count(x, reduced), 0)
    rstd = aten.rsqrt.default(aten.add.Tensor(variance, eps))
    return aten.mul.Tensor(centred, rstd), mean, rstd, squares


def _affine(x: Tensor, weight: Optional, bias: Optional) -> Tensor:
    if weight is not None:
        x = aten.mul.Tensor(x, wide(weight))
    return x if bias is None else aten.add.Tensor(x, wide(bias))


def _grad_through(g: Tensor, x_hat: Tensor, rstd: Tensor, reduced: Sequence[int]) -> Tensor:
    """Gradient through standardisation: remove what moves the mean and what moves the scale."""
    inner = average(aten.mul.Tensor(g, x_hat), reduced, True)
    centred = aten.sub.Tensor(g, average(g, reduced, True))
    return aten.mul.Tensor(aten.sub.Tensor(centred, aten.mul.Tensor(x_hat, inner)), rstd)


def _parameter_grad(terms: Tensor, outer: Sequence[int], parameter: Tensor) -> Tensor:
    summed = total(terms, outer) if outer else aten.clone.default(terms)
    return cast(summed, parameter.dtype)


def _split(x: Tensor, shape: Sequence[int]) -> tuple[list[int], list[int]]:
    first = x.dim() - len(shape)
    return list(range(first)), list(range(first, x.dim()))


# torch's layer_norm and rms_norm entries reach prims.var, leave eager's contiguous layout to
# chance, and give the RMS weight's gradient the input's element type.
def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Optional, bias: Optional, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    _, inner = _split(x, shape)
    x_hat, mean, rstd, _ = _normalise(wide(x), inner, eps)
    out = contiguous(_affine(x_hat, weight, bias))
    kept = _statistics_dtype(x, weight, bias)
    return cast(out, x.dtype), cast(mean, kept), cast(rstd, kept)


def layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Optional,
    bias: Optional,
    mask: Sequence[bool],
) -> Grads:
    outer, inner = _split(x, shape)
    g, values = wide(grad), wide(x)
    scale = cast(rstd, values.dtype)
    x_hat = aten.mul.Tensor(aten.sub.Tensor(values, cast(mean, values.dtype)), scale)
    dx = dw = db = None
    if mask[0]:
        dx = _grad_through(_affine(g, weight, None), x_hat, scale, inner)
        dx = cast(contiguous(dx), x.dtype)
    if mask[1] and weight is not None:
        dw = _parameter_grad(aten.mul.Tensor(g, x_hat), outer, weight)
    if mask[2] and bias is not None:
        db = _parameter_grad(g, outer, bias)
    return dx, dw, db


def rms_norm(
    x: Tensor, shape: Sequence[int], weight: Optional, eps: float | None
) -> tuple[Tensor, Tensor]:
    if x.is_complex():
        return NotImplemented
    _, inner = _split(x, shape)
    values = wide(x)
    square = average(aten.mul.Tensor(values, values), inner, True)
    floor = torch.finfo(values.dtype).eps if eps is None else eps
    rstd = aten.rsqrt.default(aten.add.Tensor(square, floor))
    out = like_input_format(_affine(aten.mul.Tensor(values, rstd), weight, None), x)
    return cast(out, x.dtype), rstd


def rms_norm_backward(
    grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    rstd: Tensor,
    weight: Optional,
    mask: Sequence[bool],
) -> tuple[Optional, Optional]:
    outer, inner = _split(x, shape)
    g, values = wide(grad), wide(x)
    scale = cast(rstd, values.dtype)
    x_hat = aten.mul.Tensor(values, scale)
    dx = dw = None
    if mask[0]:
        through = _affine(g, weight, None)
        share = average(aten.mul.Tensor(through, x_hat), inner, True)
        dx = aten.mul.Tensor(aten.sub.Tensor(through, aten.mul.Tensor(x_hat, share)), scale)
        dx = cast(like_input_format(dx, x), x.dtype)
    if mask[1] and weight is not None:
        dw = _parameter_grad(aten.mul.Tensor(g, x_hat), outer, weight)
    return dx, dw


# torch's group_norm entries flatten the pixels, which copies a channels-last input, and their
# backward subtracts large per-channel coefficients. Splitting the channel axis is always a view.
def _grouped(x: Tensor, groups: int) -> Tensor:
    n, c, *pixels = x.shape
    return aten.view.default(x, [n, groups, c // groups, *pixels])


def _channels(parameter: Tensor, groups: int, rank: int) -> Tensor:
    pixels = [1] * (rank - 3)
    return aten.view.default(parameter, [groups, parameter.shape[0] // groups, *pixels])


def group_norm(
    x: Tensor,
    weight: Optional,
    bias: Optional,
    n: int,
    c: int,
    pixels: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    values = _grouped(wide(x), groups)
    inner = list(range(2, values.dim()))
    out, mean, rstd, _ = _normalise(values, inner, eps)
    scale, shift = (
        None if p is None else _channels(p, groups, values.dim()) for p in (weight, bias)
    )
    merged = aten.reshape.default(_affine(out, scale, shift), list(x.shape))
    kept = _statistics_dtype(x, weight, bias)
    mean, rstd = (cast(aten.view.default(s, [n, groups]), kept) for s in (mean, rstd))
    return cast(like_input_format(merged, x), x.dtype), mean, rstd


def group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Optional,
    n: int,
    c: int,
    pixels: int,
    groups: int,
    mask: Sequence[bool],
) -> Grads:
    g, values = _grouped(wide(grad), groups), _grouped(wide(x), groups)
    rank = values.dim()
    statistic = [n, groups] + [1] * (rank - 2)
    centre, scale = (cast(aten.view.default(s, statistic), values.dtype) for s in (mean, rstd))
    x_hat = aten.mul.Tensor(aten.sub.Tensor(values, centre), scale)
    outer = [0, *range(3, rank)]
    dx = dw = db = None
    if mask[0]:
        gamma = None if weight is None else _channels(weight, groups, rank)
        dx = _grad_through(_affine(g, gamma, None), x_hat, scale, list(range(2, rank)))
        dx = like_input_format(aten.reshape.default(dx, list(x.shape)), x)
        dx = cast(dx, x.dtype)
    like = x if weight is None else weight
    if mask[1]:
        dw = aten.view.default(_parameter_grad(aten.mul.Tensor(g, x_hat), outer, like), [c])
    if mask[2]:
        db = aten.view.default(_parameter_grad(g, outer, like), [c])
    return dx, dw, db


# torch's batch_norm entries divide by n / (n - 1), a ZeroDivisionError for one sample, form it in
# symbolic floats, and keep the running statistics' update in the half type of the input.
def _batch_axes(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def _per_channel(x: Tensor, rank: int) -> Tensor:
    return unsqueeze_to(wide(x), rank, 1)


def _batch_affine(x_hat: Tensor, x: Tensor, weight: Optional, bias: Optional) -> Tensor:
    parameters = (None if p is None else _per_channel(p, x.dim()) for p in (weight, bias))
    return cast(like_input_format(_affine(x_hat, *parameters), x), x.dtype)


def _moved(running: Tensor, seen: Tensor, momentum: float) -> Tensor:
    kept = aten.mul.Tensor(wide(running), 1 - momentum)
    return cast(aten.add.Tensor(kept, aten.mul.Tensor(seen, momentum)), running.dtype)


def batch_norm_training(
    x: Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: Optional,
    running_var: Optional,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Optional, Optional]:
    reduced = _batch_axes(x)
    x_hat, mean, rstd, squares = _normalise(wide(x), reduced, eps)
    out = _batch_affine(x_hat, x, weight, bias)
    mean, rstd, squares = (aten.squeeze.dims(s, reduced) for s in (mean, rstd, squares))
    if running_mean is not None:
        running_mean = _moved(running_mean, mean, momentum)
    if running_var is not None:
        unbiased = divided(squares, count(x, reduced), 1)
        running_var = _moved(running_var, unbiased, momentum)
    kept = _statistics_dtype(x, weight, bias)
    return out, cast(mean, kept), cast(rstd, kept), running_mean, running_var


def batch_norm_functional(
    x: Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Optional, ...]:
    if training:
        return batch_norm_training(x, weight, bias, running_mean, running_var, momentum, eps)
    out = batch_norm_inference(x, weight, bias, running_mean, running_var, momentum, eps)
    return (*out, aten.clone.default(running_mean), aten.clone.default(running_var))


def batch_norm_without_statistics(
    x: Tensor, weight: Optional, bias: Optional, training: bool, momentum: float, eps: float
) -> tuple[Optional, ...]:
    return batch_norm_training(x, weight, bias, None, None, momentum, eps)[:3]


def batch_norm_inference(
    x: Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    rstd = aten.rsqrt.default(aten.add.Tensor(wide(running_var), eps))
    centred = aten.sub.Tensor(wide(x), _per_channel(running_mean, x.dim()))
    x_hat = aten.mul.Tensor(centred, _per_channel(rstd, x.dim()))
    out = _batch_affine(x_hat, x, weight, bias)
    if x.device.type == "cpu":  # eager saves nothing there
        saved = aten.full.default([0], 0, dtype=x.dtype, device=x.device)
        return out, saved, saved
    return out, wide(running_mean), rstd


def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Optional,
    running_mean: Optional,
    running_var: Optional,
    saved_mean: Optional,
    saved_rstd: Optional,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> Grads:
    reduced = _batch_axes(x)
    g, values = wide(grad), wide(x)
    if training:
        assert saved_mean is not None
        assert saved_rstd is not None
        mean, rstd = cast(saved_mean, values.dtype), cast(saved_rstd, values.dtype)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean = cast(running_mean, values.dtype)
        rstd = aten.rsqrt.default(aten.add.Tensor(cast(running_var, values.dtype), eps))
    scale = _per_channel(rstd, x.dim())
    x_hat = aten.mul.Tensor(aten.sub.Tensor(values, _per_channel(mean, x.dim())), scale)
    dx = dw = db = None
    if mask[0]:
        through = g if weight is None else aten.mul.Tensor(g, _per_channel(weight, x.dim()))
        if training:
            dx = _grad_through(through, x_hat, scale, reduced)
        else:
            dx = aten.mul.Tensor(through, scale)
        dx = cast(like_input_format(dx, x), x.dtype)
    like = x if weight is None else weight
    if mask[1]:
        dw = _parameter_grad(aten.mul.Tensor(g, x_hat), reduced, like)
    if mask[2]:
        db = _parameter_grad(g, reduced, like)
    return dx, dw, db


def _reserve(x: Tensor) -> Tensor:
    return aten.full.default([0], 0, dtype=torch.uint8, device=x.device)


def batch_norm_with_update(
    x: Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Optional, ...]:
    out, mean, rstd, new_mean, new_var = batch_norm_training(
        x, weight, bias, running_mean, running_var, momentum, eps
    )
    return out, mean, rstd, _reserve(x), new_mean, new_var


def batch_norm_no_update(*arguments: Any) -> tuple[Optional, ...]:
    return (*batch_norm_inference(*arguments), _reserve(arguments[0]))


def batch_norm_backward_with_reserve(*arguments: Any) -> Grads:
    return batch_norm_backward(*arguments[:-1])


RULES = as_rules(
    {
        aten.native_layer_norm.default: layer_norm,
        aten.native_layer_norm_backward.default: layer_norm_backward,
        aten._fused_rms_norm.default: rms_norm,
        aten._fused_rms_norm_backward.default: rms_norm_backward,
        aten.native_group_norm.default: group_norm,
        aten.native_group_norm_backward.default: group_norm_backward,
        aten._native_batch_norm_legit_functional.default: batch_norm_functional,
        aten._native_batch_norm_legit.no_stats: batch_norm_without_statistics,
        aten._native_batch_norm_legit_no_training.default: batch_norm_inference,
        aten.native_batch_norm_backward.default: batch_norm_backward,
        aten._batch_norm_with_update_functional.default: batch_norm_with_update,
        aten._batch_norm_no_update.default: batch_norm_no_update,
        aten.batch_norm_backward.default: batch_norm_backward_with_reserve,
    }
)
