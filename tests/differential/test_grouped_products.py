"""Products of one input with different numbers of columns in one launch, and rotary embeddings in
the kernel of the product that they turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuser
from support.compare import assert_matches_eager

pytestmark = pytest.mark.usefixtures("slow_launches")

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def launches(plans: Any) -> list[int]:
    """How many regions each launch has, all of them products."""
    (plan,) = plans
    assert {region.kind.value for region in plan.regions} == {"contraction"}, str(plan)
    assert not plan.calls.unfused
    return [len(step) for step in plan.fusion.steps]


# One launch ---------------------------------------------------------------------------------------


def grouped(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return F.linear(x, q), F.linear(x, k), F.linear(x, v)


def multiplied(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return x @ q.t(), x @ k.t(), x @ v.t()


def each_its_own(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return F.linear(x, q) * 2, F.gelu(F.linear(x, k)), F.linear(x, v).relu() + 1


@BOTH
@pytest.mark.parametrize("rows", [(2, 33), (257,), (1, 5)])
@pytest.mark.parametrize("program", [grouped, multiplied, each_its_own])
def test_unequal_widths_are_one_launch(
    program: Callable[..., Any], rows: tuple[int, ...], dtype: torch.dtype, device: str
) -> None:
    args = [values(*rows, 48, dtype=dtype), *(values(n, 48, dtype=dtype) for n in (80, 16, 33))]
    found = launches(assert_matches_eager(program, *args, device=device, expect_opaque=()))
    assert found == [3]


@BOTH
def test_with_biases(dtype: torch.dtype, device: str) -> None:
    class Projections(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (
                nn.Linear(40, n, bias=n != 24, dtype=dtype) for n in (64, 16, 24)
            )

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return self.query(x), self.key(x), self.value(x)

    module = Projections().eval().requires_grad_(False)
    plans = assert_matches_eager(module, values(30, 40, dtype=dtype), device=device)
    assert launches(plans) == [3]


def test_equal_widths_are_one_kernel(device: str) -> None:
    args = [values(2, 33, 48), *(values(32, 48, seed=seed) for seed in range(3))]
    (plan,) = assert_matches_eager(each_its_own, *args, device=device, expect_opaque=())
    assert len(plan.regions) == 1


def test_bands_of_rows_end_where_the_rows_do(device: str) -> None:
    """More rows than a band of tiles has, and not a multiple of it; columns of several tiles."""
    args = [values(2500, 8), *(values(n, 8) for n in (300, 16, 520))]
    assert launches(assert_matches_eager(grouped, *args, device=device)) == [3]


def test_strides_and_special_values(device: str) -> None:
    x = values(70, 60).t()[::2]
    x[3, 4], x[5, 6] = float("nan"), float("inf")
    args = [x, values(48, 70), values(140, 16)[::2].t(), values(9, 70)]
    args[1][2, 3] = float("-inf")
    assert launches(assert_matches_eager(each_its_own, *args, device=device)) == [3]


def test_sizes_may_change(device: str) -> None:
    torch.compiler.reset()
    compiled = fuser.compile(each_its_own, dynamic=True)
    weights = [values(n, 24).to(device) for n in (40, 17, 64)]
    for rows in (3, 300, 2400, 2):
        x = values(rows, 24).to(device)
        for found, wanted in zip(compiled(x, *weights), each_its_own(x, *weights), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    plan = fuser.plans(compiled)[-1]
    assert [len(step) for step in plan.fusion.steps] == [3]


# Rotary embeddings --------------------------------------------------------------------------------


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return (x * cosine + torch.cat((-second, first), -1) * sine).to(x.dtype)


def half_by_half(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cosine, sine = cosine[..., :half], sine[..., :half]
    parts = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat(parts, -1).to(x.dtype)


def neighbours(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x[..., ::2], x[..., 1::2]
    cosine, sine = cosine[..., ::2], sine[..., ::2]
    parts = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.stack(parts, -1).flatten(-2).to(x.dtype)


def heads(x: Tensor, size: int) -> Tensor:
    return x.view(*x.shape[:2], -1, size).transpose(1, 2)


Rotary = Callable[[Tensor, Tensor, Tensor], Tensor]
ROTARY = pytest.mark.parametrize("rotary", [turned, half_by_half, neighbours])


def tables(tokens: int, size: int) -> tuple[Tensor, Tensor]:
    """As of a rotary embedding, but with other numbers for each half: nothing may mix them up."""
    angles = torch.arange(tokens)[:, None] * torch.linspace(0.1, 1.7, size)
    return angles.cos(), angles.sin()


@BOTH
@ROTARY
@pytest.mark.parametrize("size", [2, 8, 64])
def test_a_rotary_embedding_is_in_the_kernel_of_its_product(
    rotary: Rotary, size: int, dtype: torch.dtype, device: str
) -> None:
    def program(x: Tensor, w: Tensor, b: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        return rotary(heads(F.linear(x, w, b), size), cosine, sine)

    x, w, b = (values(*s, dtype=dtype) for s in ((2, 13, 24), (3 * size, 24), (3 * size,)))
    plans = assert_matches_eager(program, x, w, b, *tables(13, size), device=device)
    assert launches(plans) == [1]


@ROTARY
def test_grouped_heads_are_turned_in_one_launch(rotary: Rotary, device: str) -> None:
    def program(x: Tensor, q: Tensor, k: Tensor, v: Tensor, c: Tensor, s: Tensor) -> Any:
        q, k, v = (heads(F.linear(x, w), 16) for w in (q, k, v))
        return rotary(q, c, s), rotary(k, c, s), v

    args = [values(2, 11, 32), *(values(n, 32, seed=n) for n in (96, 32, 32)), *tables(11, 16)]
    found = launches(assert_matches_eager(program, *args, device=device, expect_opaque=()))
    assert len(found) == 1


def test_the_other_half_does_not_spread_its_special_values(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        first, second = F.linear(x, w).chunk(2, -1)
        return torch.cat((first * 2, second), -1) + torch.cat((second, second), -1)

    x, w = values(9, 16), values(32, 16)
    w[3, 0], w[20, 5] = float("inf"), float("nan")
    assert launches(assert_matches_eager(program, x, w, device=device)) == [1]


@pytest.mark.parametrize("size", [6, 80])
def test_heads_that_fill_no_tile_are_turned_apart(size: int, device: str) -> None:
    def program(x: Tensor, w: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        return turned(heads(F.linear(x, w), size), cosine, sine)

    args = (values(2, 13, 24), values(3 * size, 24), *tables(13, size))
    (plan,) = assert_matches_eager(program, *args, device=device)
    assert [op.call.name for op in plan.opaque] == ["aten.mm.default"]


def test_a_single_token_is_turned(device: str) -> None:
    def program(x: Tensor, w: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        return turned(heads(F.linear(x, w), 16), cosine, sine)

    args = (values(1, 1, 24), values(48, 24), *tables(1, 16))
    assert_matches_eager(program, *args, device=device)


def test_three_slices_that_are_put_together_anew(device: str) -> None:
    """Thirds are no halves: the product is stored, or a call."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        a, b, c = F.linear(x, w).chunk(3, -1)
        return torch.cat((b * 2, c, a + 1), -1)

    assert_matches_eager(program, values(9, 16), values(48, 16), device=device)


def test_pieces_beside_a_product_stay_what_they_are(device: str) -> None:
    def program(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return F.linear(x, w) + torch.cat((a, b * 2), -1)

    args = (values(9, 16), values(40, 16), values(9, 16), values(9, 24))
    assert_matches_eager(program, *args, device=device)


@BOTH
def test_rows_are_folded_before_halves_are_read(dtype: torch.dtype, device: str) -> None:
    def program(x: Tensor, w: Tensor, scale: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        normed = F.rms_norm(F.linear(x, w), (w.shape[0],), scale)
        return turned(heads(normed, 16), cosine, sine)

    args = [values(*s, dtype=dtype) for s in ((2, 13, 24), (64, 24), (64,))]
    assert_matches_eager(program, *args, *tables(13, 16), device=device)
