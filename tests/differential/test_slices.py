"""Products that are read in slices, as one kernel with a sum for each slice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.compare import assert_matches_eager

pytestmark = pytest.mark.usefixtures("slow_launches")

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def check(call: Callable[..., Any], *args: Any, device: str, grad: bool = False) -> None:
    """The program is one kernel with nothing left as a call."""
    plans = assert_matches_eager(call, *args, device=device, expect_opaque=())
    found = [region.kind.value for plan in plans for region in plan.regions]
    assert found == ["contraction"], str(plans[0])
    if grad:
        assert_matches_eager(call, *args, grad=True, device=device)


def gated(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    left, right = F.linear(x, w, b).chunk(2, -1)
    return F.silu(left) * right


@DTYPES
@pytest.mark.parametrize(("rows", "columns", "inner"), [(64, 64, 32), (33, 25, 41), (3, 1, 5)])
def test_a_gated_pair(rows: int, columns: int, inner: int, dtype: torch.dtype, device: str) -> None:
    x, w = values(rows, inner, dtype=dtype), values(2 * columns, inner, dtype=dtype)
    check(gated, x, w, device=device, grad=True)
    check(gated, x, w, values(2 * columns, dtype=dtype), device=device, grad=True)


@DTYPES
def test_a_gated_pair_of_one_row(dtype: torch.dtype, device: str) -> None:
    x, w, b = (values(*shape, dtype=dtype) for shape in ((1, 72), (50, 72), (50,)))
    check(gated, x, w, b, device=device)


@DTYPES
def test_a_batch_and_a_sequence(dtype: torch.dtype, device: str) -> None:
    x, w, b = (values(*shape, dtype=dtype) for shape in ((3, 7, 41), (50, 41), (50,)))
    check(gated, x, w, b, device=device, grad=True)


@DTYPES
def test_glu(dtype: torch.dtype, device: str) -> None:
    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.glu(F.linear(x, w, b))

    x, w, b = (values(*shape, dtype=dtype) for shape in ((2, 17, 40), (46, 40), (46,)))
    check(program, x, w, b, device=device, grad=True)


def test_three_chunks(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        first, second, third = (x @ w).chunk(3, -1)
        return first * second.sigmoid() + third.tanh()

    # Without tensor cores three sums of a tile leave a GPU too few registers.
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    check(
        program, values(33, 40, dtype=dtype), values(40, 51, dtype=dtype), device=device, grad=True
    )


def test_slices_by_hand_and_a_residual(device: str) -> None:
    def program(x: Tensor, w: Tensor, skip: Tensor) -> Tensor:
        product = (x @ w).view(3, 11, 50)
        return F.gelu(product[..., 25:]) * product[..., :25] + skip

    check(program, values(33, 40), values(40, 50), values(3, 11, 25), device=device, grad=True)


def test_split_of_batches(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        left, right = torch.split(torch.bmm(x, w), 9, -1)
        return left.exp() - right

    check(program, values(3, 17, 8), values(3, 8, 18), device=device, grad=True)


def test_slices_of_rows(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        product = x @ w
        return product[:17] * product[17:].relu()

    check(program, values(34, 40), values(40, 50), device=device)


def test_an_added_matrix(device: str) -> None:
    def program(c: Tensor, x: Tensor, w: Tensor) -> Tensor:
        left, right = torch.addmm(c, x, w, beta=0.5, alpha=2).chunk(2, -1)
        return left * right.sigmoid()

    check(program, values(33, 50), values(33, 40), values(40, 50), device=device)


def test_what_an_activation_feeds(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        left, right = (x.exp() @ w).chunk(2, -1)
        return left * right

    assert_matches_eager(program, values(33, 41), values(41, 50), device=device)


def test_infinities_and_nans(device: str) -> None:
    x, w = values(33, 40), values(50, 40)
    x[3, 4], x[5, 6], w[7, 8], w[30, 1] = float("inf"), float("nan"), float("-inf"), float("nan")
    check(gated, x, w, device=device)


@pytest.mark.parametrize("rows", [2, 31])
def test_rows_known_at_the_call(rows: int, device: str) -> None:
    x = values(rows, 40)
    torch._dynamo.mark_dynamic(x, 0)
    check(gated, x, values(50, 40), device=device)


def test_a_slice_that_is_returned_is_stored_once(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        left, right = (x @ w).chunk(2, -1)
        return left * right, left

    args = values(33, 40), values(40, 50)
    assert_matches_eager(program, *args, device=device, expect_opaque=("aten.mm.default",))


def test_queries_keys_and_values_are_one_product(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        parts = F.linear(x, w).chunk(3, -1)
        q, k, v = (part.view(2, 16, 4, 8).transpose(1, 2) for part in parts)
        return F.scaled_dot_product_attention(q, k, v)

    plans = assert_matches_eager(program, values(2, 16, 32), values(96, 32), device=device)
    calls = [op.call.name for plan in plans for op in plan.opaque]
    assert calls.count("aten.mm.default") == 1


def test_precision_of_eager(device: str) -> None:
    x, w = values(33, 40, dtype=torch.bfloat16), values(50, 40, dtype=torch.bfloat16)
    assert_matches_eager(gated, x, w, device=device, precision="eager")


def test_glu_along_another_dimension(device: str) -> None:
    def program(x: Tensor) -> Tensor:
        return F.glu(x, 0) + F.glu(x.t(), 1).t()

    args = values(34, 41, dtype=torch.bfloat16)
    assert_matches_eager(program, args, device=device, grad=True, expect_opaque=())
