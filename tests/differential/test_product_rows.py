"""Matrix products whose results are folded row by row in the same kernel: norms, softmax, scales.

Each program is small and aims at one thing that a tile with whole rows could get wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuser.ir.region import Reason, Strategy
from support.compare import assert_matches_eager

pytestmark = pytest.mark.usefixtures("slow_launches")


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def halves(*shape: int, seed: int = 0) -> Tensor:
    return values(*shape, dtype=torch.bfloat16, seed=seed)


def check(
    call: Callable[..., Any],
    *args: Any,
    device: str,
    expect_opaque: tuple[str, ...] = (),
    **options: Any,
) -> None:
    """The program is one kernel of tiles, with nothing left as a call but what is expected."""
    plans = assert_matches_eager(call, *args, device=device, expect_opaque=expect_opaque, **options)
    strategies = [region.strategy for plan in plans for region in plan.regions]
    assert strategies == [Strategy.PRODUCT], str(plans[0])


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])


def layer_norm(x: Tensor, w: Tensor, b: Tensor, skip: Tensor, scale: Tensor) -> Tensor:
    return F.layer_norm(F.linear(x, w, b) + skip, (w.shape[0],), scale, b)


def layer_norm_by_hand(x: Tensor, w: Tensor, b: Tensor, skip: Tensor, scale: Tensor) -> Tensor:
    row = torch.addmm(b, x, w.t()) + skip
    centred = row - row.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * scale + b


def rms_norm(x: Tensor, w: Tensor, b: Tensor, skip: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    row = F.linear(x, w, b) + skip
    return row, F.rms_norm(row, (w.shape[0],), scale)


def operands(rows: int, columns: int, inner: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (
        values(rows, inner, dtype=dtype),
        values(columns, inner, dtype=dtype),
        values(columns, dtype=dtype),
        values(rows, columns, dtype=dtype),
        values(columns, dtype=dtype, seed=1),
    )


# Norms --------------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize(
    ("rows", "columns", "inner"),
    [(64, 128, 96), (65, 130, 97), (3, 17, 5), (40, 300, 24), (24, 24, 24), (300, 512, 16)],
)
def test_layer_norm_with_bias_and_residual(
    rows: int, columns: int, inner: int, dtype: torch.dtype, device: str
) -> None:
    check(layer_norm, *operands(rows, columns, inner, dtype), device=device)


@DTYPES
def test_a_norm_written_by_hand_is_the_same(dtype: torch.dtype, device: str) -> None:
    check(layer_norm_by_hand, *operands(33, 50, 40, dtype), device=device)


@DTYPES
def test_a_norm_beside_the_stored_row(dtype: torch.dtype, device: str) -> None:
    check(rms_norm, *operands(65, 130, 97, dtype), device=device)


def test_every_op_rounded_as_in_eager(device: str) -> None:
    check(layer_norm, *operands(33, 50, 40, torch.bfloat16), device=device, precision="eager")


def test_gradients_of_a_norm_after_a_product(device: str) -> None:
    args = operands(33, 50, 40, torch.float32)
    assert_matches_eager(layer_norm, *args, device=device, grad=True)


def test_rows_of_a_batch_and_sequence(device: str) -> None:
    args = halves(3, 7, 40), halves(24, 40), halves(24), halves(3, 7, 24), halves(24, seed=1)
    check(layer_norm, *args, device=device)


def test_operands_that_lie_otherwise(device: str) -> None:
    def program(x: Tensor, w: Tensor, skip: Tensor) -> Tensor:
        return F.layer_norm(x.t() @ w[::2, 1:] + skip.t(), (50,))

    check(program, values(40, 31), values(80, 51), values(50, 31), device=device)


def test_a_mean_far_from_zero(device: str) -> None:
    """The variance is taken from the distances to the mean, not from squares."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        return F.layer_norm(x @ w + 4096.0, (w.shape[1],))

    check(program, values(33, 40), values(40, 50), device=device)


def test_a_variance_with_a_correction(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        product = x @ w
        return (product - product.mean(-1, keepdim=True)) / (product.std(-1, keepdim=True) + 1e-6)

    check(program, values(33, 40), values(40, 50), device=device)


def test_a_norm_of_a_gated_pair(device: str) -> None:
    def program(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
        return F.rms_norm(F.silu(F.linear(x, gate)) * F.linear(x, up), (gate.shape[0],))

    check(program, halves(33, 40), halves(24, 40), halves(24, 40, seed=1), device=device)


def test_dropout_before_a_norm(device: str) -> None:
    def program(x: Tensor, w: Tensor, skip: Tensor) -> Tensor:
        return F.layer_norm(F.dropout(x @ w, 0.3) + skip, (w.shape[1],))

    args = values(33, 40), values(40, 50), values(33, 50)
    check(program, *args, device=device, expect_opaque=("draw_seed",), is_random=True)


def test_the_input_of_a_norm_beside_it(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        row = (x @ w).tanh()
        return row + F.layer_norm(row, (w.shape[1],)).relu()

    check(program, halves(33, 40), halves(40, 50), device=device)


class Block(nn.Module):
    """Its columns are known when it is compiled, its rows need not be."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.linear, self.norm = nn.Linear(40, 24), nn.LayerNorm(24)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.norm(self.linear(x) + skip)  # type: ignore[no-any-return]


@pytest.mark.parametrize("rows", [5, 70])
def test_rows_known_at_the_call(rows: int, device: str) -> None:
    check(Block(), values(rows, 40), values(rows, 24), device=device, dynamic=True)


# Folds of other kinds -----------------------------------------------------------------------------


def test_sums_and_extremes_of_rows(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        product = x @ w
        return product.sum(-1), product.amax(-1), product.amin(-1, keepdim=True), product

    check(program, values(33, 40), values(40, 50), device=device)


def test_sums_of_columns(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        product = x @ w
        return product.sum(0), product.relu()

    check(program, values(33, 40), values(40, 50), device=device)


def test_rows_of_every_batch(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        product = torch.bmm(x, w)
        return product.amax(2), (product > 0).sum(2), product.exp().mean((2,))

    check(program, values(3, 33, 4), values(3, 4, 50), device=device)


def test_the_place_of_the_largest(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        return (x @ w).argmax(-1)

    check(program, torch.arange(33 * 8).view(33, 8) % 7 * 1.0, torch.eye(8, 50), device=device)


def test_a_softmax_and_its_logarithm(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        product = x @ w
        return product.softmax(-1), product.log_softmax(-1), product.logsumexp(-1)

    check(program, values(33, 8), values(8, 50), device=device)


def test_scores_with_a_mask(device: str) -> None:
    """Of a row that is masked whole nothing is a number, as in eager."""

    def program(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) * 0.125
        return torch.where(mask, scores, float("-inf")).softmax(-1)

    mask = values(33, 50) > 0
    mask[7] = False
    check(program, halves(4, 33, 16), halves(4, 50, 16), mask, device=device)


def test_a_softmax_down_the_columns(device: str) -> None:
    """What is folded are a tile's columns, whichever operand they come from."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).softmax(0)

    check(program, values(33, 8), values(8, 50), device=device)


def test_rows_quantised_with_their_scales(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        product = x @ w
        scale = product.abs().amax(-1, keepdim=True) / 127
        return (product / scale).round().to(torch.int8), scale

    # Small integers: sums and quotients are exact, so no quotient is near a half by rounding.
    x = torch.randint(-3, 4, (33, 8), generator=torch.Generator().manual_seed(3)).float()
    w = torch.randint(-3, 4, (8, 50), generator=torch.Generator().manual_seed(4)).float()
    check(program, x, w, device=device)


def test_a_fold_of_what_is_beside_the_product(device: str) -> None:
    def program(x: Tensor, w: Tensor, skip: Tensor) -> Tensor:
        product = x @ w
        return product.softmax(-1) + skip / (product * skip).sum(-1, keepdim=True)

    check(program, values(33, 8), values(8, 50), values(33, 50), device=device)


def test_infinities_and_nans(device: str) -> None:
    x, w, b, skip, scale = operands(9, 20, 12, torch.float32)
    x[1, 3], x[2, 2], skip[3, 4], skip[4, 5] = float("nan"), float("inf"), float("-inf"), 1e18
    for program in (layer_norm, rms_norm):
        check(program, x, w, b, skip, scale, device=device)


# What shares no kernel ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "columns", "inner"), [(1, 40, 24), (40, 1, 24), (40, 24, 1), (1, 1, 1), (0, 8, 8)]
)
def test_sides_of_one_element_or_none(rows: int, columns: int, inner: int, device: str) -> None:
    args = operands(rows, columns, inner, torch.float32)
    assert_matches_eager(layer_norm, *args, device=device)


def refusals(call: Callable[..., Any], *args: Any, device: str) -> set[str]:
    """What the plan says of the edges that are not fused; the products are calls or kernels."""
    plans = assert_matches_eager(call, *args, device=device)
    verdicts = [verdict for plan in plans for verdict in plan.edges if not verdict.fused]
    calls = [op.reason for plan in plans for op in plan.opaque]
    return {verdict.text for verdict in verdicts} | set(calls)


def test_a_row_that_no_tile_has_whole(device: str) -> None:
    said = refusals(layer_norm, *operands(9, 520, 12, torch.float32), device=device)
    wide = f"{Reason.TOO_MANY_REGISTERS.value} (rows of 520 sums, more than 512)"
    assert any(wide in text for text in said), said


def test_a_row_of_a_length_known_at_the_call(device: str) -> None:
    args = operands(9, 20, 12, torch.float32)
    plans = assert_matches_eager(layer_norm, *args, device=device, dynamic=True)
    said = [verdict.text for plan in plans for verdict in plan.edges if not verdict.fused]
    assert any("sums, which is not known" in text for text in said), said


def test_a_fold_of_a_part_of_a_row(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return F.rms_norm((x @ w).view(9, 4, 8), (8,))

    said = refusals(program, values(9, 12), values(12, 32), device=device)
    assert any("what is folded is no row of a product" in text for text in said), said


def test_folds_both_ways(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        product = (x @ w).exp()
        return product / product.sum(0), product / product.sum(1, keepdim=True)

    assert_matches_eager(program, values(9, 12), values(12, 32), device=device)


def test_scores_that_are_multiplied_again(device: str) -> None:
    """The softmax is fused behind the first product, and an operand of the second."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2) * 0.125).softmax(-1) @ v

    args = values(2, 33, 16), values(2, 50, 16), values(2, 50, 16)
    assert_matches_eager(program, *args, device=device)
