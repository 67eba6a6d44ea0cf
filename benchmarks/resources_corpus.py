"""The programs whose kernels `benchmarks.resources` compiles: plain PyTorch at real sizes.

Each program is a function and the types of its arguments, written as plans print them:
`bf16[8, 64]` is a tensor, and digits after a `|` are its dimensions in the order in which they lie
in memory (`f32[8, 64, 32, 32]|0231` is channels last). With `gradients` the backward graph is
compiled as well; with `dynamic` every size is known only at the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import resources_programs as run

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
    Program("gelu_chain", run.gelu_chain, (_BIG, "bf16[8192]", "bf16[8192]", _BIG)),
    Program("gelu_chain_f32", run.gelu_chain,
            ("f32[4096, 4096]", "f32[4096]", "f32[4096]", "f32[4096, 4096]"), gradients=True),
    Program("tanh_gelu", run.tanh_gelu, ("bf16[8192, 16384]", "bf16[16384]"), gradients=True),
    Program("three_outputs", run.three_outputs, (_BIG,)),
    Program("three_outputs_f32", run.three_outputs, ("f32[8192, 8192]",)),
    Program("eight_outputs", run.eight_outputs, ("f32[4096, 4096]", "f32[4096, 4096]")),
    Program("eight_outputs_f16", run.eight_outputs, ("f16[4096, 4096]", "f16[4096, 4096]")),
    Program("swiglu", run.swiglu, (_BIG, _BIG), gradients=True),
    Program("packed_swiglu", run.packed_swiglu, ("bf16[8192, 16384]",), gradients=True),
    Program("swiglu_dynamic", run.swiglu, (_BIG, _BIG), gradients=True, dynamic=True),
    Program("transposed_add", lambda x, y: x + y.T, ("bf16[4096, 8192]", "bf16[8192, 4096]")),
    Program("transposed_f32", lambda x, y: (x + y.T).exp(), ("f32[4096, 8192]", "f32[8192, 4096]")),
    Program("dropout_residual", run.bias_dropout_residual,
            (_BIG, "bf16[8192]", "b8[8192, 8192]", _BIG), gradients=True),
    Program("adamw", run.adamw, ("f32[67108864]",) * 4),
    Program("adamw_half", run.adamw_half,
            ("f32[4096, 4096]", "bf16[4096, 4096]", "f32[4096, 4096]", "f32[4096, 4096]")),
    Program("momentum", run.momentum, ("f32[16777216]",) * 3),
    Program("lion", run.lion, ("f32[16777216]",) * 3),
    Program("average", run.average, ("bf16[4096, 4096]", "f32[4096, 4096]")),
    Program("rotary", run.rotary, ("bf16[8, 32, 2048, 128]", "bf16[2048, 128]", "bf16[2048, 128]")),
    Program("rotary_backward", run.rotary,
            ("f32[8, 12, 1024, 64]", "f32[1024, 64]", "f32[1024, 64]"), gradients=True),
    Program("rotary_heads", run.rotary,
            ("bf16[8, 32, 2048, 128]|0213", "f32[2048, 128]", "f32[2048, 128]")),
    Program("interleaved_rotary", run.interleaved_rotary,
            ("bf16[8, 2048, 32, 128]", "f32[2048, 1, 64]", "f32[2048, 1, 64]")),
    Program("cat_three", run.cat_three, ("bf16[8192, 1024]", "bf16[8192, 512]", "bf16[8192, 512]")),
    Program("cat_dynamic", run.cat_three,
            ("f32[8192, 1024]", "f32[8192, 512]", "f32[8192, 512]"), dynamic=True),
    Program("pad_shift", run.pad_shift, ("f32[8192, 4095]",)),
    Program("pad_images", lambda x: functional.pad(x, (1, 1, 1, 1)).relu(), (_PIXELS,)),
    Program("differences", run.differences, ("f32[8192, 8192]",)),
    Program("transposed_heads", run.transposed_heads, ("bf16[16, 1024, 768]", "bf16[768]")),
    Program("double_polynomial", run.double_polynomial, ("f64[4096, 4096]", "f64[4096, 4096]")),
    Program("double_functions", run.double_functions, ("f64[4096, 4096]", "f64[4096, 4096]")),
    Program("hashing", run.hashing, ("i64[16777216]", "i64[16777216]")),
    Program("buckets", run.buckets, ("i32[4096, 4096]", "i32[4096]")),
    Program("masks", run.masks, ("f32[4096, 4096]", "f32[4096, 4096]", "b8[4096, 4096]")),
    Program("quantise", run.quantise, (_BIG, "f32[8192]")),
    Program("dequantise", run.dequantise, ("i8[8192, 8192]", "f32[8192, 1]", "f32[8192, 1]")),
    Program("huber", run.huber, ("f32[8192, 8192]", "f32[8192, 8192]"), gradients=True),
    Program("mish", run.mish, ("f32[32, 256, 56, 56]|0231",), gradients=True),
    Program("polar", run.polar, ("f32[4096, 4096]", "f32[4096, 4096]")),
    Program("powers", run.powers, ("f32[4096, 4096]", "f32[4096]")),
    Program("erf_sin", lambda x: torch.erf(x) * torch.sin(x), ("f32[4096, 4096]",)),
    Program("embedding", run.embedding, ("i64[16, 1024]", "bf16[50257, 768]", "bf16[1024, 768]")),
    Program("take_rows", run.take_rows, ("f32[65536, 512]", "i64[8192]", "f32[512]")),
    Program("channels_bias", run.channels_bias, (f"{_PIXELS}|0231", "f32[256]")),
    Program("channels_first_bias", run.channels_bias, (_PIXELS, "f32[256]")),
    Program("pixel_unshuffle", run.pixel_unshuffle, ("f32[16, 64, 128, 128]",)),
    Program("normalise_images", run.normalise_images, ("u8[64, 3, 224, 224]", "f32[3]", "f32[3]")),
    Program("relu_small", lambda x: x.relu(), ("f32[1024, 128]",)),
    Program("add_dynamic", lambda x, y: (x + y) * 2, ("f32[512, 1000]", "f32[1000]"), dynamic=True),
    Program("clone", lambda x: x.clone(), ("bf16[8192, 8192]",)),
    # Softmax and what surrounds it.
    Program("softmax_128", run.softmax, ("bf16[131072, 128]",), gradients=True),
    Program("softmax_1024", run.softmax, ("bf16[65536, 1024]",), gradients=True),
    Program("softmax_1024_f32", run.softmax, ("f32[65536, 1024]",)),
    Program("softmax_1000", run.softmax, ("f32[65536, 1000]",)),
    Program("softmax_4096", run.softmax, ("bf16[16384, 4096]",), gradients=True),
    Program("softmax_8192_f32", run.softmax, ("f32[8192, 8192]",), gradients=True),
    Program("softmax_16384", run.softmax, ("bf16[4096, 16384]",)),
    Program("softmax_32768", run.softmax, ("bf16[2048, 32768]",), gradients=True),
    Program("softmax_131072", run.softmax, ("bf16[1024, 131072]",), gradients=True),
    Program("softmax_dynamic", run.softmax, ("bf16[16384, 4096]",), gradients=True, dynamic=True),
    Program("softmax_f64", run.softmax, ("f64[16384, 1024]",)),
    Program("masked_softmax", run.masked_softmax,
            ("bf16[8, 16, 1024, 1024]", "b8[1024, 1024]"), gradients=True),
    Program("biased_softmax", run.biased_softmax, ("bf16[8, 16, 512, 512]", "f32[16, 512, 512]")),
    Program("log_softmax", run.log_softmax, ("f32[16384, 2048]",), gradients=True),
    Program("gumbel", run.gumbel, ("f32[16384, 512]", "f32[16384, 512]")),
    Program("entropy", run.entropy, ("bf16[16384, 4096]",)),
    Program("column_softmax", run.column_softmax, ("f32[512, 16384]",)),
    Program("log_sum", run.log_sum, ("f32[4096, 50257]",)),
    # Norms.
    Program("rms_norm_768", run.rms_norm, ("bf16[16384, 768]", "bf16[768]"), gradients=True),
    Program("rms_norm_4096", run.rms_norm, ("bf16[8192, 4096]", "bf16[4096]"), gradients=True),
    Program("rms_norm_f32", run.rms_norm, ("f32[8192, 2048]", "f32[2048]")),
    Program("rms_norm_dynamic", run.rms_norm, ("bf16[8192, 4096]", "bf16[4096]"), dynamic=True),
    Program("add_rms_norm", run.add_rms_norm,
            ("bf16[16384, 4096]", "bf16[16384, 4096]", "bf16[4096]"), gradients=True),
    Program("add_rms_norm_8192", run.add_rms_norm, ("bf16[4096, 8192]", "bf16[4096, 8192]",
            "bf16[8192]")),
    Program("layer_norm_768", run.layer_norm, ("bf16[16384, 768]", "bf16[768]", "bf16[768]"),
            gradients=True),
    Program("layer_norm_1024_f32", run.layer_norm, ("f32[16384, 1024]", "f32[1024]", "f32[1024]"),
            gradients=True),
    Program("layer_norm_4096", run.layer_norm, ("bf16[16384, 4096]", "bf16[4096]", "bf16[4096]"),
            gradients=True),
    Program("layer_norm_dynamic", run.layer_norm, ("f32[4096, 1024]", "f32[1024]", "f32[1024]"),
            gradients=True, dynamic=True),
    Program("layer_norm_long", run.layer_norm, ("f32[512, 65536]", "f32[65536]", "f32[65536]")),
    Program("gelu_layer_norm", run.gelu_layer_norm,
            ("bf16[2048, 1024]", "bf16[2048, 1024]", "bf16[1024]"), gradients=True),
    Program("dropout_layer_norm", run.dropout_layer_norm,
            ("bf16[16384, 1024]", "b8[16384, 1024]", "bf16[16384, 1024]", "bf16[1024]",
             "bf16[1024]"), gradients=True),
    Program("group_norm_channels_last", run.group_norm_silu,
            ("bf16[32, 512, 64, 64]|0231", "bf16[512]", "bf16[512]")),
    Program("group_norm", run.group_norm_silu, ("f32[16, 256, 32, 32]", "f32[256]", "f32[256]"),
            gradients=True),
    Program("batch_norm", run.batch_norm, ("f32[32, 256, 28, 28]", "f32[256]", "f32[256]"),
            gradients=True),
    Program("batch_norm_channels_last", run.batch_norm,
            ("bf16[64, 256, 28, 28]|0231", "bf16[256]", "bf16[256]"), gradients=True),
    Program("instance_norm", lambda x: functional.instance_norm(x), ("f32[16, 64, 128, 128]",)),
    Program("normalise", run.normalise, ("f32[65536, 512]",), gradients=True),
    # Losses.
    Program("cross_entropy_32000", run.cross_entropy, ("bf16[8192, 32000]", "i64[8192]"),
            gradients=True),
    Program("cross_entropy_128256", run.cross_entropy, ("bf16[4096, 128256]", "i64[4096]"),
            gradients=True),
    Program("cross_entropy_1000", run.cross_entropy, ("f32[4096, 1000]", "i64[4096]"),
            gradients=True),
    Program("smoothed_cross_entropy", run.smoothed_cross_entropy,
            ("f32[4096, 10000]", "i64[4096]")),
    Program("mse", run.mse, ("bf16[8192, 16384]", "bf16[8192, 16384]"), gradients=True),
    Program("binary_cross_entropy", run.binary_cross_entropy, ("f32[8192, 512]", "f32[8192, 512]"),
            gradients=True),
    Program("smooth_l1", run.smooth_l1, ("f32[4096, 4096]", "f32[4096, 4096]")),
    Program("divergence", run.divergence, ("f32[2048, 4096]", "f32[2048, 4096]"), gradients=True),
    Program("focal", run.focal, ("f32[4096, 4096]", "f32[4096, 4096]"), gradients=True),
    Program("cosine", run.cosine, ("bf16[16384, 1024]", "bf16[16384, 1024]"), gradients=True),
    # Reductions.
    Program("largest_1024", run.largest, ("bf16[16384, 1024]",)),
    Program("largest_50257", run.largest, ("f32[512, 50257]",)),
    Program("largest_and_value", run.largest_and_value, ("f32[16384, 4096]",)),
    Program("largest_dynamic", run.largest, ("f32[4096, 1000]",), dynamic=True),
    Program("spread", run.spread, ("f32[8192, 2048]",)),
    Program("spread_f64", run.spread, ("f64[8192, 1024]",)),
    Program("standardise", run.standardise, ("f32[4096, 512]",)),
    Program("row_quantise", run.row_quantise, ("bf16[16384, 4096]",)),
    Program("column_sum", run.column_sum, ("bf16[65536, 4096]",)),
    Program("column_sum_f32", run.column_sum, ("f32[65536, 1024]",)),
    Program("column_sum_wide", run.column_sum, ("f32[1024, 65536]",)),
    Program("column_statistics", run.column_statistics, ("bf16[16384, 2048]",)),
    Program("middle_sum", run.middle_sum, ("f32[64, 512, 4096]",)),
    Program("short_columns", run.middle_sum, ("bf16[2048, 64, 1024]",)),
    Program("counts", run.counts, ("f32[16384, 2048]", "f32[16384, 2048]")),
    Program("integer_sum", run.integer_sum, ("i64[16384, 1024]", "i64[1024]")),
    Program("gradient_norm", run.gradient_norm, ("bf16[4096, 4096]", "bf16[4096, 4096]")),
    Program("total", run.total, ("bf16[8192, 8192]",)),
    Program("total_f64", lambda x: (x * x).sum(), ("f64[4096, 4096]",)),
    Program("moments", run.moments, ("f32[8192, 8192]",)),
    Program("product_of_rows", run.product_of_rows, ("f32[65536, 64]",)),
    Program("sum_short_rows", lambda x: x.exp().sum(-1), ("f32[1048576, 16]",)),
    Program("mean_dynamic", lambda x: x.mean(-1), ("bf16[4096, 4096]",), dynamic=True),
    # Transformer blocks, forward and backward.
    Program("block_768", run.block, _block_types("bf16", 8, 1024, 768), gradients=True),
    Program("block_1024", run.block, _block_types("f32", 4, 512, 1024), gradients=True),
    Program("block_4096", run.block, _block_types("bf16", 2, 2048, 4096), gradients=True),
    Program("block_dynamic", run.block, _block_types("bf16", 4, 512, 1024), gradients=True,
            dynamic=True),
)  # fmt: skip
