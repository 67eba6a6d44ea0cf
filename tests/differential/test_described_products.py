"""Products whose operands are read by tensor descriptors, in programs that walk tiles.

The same kernels are chosen by predicted time on a GPU that has descriptors; here they are asked
for, so that the interpreter runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuser.ir.region import Strategy
from support.compare import assert_matches_eager
from support.described import prefer_descriptors

pytestmark = pytest.mark.usefixtures("slow_launches")


@pytest.fixture(autouse=True)
def _described(monkeypatch: pytest.MonkeyPatch) -> None:
    prefer_descriptors(monkeypatch)


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def check(
    call: Callable[..., Any],
    *args: Any,
    device: str,
    strategy: Strategy = Strategy.DESCRIBED_PRODUCT,
    **options: Any,
) -> None:
    """The program is one product of this kind, with nothing left as a call."""
    plans = assert_matches_eager(call, *args, device=device, expect_opaque=(), **options)
    (region,) = plans[0].regions
    # Without tensor cores a tile's products fill the registers: a GPU's plan may say so instead.
    assert region.strategy is strategy or any("spilled" in note for note in region.notes)


def gelu_of_linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])


# Shapes -------------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize(
    ("rows", "columns", "inner"),
    [
        (64, 128, 96),
        (65, 130, 104),  # no side is a multiple of a tile
        (3, 17, 8),  # less than one tile
        (257, 200, 72),  # more tiles than programs
    ],
)
def test_bias_and_activation(
    rows: int, columns: int, inner: int, dtype: torch.dtype, device: str
) -> None:
    w, b = values(columns, inner, dtype=dtype), values(columns, dtype=dtype)
    check(gelu_of_linear, values(rows, inner, dtype=dtype), w, b, device=device)


def test_the_operand_in_front_of_odd_rows_is_read_by_pointers(device: str) -> None:
    """Rows of 97 elements do not begin at multiples of 16 bytes."""
    args = values(65, 97), values(130, 97), values(130)
    check(gelu_of_linear, *args, device=device, strategy=Strategy.PRODUCT)


@DTYPES
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_transposed_operands(first: bool, second: bool, dtype: torch.dtype, device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return ((x.t() if first else x) @ (w.t() if second else w)).relu()

    x = values(72, 88, dtype=dtype) if first else values(88, 72, dtype=dtype)
    w = values(104, 72, dtype=dtype) if second else values(72, 104, dtype=dtype)
    check(program, x, w, device=device)


@DTYPES
def test_a_batch(dtype: torch.dtype, device: str) -> None:
    def program(q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2) * 0.125).sigmoid()

    check(program, values(3, 70, 40, dtype=dtype), values(3, 90, 40, dtype=dtype), device=device)


def test_a_batch_of_heads_that_lie_inside_the_rows(device: str) -> None:
    """Two batch axes with strides of their own, neither of which follows from the other."""

    def program(q: Tensor, k: Tensor) -> Tensor:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        return (q @ k.transpose(-1, -2)).sigmoid()

    check(program, values(2, 70, 3, 40), values(2, 50, 3, 40), device=device)


def test_rows_of_a_batch(device: str) -> None:
    def program(x: Tensor, w: Tensor, skip: Tensor) -> Tensor:
        return F.linear(x, w) + skip

    check(program, values(3, 7, 40), values(24, 40), values(3, 7, 24), device=device)


def test_the_end_of_the_inner_axis_is_not_that_of_the_memory(device: str) -> None:
    """What follows the columns that are read, NaN here, is not multiplied."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        return (x[:, :20] @ w[:20]).relu()

    x, w = values(33, 32), values(32, 64)
    x[:, 20:], w[20:] = float("nan"), float("nan")
    check(program, x, w, device=device)


def test_rows_past_the_last_are_not_multiplied_with_nan(device: str) -> None:
    x, w = values(33, 40), values(50, 40)
    x[32], w[49] = float("inf"), float("nan")
    check(gelu_of_linear, x, w, values(50), device=device)


@pytest.mark.parametrize("rows", [40, 130])
def test_rows_that_change(rows: int, device: str) -> None:
    layers = nn.Sequential(nn.Linear(40, 50), nn.GELU())
    check(layers, values(rows, 40), device=device, dynamic=True)


# What stands around them --------------------------------------------------------------------------


def test_an_operand_is_a_residual_too(device: str) -> None:
    """One tensor is read by a descriptor in the loop and by pointers after it."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x, w) + x

    check(program, values(40, 48), values(48, 48), device=device)


def test_a_gated_pair(device: str) -> None:
    def program(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(F.linear(x, gate)) * F.linear(x, up)

    args = (values(*shape, dtype=torch.bfloat16) for shape in ((40, 48), (130, 48), (130, 48)))
    check(program, *args, device=device)


def test_an_operand_that_is_computed(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return x.relu() @ w

    x, w = values(70, 72, dtype=torch.float16), values(72, 40, dtype=torch.float16)
    check(program, x, w, device=device)


def test_a_padded_operand_beside_one_that_is_not(device: str) -> None:
    """What is read under a guard is read by pointers."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        return F.pad(x, (4, 4)) @ w

    check(program, values(33, 40), values(48, 64), device=device)


def test_several_results_and_the_product_itself(device: str) -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        product = x @ w
        return product, product.relu().t().contiguous(), (product * 2).tanh()

    args = values(33, 40, dtype=torch.bfloat16), values(40, 56, dtype=torch.bfloat16)
    check(program, *args, device=device)


# At the call --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [1, 4])
def test_an_operand_that_is_not_aligned(shift: int, device: str) -> None:
    """Its base has to be a multiple of 16 bytes; where it is not, pointers take over."""
    memory = values(40 * 48 + 8)
    args = memory[shift:][: 40 * 48].view(40, 48), values(64, 48), values(64)
    check(gelu_of_linear, *args, device=device)


@pytest.mark.parametrize(("rows", "inner"), [(0, 40), (40, 0)])
def test_no_rows_and_nothing_to_sum(rows: int, inner: int, device: str) -> None:
    args = values(rows, inner), values(56, inner), values(56)
    assert_matches_eager(gelu_of_linear, *args, device=device)
