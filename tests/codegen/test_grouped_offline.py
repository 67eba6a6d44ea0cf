"""Launches of several products, and products with a rotary embedding, compile for GPUs that are not
here, without spills and within what a block has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fuser
from fuser.device import device_spec
from fuser.ir.kernel import Resources
from fuser.ir.region import RegionKind

TARGETS = ["sm_80", "sm_90", "sm_100", "gfx942"]


def halves(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)


def grouped(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return F.linear(x, q), F.linear(x, k), F.linear(x, v).relu()


def turned(x: Tensor, w: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    heads = F.linear(x, w).view(*x.shape[:2], -1, cosine.shape[-1]).transpose(1, 2)
    first, second = heads.chunk(2, -1)
    return (heads * cosine + torch.cat((-second, first), -1) * sine).to(x.dtype)


PROGRAMS: dict[str, tuple[Any, tuple[Tensor, ...]]] = {
    "grouped": (grouped, (halves(512, 1024), *(halves(n, 1024) for n in (1024, 256, 256)))),
    "few_rows": (grouped, (halves(16, 1024), *(halves(n, 1024) for n in (1024, 256, 256)))),
    "turned": (
        turned,
        (halves(2, 512, 1024), halves(512, 1024), torch.empty(512, 64), torch.empty(512, 64)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_they_compile_without_spills(name: str, target: str) -> None:
    program, args = PROGRAMS[name]
    plan = fuser.plan(program, *args, target=target).with_resources()
    assert not plan.opaque
    assert {region.kind for region in plan.regions} == {RegionKind.CONTRACTION}
    (found,) = plan.resources.values()
    assert isinstance(found, Resources), found
    assert found.spills == 0
    assert found.shared_bytes <= device_spec(target).shared_bytes_per_block
