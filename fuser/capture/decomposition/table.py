"""The decomposition table: which aten calls survive capture, and what the others become.

In: nothing. Out: a mapping from aten overloads to functions, for AOTAutograd. What survives is the
op table's rows, views, and calls kept whole on purpose: products, convolutions, attention, sorts,
scans, scatters, and draws of random numbers that no kernel makes or that have to be eager's.
Entries of torch are taken where they are exact; ours replace the rest and say why.
"""

# mypy: disable-error-code="no-any-return"
# (`torch.ops` is untyped, so a call of an aten op is Any to the type checker)

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch._refs  # registers the reference implementations that torch's entries come from
import torch._refs.nn.functional
from torch import Tensor
from torch._decomp import get_decompositions
from torch._ops import OpOverload

from fuser.capture.decomposition import (
    activations,
    foreach,
    losses,
    matrices,
    norms,
    random_numbers,
    reductions,
    tensors,
    transformers,
)
from fuser.capture.decomposition.common import aten, inside_rule, prims, rule

__all__ = ["decompositions"]

# Entries of torch that keep eager's numerics and end in rows of the op table.
_FROM_TORCH: tuple[str, ...] = (
    # activations and their derivatives: computed in float32 for half inputs, rounded once
    "celu", "elu", "elu_backward", "gelu", "gelu_backward", "glu", "glu_backward", "hardshrink",
    "hardsigmoid", "hardsigmoid_backward", "hardswish", "hardswish_backward", "hardtanh",
    "hardtanh_backward", "leaky_relu", "leaky_relu_backward", "log_sigmoid_backward",
    "log_sigmoid_forward", "mish", "mish_backward", "_prelu_kernel", "_prelu_kernel_backward",
    "rrelu_with_noise_backward", "selu", "sigmoid_backward", "silu", "silu_backward", "softplus",
    "softplus_backward", "softshrink", "tanh_backward", "threshold", "threshold_backward",
    # compound arithmetic
    "addcdiv", "addcmul", "addr", "deg2rad", "dist", "heaviside", "isneginf", "isposinf",
    "isin", "lerp", "logaddexp", "logaddexp2", "logit", "logit_backward", "mvlgamma", "nan_to_num",
    "nansum", "rad2deg", "sgn", "sinc", "special_entr", "special_log_ndtr", "special_xlog1py",
    "xlogy",
    # losses without a reduction in half
    "binary_cross_entropy", "binary_cross_entropy_backward", "binary_cross_entropy_with_logits",
    "soft_margin_loss",
    # made of indices, views and borders
    "alias_copy", "arange", "diag_embed", "diagonal_backward", "diagonal_copy",
    "expand_copy", "eye", "linspace", "logspace", "narrow_copy", "permute_copy", "pixel_shuffle",
    "pixel_unshuffle", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "_reshape_alias",
    "replication_pad1d", "replication_pad2d", "replication_pad3d", "rot90", "select_backward",
    "slice_backward", "squeeze_copy", "t_copy", "transpose_copy", "tril", "triu",
    "unsqueeze_copy", "_unsafe_index", "_unsafe_index_put", "_unsafe_masked_index",
    # mutate their statistics; where they appear, only torch's entry knows how
    "cudnn_batch_norm", "cudnn_batch_norm_backward", "miopen_batch_norm_backward",
)  # fmt: skip

# Of those, overloads that are left alone: they write into an argument.
_SKIPPED_OVERLOADS = ("out", "grad_input")

_OWN: tuple[Mapping[Any, Callable[..., Any]], ...] = (
    reductions.RULES,
    norms.RULES,
    losses.RULES,
    matrices.RULES,
    tensors.RULES,
    foreach.RULES,
    transformers.RULES,
)


# A cast traced inside a decomposition is not the user's and may stay wide, so it is spelled
# differently. torch's own entry would spell both the same way.
def _internal_cast(
    x: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    elsewhere = device is not None and torch.device(device) != x.device
    if not inside_rule() or elsewhere or dtype is None or pin_memory:
        return NotImplemented
    if layout not in (None, torch.strided):
        return NotImplemented
    converted = prims.convert_element_type.default(x, dtype)
    if memory_format in (None, torch.preserve_format):
        return converted
    return aten.clone.default(converted, memory_format=memory_format)


def _packets() -> list[Any]:
    return [getattr(aten, name) for name in _FROM_TORCH if hasattr(aten, name)]


@functools.cache
def decompositions(
    fuses_random: bool = True, keeps_steps: bool = False
) -> dict[OpOverload, Callable[..., Any]]:
    """The table for AOTAutograd; treat it as read-only.

    With `fuses_random` False, what draws random numbers is left to eager and its stream. With
    `keeps_steps` everything is made of eager's own steps, to be equal to it bit for bit.
    """
    table: dict[Any, Callable[..., Any]] = {
        target: rule(function)
        for target, function in get_decompositions(_packets()).items()
        if not str(target).rpartition(".")[2].endswith(_SKIPPED_OVERLOADS)
    }
    optional = [random_numbers.RULES] if fuses_random else []
    optional += [] if keeps_steps else [activations.RULES]
    for rules in (*_OWN, *optional):
        table.update(rules)
    table[aten._to_copy.default] = _internal_cast
    return table
