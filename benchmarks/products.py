"""Workloads with a matrix product: what surrounds it can be fused with it or around it.

In: how many times fewer rows than the usual number. Out: the workloads, in bfloat16, with the
operations of their products (a multiply-add is two).
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
        _rms_norm_linear(rows(8192), 4096, 6144),
        _linear_residual_layer_norm(rows(131072), 256),
        _one_token("one_token_linear", 4096, 4096),
        _swiglu("one_token_swiglu", 1, 4096, 14336),
        _scaled_masked_product(256, rows(1024), 128, 1024),
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
    return Workload(name, run, random(*shapes), read, written, flops=2 * rows * depth * columns)


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


def rms_norm_linear(x: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(functional.rms_norm(x, scale.shape, scale), weight)


def _rms_norm_linear(rows: int, depth: int, columns: int) -> Workload:
    shapes = [(rows, depth), (depth,), (columns, depth)]
    numbers = (rows, depth, columns)
    return _with_product("rms_norm_linear", rms_norm_linear, numbers, shapes, 2 * rows * columns)


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


def one_token_linear(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    return functional.linear(x, weight) + residual


def _one_token(name: str, depth: int, columns: int) -> Workload:
    shapes = [(1, depth), (columns, depth), (1, columns)]
    return _with_product(name, one_token_linear, (1, depth, columns), shapes, 2 * columns)


def scaled_masked_product(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    return torch.bmm(x, y) * x.shape[-1] ** -0.5 + mask


def _scaled_masked_product(batch: int, rows: int, depth: int, columns: int) -> Workload:
    shapes = [(batch, rows, depth), (batch, depth, columns), (rows, columns)]
    return _with_product(
        "scaled_masked_product", scaled_masked_product,
        (batch * rows, depth, columns), shapes, 2 * batch * rows * columns,
    )  # fmt: skip
