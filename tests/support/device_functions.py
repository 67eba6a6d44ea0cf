"""What the tests of the device functions share: implementations, samples, comparison.

Where kernels are interpreted, the GPU's implementations run too, with a device library made of
torch's functions: that leaves Triton's own operators and everything that is written in terms of
them. On a machine with a GPU the same tests run there, against eager on that GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton.language as tl

from fuser.runtime import (
    device_approximate,
    device_arithmetic,
    device_float8,
    device_functions,
    device_logic,
    device_math,
    device_reductions,
)
from fuser.runtime.interpreter import is_interpreting

Find = Callable[[str], Any]
CAN_RUN = is_interpreting() or torch.cuda.is_available()
IMPLEMENTATIONS = ["device", "interpreter"] if is_interpreting() else ["device"]
DEVICE = "cpu" if is_interpreting() else "cuda"
DEVICE_MODULES = (
    device_math,
    device_arithmetic,
    device_approximate,
    device_float8,
    device_logic,
    device_reductions,
)
FLOATS = (torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
TRITON_TYPES = {
    dtype: getattr(tl, "int1" if dtype == torch.bool else str(dtype).removeprefix("torch."))
    for dtype in (*FLOATS, *INTEGERS, torch.bool, torch.float16, torch.bfloat16)
}


def _torch_library() -> SimpleNamespace:
    from fuser.runtime import interpreter_functions as functions

    names = [*device_math.__all__, "copysign", "ldexp", "pow", "trunc"]
    library = {name: getattr(functions, name) for name in names}
    # NumPy's fmod is exact, as a GPU's is; torch's gives NaN on the CPU for a quotient past the
    # largest float.
    return SimpleNamespace(**library, nearbyint=functions.round, fmod=lambda x, y: x % y)


def find_in(implementation: str, monkeypatch: pytest.MonkeyPatch) -> Find:
    """How to get a function by its name, from one of the implementations."""
    if implementation == "interpreter" or not is_interpreting():
        return lambda name: getattr(device_functions, name)
    for module in (device_math, device_arithmetic):
        monkeypatch.setattr(module, "libdevice", _torch_library())
    owners = {name: module for module in DEVICE_MODULES for name in module.__all__}
    return lambda name: getattr(owners[name], name)


def special_values(dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        values: list[float] = [False, True]
    elif dtype.is_floating_point:
        limits = torch.finfo(dtype)
        positive = [0.0, 0.1, 0.5, 1.0, 1.5, 2.5, 3.0, 7.0, 89.0, 2.0**24 + 2.0]
        positive += [limits.max, limits.tiny, limits.tiny * limits.eps, math.inf]
        values = [sign * value for value in positive for sign in (1, -1)] + [math.nan]
    else:
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        values = [low, low + 1, -9, -8, -3, -2, -1, 0, 1, 2, 3, 7, 8, 9, 31, 32, 63, 64, high]
        values = sorted({value for value in values if low <= value <= high})
    return torch.tensor(values, dtype=dtype)


def random_values(dtype: torch.dtype, size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        exponents = torch.rand(size, generator=generator, dtype=torch.float64) * 16 - 12
        signs = torch.randn(size, generator=generator, dtype=torch.float64)
        return (signs * torch.exp2(exponents)).to(dtype)
    high = 2 if dtype == torch.bool else torch.iinfo(dtype).max
    low = 0 if dtype == torch.bool else torch.iinfo(dtype).min
    return torch.randint(low, high, (size,), generator=generator, dtype=torch.int64).to(dtype)


def samples(dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([special_values(dtype), random_values(dtype, 459, 1)]).to(DEVICE)


def sample_pairs(dtype: torch.dtype, allow_traps: bool = True) -> list[torch.Tensor]:
    special = special_values(dtype)
    left, right = torch.cartesian_prod(special, special).unbind(1)
    left = torch.cat([left, random_values(dtype, 101, 2)])
    right = torch.cat([right, random_values(dtype, 101, 3)])
    if not allow_traps and not dtype.is_floating_point:
        is_trap = (right == 0) | (left == torch.iinfo(dtype).min) & (right == -1)
        left, right = left[~is_trap], right[~is_trap]
    return [left.contiguous().to(DEVICE), right.contiguous().to(DEVICE)]


def steps_between(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """How many representable numbers apart two floats are."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    ordered = []
    for tensor in (left, right):
        bits = tensor.view(integer).to(torch.int64)
        ordered.append(torch.where(bits < 0, torch.iinfo(integer).min - bits, bits))
    return (ordered[0] - ordered[1]).abs()


def assert_same(
    actual: torch.Tensor, expected: torch.Tensor, steps: int = 0, signed_zeros: bool = True
) -> None:
    assert actual.dtype == expected.dtype
    if not actual.dtype.is_floating_point:
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
        return
    assert torch.equal(actual.isnan(), expected.isnan())
    numbers = ~actual.isnan()
    actual, expected = actual[numbers], expected[numbers]
    worst = max(steps_between(actual, expected).tolist(), default=0)
    assert worst <= steps, f"{worst} steps apart"
    assert torch.equal(actual.isinf(), expected.isinf())
    if signed_zeros:
        zeros = (actual == 0) & (expected == 0)
        assert torch.equal(actual[zeros].signbit(), expected[zeros].signbit())
