"""The functions of few instructions, for every number of both half types and for float32.

Without a GPU their instructions are played with the largest errors that NVIDIA documents, in either
direction; with one they are the GPU's own, and eager is eager there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from fuser.runtime import device_approximate, device_functions
from fuser.runtime.interpreter import is_interpreting
from support.device_functions import CAN_RUN, DEVICE

if not CAN_RUN:
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)

HALVES = (torch.float16, torch.bfloat16)
UNARY = sorted(set(device_approximate.__all__) - {"approximate_divide"})
OPTIONS = {"enable_reflect_ftz": False, "enable_fp_fusion": False}
SMALLEST_NORMAL = 2.0**-126

NEAR, FAR = 2.0**-18, 2.0**-16.5
"""What a result may err by relatively: in the range of float16, and beyond it."""
NEAR_RANGE = (2.0**-25, 2.0**16)


# **** instructions with their largest errors ****


def _on_tiles(function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    from fuser.runtime.interpreter_functions import _unary

    return _unary(lambda x: function(x.double()).to(torch.float32))


def _flushed(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs() < SMALLEST_NORMAL, x * 0, x)


def _play(monkeypatch: pytest.MonkeyPatch, direction: int) -> None:
    """In place of the instructions: exact values, moved by the error in one direction."""
    power = _on_tiles(lambda x: _flushed(torch.exp2(x) * (1 + direction * 2.0**-22)))
    reciprocal = _on_tiles(lambda x: _flushed(1 / _flushed(x)) * (1 + direction * 2.0**-23))

    def logarithm(x: torch.Tensor) -> torch.Tensor:
        exact = torch.log2(x)
        is_absolute = (x > 0.5) & (x < 2) & (x != 1)
        moved = exact * (1 + direction * 2.0**-22)
        return torch.where(is_absolute, exact + direction * 2.0**-22, moved)

    monkeypatch.setattr(device_approximate, "power_of_two", power)
    monkeypatch.setattr(device_approximate, "normal_reciprocal", reciprocal)
    monkeypatch.setattr(device_approximate, "binary_logarithm", _on_tiles(logarithm))


@pytest.fixture(params=(-1, 1) if is_interpreting() else (0,))
def find(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if is_interpreting():
        _play(monkeypatch, request.param)
        yield lambda name: getattr(device_approximate, name)
    else:
        yield lambda name: getattr(device_functions, name)


# **** launches and comparison ****


@triton.jit
def apply_one(source, result, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(result + offsets, FUNCTION(tl.load(source + offsets)))


@triton.jit
def apply_two(left, right, result, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(result + offsets, FUNCTION(tl.load(left + offsets), tl.load(right + offsets)))


@triton.jit
def apply_by_row(left, right, result, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)[:, None]
    offsets = rows * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(result + offsets, FUNCTION(tl.load(left + offsets), tl.load(right + rows)))


def values_of(function: Any, *operands: torch.Tensor) -> torch.Tensor:
    wide = [operand.float().to(DEVICE) for operand in operands]
    result = torch.empty_like(wide[0])
    block = min(wide[0].numel(), 1 << 16 if is_interpreting() else 1 << 10)
    kernel = apply_one if len(wide) == 1 else apply_two
    kernel[(wide[0].numel() // block,)](*wide, result, function, block, **OPTIONS)
    return result.cpu()


def eager_of(name: str) -> Callable[..., torch.Tensor]:
    plain = name.removeprefix("approximate_")
    return torch.true_divide if plain == "divide" else getattr(torch, plain)


def exact_of(name: str, *operands: torch.Tensor) -> torch.Tensor:
    wide = [operand.double() for operand in operands]
    if name == "approximate_erfc":  # the C library's has a small relative error everywhere
        return torch.tensor([math.erfc(x) for x in wide[0].tolist()], dtype=torch.float64)
    if name == "approximate_sigmoid":
        power = torch.exp(-wide[0].abs())
        return torch.where(wide[0] < 0, power, 1.0) / (1 + power)
    return eager_of(name)(*wide)


def bound(name: str, exact: torch.Tensor) -> torch.Tensor:
    size = exact.abs()
    is_near = (size >= NEAR_RANGE[0]) & (size <= NEAR_RANGE[1])
    # A result below the normal numbers of float32 is rounded to a multiple of 2^-149. As in eager,
    # a sigmoid is zero where e^-x overflows.
    smallest = 2.0**-128 if name == "approximate_sigmoid" else 2.0**-148
    return size * torch.where(is_near, NEAR, FAR) + smallest


def check_float32(name: str, actual: torch.Tensor, *operands: torch.Tensor) -> None:
    exact = exact_of(name, *operands)
    is_number = exact.isfinite() & (exact.abs() < torch.finfo(torch.float32).max * (1 - FAR))
    error = (actual.double() - exact).abs()
    is_wrong = is_number & ~(error <= bound(name, exact))
    assert not is_wrong.any(), (
        f"{[operand[is_wrong][:5].tolist() for operand in operands]}: "
        f"{actual[is_wrong][:5].tolist()} for {exact[is_wrong][:5].tolist()}"
    )


def check_half(name: str, actual: torch.Tensor, *operands: torch.Tensor) -> None:
    """The rounded result errs by no more than eager's and twice the function's own error.

    Twice: a value just past the middle between two numbers is rounded to the farther one.
    """
    dtype = operands[0].dtype
    eager = eager_of(name)(*(operand.to(DEVICE) for operand in operands)).cpu()
    rounded = actual.to(dtype)
    exact = exact_of(name, *operands)
    assert torch.equal(rounded.isnan(), eager.isnan())
    infinite = rounded.isinf() != eager.isinf()
    assert not infinite.any(), operands[0][infinite]
    finite = rounded.isfinite()
    excess = (rounded.double() - exact).abs() - (eager.double() - exact).abs()
    is_wrong = finite & ~(excess <= 2 * bound(name, exact))
    assert not is_wrong.any(), operands[0][is_wrong]
    zeros = (rounded == 0) & (eager == 0)
    assert torch.equal(rounded[zeros].signbit(), eager[zeros].signbit())


def every(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)


def any_float32(seed: int, count: int = 1 << 16) -> torch.Tensor:
    """Random bits: every exponent, subnormal numbers, NaN and infinity among them."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(1 << 31), (1 << 31) - 1, (count,), generator=generator)
    return bits.to(torch.int32).view(torch.float32)


def usual_float32(seed: int, count: int = 1 << 16) -> torch.Tensor:
    """Where the functions bend: signs and magnitudes from 2^-8 to 2^7, and around one."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.rand(count // 2, generator=generator) * 15 - 8
    signs = torch.randint(0, 2, (count // 2,), generator=generator) * 2 - 1
    around = 1 + (torch.rand(count - count // 2, generator=generator) - 0.5) * 0.3
    return torch.cat([signs * torch.exp2(exponents), around])


# **** tests ****


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_every_half_number(find: Any, name: str, dtype: torch.dtype) -> None:
    x = every(dtype)
    actual = values_of(find(name), x)
    check_float32(name, actual, x)
    check_half(name, actual, x)


@pytest.mark.parametrize("name", UNARY)
def test_float32_operands_of_a_chain(find: Any, name: str) -> None:
    for x in (any_float32(1), usual_float32(2)):
        actual = values_of(find(name), x)
        check_float32(name, actual, x)
        assert torch.equal(actual.isnan(), exact_of(name, x).isnan())


def half_pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, y = every(dtype), every(dtype)
    return x, y[torch.randperm(y.numel(), generator=generator)]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_quotients_of_half_numbers(find: Any, dtype: torch.dtype) -> None:
    x, y = half_pairs(dtype)
    actual = values_of(find("approximate_divide"), x, y)
    check_float32("approximate_divide", actual, x, y)
    check_half("approximate_divide", actual, x, y)


def test_quotients_of_float32(find: Any) -> None:
    x, y = any_float32(4), any_float32(5)
    check_float32("approximate_divide", values_of(find("approximate_divide"), x, y), x, y)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_quotients_by_a_number_for_each_row(find: Any, dtype: torch.dtype) -> None:
    x, y = half_pairs(dtype)
    size = 128
    for part in range(4):
        rows = y[part * size : (part + 1) * size].contiguous()
        block = x[part * size * size : (part + 1) * size * size].contiguous()
        result = torch.empty(size * size, device=DEVICE)
        wide = [operand.float().to(DEVICE) for operand in (block, rows)]
        apply_by_row[(1,)](*wide, result, find("approximate_divide"), size, **OPTIONS)
        spread = rows.repeat_interleave(size)
        check_float32("approximate_divide", result.cpu(), block, spread)
        check_half("approximate_divide", result.cpu(), block, spread)
