"""Kernels with matrix products compile for GPUs that are not here, without spills and within what a
block has, with the instructions of tensor cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fuser
from fuser.device import device_spec
from fuser.ir.kernel import Resources
from fuser.ir.region import Region, RegionKind

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
Program = Callable[..., Any]


def halves(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)


def gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def residual(x: Tensor, w: Tensor, b: Tensor, skip: Tensor) -> Tensor:
    return F.linear(x, w, b) + skip


def gated(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def masked(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, q @ k.transpose(-1, -2) * 0.125, float("-inf"))


def after_norm(x: Tensor, scale: Tensor, w: Tensor, skip: Tensor) -> Tensor:
    return F.linear(F.rms_norm(x, (x.shape[-1],), scale), w) + skip


def norm_of_results(
    x: Tensor, w: Tensor, b: Tensor, skip: Tensor, scale: Tensor, shift: Tensor
) -> Tensor:
    return F.layer_norm(residual(x, w, b, skip), scale.shape, scale, shift)


def scores(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return masked(q, k, mask).softmax(-1)


MASK = torch.empty(256, 256, dtype=torch.bool)
PROGRAMS: dict[str, tuple[Program, tuple[Tensor, ...]]] = {
    "large": (gelu, (halves(2048, 1024), halves(4096, 1024), halves(4096))),
    "small": (gelu, (halves(512, 768), halves(3072, 768), halves(3072))),
    "odd": (gelu, (halves(1001, 777), halves(1003, 777), halves(1003))),
    "residual": (residual, (halves(256, 512), halves(512, 512), halves(512), halves(256, 512))),
    "few_rows": (residual, (halves(16, 1024), halves(512, 1024), halves(512), halves(16, 512))),
    "one_row": (residual, (halves(1, 1024), halves(512, 1024), halves(512), halves(1, 512))),
    "gated": (gated, (halves(2048, 512), halves(2048, 512), halves(2048, 512))),
    "gated_row": (gated, (halves(1, 1024), halves(512, 1024), halves(512, 1024))),
    "batch": (masked, (halves(64, 256, 64), halves(64, 256, 64), MASK)),
    "norm_of_results": (
        norm_of_results,
        (
            *(halves(65536, 256), halves(256, 256), halves(256), halves(65536, 256)),
            *(halves(256), halves(256)),
        ),
    ),
    "wide_norm_of_results": (
        norm_of_results,
        (
            *(halves(65536, 64), halves(500, 64), halves(500), halves(65536, 500)),
            *(halves(500), halves(500)),
        ),
    ),
    "scores": (scores, (halves(64, 256, 64), halves(64, 256, 64), MASK)),
    "norm_of_a_row": (
        after_norm,
        (halves(1, 1024), halves(1024), halves(512, 1024), halves(1, 512)),
    ),
}


def region_of(name: str, target: str) -> tuple[Region, Sequence[Resources | str]]:
    """The one region that a program becomes, and what the compiler says of its kernels."""
    program, args = PROGRAMS[name]
    plan = fuser.plan(program, *args, target=target).with_resources()
    assert not plan.opaque
    (region,) = plan.regions
    assert region.kind is RegionKind.CONTRACTION
    return region, list(plan.resources.values())


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_products_compile_without_spills(name: str, target: str) -> None:
    _, resources = region_of(name, target)
    for found in resources:
        assert isinstance(found, Resources), found
        assert found.spills == 0
        assert found.shared_bytes <= device_spec(target).shared_bytes_per_block


@pytest.mark.parametrize(
    "name", ["small", "odd", "residual", "gated", "batch", "norm_of_results", "scores"]
)
def test_needs_are_predicted(name: str) -> None:
    """Shared memory never falls short of what it is, and registers are about right."""
    region, (found,) = region_of(name, "sm_90")
    needs = region.cost.needs
    assert isinstance(found, Resources)
    assert found.shared_bytes <= needs.shared_bytes <= 2 * found.shared_bytes
    assert abs(needs.registers - found.registers) < 0.35 * found.registers
