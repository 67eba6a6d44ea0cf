"""What the tests of reductions share: values, element types, the strategies of plans."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from fuser.ir.region import Strategy
from fuser.report import Plan

FLOAT_TYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"]
)


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def strategies(plans: Iterable[Plan]) -> set[Strategy]:
    return {region.strategy for plan in plans for region in plan.regions}
