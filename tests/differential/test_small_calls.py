"""Calls that become a few rows of the op table."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.compare import assert_matches_eager


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decimals", [-2, 0, 3])
def test_rounding_to_decimals(decimals: int, dtype: torch.dtype, device: str) -> None:
    def program(x: Tensor) -> Tensor:
        return torch.round(x * 3, decimals=decimals) + 1

    x = torch.tensor([0.0, -0.5, 1.0625, 123.4567, -250.0, float("inf"), float("nan")]).to(dtype)
    assert_matches_eager(program, x, device=device, expect_opaque=())


def test_half_types_round_to_decimals_as_eager_does(device: str) -> None:
    """Eager rounds between the steps, so the call stays its own."""
    x = torch.randn(33).mul(50).to(torch.bfloat16)

    def program(x: Tensor) -> Tensor:
        return torch.round(x, decimals=1)

    assert_matches_eager(program, x, device=device, expect_opaque=["aten.round.decimals"])


@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_membership_in_a_few_numbers(inverted: bool, dtype: torch.dtype, device: str) -> None:
    def program(x: Tensor, members: Tensor) -> Tensor:
        return torch.isin(x, members, invert=inverted)

    x = torch.arange(24).view(4, 6).to(dtype)
    members = torch.tensor([3, 17, 99]).to(dtype)
    assert_matches_eager(program, x, members, device=device, expect_opaque=())


def test_a_copied_view_is_dense(device: str) -> None:
    def program(x: Tensor) -> Tensor:
        return torch.view_copy(x * 2, (6, 4))

    assert_matches_eager(program, torch.randn(4, 6), grad=True, device=device, expect_opaque=())
