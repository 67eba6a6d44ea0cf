"""float8 in generated kernels: casts are eager's bit by bit, rows are quantised in one kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fuser
from support.compare import assert_matches_eager, opaque_calls

FLOAT8 = pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
SOURCES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def numbers() -> Tensor:
    """Every float8, halfway between neighbours, a little beside that, and far past the largest."""
    bytes_ = torch.arange(256, dtype=torch.uint8)
    kinds = (torch.float8_e4m3fn, torch.float8_e5m2)
    exact = torch.cat([bytes_.view(kind).float() for kind in kinds])
    ordered = exact[exact.isfinite()].unique()
    halves = (ordered[1:] + ordered[:-1]) / 2
    beside = [halves * (1 + step * 2.0**-20) for step in (-1, 0, 1)]
    edges = [448.0, 464.0, 465.0, 480.0, 57344.0, 61439.0, 61440.0, 65536.0, 1e30, 1e-30, -0.0]
    generator = torch.Generator().manual_seed(3)
    random = torch.randn(500, generator=generator) * torch.logspace(-8, 6, 500)
    given = torch.cat([exact, *beside, torch.tensor(edges), -torch.tensor(edges), random])
    return torch.cat([given, torch.tensor([torch.inf, -torch.inf, torch.nan])])


def assert_same_bits(program: Any, x: Tensor, device: str) -> None:
    x = x.to(device)
    fused, eager = fuser.compile(program)(x), program(x)
    for left, right in zip(fused, eager, strict=True):
        assert left.dtype == right.dtype
        wide = left.double(), right.double()
        assert torch.equal(wide[0].isnan(), wide[1].isnan())
        kept = ~wide[0].isnan()
        assert torch.equal(wide[0][kept], wide[1][kept])
        assert torch.equal(wide[0][kept].signbit(), wide[1][kept].signbit())


@FLOAT8
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_casts_to(dtype: torch.dtype, source: torch.dtype, device: str) -> None:
    def program(x: Tensor) -> Any:
        return x.to(dtype), x.to(dtype).float() + 1, (x * 2).to(dtype).to(torch.bfloat16)

    assert_same_bits(program, numbers().to(source), device)


@FLOAT8
def test_casts_from(dtype: torch.dtype, device: str) -> None:
    def program(x: Tensor) -> Any:
        return x.float() * 2, x.to(torch.bfloat16), x.double(), x.to(torch.float8_e5m2), x.clone()

    assert_same_bits(program, torch.arange(256, dtype=torch.uint8).view(dtype), device)


def quantised(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    rows = F.rms_norm(x, weight.shape, weight).float()
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return (rows / scale).to(torch.float8_e4m3fn), scale


@pytest.mark.parametrize("length", [7, 130, 1000])
def test_a_row_is_quantised_in_one_kernel(length: int, device: str) -> None:
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(9, length, generator=generator).bfloat16()
    weight = torch.randn(length, generator=generator).bfloat16()
    (plan,) = assert_matches_eager(quantised, x, weight, device=device, expect_opaque=())
    assert len(plan.regions) == 1


def test_arithmetic_stays_with_eager(device: str) -> None:
    x = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)[:120].reshape(10, 12)
    plans = assert_matches_eager(lambda x: x.t().contiguous().float(), x, device=device)
    assert opaque_calls(plans) <= {"aten.clone.default"}
