"""Workloads whose floor is the traffic to memory: chains, normalisations, losses.

In: how many times fewer rows than the usual number. Out: the workloads. Numbers are bfloat16 unless
a comment says otherwise, so one matrix of n elements counts 2 n bytes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.workload import Workload, random

VOCABULARY = 128_256
LARGEST_FP8 = 448.0
"""The largest finite float8_e4m3fn."""


def memory_bound(divisor: int = 1) -> tuple[Workload, ...]:
    """All of them, with `1 / divisor` of the rows (at least one)."""

    def rows(usual: int) -> int:
        return max(1, usual // divisor)

    return (
        _gelu_chain(rows(8192), 8192),
        _three_outputs(rows(8192), 8192),
        _transposed_add(rows(4096), 8192),
        _rotary(8, rows(4096), 32, 128),
        _softmax(rows(65536), 1024),
        _softmax(rows(16384), 4096),
        _softmax(rows(2048), 32768),
        _softmax(rows(1024), 131072),
        _add_rms_norm(rows(16384), 4096),
        _dropout_add_layer_norm(rows(16384), 4096),
        _dropout_add_layer_norm_training(rows(16384), 4096),
        _layer_norm(rows(16384), 4096),
        _layer_norm_training(rows(16384), 4096),
        _group_norm_silu(rows(32), 512, 64),
        _column_sum(rows(65536), 4096),
        _mse_loss(rows(8192), 16384),
        _cross_entropy(rows(4096), VOCABULARY),
        _cross_entropy_training(rows(4096), VOCABULARY),
        _rms_norm_fp8(rows(16384), 4096),
    )


# Elementwise -------------------------------------------------------------------------------------


def gelu_chain(x: Tensor, scale: Tensor, shift: Tensor, residual: Tensor) -> Tensor:
    return functional.gelu(x * scale + shift) * torch.sigmoid(residual) + residual


def _gelu_chain(rows: int, columns: int) -> Workload:
    matrix, vector = 2 * rows * columns, 2 * columns
    make = random((rows, columns), (columns,), (columns,), (rows, columns))
    return Workload("gelu_chain", gelu_chain, make, 2 * matrix + 2 * vector, matrix)


def three_outputs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    hidden = torch.tanh(x + y)
    return hidden * 2, hidden + x, hidden * hidden


def _three_outputs(rows: int, columns: int) -> Workload:
    matrix = 2 * rows * columns
    make = random((rows, columns), (rows, columns))
    return Workload("three_outputs", three_outputs, make, 2 * matrix, 3 * matrix)


def transposed_add(x: Tensor, y: Tensor) -> Tensor:
    return x + y.T


def _transposed_add(rows: int, columns: int) -> Workload:
    matrix = 2 * rows * columns
    make = random((rows, columns), (columns, rows))
    return Workload("transposed_add", transposed_add, make, 2 * matrix, matrix)


def rotary(query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate the two halves of each head; tables are [position, head size], float32."""

    def rotated(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
        return (x * cosine[:, None, :] + turned * sine[:, None, :]).to(x.dtype)

    return rotated(query), rotated(key)


def _rotary(batch: int, positions: int, heads: int, size: int) -> Workload:
    def make(device: str) -> tuple[Tensor, ...]:
        shape = (batch, positions, heads, size)
        rates = 10000.0 ** (-torch.arange(0, size, 2, device=device) / size)
        angles = torch.outer(torch.arange(positions, device=device), rates).repeat(1, 2)
        return (*random(shape, shape)(device), angles.cos(), angles.sin())

    tensor, table = 2 * batch * positions * heads * size, 4 * positions * size
    return Workload("rotary", rotary, make, 2 * tensor + 2 * table, 2 * tensor)


# Rows --------------------------------------------------------------------------------------------


def softmax(x: Tensor) -> Tensor:
    return functional.softmax(x, -1)


def _softmax(rows: int, columns: int) -> Workload:
    matrix = 2 * rows * columns
    return Workload(f"softmax_{columns}", softmax, random((rows, columns)), matrix, matrix)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    summed = x + residual
    return functional.rms_norm(summed, weight.shape, weight), summed


def _add_rms_norm(rows: int, columns: int) -> Workload:
    matrix, vector = 2 * rows * columns, 2 * columns
    make = random((rows, columns), (rows, columns), (columns,))
    return Workload("add_rms_norm", add_rms_norm, make, 2 * matrix + vector, 2 * matrix)


def dropout_add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    summed = functional.dropout(x, 0.1, training=True) + residual
    return functional.layer_norm(summed, weight.shape, weight, bias), summed


def _dropout_add_layer_norm(rows: int, columns: int) -> Workload:
    # No mask is counted: a kernel can draw its random numbers itself.
    matrix, vector = 2 * rows * columns, 2 * columns
    make = random((rows, columns), (rows, columns), (columns,), (columns,))
    read = 2 * matrix + 2 * vector
    return Workload("dropout_add_layer_norm", dropout_add_layer_norm, make, read, 2 * matrix)


def dropout_add_layer_norm_output(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    return dropout_add_layer_norm(x, residual, weight, bias)[0]


def _dropout_add_layer_norm_training(rows: int, columns: int) -> Workload:
    # As in `_layer_norm_training`, with two matrices in place of x. Neither pass stores the mask.
    matrix, vector = 2 * rows * columns, 2 * columns
    shape = (rows, columns)
    make = random(shape, shape, (columns,), (columns,), needs_gradient=True)
    return Workload(
        "dropout_add_layer_norm_training", dropout_add_layer_norm_output, make,
        5 * matrix + 3 * vector, 3 * matrix + 2 * vector, is_training=True,
    )  # fmt: skip


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias)


def _layer_norm(rows: int, columns: int) -> Workload:
    matrix, vector = 2 * rows * columns, 2 * columns
    make = random((rows, columns), (columns,), (columns,))
    return Workload("layer_norm", layer_norm, make, matrix + 2 * vector, matrix)


def _layer_norm_training(rows: int, columns: int) -> Workload:
    # Forward reads x and writes y; backward reads x and y's gradient and writes x's. The rows'
    # statistics are not counted, backward could compute them again. Of the vectors, forward reads
    # both, backward reads the weight again and writes both gradients.
    matrix, vector = 2 * rows * columns, 2 * columns
    make = random((rows, columns), (columns,), (columns,), needs_gradient=True)
    return Workload(
        "layer_norm_training", layer_norm, make,
        3 * matrix + 3 * vector, 2 * matrix + 2 * vector, is_training=True,
    )  # fmt: skip


def rms_norm_fp8(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Normalised rows in eight bits, with the scale of each row in float32."""
    normalised = functional.rms_norm(x, weight.shape, weight).float()
    scale = normalised.abs().amax(-1, keepdim=True).clamp(min=1e-12) / LARGEST_FP8
    return (normalised / scale).to(torch.float8_e4m3fn), scale


def _rms_norm_fp8(rows: int, columns: int) -> Workload:
    matrix, vector = 2 * rows * columns, 2 * columns
    written = rows * columns + 4 * rows  # one byte an element, and the scales
    make = random((rows, columns), (columns,))
    return Workload("rms_norm_fp8", rms_norm_fp8, make, matrix + vector, written)


# Other reductions --------------------------------------------------------------------------------


def group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.silu(functional.group_norm(x, 32, weight, bias))


def _group_norm_silu(images: int, channels: int, side: int) -> Workload:
    # A group of one image is 16 x 64 x 64 values of 128 kB: it can stay on the chip, so one read.
    def make(device: str) -> tuple[Tensor, ...]:
        shapes = (images, channels, side, side), (channels,), (channels,)
        x, weight, bias = random(*shapes)(device)
        return x.to(memory_format=torch.channels_last), weight, bias

    tensor, vector = 2 * images * channels * side * side, 2 * channels
    return Workload("group_norm_silu", group_norm_silu, make, tensor + 2 * vector, tensor)


def column_sum(x: Tensor) -> Tensor:
    return x.sum(0)


def _column_sum(rows: int, columns: int) -> Workload:
    make = random((rows, columns))
    return Workload("column_sum", column_sum, make, 2 * rows * columns, 2 * columns)


def _mse_loss(rows: int, columns: int) -> Workload:
    make = random((rows, columns), (rows, columns))
    return Workload("mse_loss", functional.mse_loss, make, 4 * rows * columns, 2)


def _logits(rows: int, classes: int, needs_gradient: bool) -> Any:
    def make(device: str) -> tuple[Tensor, ...]:
        (logits,) = random((rows, classes), needs_gradient=needs_gradient)(device)
        return logits, torch.randint(0, classes, (rows,), device=device)

    return make


def _cross_entropy(rows: int, classes: int) -> Workload:
    read = 2 * rows * classes + 8 * rows  # targets are int64
    make = _logits(rows, classes, needs_gradient=False)
    return Workload("cross_entropy", functional.cross_entropy, make, read, 2)


def _cross_entropy_training(rows: int, classes: int) -> Workload:
    # Backward reads the logits again, or as much of what forward could have stored, and writes
    # their gradient.
    matrix, targets = 2 * rows * classes, 8 * rows
    make = _logits(rows, classes, needs_gradient=True)
    return Workload(
        "cross_entropy_training", functional.cross_entropy, make,
        2 * matrix + 2 * targets, matrix + 2, is_training=True,
    )  # fmt: skip
