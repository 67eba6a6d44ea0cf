"""Calls on every number of a half type: no farther from the exact result than eager's.

Here kernels compute with torch's functions, and what is tested are the formulas; on a GPU the few
instructions that a half type is given are tested with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fuser

NEAR, FAR = 2.0**-16.5, 2.0**-14.5
"""Relative errors before the last rounding, in the range of float16 and beyond it.

Those of a function (2^-18 and 2^-16.5), and those of its argument, of up to four roundings: an
exponential magnifies them by the argument's size, which is at most 17 for results in the range of
float16 and 88 for others.
"""
NEAR_RANGE = (2.0**-25, 2.0**16)
SMALLEST = 2.0**-120
"""A sigmoid is zero where e^-x overflows, below 2^-128, and is multiplied by x here."""


def exact_sigmoid(x: Tensor) -> Tensor:
    power = torch.exp(-x.abs())
    return torch.where(x < 0, power, 1.0) / (1 + power)


def exact_gelu(x: Tensor) -> Tensor:
    tails = [math.erfc(-number * math.sqrt(0.5)) for number in x.tolist()]
    return x * 0.5 * torch.tensor(tails, dtype=torch.float64)


def exact_gelu_tanh(x: Tensor) -> Tensor:
    return x * exact_sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


Function = Callable[[Tensor], Tensor]
CALLS: dict[str, tuple[Function, Function]] = {
    "gelu": (F.gelu, exact_gelu),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), exact_gelu_tanh),
    "silu": (F.silu, lambda x: x * exact_sigmoid(x)),
    "sigmoid": (torch.sigmoid, exact_sigmoid),
    "tanh": (torch.tanh, torch.tanh),
    "exp": (torch.exp, torch.exp),
    "log": (torch.log, torch.log),
    "sqrt": (torch.sqrt, torch.sqrt),
    "reciprocal": (torch.reciprocal, torch.reciprocal),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_every_number(name: str, dtype: torch.dtype, device: str) -> None:
    call, exactly = CALLS[name]
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32)
    x = bits.to(torch.int16).view(dtype)
    fused = fuser.compile(call)(x.to(device)).cpu()
    eager = call(x.to(device)).cpu()
    exact = exactly(x.double())
    # Eager's gelu of bfloat16 overflows early on a CPU and makes NaN of infinity.
    eager = torch.where(eager.isfinite(), eager, exact.to(dtype))
    assert torch.equal(fused.isnan(), eager.isnan())
    assert torch.equal(fused.isinf(), eager.isinf())
    size = exact.abs()
    is_near = (size >= NEAR_RANGE[0]) & (size <= NEAR_RANGE[1])
    # Twice: a value just past the middle between two numbers is rounded to the farther one.
    allowed = 2 * size * torch.where(is_near, NEAR, FAR) + SMALLEST
    excess = (fused.double() - exact).abs() - (eager.double() - exact).abs()
    is_wrong = fused.isfinite() & ~(excess <= allowed)
    assert not is_wrong.any(), (x[is_wrong][:5], fused[is_wrong][:5], eager[is_wrong][:5])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_rows_of_softmax(scale: float, dtype: torch.dtype, device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x = (torch.randn(61, 1000, generator=generator) * scale).to(dtype)
    x[3, 5], x[4, 7], x[5, :] = -math.inf, math.nan, -math.inf
    fused = fuser.compile(lambda x: F.softmax(x, -1))(x.to(device)).cpu()
    eager = F.softmax(x.to(device), -1).cpu()
    exact = F.softmax(x.double(), -1)
    assert torch.equal(fused.isnan(), eager.isnan())
    excess = (fused.double() - exact).abs() - (eager.double() - exact).abs()
    assert (excess.nan_to_num() <= 2 * exact.nan_to_num() * FAR + SMALLEST).all()


def test_precision_eager_is_bit_for_bit(device: str) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(64, 1000, generator=generator).to(torch.bfloat16).to(device)

    def program(x: Tensor) -> Tensor:
        return torch.sigmoid(x) / (torch.exp(x) + 1) + torch.sqrt(x * x)

    compiled = fuser.compile(program, precision="eager")
    assert torch.equal(compiled(x), program(x))
