"""Losses, forward and backward, where the entries of torch are not good enough.

In: the arguments of the aten call. Out: pointwise ops, gathers and sums in float32 for half
inputs, rounded once at the end as eager's kernels do.
"""

# mypy: disable-error-code="no-any-return"
# (`torch.ops` is untyped, so a call of an aten op is Any to the type checker)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fuser.capture.decomposition.common import (
    as_rules,
    aten,
    average,
    axes,
    cast,
    constant,
    contiguous,
    prims,
    total,
    unsqueeze_to,
    wide,
)

NONE, MEAN, SUM = 0, 1, 2


def _reduced(loss: Tensor, reduction: int, dtype: torch.dtype) -> Tensor:
    if reduction == MEAN:
        loss = average(loss, axes(loss, None))
    elif reduction == SUM:
        loss = total(loss, axes(loss, None))
    return cast(loss, dtype)


def _spread(grad: Tensor, x: Tensor, reduction: int) -> Tensor:
    """The gradient of one element's loss; an integer division, never a symbolic float."""
    g = wide(grad)
    return aten.div.Tensor(g, x.numel()) if reduction == MEAN else g


def _wide_pair(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, torch.dtype]:
    dtype = torch.promote_types(x.dtype, target.dtype)
    return wide(cast(x, dtype)), wide(cast(target, dtype)), dtype


# torch's entries round the elementwise losses to half before they are averaged; their backward
# multiplies by 1 / n as a Python float, which is a symbolic float for symbolic sizes.
def _distance_loss(forward: Callable[..., Tensor], backward: Callable[..., Tensor]) -> Any:
    def loss(x: Tensor, target: Tensor, reduction: int = MEAN, *options: float) -> Tensor:
        a, b, dtype = _wide_pair(x, target)
        return _reduced(forward(aten.sub.Tensor(a, b), *options), reduction, dtype)

    def grad(g: Tensor, x: Tensor, target: Tensor, reduction: int, *options: float) -> Tensor:
        a, b, dtype = _wide_pair(x, target)
        slope = backward(aten.sub.Tensor(a, b), *options)
        return cast(contiguous(aten.mul.Tensor(slope, _spread(g, x, reduction))), dtype)

    return loss, grad


def _square(d: Tensor) -> Tensor:
    return aten.mul.Tensor(d, d)


def _square_slope(d: Tensor) -> Tensor:
    return aten.mul.Tensor(d, 2.0)


def _smooth(d: Tensor, beta: float = 1.0) -> Tensor:
    size = aten.abs.default(d)
    near = aten.div.Tensor(aten.mul.Tensor(aten.mul.Tensor(size, 0.5), size), beta)
    return aten.where.self(aten.lt.Scalar(size, beta), near, aten.sub.Tensor(size, 0.5 * beta))


def _smooth_slope(d: Tensor, beta: float) -> Tensor:
    far = aten.ge.Scalar(aten.abs.default(d), beta)  # not true of NaN, which has to come through
    return aten.where.self(far, aten.sign.default(d), aten.div.Tensor(d, beta))


def _huber(d: Tensor, delta: float = 1.0) -> Tensor:
    size = aten.abs.default(d)
    near = aten.mul.Tensor(aten.mul.Tensor(size, 0.5), size)
    far = aten.mul.Tensor(aten.sub.Tensor(size, 0.5 * delta), delta)
    return aten.where.self(aten.le.Scalar(size, delta), near, far)


def _huber_slope(d: Tensor, delta: float) -> Tensor:
    far = aten.ge.Scalar(aten.abs.default(d), delta)
    return aten.where.self(far, aten.mul.Tensor(aten.sign.default(d), delta), d)


mse, mse_backward = _distance_loss(_square, _square_slope)
smooth_l1, smooth_l1_backward = _distance_loss(_smooth, _smooth_slope)
huber, huber_backward = _distance_loss(_huber, _huber_slope)


# torch's entry subtracts 1 from a sigmoid near 1, which leaves few digits; eager does not.
def soft_margin_backward(g: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    a, b, dtype = _wide_pair(x, target)
    signs = aten.neg.default(b)
    slope = aten.mul.Tensor(signs, aten.sigmoid.default(aten.mul.Tensor(signs, a)))
    return cast(contiguous(aten.mul.Tensor(slope, _spread(g, x, reduction))), dtype)


# torch's nll_loss entries count the targets in the input's type (301 tokens are 302 in bfloat16),
# and their backward scatters into a tensor of zeros, which no kernel fuses with log_softmax's.
def _targets(
    x: Tensor, target: Tensor, weight: Tensor | None, ignored: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Which targets count, their class (0 where they do not), and their weight."""
    counts = aten.ne.Scalar(target, ignored)
    classes = aten.where.self(counts, target, constant(0, target))
    return counts, classes, None if weight is None else aten.index.Tensor(wide(weight), [classes])


def nll_forward(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int
) -> tuple[Tensor, Tensor]:
    if x.dim() < 2:
        one, numbers = aten.unsqueeze.default(x, 0), aten.view.default(target, [1])
        loss, weighed = nll_forward(one, numbers, weight, reduction, ignored)
        return aten.view.default(loss, []), weighed
    counts, classes, weights = _targets(x, target, weight, ignored)
    picked = aten.gather.default(x, 1, aten.unsqueeze.default(classes, 1))
    loss = aten.neg.default(wide(aten.squeeze.dim(picked, 1)))
    if weights is not None:
        loss = aten.mul.Tensor(loss, weights)
    loss = aten.where.self(counts, loss, constant(0.0, loss))
    if reduction == NONE:
        return cast(loss, x.dtype), constant(0.0, x)
    every = axes(loss, None)
    shares = cast(counts, loss.dtype)
    if weights is not None:
        shares = aten.where.self(counts, weights, constant(0.0, weights))
    weighed = total(shares, every)
    summed = total(loss, every)
    if reduction == MEAN:
        summed = aten.div.Tensor(summed, weighed)
    return cast(summed, x.dtype), cast(weighed, x.dtype)


def nll_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
    weighed: Tensor,
) -> Tensor:
    if x.dim() < 2:
        one, numbers = aten.unsqueeze.default(x, 0), aten.view.default(target, [1])
        slopes = nll_backward(
            aten.view.default(grad, [1]) if reduction == NONE else grad,
            one, numbers, weight, reduction, ignored, weighed,
        )  # fmt: skip
        return aten.squeeze.dim(slopes, 0)
    counts, classes, weights = _targets(x, target, weight, ignored)
    g = wide(grad)
    if reduction == MEAN:
        g = aten.div.Tensor(g, wide(weighed))
    if weights is not None:
        g = aten.mul.Tensor(g, weights)
    zero = constant(0.0, g)
    slope = aten.where.self(counts, aten.neg.default(g), zero)
    channels = prims.iota.default(
        x.shape[1], start=0, step=1, dtype=target.dtype, device=x.device, requires_grad=False
    )
    hit = aten.eq.Tensor(unsqueeze_to(channels, x.dim(), 1), aten.unsqueeze.default(classes, 1))
    return cast(aten.where.self(hit, aten.unsqueeze.default(slope, 1), zero), x.dtype)


RULES = as_rules(
    {
        aten.mse_loss.default: mse,
        aten.mse_loss_backward.default: mse_backward,
        aten.smooth_l1_loss.default: smooth_l1,
        aten.smooth_l1_loss_backward.default: smooth_l1_backward,
        aten.huber_loss.default: huber,
        aten.huber_loss_backward.default: huber_backward,
        aten.soft_margin_loss_backward.default: soft_margin_backward,
        aten.nll_loss_forward.default: nll_forward,
        aten.nll_loss_backward.default: nll_backward,
        aten.nll_loss2d_forward.default: nll_forward,
        aten.nll_loss2d_backward.default: nll_backward,
    }
)
