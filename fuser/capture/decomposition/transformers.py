"""PyTorch's fused encoder layer, taken apart again.

In: the arguments of the call that `nn.TransformerEncoderLayer` makes in eval mode. Out: products,
attention, norms and activations, so that what stands around the products can fuse.
"""

# mypy: disable-error-code="no-any-return"
# (`torch.ops` is untyped, so a call of an aten op is Any to the type checker)

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fuser.capture.decomposition.common import Rule, as_rules, aten


def encoder_layer(
    source: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    projection_weight: Tensor,
    projection_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    feed_weight_1: Tensor,
    feed_bias_1: Tensor,
    feed_weight_2: Tensor,
    feed_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    # With a mask the call also moves padding around; that form stays as it is.
    if mask is not None or source.is_nested:
        return NotImplemented

    def attention(x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        packed = functional.linear(x, qkv_weight, qkv_bias)
        heads = packed.view(batch, length, 3, num_heads, embed_dim // num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        joined = mixed.transpose(1, 2).reshape(batch, length, embed_dim)
        return functional.linear(joined, projection_weight, projection_bias)

    def feed_forward(x: Tensor) -> Tensor:
        hidden = functional.linear(x, feed_weight_1, feed_bias_1)
        hidden = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
        return functional.linear(hidden, feed_weight_2, feed_bias_2)

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x, (embed_dim,), weight, bias, eps)

    if norm_first:
        x = source + attention(norm(source, norm_weight_1, norm_bias_1))
        return x + feed_forward(norm(x, norm_weight_2, norm_bias_2))
    x = norm(source + attention(source), norm_weight_1, norm_bias_1)
    return norm(x + feed_forward(x), norm_weight_2, norm_bias_2)


_FUSED: Mapping[Any, Rule] = (
    {aten._transformer_encoder_layer_fwd.default: encoder_layer}
    if hasattr(torch.ops.aten, "_transformer_encoder_layer_fwd")
    else {}
)

RULES = as_rules(_FUSED)
