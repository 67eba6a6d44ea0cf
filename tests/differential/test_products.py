"""Matrix products with what stands around them, as one kernel.

Each program is small and aims at one thing that a fused product could get wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.compare import assert_matches_eager

pytestmark = pytest.mark.usefixtures("slow_launches")


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def halves(*shape: int, seed: int = 0) -> Tensor:
    return values(*shape, dtype=torch.bfloat16, seed=seed)


def kinds(plans: Any) -> list[str]:
    return [region.kind.value for plan in plans for region in plan.regions]


def check(
    call: Callable[..., Any], *args: Any, device: str, regions: int = 1, grad: bool = False
) -> None:
    """The program is `regions` products with nothing left as a call."""
    plans = assert_matches_eager(call, *args, device=device, expect_opaque=())
    assert kinds(plans) == ["contraction"] * regions, str(plans[0])
    if grad:
        assert_matches_eager(call, *args, grad=True, device=device)


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])


# Epilogues ----------------------------------------------------------------------------------------


def gelu_of_linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def residual(x: Tensor, w: Tensor, b: Tensor, skip: Tensor) -> Tensor:
    return F.linear(x, w, b) + skip


@DTYPES
@pytest.mark.parametrize(("rows", "columns", "inner"), [(64, 128, 96), (65, 130, 97), (3, 17, 5)])
def test_bias_and_activation(
    rows: int, columns: int, inner: int, dtype: torch.dtype, device: str
) -> None:
    w, b = values(columns, inner, dtype=dtype), values(columns, dtype=dtype)
    check(gelu_of_linear, values(rows, inner, dtype=dtype), w, b, device=device, grad=True)


@pytest.mark.parametrize(
    ("rows", "columns", "inner"), [(1, 40, 24), (40, 1, 24), (40, 24, 1), (1, 1, 1)]
)
def test_sides_of_one_element(rows: int, columns: int, inner: int, device: str) -> None:
    args = values(rows, inner), values(columns, inner), values(columns)
    check(gelu_of_linear, *args, device=device)


@pytest.mark.parametrize(("rows", "columns", "inner"), [(0, 40, 24), (40, 0, 24), (40, 24, 0)])
def test_sides_of_no_element(rows: int, columns: int, inner: int, device: str) -> None:
    args = values(rows, inner), values(columns, inner), values(columns)
    assert_matches_eager(gelu_of_linear, *args, device=device)


def test_rows_of_a_batch_and_sequence(device: str) -> None:
    x, w, b = halves(3, 7, 40), halves(24, 40), halves(24)
    check(residual, x, w, b, halves(3, 7, 24), device=device, grad=True)


def test_a_residual_that_lies_otherwise(device: str) -> None:
    x, w, b = values(31, 40), values(24, 40), values(24)
    check(residual, x, w, b, values(24, 31).t(), device=device)


def test_a_transposed_result(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).relu().t().contiguous()

    check(program, values(31, 40), values(40, 50), device=device)


def test_transposed_and_strided_operands(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return (x.t() @ w[::2, 1:]).sigmoid()

    check(program, values(40, 31), values(80, 51), device=device)


def test_several_outputs_and_the_product_itself(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        product = x @ w
        return product, product.relu(), (product * 2).tanh()

    check(program, halves(33, 40), halves(40, 50), device=device)


def test_row_and_column_scales(device: str) -> None:
    def program(x: Tensor, w: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        return (x @ w) * rows[:, None] * columns + 1

    args = values(33, 40), values(40, 50), values(33), values(50)
    check(program, *args, device=device, grad=True)


def test_a_result_in_another_type(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).float().exp()

    check(program, halves(33, 8), halves(8, 50), device=device)


def test_heads_apart(device: str) -> None:
    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        heads = F.linear(x, w, b).view(2, 9, 4, 8).transpose(1, 2)
        return (heads * 0.5).contiguous()

    check(program, values(2, 9, 24), values(32, 24), values(32), device=device)


def test_rotated_heads(device: str) -> None:
    def program(x: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        heads = F.linear(x, w).view(2, 9, 4, 8).transpose(1, 2)
        return heads * cos + heads * sin

    args = values(2, 9, 24), values(32, 24), values(9, 8), values(9, 8)
    check(program, *args, device=device)


def test_dropout_after_a_product(device: str) -> None:
    def program(x: Tensor, w: Tensor, b: Tensor, skip: Tensor) -> Tensor:
        return F.dropout(F.linear(x, w, b), 0.3) + skip

    args = values(33, 40), values(50, 40), values(50), values(33, 50)
    assert_matches_eager(program, *args, device=device, is_random=True)


# Scales -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.5), (2.0, 1.0), (0.25, -3.0), (0.0, 1.0)])
def test_scales_of_addmm(alpha: float, beta: float, device: str) -> None:
    def program(c: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return torch.addmm(c, x, w, alpha=alpha, beta=beta).relu()

    check(program, values(33, 50), values(33, 40), values(40, 50), device=device)


def test_beta_of_zero_reads_nothing(device: str) -> None:
    def program(c: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return torch.addmm(c, x, w, beta=0).relu()

    args = torch.full((33, 50), float("nan")), values(33, 40), values(40, 50)
    check(program, *args, device=device)


def test_infinities_and_nans(device: str) -> None:
    x, w, b = values(33, 40), values(50, 40), values(50)
    x[3, 4], x[5, 6], w[7, 8] = float("inf"), float("nan"), float("-inf")
    check(gelu_of_linear, x, w, b, device=device)


# Batches ------------------------------------------------------------------------------------------


def test_a_batch_with_a_mask(device: str) -> None:
    def program(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, q @ k.transpose(-1, -2) * 0.125, -1e9)

    q, k = values(2, 3, 17, 16), values(2, 3, 19, 16)
    check(program, q, k, values(17, 19) > 0, device=device, grad=True)


def test_a_matrix_for_every_batch(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return torch.einsum("bsk,kn->bsn", x, w).relu()

    check(program, values(3, 7, 40), values(40, 24), device=device)


def test_baddbmm(device: str) -> None:
    def program(c: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return torch.baddbmm(c, x, w, beta=0.5, alpha=2).tanh()

    check(program, values(3, 1, 9), values(3, 7, 8), values(3, 8, 9), device=device, grad=True)


def test_einsum_over_heads(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return torch.einsum("bshd,hde->bshe", x, w) * 3

    check(program, values(2, 5, 4, 8), values(4, 8, 6), device=device)


# Prologues ----------------------------------------------------------------------------------------


def test_an_activation_before_a_product(device: str) -> None:
    def program(x: Tensor, w: Tensor, skip: Tensor) -> Tensor:
        return (x.exp() + 1).log() @ w + skip

    args = values(33, 41), values(41, 50), values(33, 50)
    assert_matches_eager(program, *args, device=device)


def test_a_cast_operand(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return (x.to(w.dtype) @ w).relu()

    check(program, halves(33, 41), values(41, 50), device=device)


# Several products ---------------------------------------------------------------------------------


def swiglu(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


@DTYPES
def test_a_gated_pair(dtype: torch.dtype, device: str) -> None:
    args = (values(33, 40, dtype=dtype), values(50, 40, dtype=dtype), values(50, 40, dtype=dtype))
    check(swiglu, *args, device=device)
    assert_matches_eager(swiglu, *args, device=device, grad=True)


def test_a_sum_of_products_of_different_inputs(device: str) -> None:
    def program(x: Tensor, a: Tensor, y: Tensor, b: Tensor) -> Tensor:
        return x @ a + y @ b

    args = values(33, 40), values(40, 50), values(33, 40, seed=1), values(40, 50, seed=1)
    check(program, *args, device=device)


def test_a_product_and_its_transpose(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return x @ w + (w.t() @ x.t()).t() * 2

    assert_matches_eager(program, values(33, 40), values(40, 50), device=device)


def test_products_in_a_row_share_no_kernel(device: str) -> None:
    def program(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return ((x @ a).relu() @ b).relu()

    args = values(33, 40), values(40, 50), values(50, 60)
    (plan,) = assert_matches_eager(program, *args, device=device)
    products = [op for region in plan.regions for op in region.ops if op.startswith("mm")]
    assert len(products) + len(plan.opaque) == 2
    assert len(plan.regions) + len(plan.opaque) == 2


def test_a_product_alone_is_the_library_s(device: str) -> None:
    plans = assert_matches_eager(
        torch.mm, values(33, 40), values(40, 50), device=device, expect_opaque=("aten.mm.default",)
    )
    assert kinds(plans) == []


# Sizes known at the call --------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [2, 31, 64])
def test_rows_known_at_the_call(rows: int, device: str) -> None:
    w, b = values(50, 40), values(50)
    assert_matches_eager(gelu_of_linear, values(rows, 40), w, b, device=device, dynamic=True)


# One row ------------------------------------------------------------------------------------------


def norm_then_linear(x: Tensor, scale: Tensor, w: Tensor, skip: Tensor) -> Tensor:
    return F.linear(F.rms_norm(x, (x.shape[-1],), scale), w) + skip


@DTYPES
def test_a_norm_before_one_row(dtype: torch.dtype, device: str) -> None:
    args = (values(1, 200, dtype=dtype), values(200, dtype=dtype), values(96, 200, dtype=dtype))
    check(norm_then_linear, *args, values(1, 96, dtype=dtype), device=device)


def test_a_layer_norm_before_one_row(device: str) -> None:
    def program(x: Tensor, scale: Tensor, shift: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.gelu(F.linear(F.layer_norm(x, (x.shape[-1],), scale, shift), w, b))

    args = values(1, 200), values(200), values(200, seed=1), values(96, 200), values(96)
    check(program, *args, device=device)


def test_a_norm_before_many_rows_is_stored(device: str) -> None:
    args = values(33, 200), values(200), values(96, 200), values(33, 96)
    plans = assert_matches_eager(norm_then_linear, *args, device=device, expect_opaque=())
    assert kinds(plans) == ["reduction", "contraction"]


@DTYPES
def test_a_gated_pair_of_one_row(dtype: torch.dtype, device: str) -> None:
    args = (values(1, 72, dtype=dtype), values(50, 72, dtype=dtype), values(50, 72, dtype=dtype))
    check(swiglu, *args, device=device)


@pytest.mark.parametrize(("inner", "columns"), [(40, 50), (3000, 7), (70000, 3)])
def test_one_row_by_a_matrix_either_way(
    inner: int, columns: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One program for a whole row has a larger error than eager's many: as it is planned.
    monkeypatch.undo()

    def across(x: Tensor, w: Tensor, skip: Tensor) -> Tensor:
        return x @ w * 0.5 + skip

    def along(x: Tensor, w: Tensor, skip: Tensor) -> Tensor:
        return x @ w.t() * 0.5 + skip

    x, skip = values(1, inner), values(1, columns)
    check(across, x, values(inner, columns), skip, device=device)
    check(along, x, values(columns, inner), skip, device=device)


def test_a_matrix_by_one_column(device: str) -> None:
    def program(w: Tensor, x: Tensor, skip: Tensor) -> Tensor:
        return (w @ x + skip).relu()

    check(program, values(50, 40), values(40, 1), values(50, 1), device=device)


def test_scores_of_one_query(device: str) -> None:
    def program(q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2) * 0.125).tanh()

    check(program, values(2, 3, 1, 16), values(2, 3, 19, 16), device=device)
