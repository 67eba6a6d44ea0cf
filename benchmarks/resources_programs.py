"""Plain PyTorch functions for `resources_corpus`: elementwise chains to transformer blocks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def gelu_chain(x: Tensor, scale: Tensor, shift: Tensor, residual: Tensor) -> Tensor:
    return functional.gelu(x * scale + shift) * torch.sigmoid(residual) + residual


def tanh_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(x + bias, approximate="tanh")


def three_outputs(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    hidden = torch.tanh(x)
    return hidden * 2, hidden + x, hidden * hidden


def eight_outputs(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (
        x + y, x - y, x * y, torch.maximum(x, y), torch.minimum(x, y), x.abs(), y.neg(), x > y,
    )  # fmt: skip


def swiglu(gate: Tensor, signal: Tensor) -> Tensor:
    return functional.silu(gate) * signal


def packed_swiglu(packed: Tensor) -> Tensor:
    gate, signal = packed.chunk(2, -1)
    return functional.silu(gate) * signal


def bias_dropout_residual(x: Tensor, bias: Tensor, keep: Tensor, residual: Tensor) -> Tensor:
    return residual + (x + bias) * keep * (1 / 0.9)


def adamw(
    weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    first = first * 0.9 + gradient * 0.1
    second = second * 0.999 + gradient * gradient * 0.001
    step = first / 0.5 / ((second / 0.3).sqrt() + 1e-8)
    return weight * (1 - 1e-4) - 1e-3 * step, first, second


def adamw_half(
    weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, ...]:
    updated, first, second = adamw(weight, gradient.float(), first, second)
    return updated, first, second, updated.bfloat16()


def momentum(weight: Tensor, gradient: Tensor, momentum: Tensor) -> tuple[Tensor, Tensor]:
    momentum = momentum * 0.9 + gradient + 1e-2 * weight
    return weight - 1e-3 * momentum, momentum


def lion(weight: Tensor, gradient: Tensor, average: Tensor) -> tuple[Tensor, Tensor]:
    update = (average * 0.9 + gradient * 0.1).sign()
    return weight * 0.999 - 1e-4 * update, average * 0.99 + gradient * 0.01


def average(weight: Tensor, average: Tensor) -> Tensor:
    return torch.lerp(average, weight.float(), 0.001)


def rotary(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cosine + torch.cat([-right, left], -1) * sine


def interleaved_rotary(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    turned = torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1)
    return turned.flatten(-2)


def cat_three(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.cat([x.relu(), y.exp(), z + 1], -1)


def pad_shift(x: Tensor) -> Tensor:
    return functional.pad(x, (1, 1)) * 0.5


def differences(x: Tensor) -> Tensor:
    return (x[:, 2:] - 2 * x[:, 1:-1] + x[:, :-2]) * 0.25


def transposed_heads(x: Tensor, bias: Tensor) -> Tensor:
    batch, length, width = x.shape
    return (x + bias).view(batch, length, 12, width // 12).transpose(1, 2).contiguous() * 0.125


def double_polynomial(x: Tensor, y: Tensor) -> Tensor:
    return ((x * 0.5 + y) * x - y * 0.25) * x + 1


def double_functions(x: Tensor, y: Tensor) -> Tensor:
    return torch.exp(-x * x) * torch.sin(y) / (1 + y * y)


def hashing(keys: Tensor, salt: Tensor) -> Tensor:
    mixed = (keys ^ salt) * 2654435761
    return (mixed ^ (mixed >> 16)) % 65536


def buckets(x: Tensor, width: Tensor) -> Tensor:
    return torch.div(x, width, rounding_mode="floor").clamp(0, 255)


def masks(x: Tensor, y: Tensor, valid: Tensor) -> Tensor:
    return ((x > 0) & (y < 1) | ~valid) & (x != y)


def quantise(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).round().clamp(-128, 127).to(torch.int8)


def dequantise(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return ((x.float() - zero) * scale).bfloat16()


def huber(x: Tensor, y: Tensor) -> Tensor:
    difference = (x - y).abs()
    return torch.where(difference < 1, 0.5 * difference * difference, difference - 0.5)


def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(functional.softplus(x))


def polar(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.hypot(x, y), torch.atan2(y, x)


def powers(x: Tensor, exponent: Tensor) -> Tensor:
    return x.abs().pow(exponent) + x.pow(3)


def embedding(tokens: Tensor, table: Tensor, places: Tensor) -> Tensor:
    return functional.embedding(tokens, table) * 8 + places


def take_rows(x: Tensor, rows: Tensor, scale: Tensor) -> Tensor:
    return x[rows] * scale


def channels_bias(x: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(x + bias.view(1, -1, 1, 1))


def pixel_unshuffle(x: Tensor) -> Tensor:
    return functional.pixel_unshuffle(x, 2) * 2


def normalise_images(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    return ((x.float() / 255 - mean.view(1, -1, 1, 1)) / deviation.view(1, -1, 1, 1)).half()


def softmax(x: Tensor) -> Tensor:
    return functional.softmax(x, -1)


def masked_softmax(x: Tensor, mask: Tensor) -> Tensor:
    return (x * 0.125).masked_fill(mask, float("-inf")).softmax(-1)


def biased_softmax(x: Tensor, bias: Tensor) -> Tensor:
    return (x.float() * 0.125 + bias).softmax(-1).to(x.dtype)


def log_softmax(x: Tensor) -> Tensor:
    return functional.log_softmax(x, -1)


def gumbel(x: Tensor, noise: Tensor) -> Tensor:
    return ((x - (-noise.log()).log()) / 0.7).softmax(-1)


def entropy(x: Tensor) -> Tensor:
    return -(x.softmax(-1) * x.log_softmax(-1)).sum(-1)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    summed = x + residual
    return functional.rms_norm(summed, weight.shape, weight), summed


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias)


def gelu_layer_norm(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    hidden = functional.gelu(x + residual)
    return functional.softmax(functional.layer_norm(hidden, weight.shape, weight), -1)


def dropout_layer_norm(
    x: Tensor, keep: Tensor, residual: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    return functional.layer_norm(x * keep * 1.25 + residual, weight.shape, weight, bias)


def group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.silu(functional.group_norm(x, 32, weight, bias))


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(functional.batch_norm(x, None, None, weight, bias, training=True))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits, targets)


def smoothed_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits, targets, label_smoothing=0.1)


def mse(x: Tensor, y: Tensor) -> Tensor:
    return functional.mse_loss(x, y)


def binary_cross_entropy(x: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(x, y)


def smooth_l1(x: Tensor, y: Tensor) -> Tensor:
    return functional.smooth_l1_loss(x, y)


def divergence(x: Tensor, y: Tensor) -> Tensor:
    return functional.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean")


def focal(x: Tensor, y: Tensor) -> Tensor:
    chance = torch.sigmoid(x)
    right = chance * y + (1 - chance) * (1 - y)
    loss = functional.binary_cross_entropy_with_logits(x, y, reduction="none")
    return (0.25 * (1 - right) ** 2 * loss).mean()


def cosine(x: Tensor, y: Tensor) -> Tensor:
    return functional.cosine_similarity(x, y, -1)


def normalise(x: Tensor) -> Tensor:
    return functional.normalize(x, dim=-1)


def largest(x: Tensor) -> Tensor:
    return x.argmax(-1)


def largest_and_value(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.argmax(-1), x.amax(-1), x.argmin(-1)


def spread(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.var(-1), x.mean(-1)


def standardise(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.std(0) + 1e-5)


def row_quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().to(torch.int8), scale


def column_sum(x: Tensor) -> Tensor:
    return x.sum(0)


def column_statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.sum(0), (x * x).sum(0), x.amax(0)


def column_softmax(x: Tensor) -> Tensor:
    return x.softmax(0)


def middle_sum(x: Tensor) -> Tensor:
    return (x * x).sum(1)


def counts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x > y).sum(-1), (x == y).all(-1)


def integer_sum(x: Tensor, weight: Tensor) -> Tensor:
    return (x * weight).sum(-1)


def gradient_norm(x: Tensor, y: Tensor) -> Tensor:
    return ((x * x).sum() + (y * y).sum()).sqrt()


def total(x: Tensor) -> Tensor:
    return x.float().sum()


def moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.mean(), x.square().mean(), x.abs().amax()


def log_sum(x: Tensor) -> Tensor:
    return x.logsumexp(-1)


def product_of_rows(x: Tensor) -> Tensor:
    return x.prod(-1)


def block(
    x: Tensor, first: Tensor, packed: Tensor, joined: Tensor, second: Tensor, up: Tensor,
    down: Tensor,
) -> Tensor:  # fmt: skip
    """A transformer block: causal attention written out, and a gated feed-forward part."""
    batch, length, width = x.shape
    heads = width // 64
    projected = functional.layer_norm(x, (width,), first) @ packed
    query, key, value = projected.view(batch, length, 3, heads, 64).permute(2, 0, 3, 1, 4)
    causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
    scores = (query @ key.transpose(-1, -2)) * 0.125
    weights = scores.masked_fill(~causal, float("-inf")).softmax(-1)
    x = x + (weights @ value).transpose(1, 2).reshape(batch, length, width) @ joined
    gate, signal = (functional.rms_norm(x, (width,), second) @ up).chunk(2, -1)
    return x + (functional.silu(gate) * signal) @ down
