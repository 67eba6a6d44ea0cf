"""Small programs in plain PyTorch, with the bytes that each must move at least.

In: a device. Out: for each name a function, its arguments on the device, and the bytes of a perfect
kernel: every input read once, every output written once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Workload:
    """One program: `make(device)` gives its arguments; `bytes` is a perfect kernel's traffic."""

    run: Callable[..., Any]
    make: Callable[[str], tuple[Tensor, ...]]
    bytes: int


def _random(*shapes: tuple[int, ...]) -> Callable[[str], tuple[Tensor, ...]]:
    def make(device: str) -> tuple[Tensor, ...]:
        return tuple(torch.randn(s, device=device, dtype=torch.bfloat16) for s in shapes)

    return make


def _gelu_chain(x: Tensor, scale: Tensor, shift: Tensor, residual: Tensor) -> Tensor:
    return functional.gelu(x * scale + shift) * torch.sigmoid(residual) + residual


def _three_outputs(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    hidden = torch.tanh(x)
    return hidden * 2, hidden + x, hidden * hidden


def _softmax(x: Tensor) -> Tensor:
    return functional.softmax(x, -1)


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    summed = x + residual
    return functional.rms_norm(summed, weight.shape, weight), summed


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias)


def _group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.silu(functional.group_norm(x, 32, weight, bias))


def _images(device: str) -> tuple[Tensor, ...]:
    x, weight, bias = _random((32, 512, 64, 64), (512,), (512,))(device)
    return x.to(memory_format=torch.channels_last), weight, bias


def _logits(device: str) -> tuple[Tensor, ...]:
    logits = torch.randn(4096, 128256, device=device, dtype=torch.bfloat16)
    return logits, torch.randint(0, 128256, (4096,), device=device)


WORKLOADS: Mapping[str, Workload] = {
    "gelu_chain": Workload(
        _gelu_chain, _random((8192, 8192), (8192,), (8192,), (8192, 8192)), 6 * 8192 * 8192
    ),
    "three_outputs": Workload(_three_outputs, _random((8192, 8192)), 8 * 8192 * 8192),
    "transposed_add": Workload(
        lambda x, y: x + y.T, _random((4096, 8192), (8192, 4096)), 6 * 4096 * 8192
    ),
    "softmax_1024": Workload(_softmax, _random((65536, 1024)), 4 * 65536 * 1024),
    "softmax_4096": Workload(_softmax, _random((16384, 4096)), 4 * 16384 * 4096),
    "softmax_32768": Workload(_softmax, _random((2048, 32768)), 4 * 2048 * 32768),
    "softmax_131072": Workload(_softmax, _random((1024, 131072)), 4 * 1024 * 131072),
    "add_rms_norm": Workload(
        _add_rms_norm, _random((16384, 4096), (16384, 4096), (4096,)), 8 * 16384 * 4096
    ),
    "layer_norm": Workload(
        _layer_norm, _random((16384, 4096), (4096,), (4096,)), 4 * 16384 * 4096
    ),
    "group_norm_silu": Workload(_group_norm_silu, _images, 4 * 32 * 512 * 64 * 64),
    "column_sum": Workload(lambda x: x.sum(0), _random((65536, 4096)), 2 * 65536 * 4096),
    "mse_loss": Workload(
        functional.mse_loss, _random((8192, 16384), (8192, 16384)), 4 * 8192 * 16384
    ),
    "cross_entropy": Workload(functional.cross_entropy, _logits, 2 * 4096 * 128256),
}  # fmt: skip
