"""The programs whose kernels `benchmarks.resources` compiles: plain PyTorch at real sizes.

Each program is a function and the types of its arguments, written as plans print them: `bf16[8, 64]`
is a tensor, a `|` before a permutation of its dimensions gives the order in which they lie in memory
(`f32[8, 64, 32, 32]|0231` is channels last). With `gradients` the backward graph is compiled as
well; with `dynamic` every size is known only at the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16,
    "i64": torch.int64, "i32": torch.int32, "i8": torch.int8, "u8": torch.uint8, "b8": torch.bool,
}  # fmt: skip


@dataclass(frozen=True)
class Program:
    """One program of the corpus."""

    name: str
    run: Callable[..., Any]
    types: tuple[str, ...]
    gradients: bool = False
    dynamic: bool = False

    def make(self) -> tuple[Tensor, ...]:
        """The arguments; nothing is filled in, so that fake tensors will do."""
        return tuple(_tensor(text, self.gradients) for text in self.types)


def _tensor(text: str, gradients: bool) -> Tensor:
    found = re.fullmatch(r"(\w+)\[([\d, ]*)\](?:\|(\d+))?", text)
    if found is None:
        raise ValueError(text)
    dtype = DTYPES[found[1]]
    shape = [int(size) for size in found[2].split(",") if size.strip()]
    order = [int(digit) for digit in found[3]] if found[3] else list(range(len(shape)))
    inverse = [order.index(dim) for dim in range(len(shape))]
    stored = torch.empty([shape[dim] for dim in order], dtype=dtype).permute(inverse)
    return stored.requires_grad_(gradients and dtype.is_floating_point)


def _gelu_chain(x: Tensor, scale: Tensor, shift: Tensor, residual: Tensor) -> Tensor:
    return functional.gelu(x * scale + shift) * torch.sigmoid(residual) + residual


def _tanh_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(x + bias, approximate="tanh")


def _three_outputs(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    hidden = torch.tanh(x)
    return hidden * 2, hidden + x, hidden * hidden


def _eight_outputs(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (
        x + y, x - y, x * y, torch.maximum(x, y), torch.minimum(x, y), x.abs(), y.neg(), x > y,
    )  # fmt: skip


def _swiglu(gate: Tensor, signal: Tensor) -> Tensor:
    return functional.silu(gate) * signal


def _packed_swiglu(packed: Tensor) -> Tensor:
    gate, signal = packed.chunk(2, -1)
    return functional.silu(gate) * signal


def _bias_dropout_residual(x: Tensor, bias: Tensor, keep: Tensor, residual: Tensor) -> Tensor:
    return residual + (x + bias) * keep * (1 / 0.9)


def _adamw(
    weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    first = first * 0.9 + gradient * 0.1
    second = second * 0.999 + gradient * gradient * 0.001
    step = first / 0.5 / ((second / 0.3).sqrt() + 1e-8)
    return weight * (1 - 1e-4) - 1e-3 * step, first, second


def _adamw_half(
    weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, ...]:
    updated, first, second = _adamw(weight, gradient.float(), first, second)
    return updated, first, second, updated.bfloat16()


def _momentum(weight: Tensor, gradient: Tensor, momentum: Tensor) -> tuple[Tensor, Tensor]:
    momentum = momentum * 0.9 + gradient + 1e-2 * weight
    return weight - 1e-3 * momentum, momentum


def _lion(weight: Tensor, gradient: Tensor, average: Tensor) -> tuple[Tensor, Tensor]:
    update = (average * 0.9 + gradient * 0.1).sign()
    return weight * 0.999 - 1e-4 * update, average * 0.99 + gradient * 0.01


def _average(weight: Tensor, average: Tensor) -> Tensor:
    return torch.lerp(average, weight.float(), 0.001)


def _rotary(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cosine + torch.cat([-right, left], -1) * sine


def _interleaved_rotary(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    turned = torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1)
    return turned.flatten(-2)


def _cat_three(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.cat([x.relu(), y.exp(), z + 1], -1)


def _pad_shift(x: Tensor) -> Tensor:
    return functional.pad(x, (1, 1)) * 0.5


def _differences(x: Tensor) -> Tensor:
    return (x[:, 2:] - 2 * x[:, 1:-1] + x[:, :-2]) * 0.25


def _transposed_heads(x: Tensor, bias: Tensor) -> Tensor:
    batch, length, width = x.shape
    return (x + bias).view(batch, length, 12, width // 12).transpose(1, 2).contiguous() * 0.125


def _double_polynomial(x: Tensor, y: Tensor) -> Tensor:
    return ((x * 0.5 + y) * x - y * 0.25) * x + 1


def _double_functions(x: Tensor, y: Tensor) -> Tensor:
    return torch.exp(-x * x) * torch.sin(y) / (1 + y * y)


def _hashing(keys: Tensor, salt: Tensor) -> Tensor:
    mixed = (keys ^ salt) * 2654435761
    return (mixed ^ (mixed >> 16)) % 65536


def _buckets(x: Tensor, width: Tensor) -> Tensor:
    return torch.div(x, width, rounding_mode="floor").clamp(0, 255)


def _masks(x: Tensor, y: Tensor, valid: Tensor) -> Tensor:
    return ((x > 0) & (y < 1) | ~valid) & (x != y)


def _quantise(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).round().clamp(-128, 127).to(torch.int8)


def _dequantise(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return ((x.float() - zero) * scale).bfloat16()


def _huber(x: Tensor, y: Tensor) -> Tensor:
    difference = (x - y).abs()
    return torch.where(difference < 1, 0.5 * difference * difference, difference - 0.5)


def _mish(x: Tensor) -> Tensor:
    return x * torch.tanh(functional.softplus(x))


def _polar(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.hypot(x, y), torch.atan2(y, x)


def _powers(x: Tensor, exponent: Tensor) -> Tensor:
    return x.abs().pow(exponent) + x.pow(3)


def _embedding(tokens: Tensor, table: Tensor, places: Tensor) -> Tensor:
    return functional.embedding(tokens, table) * 8 + places


def _take_rows(x: Tensor, rows: Tensor, scale: Tensor) -> Tensor:
    return x[rows] * scale


def _channels_bias(x: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(x + bias.view(1, -1, 1, 1))


def _pixel_unshuffle(x: Tensor) -> Tensor:
    return functional.pixel_unshuffle(x, 2) * 2


def _normalise_images(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    return ((x.float() / 255 - mean.view(1, -1, 1, 1)) / deviation.view(1, -1, 1, 1)).half()


def _softmax(x: Tensor) -> Tensor:
    return functional.softmax(x, -1)


def _masked_softmax(x: Tensor, mask: Tensor) -> Tensor:
    return (x * 0.125).masked_fill(mask, float("-inf")).softmax(-1)


def _biased_softmax(x: Tensor, bias: Tensor) -> Tensor:
    return (x.float() * 0.125 + bias).softmax(-1).to(x.dtype)


def _log_softmax(x: Tensor) -> Tensor:
    return functional.log_softmax(x, -1)


def _gumbel(x: Tensor, noise: Tensor) -> Tensor:
    return ((x - (-noise.log()).log()) / 0.7).softmax(-1)


def _entropy(x: Tensor) -> Tensor:
    return -(x.softmax(-1) * x.log_softmax(-1)).sum(-1)


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight)


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    summed = x + residual
    return functional.rms_norm(summed, weight.shape, weight), summed


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias)


def _gelu_layer_norm(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    hidden = functional.gelu(x + residual)
    return functional.softmax(functional.layer_norm(hidden, weight.shape, weight), -1)


def _dropout_layer_norm(
    x: Tensor, keep: Tensor, residual: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    return functional.layer_norm(x * keep * 1.25 + residual, weight.shape, weight, bias)


def _group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.silu(functional.group_norm(x, 32, weight, bias))


def _batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(functional.batch_norm(x, None, None, weight, bias, training=True))


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits, targets)


def _smoothed_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits, targets, label_smoothing=0.1)


def _mse(x: Tensor, y: Tensor) -> Tensor:
    return functional.mse_loss(x, y)


def _binary_cross_entropy(x: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(x, y)


def _smooth_l1(x: Tensor, y: Tensor) -> Tensor:
    return functional.smooth_l1_loss(x, y)


def _divergence(x: Tensor, y: Tensor) -> Tensor:
    return functional.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean")


def _focal(x: Tensor, y: Tensor) -> Tensor:
    chance = torch.sigmoid(x)
    right = chance * y + (1 - chance) * (1 - y)
    loss = functional.binary_cross_entropy_with_logits(x, y, reduction="none")
    return (0.25 * (1 - right) ** 2 * loss).mean()


def _cosine(x: Tensor, y: Tensor) -> Tensor:
    return functional.cosine_similarity(x, y, -1)


def _normalise(x: Tensor) -> Tensor:
    return functional.normalize(x, dim=-1)


def _largest(x: Tensor) -> Tensor:
    return x.argmax(-1)


def _largest_and_value(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.argmax(-1), x.amax(-1), x.argmin(-1)


def _spread(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.var(-1), x.mean(-1)


def _standardise(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.std(0) + 1e-5)


def _row_quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().to(torch.int8), scale


def _column_sum(x: Tensor) -> Tensor:
    return x.sum(0)


def _column_statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.sum(0), (x * x).sum(0), x.amax(0)


def _column_softmax(x: Tensor) -> Tensor:
    return x.softmax(0)


def _middle_sum(x: Tensor) -> Tensor:
    return (x * x).sum(1)


def _counts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x > y).sum(-1), (x == y).all(-1)


def _integer_sum(x: Tensor, weight: Tensor) -> Tensor:
    return (x * weight).sum(-1)


def _gradient_norm(x: Tensor, y: Tensor) -> Tensor:
    return ((x * x).sum() + (y * y).sum()).sqrt()


def _total(x: Tensor) -> Tensor:
    return x.float().sum()


def _moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.mean(), x.square().mean(), x.abs().amax()


def _log_sum(x: Tensor) -> Tensor:
    return x.logsumexp(-1)


def _product_of_rows(x: Tensor) -> Tensor:
    return x.prod(-1)


def _block(
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


def _block_types(dtype: str, batch: int, length: int, width: int) -> tuple[str, ...]:
    return (
        f"{dtype}[{batch}, {length}, {width}]", f"{dtype}[{width}]",
        f"{dtype}[{width}, {3 * width}]", f"{dtype}[{width}, {width}]", f"{dtype}[{width}]",
        f"{dtype}[{width}, {8 * width}]", f"{dtype}[{4 * width}, {width}]",
    )  # fmt: skip


_BIG = "bf16[8192, 8192]"
_PIXELS = "f32[32, 256, 56, 56]"

PROGRAMS: tuple[Program, ...] = (
    # Pointwise.
    Program("gelu_chain", _gelu_chain, (_BIG, "bf16[8192]", "bf16[8192]", _BIG)),
    Program("gelu_chain_f32", _gelu_chain,
            ("f32[4096, 4096]", "f32[4096]", "f32[4096]", "f32[4096, 4096]"), gradients=True),
    Program("tanh_gelu", _tanh_gelu, ("bf16[8192, 16384]", "bf16[16384]"), gradients=True),
    Program("three_outputs", _three_outputs, (_BIG,)),
    Program("three_outputs_f32", _three_outputs, ("f32[8192, 8192]",)),
    Program("eight_outputs", _eight_outputs, ("f32[4096, 4096]", "f32[4096, 4096]")),
    Program("eight_outputs_f16", _eight_outputs, ("f16[4096, 4096]", "f16[4096, 4096]")),
    Program("swiglu", _swiglu, (_BIG, _BIG), gradients=True),
    Program("packed_swiglu", _packed_swiglu, ("bf16[8192, 16384]",), gradients=True),
    Program("swiglu_dynamic", _swiglu, (_BIG, _BIG), gradients=True, dynamic=True),
    Program("transposed_add", lambda x, y: x + y.T, ("bf16[4096, 8192]", "bf16[8192, 4096]")),
    Program("transposed_f32", lambda x, y: (x + y.T).exp(), ("f32[4096, 8192]", "f32[8192, 4096]")),
    Program("dropout_residual", _bias_dropout_residual,
            (_BIG, "bf16[8192]", "b8[8192, 8192]", _BIG), gradients=True),
    Program("adamw", _adamw, ("f32[67108864]",) * 4),
    Program("adamw_half", _adamw_half,
            ("f32[4096, 4096]", "bf16[4096, 4096]", "f32[4096, 4096]", "f32[4096, 4096]")),
    Program("momentum", _momentum, ("f32[16777216]",) * 3),
    Program("lion", _lion, ("f32[16777216]",) * 3),
    Program("average", _average, ("bf16[4096, 4096]", "f32[4096, 4096]")),
    Program("rotary", _rotary, ("bf16[8, 32, 2048, 128]", "bf16[2048, 128]", "bf16[2048, 128]")),
    Program("rotary_backward", _rotary,
            ("f32[8, 12, 1024, 64]", "f32[1024, 64]", "f32[1024, 64]"), gradients=True),
    Program("rotary_heads", _rotary,
            ("bf16[8, 32, 2048, 128]|0213", "f32[2048, 128]", "f32[2048, 128]")),
    Program("interleaved_rotary", _interleaved_rotary,
            ("bf16[8, 2048, 32, 128]", "f32[2048, 1, 64]", "f32[2048, 1, 64]")),
    Program("cat_three", _cat_three, ("bf16[8192, 1024]", "bf16[8192, 512]", "bf16[8192, 512]")),
    Program("cat_dynamic", _cat_three,
            ("f32[8192, 1024]", "f32[8192, 512]", "f32[8192, 512]"), dynamic=True),
    Program("pad_shift", _pad_shift, ("f32[8192, 4095]",)),
    Program("pad_images", lambda x: functional.pad(x, (1, 1, 1, 1)).relu(), (_PIXELS,)),
    Program("differences", _differences, ("f32[8192, 8192]",)),
    Program("transposed_heads", _transposed_heads, ("bf16[16, 1024, 768]", "bf16[768]")),
    Program("double_polynomial", _double_polynomial, ("f64[4096, 4096]", "f64[4096, 4096]")),
    Program("double_functions", _double_functions, ("f64[4096, 4096]", "f64[4096, 4096]")),
    Program("hashing", _hashing, ("i64[16777216]", "i64[16777216]")),
    Program("buckets", _buckets, ("i32[4096, 4096]", "i32[4096]")),
    Program("masks", _masks, ("f32[4096, 4096]", "f32[4096, 4096]", "b8[4096, 4096]")),
    Program("quantise", _quantise, (_BIG, "f32[8192]")),
    Program("dequantise", _dequantise, ("i8[8192, 8192]", "f32[8192, 1]", "f32[8192, 1]")),
    Program("huber", _huber, ("f32[8192, 8192]", "f32[8192, 8192]"), gradients=True),
    Program("mish", _mish, ("f32[32, 256, 56, 56]|0231",), gradients=True),
    Program("polar", _polar, ("f32[4096, 4096]", "f32[4096, 4096]")),
    Program("powers", _powers, ("f32[4096, 4096]", "f32[4096]")),
    Program("erf_sin", lambda x: torch.erf(x) * torch.sin(x), ("f32[4096, 4096]",)),
    Program("embedding", _embedding, ("i64[16, 1024]", "bf16[50257, 768]", "bf16[1024, 768]")),
    Program("take_rows", _take_rows, ("f32[65536, 512]", "i64[8192]", "f32[512]")),
    Program("channels_bias", _channels_bias, (f"{_PIXELS}|0231", "f32[256]")),
    Program("channels_first_bias", _channels_bias, (_PIXELS, "f32[256]")),
    Program("pixel_unshuffle", _pixel_unshuffle, ("f32[16, 64, 128, 128]",)),
    Program("normalise_images", _normalise_images, ("u8[64, 3, 224, 224]", "f32[3]", "f32[3]")),
    Program("relu_small", lambda x: x.relu(), ("f32[1024, 128]",)),
    Program("add_dynamic", lambda x, y: (x + y) * 2, ("f32[512, 1000]", "f32[1000]"), dynamic=True),
    Program("clone", lambda x: x.clone(), ("bf16[8192, 8192]",)),
    # Softmax and what surrounds it.
    Program("softmax_128", _softmax, ("bf16[131072, 128]",), gradients=True),
    Program("softmax_1024", _softmax, ("bf16[65536, 1024]",), gradients=True),
    Program("softmax_1024_f32", _softmax, ("f32[65536, 1024]",)),
    Program("softmax_1000", _softmax, ("f32[65536, 1000]",)),
    Program("softmax_4096", _softmax, ("bf16[16384, 4096]",), gradients=True),
    Program("softmax_8192_f32", _softmax, ("f32[8192, 8192]",), gradients=True),
    Program("softmax_16384", _softmax, ("bf16[4096, 16384]",)),
    Program("softmax_32768", _softmax, ("bf16[2048, 32768]",), gradients=True),
    Program("softmax_131072", _softmax, ("bf16[1024, 131072]",), gradients=True),
    Program("softmax_dynamic", _softmax, ("bf16[16384, 4096]",), gradients=True, dynamic=True),
    Program("softmax_f64", _softmax, ("f64[16384, 1024]",)),
    Program("masked_softmax", _masked_softmax,
            ("bf16[8, 16, 1024, 1024]", "b8[1024, 1024]"), gradients=True),
    Program("biased_softmax", _biased_softmax, ("bf16[8, 16, 512, 512]", "f32[16, 512, 512]")),
    Program("log_softmax", _log_softmax, ("f32[16384, 2048]",), gradients=True),
    Program("gumbel", _gumbel, ("f32[16384, 512]", "f32[16384, 512]")),
    Program("entropy", _entropy, ("bf16[16384, 4096]",)),
    Program("column_softmax", _column_softmax, ("f32[512, 16384]",)),
    Program("log_sum", _log_sum, ("f32[4096, 50257]",)),
    # Norms.
    Program("rms_norm_768", _rms_norm, ("bf16[16384, 768]", "bf16[768]"), gradients=True),
    Program("rms_norm_4096", _rms_norm, ("bf16[8192, 4096]", "bf16[4096]"), gradients=True),
    Program("rms_norm_f32", _rms_norm, ("f32[8192, 2048]", "f32[2048]")),
    Program("rms_norm_dynamic", _rms_norm, ("bf16[8192, 4096]", "bf16[4096]"), dynamic=True),
    Program("add_rms_norm", _add_rms_norm, ("bf16[16384, 4096]", "bf16[16384, 4096]", "bf16[4096]"),
            gradients=True),
    Program("add_rms_norm_8192", _add_rms_norm, ("bf16[4096, 8192]", "bf16[4096, 8192]",
            "bf16[8192]")),
    Program("layer_norm_768", _layer_norm, ("bf16[16384, 768]", "bf16[768]", "bf16[768]"),
            gradients=True),
    Program("layer_norm_1024_f32", _layer_norm, ("f32[16384, 1024]", "f32[1024]", "f32[1024]"),
            gradients=True),
    Program("layer_norm_4096", _layer_norm, ("bf16[16384, 4096]", "bf16[4096]", "bf16[4096]"),
            gradients=True),
    Program("layer_norm_dynamic", _layer_norm, ("f32[4096, 1024]", "f32[1024]", "f32[1024]"),
            gradients=True, dynamic=True),
    Program("layer_norm_long", _layer_norm, ("f32[512, 65536]", "f32[65536]", "f32[65536]")),
    Program("gelu_layer_norm", _gelu_layer_norm,
            ("bf16[2048, 1024]", "bf16[2048, 1024]", "bf16[1024]"), gradients=True),
    Program("dropout_layer_norm", _dropout_layer_norm,
            ("bf16[16384, 1024]", "b8[16384, 1024]", "bf16[16384, 1024]", "bf16[1024]",
             "bf16[1024]"), gradients=True),
    Program("group_norm_channels_last", _group_norm_silu,
            ("bf16[32, 512, 64, 64]|0231", "bf16[512]", "bf16[512]")),
    Program("group_norm", _group_norm_silu, ("f32[16, 256, 32, 32]", "f32[256]", "f32[256]"),
            gradients=True),
    Program("batch_norm", _batch_norm, ("f32[32, 256, 28, 28]", "f32[256]", "f32[256]"),
            gradients=True),
    Program("batch_norm_channels_last", _batch_norm,
            ("bf16[64, 256, 28, 28]|0231", "bf16[256]", "bf16[256]"), gradients=True),
    Program("instance_norm", lambda x: functional.instance_norm(x), ("f32[16, 64, 128, 128]",)),
    Program("normalise", _normalise, ("f32[65536, 512]",), gradients=True),
    # Losses.
    Program("cross_entropy_32000", _cross_entropy, ("bf16[8192, 32000]", "i64[8192]"),
            gradients=True),
    Program("cross_entropy_128256", _cross_entropy, ("bf16[4096, 128256]", "i64[4096]"),
            gradients=True),
    Program("cross_entropy_1000", _cross_entropy, ("f32[4096, 1000]", "i64[4096]"),
            gradients=True),
    Program("smoothed_cross_entropy", _smoothed_cross_entropy, ("f32[4096, 10000]", "i64[4096]")),
    Program("mse", _mse, ("bf16[8192, 16384]", "bf16[8192, 16384]"), gradients=True),
    Program("binary_cross_entropy", _binary_cross_entropy, ("f32[8192, 512]", "f32[8192, 512]"),
            gradients=True),
    Program("smooth_l1", _smooth_l1, ("f32[4096, 4096]", "f32[4096, 4096]")),
    Program("divergence", _divergence, ("f32[2048, 4096]", "f32[2048, 4096]"), gradients=True),
    Program("focal", _focal, ("f32[4096, 4096]", "f32[4096, 4096]"), gradients=True),
    Program("cosine", _cosine, ("bf16[16384, 1024]", "bf16[16384, 1024]"), gradients=True),
    # Reductions.
    Program("largest_1024", _largest, ("bf16[16384, 1024]",)),
    Program("largest_50257", _largest, ("f32[512, 50257]",)),
    Program("largest_and_value", _largest_and_value, ("f32[16384, 4096]",)),
    Program("largest_dynamic", _largest, ("f32[4096, 1000]",), dynamic=True),
    Program("spread", _spread, ("f32[8192, 2048]",)),
    Program("spread_f64", _spread, ("f64[8192, 1024]",)),
    Program("standardise", _standardise, ("f32[4096, 512]",)),
    Program("row_quantise", _row_quantise, ("bf16[16384, 4096]",)),
    Program("column_sum", _column_sum, ("bf16[65536, 4096]",)),
    Program("column_sum_f32", _column_sum, ("f32[65536, 1024]",)),
    Program("column_sum_wide", _column_sum, ("f32[1024, 65536]",)),
    Program("column_statistics", _column_statistics, ("bf16[16384, 2048]",)),
    Program("middle_sum", _middle_sum, ("f32[64, 512, 4096]",)),
    Program("short_columns", _middle_sum, ("bf16[2048, 64, 1024]",)),
    Program("counts", _counts, ("f32[16384, 2048]", "f32[16384, 2048]")),
    Program("integer_sum", _integer_sum, ("i64[16384, 1024]", "i64[1024]")),
    Program("gradient_norm", _gradient_norm, ("bf16[4096, 4096]", "bf16[4096, 4096]")),
    Program("total", _total, ("bf16[8192, 8192]",)),
    Program("total_f64", lambda x: (x * x).sum(), ("f64[4096, 4096]",)),
    Program("moments", _moments, ("f32[8192, 8192]",)),
    Program("product_of_rows", _product_of_rows, ("f32[65536, 64]",)),
    Program("sum_short_rows", lambda x: x.exp().sum(-1), ("f32[1048576, 16]",)),
    Program("mean_dynamic", lambda x: x.mean(-1), ("bf16[4096, 4096]",), dynamic=True),
    # Transformer blocks, forward and backward.
    Program("block_768", _block, _block_types("bf16", 8, 1024, 768), gradients=True),
    Program("block_1024", _block, _block_types("f32", 4, 512, 1024), gradients=True),
    Program("block_4096", _block, _block_types("bf16", 2, 2048, 4096), gradients=True),
    Program("block_dynamic", _block, _block_types("bf16", 4, 512, 1024), gradients=True,
            dynamic=True),
)  # fmt: skip
