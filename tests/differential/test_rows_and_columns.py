"""Folds over rows and over columns in one reading: results, shapes, and what the plans are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuser
from fuser.device import DEVICES
from fuser.ir.region import Strategy
from support.compare import assert_matches_eager, opaque_calls
from support.rows import values

pytestmark = pytest.mark.usefixtures("slow_launches")

BOTH = Strategy.ROWS_AND_COLUMNS
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


@pytest.fixture(autouse=True)
def _bytes_take_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU. For the interpreter it is arithmetic, of which there is as much either way."""
    interpreter = replace(DEVICES["cpu"], vector_rate=1e15)
    monkeypatch.setattr("fuser.device.DEVICES", {**DEVICES, "cpu": interpreter})


def of_both(plans: Any) -> list[Any]:
    """The regions that fold rows and columns."""
    return [region for plan in plans for region in plan.regions if region.strategy is BOTH]


# Training ---------------------------------------------------------------------------------------


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias)


def rms_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.rms_norm(x + bias, weight.shape, weight)


def dropout_add_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(F.dropout(x, 0.25) + x * bias, weight.shape, weight, bias)


def log_softmax(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (x * weight + bias).log_softmax(-1)


def two_norms(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(F.rms_norm(x, weight.shape, weight)), weight.shape, bias, weight)


TRAINED: dict[str, Callable[..., Tensor]] = {
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "dropout_add_layer_norm": dropout_add_layer_norm,
    "log_softmax": log_softmax,
    "two_norms": two_norms,
}


@TYPES
@pytest.mark.parametrize("name", TRAINED)
def test_gradients_of_rows_and_columns(name: str, dtype: torch.dtype, device: str) -> None:
    args = [values(*shape, dtype=dtype) for shape in ((700, 130), (130,), (130,))]
    plans = assert_matches_eager(
        TRAINED[name], *args, grad=True, device=device, is_random="dropout" in name,
    )  # fmt: skip
    assert opaque_calls(plans) <= {"draw_seed"}
    (region,) = of_both(plans[1:])
    assert plans[1].regions == (region,) or name == "two_norms"


@pytest.mark.parametrize(
    "shape", [(2000, 1024), (7, 129, 40), (3, 5, 257, 16), (4097, 33)], ids=str
)
def test_shapes(shape: tuple[int, ...], device: str) -> None:
    args = values(*shape), values(shape[-1]), values(shape[-1], seed=1)
    plans = assert_matches_eager(layer_norm, *args, grad=True, device=device)
    assert len(plans[1].regions) == len(of_both(plans)) == 1


@pytest.mark.parametrize("rows", [600, 1031, 2, 0])
def test_a_number_of_rows_that_changes(rows: int, device: str) -> None:
    """One program for all of them, with fewer rows than programs too."""
    torch.compiler.reset()
    models = [nn.LayerNorm(100).to(device) for _ in range(2)]
    compiled = fuser.compile(models[0], dynamic=True)
    for count in (500, rows):
        gradients: list[list[Any]] = []
        for model, program in zip(models, (compiled, models[1]), strict=True):
            model.zero_grad()
            x = values(count, 100).to(device).requires_grad_()
            program(x).square().sum().backward()
            gradients.append([x.grad, *(parameter.grad for parameter in model.parameters())])
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    first = fuser.plans(compiled)[1]
    assert [region.strategy for region in first.regions] == [BOTH]
    assert not isinstance(first.regions[0].space.parallel_size, int)


def test_the_same_bits_in_every_run(device: str) -> None:
    torch.compiler.reset()
    args = [t.to(device).requires_grad_() for t in (values(900, 70), values(70), values(70))]
    compiled = fuser.compile(layer_norm)
    gradient = values(900, 70, seed=3).to(device)
    first, second = (torch.autograd.grad(compiled(*args), args, gradient) for _ in range(2))
    assert of_both(fuser.plans(compiled))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


# Folds ------------------------------------------------------------------------------------------

FOLDED: dict[str, Callable[[Tensor], Any]] = {
    "sums": lambda x: (x.sum(1), x.sum(0)),
    "what follows a sum of columns": lambda x: (x.softmax(1), x.sum(0).relu() * 2 + x.sum(0)),
    "columns of normalised rows": lambda x: (x.sum(1), x.softmax(1).sum(0), x.amax(1)),
    "extremes": lambda x: (x.amax(1), x.amax(0), x.amin(0)),
    "truths": lambda x: (x.sum(1), (x > 2).any(0), (x > -3).all(0), (x > 0).sum(0)),
    "products": lambda x: (x.sum(1), (1 + x / 1000).prod(0)),
    "a place in a row": lambda x: (x.argmax(1), x.sum(0)),
    "rows and columns kept": lambda x: (x.sum(1, keepdim=True), x.sum(0, keepdim=True)),
    "a spread of rows": lambda x: (x.var(1), (x - x.mean(1, keepdim=True)).square().sum(0)),
    "columns without their row's maximum": lambda x: (
        (x - x.amax(1, keepdim=True)).exp().sum(0), x.amax(1),
    ),
    "rows that lie across": lambda x: (lambda y: (y.softmax(0), y.sum(1)))(x[:, :50] * 2),
}  # fmt: skip


def folded(name: str, x: Tensor, device: str) -> list[Any]:
    return of_both(assert_matches_eager(FOLDED[name], x, device=device, expect_opaque=()))


@pytest.mark.parametrize("name", FOLDED)
def test_folds(name: str, device: str) -> None:
    found = folded(name, values(777, 130), device)
    # Of so few rows that lie across, a GPU would run too few threads.
    expected = 0 if (name, device) == ("rows that lie across", "cuda") else 1
    assert [len(region.schedule.candidates) for region in found] == [2] * expected


@pytest.mark.parametrize("name", ["sums", "extremes", "columns of normalised rows"])
def test_infinities_and_nan(name: str, device: str) -> None:
    x = values(777, 130)
    x[3, 4], x[5, 6], x[7, 8], x[9, 8] = float("nan"), float("inf"), float("-inf"), float("inf")
    assert folded(name, x, device)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32], ids=str)
def test_other_types(dtype: torch.dtype, device: str) -> None:
    assert folded("sums", (values(777, 130) * 9).to(dtype), device)


def test_strides(device: str) -> None:
    x = values(777, 260)
    assert folded("columns of normalised rows", x[:, ::2], device)
    assert folded("columns of normalised rows", values(130, 777).t(), device)


def test_long_sums_of_columns_are_no_worse_than_eagers(device: str) -> None:
    """Of values that are all positive, where what is lost is lost for good."""
    torch.compiler.reset()
    x = values(60_000, 8).abs().to(device)
    compiled = fuser.compile(FOLDED["sums"])
    found, eager, exact = compiled(x)[1], x.sum(0), x.double().sum(0)
    assert of_both(fuser.plans(compiled))
    assert (found - exact).abs().max() <= 2 * (eager - exact).abs().max() + exact.max() * 2**-24
