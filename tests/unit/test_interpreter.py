"""The repaired interpreter on bfloat16 and float8, against torch bit by bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from fuser.runtime.interpreter import convert_bits, is_interpreting, repair

ROOT = Path(__file__).parents[2]

interpreted = pytest.mark.skipif(not is_interpreting(), reason="TRITON_INTERPRET is not set")


@pytest.fixture(autouse=True)
def repaired() -> None:
    repair()


@triton.jit
def cast(source, result, TYPE: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(result + offsets, tl.load(source + offsets).to(TYPE))


@triton.jit
def compute(left, right, result, KIND: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(left + offsets)
    y = tl.load(right + offsets)
    if KIND == "add":
        value = x + y
    elif KIND == "subtract":
        value = x - y
    elif KIND == "multiply":
        value = x * y
    elif KIND == "scale":
        value = x * 1.5
    elif KIND == "negate":
        value = -x
    else:
        value = tl.where(x < y, x, y)
    tl.static_assert(value.dtype == x.dtype)
    tl.store(result + offsets, value)


@triton.jit
def multiply_matrices(left, right, result, SIZE: tl.constexpr):
    row = tl.arange(0, SIZE)[:, None]
    column = tl.arange(0, SIZE)[None, :]
    offsets = row * SIZE + column
    product = tl.dot(tl.load(left + offsets), tl.load(right + offsets))
    tl.store(result + offsets, product)


@triton.jit
def add_rows(source, sums, maxima, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.arange(0, ROWS)
    tile = tl.load(source + row[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :])
    tl.store(sums + row, tl.sum(tile, 1))
    tl.store(maxima + row, tl.max(tile, 1))


@triton.jit
def divide_masked(source, result, size, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(source + offsets, mask=mask, other=0)
    tl.store(result + offsets, x / x, mask=mask)


def hard_values(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Halfway cases, carries, subnormal numbers, overflows, infinities and NaN, all patterns."""
    patterns = torch.arange(2**16, dtype=torch.int32)[::7]
    lows = torch.tensor([0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32)
    bits = (patterns[:, None] << 16) | lows[None, :]
    values = bits.flatten().view(torch.float32)
    block = triton.next_power_of_2(values.numel()) // 2
    return values[:block].to(dtype).contiguous()


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    # The payload of a NaN is nobody's business.
    number = ~left.isnan()
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    return torch.equal(left.isnan(), right.isnan()) and torch.equal(
        left.view(integer)[number], right.view(integer)[number]
    )


def run_cast(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    result = torch.empty(values.shape, dtype=dtype)
    cast[(1,)](values, result, getattr(tl, str(dtype).removeprefix("torch.")), values.numel())
    return result


@interpreted
def test_float32_to_bfloat16_rounds_to_nearest_even() -> None:
    values = hard_values()
    assert same_bits(run_cast(values, torch.bfloat16), values.to(torch.bfloat16))


@interpreted
def test_bfloat16_to_wider_floats_is_exact() -> None:
    values = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    for dtype in (torch.float32, torch.float64):
        assert same_bits(run_cast(values, dtype), values.to(dtype))


@interpreted
def test_float16_conversions() -> None:
    halves = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    assert same_bits(run_cast(halves, torch.float32), halves.float())
    assert same_bits(run_cast(halves, torch.bfloat16), halves.to(torch.bfloat16))
    values = hard_values()
    assert same_bits(run_cast(values, torch.float16), values.half())
    doubles = hard_values(torch.float64)
    with np.errstate(over="ignore"):
        expected = torch.from_numpy(doubles.numpy().astype(np.float16))
    assert same_bits(run_cast(doubles, torch.float16), expected)


@interpreted
def test_float64_to_bfloat16_rounds_once() -> None:
    values = hard_values(torch.float64)
    assert same_bits(run_cast(values, torch.bfloat16), values.to(torch.bfloat16))
    near_halfway = [1 + 2**-8 + 2**-40, 1 + 2**-8, -1 - 2**-8 - 2**-40, 1e300]
    actual = run_cast(torch.tensor(near_halfway, dtype=torch.float64), torch.bfloat16)
    assert actual.tolist() == [1 + 2**-7, 1.0, -1 - 2**-7, float("inf")]


@interpreted
def test_integers_to_and_from_bfloat16() -> None:
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        integers = torch.arange(-100, 28).to(dtype)
        assert same_bits(run_cast(integers, torch.bfloat16), integers.to(torch.bfloat16))
        floats = torch.arange(0, 32).to(torch.bfloat16) + 0.5
        assert torch.equal(run_cast(floats, dtype), floats.to(dtype))


@interpreted
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_conversions_saturate_as_on_a_gpu(dtype: torch.dtype) -> None:
    triton_type = tl.float8e4nv if dtype == torch.float8_e4m3fn else tl.float8e5
    limit = torch.finfo(dtype).max
    values = hard_values()
    expected = values.clamp(-limit, limit).to(dtype)
    actual = torch.empty_like(expected)
    cast[(1,)](values, actual, triton_type, values.numel())
    assert same_bits(actual.view(dtype).float(), expected.float())
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    wide = torch.empty(256)
    cast[(1,)](every, wide, tl.float32, 256)
    assert same_bits(wide, every.float())


@interpreted
@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("add", torch.add),
        ("subtract", torch.sub),
        ("multiply", torch.mul),
        ("scale", lambda x, y: x * 1.5),
        ("negate", lambda x, y: 0 - x),
        ("smaller", lambda x, y: torch.where(x < y, x, y)),
    ],
)
def test_bfloat16_arithmetic(kind: str, function: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(1024, generator=generator).to(torch.bfloat16)
    right = torch.randn(1024, generator=generator).to(torch.bfloat16)
    actual = torch.empty_like(left)
    compute[(1,)](left, right, actual, kind, 1024)
    assert same_bits(actual, function(left, right))


@interpreted
def test_bfloat16_matrix_product() -> None:
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(32, 32, generator=generator).to(torch.bfloat16)
    right = torch.randn(32, 32, generator=generator).to(torch.bfloat16)
    actual = torch.empty(32, 32)
    multiply_matrices[(1,)](left, right, actual, 32)
    torch.testing.assert_close(actual, left.float() @ right.float(), rtol=1e-6, atol=1e-5)


@interpreted
def test_bfloat16_reductions() -> None:
    source = torch.arange(-60, 68).reshape(4, 32).to(torch.bfloat16)
    sums, maxima = torch.empty(4, dtype=torch.bfloat16), torch.empty(4)
    add_rows[(1,)](source, sums, maxima, ROWS=4, BLOCK=32)
    assert same_bits(sums, source.float().sum(1).to(torch.bfloat16))
    assert torch.equal(maxima, source.float().amax(1))


@interpreted
def test_masked_lanes_do_not_warn() -> None:
    result = torch.empty(3)
    divide_masked[(1,)](torch.tensor([1.0, 2.0, 0.0]), result, 3, 8)
    assert result[:2].tolist() == [1.0, 1.0]
    assert result[2].isnan()


@interpreted
def test_a_second_repair_changes_nothing() -> None:
    from triton.runtime import interpreter

    def replaced() -> list[Any]:
        builder = interpreter.InterpreterBuilder
        return [interpreter._convert_float, builder.cast_impl, builder.binary_op, builder.get_bf16]

    before = replaced()
    repair()
    assert replaced() == before


def test_conversion_of_nothing_and_of_a_scalar() -> None:
    for shape in ((0,), (1,), (2, 3)):
        bits = convert_bits(np.zeros(shape, dtype=np.float32), tl.float32, tl.bfloat16)
        assert bits.shape == shape
        assert bits.dtype == np.uint16


@pytest.mark.parametrize("setting", ["0", "1"])
def test_the_mode_is_the_one_that_triton_was_imported_in(setting: str) -> None:
    """A later change of the variable changes nothing, as it does not change Triton's library."""
    program = (
        "import os, triton\n"
        "os.environ['TRITON_INTERPRET'] = '01'['0' == os.environ['TRITON_INTERPRET']]\n"
        "from fuser.runtime.interpreter import is_interpreting\n"
        "print(is_interpreting())\n"
    )
    environment = {**os.environ, "TRITON_INTERPRET": setting}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(setting == "1")
