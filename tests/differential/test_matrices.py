"""Diagonals as views, and the calls about matrices that become rows of the op table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.compare import assert_matches_eager

Program = Callable[..., Any]


def _changed_diagonal(x: Tensor) -> Tensor:
    x.diagonal(1).mul_(2)
    return x + 1


def _batched(x: Tensor, left: Tensor, right: Tensor) -> Tensor:
    return torch.addbmm(x, left, right, beta=0.5, alpha=2).relu()


DIAGONALS: dict[str, Program] = {
    "after": lambda x: torch.diagonal(x * 2, offset=1) + 1,
    "below": lambda x: torch.diagonal(x.exp(), offset=-2) * 3,
    "as a view of an input": lambda x: x.diagonal(),
    "as a view of a result": lambda x: (x * 2).diagonal(offset=-1),
    "beside its matrix": lambda x: (x * 2, (x * 2).diagonal() * 3),
    "summed": lambda x: (x + 1).diagonal().sum(),
    "of a softmax": lambda x: x.softmax(-1).diagonal().relu(),
    "of a sum that a row waits for": lambda x: (x.sum(1, keepdim=True) + x).diagonal() * 2,
    "of one element": lambda x: x.diagonal(offset=-4) + 1,
    "of no element": lambda x: x.diagonal(offset=9) + 1,
    "read across": lambda x: x.diagonal() + x[:, :5].t().diagonal().flip(0),
    "embedded": lambda x: torch.diag_embed(x[0] * 2, offset=1) + 1,
    "of what a diagonal is read of": lambda x: torch.diag(x[0]).diagonal() + x[1],
}


@pytest.mark.parametrize("name", DIAGONALS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_diagonal_is_a_view(name: str, dynamic: bool | None, device: str) -> None:
    x = torch.randn(5, 7)
    program = DIAGONALS[name]
    assert_matches_eager(program, x, grad=True, dynamic=dynamic, device=device, expect_opaque=())


def test_diagonals_of_inner_dimensions(device: str) -> None:
    def program(x: Tensor) -> Tensor:
        return (x * 2).diagonal(offset=-1, dim1=-1, dim2=1) + 1

    x = torch.randn(3, 4, 6, 5)
    assert_matches_eager(program, x, grad=True, device=device, expect_opaque=())


def test_a_diagonal_is_read_before_its_matrix_is_overwritten(device: str) -> None:
    """Each element reads one that another program of the kernel would overwrite."""

    def program(x: Tensor) -> None:
        x.copy_(x + x.diagonal())  # eager's own `x.add_` reads what it has written

    assert_matches_eager(program, torch.randn(67, 67), device=device, expect_opaque=())


def test_a_diagonal_that_is_written_to(device: str) -> None:
    assert_matches_eager(_changed_diagonal, torch.randn(5, 4), device=device, expect_opaque=())


@pytest.mark.parametrize("offset", [-3, 0, 2])
def test_a_written_diagonal_lies_where_its_dimensions_are(offset: int, device: str) -> None:
    def program(x: Tensor, source: Tensor) -> Tensor:
        return torch.diagonal_scatter(x, source, offset, 2, 0) + 1

    x = torch.randn(4, 3, 6)
    source = torch.randn(x.diagonal(offset, 2, 0).shape)
    assert_matches_eager(program, x, source, grad=True, device=device, expect_opaque=())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_trace_is_a_sum(dtype: torch.dtype, device: str) -> None:
    x = torch.randn(7, 5).mul(9).to(dtype)
    assert_matches_eager(lambda x: torch.trace(x) * 2, x, device=device, expect_opaque=())


def test_blocks_of_all_ranks_lie_on_the_diagonal(device: str) -> None:
    blocks = torch.randn(2, 3), torch.randn(4), torch.randn(()), torch.randn(3, 1)
    assert_matches_eager(
        lambda *blocks: torch.block_diag(*blocks) * 2,
        *blocks, grad=True, device=device, expect_opaque=(),
    )  # fmt: skip


def test_a_sum_of_products_over_a_batch_is_one_product(device: str) -> None:
    given = torch.randn(5, 7), torch.randn(3, 5, 4), torch.randn(3, 4, 7)
    assert_matches_eager(_batched, *given, device=device, expect_opaque=())


def test_the_largest_of_one_number(device: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.max(x, 0)[0] * 2, x.argmax() + 1

    assert_matches_eager(program, torch.randn(()), grad=True, device=device, expect_opaque=())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loss_of_one_row_without_a_batch(reduction: str, dtype: torch.dtype, device: str) -> None:
    target = torch.tensor(2).to(device)

    def program(x: Tensor) -> Tensor:
        return F.nll_loss(x * 2, target, reduction=reduction)

    x = torch.randn(5, dtype=dtype)
    assert_matches_eager(program, x, grad=True, device=device, expect_opaque=())


def test_the_slope_of_a_soft_margin_keeps_its_digits(device: str) -> None:
    """Where the margin is large, the slope is small: a difference from 1 would have few digits."""
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]).to(device)

    def program(x: Tensor) -> Tensor:
        return F.soft_margin_loss(x, signs, reduction="none")

    x = torch.tensor([14.5, -17.0, 3.0, 80.0, -9.0])
    assert_matches_eager(program, x, grad=True, elementwise=True, device=device, expect_opaque=())
