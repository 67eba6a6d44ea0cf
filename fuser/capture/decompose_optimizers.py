"""Optimiser steps: `_foreach_*` list ops and the fused Adam and SGD kernels, tensor by tensor.

In: the lists of one optimiser step. Out: pointwise ops of each tensor, which later fuse across
the list. Scalars that differ by tensor become constants of that tensor's ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fuser.capture.decompose_common import Rule, aten, cast, rule, wide

Lists = tuple[list[Tensor], ...]

# A list op whose per-tensor op has another name. Against a scalar, maximum is a clamp.
_OTHER_NAMES = {"max": "amax", "norm": "linalg_vector_norm"}
_SCALAR_NAMES = {"maximum": "clamp_min", "minimum": "clamp_max"}


def _each(name: str, function: Any) -> Rule:
    """Apply one aten op to the k-th element of every list argument, for each k."""

    def apply(*arguments: Any, **options: Any) -> list[Tensor]:
        length = next(len(a) for a in arguments if isinstance(a, (list, tuple)))

        def element(argument: Any, k: int) -> Any:
            return argument[k] if isinstance(argument, (list, tuple)) else argument

        return [function(*(element(a, k) for a in arguments), **options) for k in range(length)]

    apply.__name__ = f"each_{name}"
    return apply


def _foreach_rules() -> Iterator[tuple[Any, Rule]]:
    for packet_name in dir(aten):
        name = packet_name.removeprefix("_foreach_")
        if name == packet_name or name.endswith("_"):
            continue
        packet = getattr(aten, packet_name)
        for overload_name in packet.overloads():
            overload = getattr(packet, overload_name)
            # `addcdiv.Tensor` takes its scalars from a tensor, whose elements are not known here.
            opaque = name.startswith("addc") and overload_name == "Tensor"
            if overload._schema.is_mutable or opaque or "out" in overload_name:
                continue
            per_tensor = _OTHER_NAMES.get(name, name)
            if overload_name.startswith("Scalar"):
                per_tensor = _SCALAR_NAMES.get(name, per_tensor)
            if hasattr(aten, per_tensor):
                yield overload, _each(per_tensor, getattr(aten, per_tensor))


def _unscaled(grad: Tensor, grad_scale: Tensor | None, maximize: bool) -> tuple[Tensor, Tensor]:
    """The gradient to apply and the gradient to hand back."""
    g = wide(grad)
    if grad_scale is not None:
        g = aten.div.Tensor(g, grad_scale)
    returned = cast(g, grad.dtype) if grad_scale is not None else aten.clone.default(grad)
    return (aten.neg.default(g) if maximize else g), returned


def _kept(new: Tensor, old: Tensor, found_inf: Tensor | None) -> Tensor:
    """In the old tensor's type; the old value itself where the step is skipped."""
    new = cast(new, old.dtype)
    if found_inf is None:
        return new
    return aten.where.self(aten.eq.Scalar(found_inf, 1), old, new)


def _mixed(old: Tensor, new: Tensor, weight: float) -> Tensor:
    return aten.add.Tensor(aten.mul.Tensor(old, weight), aten.mul.Tensor(new, 1 - weight))


def _adam(decoupled: bool) -> Rule:
    """Adam with the weight decay in the gradient, or decoupled (AdamW)."""

    def step(
        parameters: Sequence[Tensor],
        grads: Sequence[Tensor],
        averages: Sequence[Tensor],
        squares: Sequence[Tensor],
        largest: Sequence[Tensor],
        steps: Sequence[Tensor],
        *,
        lr: float | Tensor,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> Lists:
        results: Lists = ([], [], [], [], [])
        for k, parameter in enumerate(parameters):
            g, returned = _unscaled(grads[k], grad_scale, maximize)
            value = wide(parameter)
            if weight_decay != 0:
                if decoupled:
                    decay = aten.mul.Tensor(value, aten.mul.Tensor(lr, weight_decay)) if isinstance(
                        lr, Tensor
                    ) else aten.mul.Tensor(value, lr * weight_decay)
                    value = aten.sub.Tensor(value, decay)
                else:
                    g = aten.add.Tensor(g, aten.mul.Tensor(value, weight_decay))
            average = _mixed(wide(averages[k]), g, beta1)
            square = _mixed(wide(squares[k]), aten.mul.Tensor(g, g), beta2)
            # In double, as the kernel: 1 - 0.999 ** 1 has three digits in single precision.
            count = cast(steps[k], torch.float64)
            first, second = (
                aten.sub.Tensor(1.0, aten.pow.Scalar(beta, count)) for beta in (beta1, beta2)
            )
            size = cast(aten.mul.Tensor(aten.reciprocal.default(first), lr), value.dtype)
            root = cast(aten.sqrt.default(second), value.dtype)
            bound = square
            if amsgrad:
                bound = aten.maximum.default(wide(largest[k]), square)
                results[4].append(_kept(bound, largest[k], found_inf))
            norm = aten.add.Tensor(aten.div.Tensor(aten.sqrt.default(bound), root), eps)
            value = aten.sub.Tensor(value, aten.div.Tensor(aten.mul.Tensor(average, size), norm))
            results[0].append(_kept(value, parameter, found_inf))
            results[1].append(returned)
            results[2].append(_kept(average, averages[k], found_inf))
            results[3].append(_kept(square, squares[k], found_inf))
        return results

    return step


def sgd(
    parameters: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: float | Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Lists:
    results: Lists = ([], [], [])
    for k, parameter in enumerate(parameters):
        g, returned = _unscaled(grads[k], grad_scale, maximize)
        value = wide(parameter)
        if weight_decay != 0:
            g = aten.add.Tensor(g, aten.mul.Tensor(value, weight_decay))
        if momentum != 0:
            buffer = g
            if not is_first_step:
                kept = aten.mul.Tensor(wide(buffers[k]), momentum)
                buffer = aten.add.Tensor(kept, aten.mul.Tensor(g, 1 - dampening))
            results[2].append(_kept(buffer, buffers[k], found_inf))
            g = aten.add.Tensor(g, aten.mul.Tensor(buffer, momentum)) if nesterov else buffer
        value = aten.sub.Tensor(value, aten.mul.Tensor(g, lr))
        results[0].append(_kept(value, parameter, found_inf))
        results[1].append(returned)
    return results


RULES: Mapping[Any, Rule] = MappingProxyType(
    {
        target: rule(function)
        for target, function in {
            **dict(_foreach_rules()),
            aten._fused_adam.default: _adam(decoupled=False),
            aten._fused_adam.tensor_lr: _adam(decoupled=False),
            aten._fused_adamw.default: _adam(decoupled=True),
            aten._fused_adamw.tensor_lr: _adam(decoupled=True),
            aten._fused_sgd.default: sgd,
            aten._fused_sgd.tensor_lr: sgd,
        }.items()
    }
)
