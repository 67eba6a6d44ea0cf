"""Workloads with a matrix product: what surrounds it can be fused with it or around it.

In: how many times fewer rows than the usual number. Out: the workloads, in bfloat16, with the
operations of their products (a multiply-add is two). Rows of depth d are drawn with a standard
deviation of d^(-1/4), so that the elements of a product have one of about 1 whatever its depth.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.workload import Program, Workload, random


def products(divisor: int = 1) -> tuple[Workload, ...]:
    """All of them, with `1 / divisor` of the rows (at least one)."""

    def rows(usual: int) -> int:
        return max(1, usual // divisor)

    return (
        _product(rows(8192), 8192, 8192),
        _linear_gelu("linear_gelu", rows(8192), 4096, 16384),
        _linear_gelu("linear_gelu_small", rows(512), 768, 3072),
        _linear_residual(rows(8192), 16384, 4096),
        _swiglu("swiglu", rows(8192), 4096, 11008),
        _packed_swiglu(rows(8192), 4096, 11008),
        _qkv(rows(8192), 4096, 1024),
        _rms_norm_linear("rms_norm_linear", rows(8192), 4096, 6144),
        _linear_residual_layer_norm(rows(131072), 256),
        _few_tokens("one_token_linear", 1, 4096, 4096),
        _few_tokens("one_token_linear_14336", 1, 4096, 14336),
        _few_tokens("few_tokens_linear_4", rows(4), 4096, 4096),
        _few_tokens("few_tokens_linear_16", rows(16), 4096, 4096),
        _few_tokens("few_tokens_linear_64", rows(64), 4096, 4096),
        _swiglu("one_token_swiglu", 1, 4096, 14336),
        _rms_norm_linear("one_token_rms_norm_linear", 1, 4096, 6144),
        _rms_norm_qkv("one_token_rms_norm_qkv", 1, 4096, 1024),
        _scaled_masked_product(256, rows(1024), 128, 1024),
        _swiglu_mlp_training(rows(8192), 4096, 11008),
    )


def _with_product(
    name: str,
    run: Program,
    product: tuple[int, int, int],
    shapes: list[tuple[int, ...]],
    written: int,
) -> Workload:
    """A workload that reads bfloat16 tensors of `shapes`; `product` is (rows, depth, columns)."""
    read = 2 * sum(torch.Size(shape).numel() for shape in shapes)
    rows, depth, columns = product
    make = random(*shapes, deviation=depth**-0.25)
    return Workload(name, run, make, read, written, flops=2 * rows * depth * columns)


def product(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def _product(rows: int, depth: int, columns: int) -> Workload:
    shapes = [(rows, depth), (depth, columns)]
    return _with_product("product", product, (rows, depth, columns), shapes, 2 * rows * columns)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(functional.linear(x, weight, bias))


def _linear_gelu(name: str, rows: int, depth: int, columns: int) -> Workload:
    shapes = [(rows, depth), (columns, depth), (columns,)]
    return _with_product(name, linear_gelu, (rows, depth, columns), shapes, 2 * rows * columns)


def linear_residual(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    return functional.linear(x, weight, bias) + residual


def _linear_residual(rows: int, depth: int, columns: int) -> Workload:
    shapes = [(rows, depth), (columns, depth), (columns,), (rows, columns)]
    numbers = (rows, depth, columns)
    return _with_product("linear_residual", linear_residual, numbers, shapes, 2 * rows * columns)


def swiglu(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(functional.linear(x, gate)) * functional.linear(x, up)


def _swiglu(name: str, rows: int, depth: int, columns: int) -> Workload:
    shapes = [(rows, depth), (columns, depth), (columns, depth)]
    return _with_product(name, swiglu, (rows, depth, 2 * columns), shapes, 2 * rows * columns)


def packed_swiglu(x: Tensor, gate_and_up: Tensor) -> Tensor:
    """As `swiglu`, with the weight of the gate above the other."""
    gate, up = functional.linear(x, gate_and_up).chunk(2, -1)
    return functional.silu(gate) * up


def _packed_swiglu(rows: int, depth: int, columns: int) -> Workload:
    shapes = [(rows, depth), (2 * columns, depth)]
    numbers = (rows, depth, 2 * columns)
    return _with_product("packed_swiglu", packed_swiglu, numbers, shapes, 2 * rows * columns)


def swiglu_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return functional.linear(swiglu(x, gate, up), down)


def _swiglu_mlp_training(rows: int, width: int, hidden: int) -> Workload:
    # Forward reads x and the weights and writes y; backward reads them again with y's gradient, and
    # writes theirs. What lies between is not counted. Each of the three products has two of its
    # size in the backward pass, for the gradients of its operands.
    weight, matrix = 2 * hidden * width, 2 * rows * width
    shapes = [(rows, width), (hidden, width), (hidden, width), (width, hidden)]
    make = random(*shapes, deviation=width**-0.25, needs_gradient=True)
    return Workload(
        "swiglu_mlp_training", swiglu_mlp, make,
        3 * matrix + 6 * weight, 2 * matrix + 3 * weight,
        flops=3 * 3 * 2 * rows * width * hidden, is_training=True,
    )  # fmt: skip


def qkv(x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three projections of an attention whose keys and values are shared by groups of heads."""
    return functional.linear(x, query), functional.linear(x, key), functional.linear(x, value)


def _qkv(rows: int, depth: int, shared: int) -> Workload:
    columns = depth + 2 * shared
    shapes = [(rows, depth), (depth, depth), (shared, depth), (shared, depth)]
    return _with_product("qkv", qkv, (rows, depth, columns), shapes, 2 * rows * columns)


def rms_norm_qkv(
    x: Tensor, scale: Tensor, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return qkv(functional.rms_norm(x, scale.shape, scale), query, key, value)


def _rms_norm_qkv(name: str, rows: int, depth: int, shared: int) -> Workload:
    columns = depth + 2 * shared
    shapes = [(rows, depth), (depth,), (depth, depth), (shared, depth), (shared, depth)]
    return _with_product(name, rms_norm_qkv, (rows, depth, columns), shapes, 2 * rows * columns)


def rms_norm_linear(x: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(functional.rms_norm(x, scale.shape, scale), weight)


def _rms_norm_linear(name: str, rows: int, depth: int, columns: int) -> Workload:
    shapes = [(rows, depth), (depth,), (columns, depth)]
    return _with_product(name, rms_norm_linear, (rows, depth, columns), shapes, 2 * rows * columns)


def linear_residual_layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor, scale: Tensor, shift: Tensor
) -> Tensor:
    summed = functional.linear(x, weight, bias) + residual
    return functional.layer_norm(summed, scale.shape, scale, shift)


def _linear_residual_layer_norm(rows: int, width: int) -> Workload:
    vector = (width,)
    shapes = [(rows, width), (width, width), vector, (rows, width), vector, vector]
    return _with_product(
        "linear_residual_layer_norm", linear_residual_layer_norm,
        (rows, width, width), shapes, 2 * rows * width,
    )  # fmt: skip


def few_tokens_linear(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    return functional.linear(x, weight) + residual


def _few_tokens(name: str, rows: int, depth: int, columns: int) -> Workload:
    shapes = [(rows, depth), (columns, depth), (rows, columns)]
    numbers = (rows, depth, columns)
    return _with_product(name, few_tokens_linear, numbers, shapes, 2 * rows * columns)


def scaled_masked_product(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    return torch.bmm(x, y) * x.shape[-1] ** -0.5 + mask


def _scaled_masked_product(batch: int, rows: int, depth: int, columns: int) -> Workload:
    shapes = [(batch, rows, depth), (batch, depth, columns), (rows, columns)]
    return _with_product(
        "scaled_masked_product", scaled_masked_product,
        (batch * rows, depth, columns), shapes, 2 * batch * rows * columns,
    )  # fmt: skip
