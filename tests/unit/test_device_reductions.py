"""Every reduction of the device functions against torch, of tiles and over loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from support.device_functions import (
    CAN_RUN,
    DEVICE,
    FLOATS,
    IMPLEMENTATIONS,
    INTEGERS,
    TRITON_TYPES,
    Find,
    assert_same,
    find_in,
    random_values,
)

if not CAN_RUN:
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)


@pytest.fixture(params=IMPLEMENTATIONS)
def find(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Find:
    return find_in(request.param, monkeypatch)


@triton.jit
def reduce_rows(
    source, result, columns, IDENTITY: tl.constexpr, FUNCTION: tl.constexpr, AXIS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    tile = tl.load(source + row * columns + column, mask=column < columns, other=IDENTITY)
    value = FUNCTION(tile, AXIS, True)
    tl.static_assert(value.dtype == tile.dtype)
    if AXIS == 1:
        tl.store(result + row, value)
    elif AXIS == 0:
        tl.store(result + column, value, mask=column < columns)
    else:
        tl.store(result + tl.zeros([1, 1], tl.int32), value)


@triton.jit
def find_rows(
    source, values, indices, columns, IDENTITY: tl.constexpr, FUNCTION: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    mask = column < columns
    tile = tl.load(source + row[:, None] * columns + column, mask=mask, other=IDENTITY)
    value, index = FUNCTION(tile, column, 1)
    tl.static_assert(value.dtype == tile.dtype)
    tl.store(values + row, value)
    tl.store(indices + row, index)


@triton.jit
def fold_columns(
    source, result, count, IDENTITY: tl.constexpr, FUNCTION: tl.constexpr, TYPE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    offsets = tl.arange(0, BLOCK)
    folded = tl.full([BLOCK], IDENTITY, TYPE)
    for step in range(count):
        folded = FUNCTION(folded, tl.load(source + step * BLOCK + offsets))
    tl.static_assert(folded.dtype == TYPE)
    tl.store(result + offsets, folded)


@triton.jit
def fold_positions(
    source, values, indices, count, IDENTITY: tl.constexpr, FUNCTION: tl.constexpr,
    TYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    offsets = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], IDENTITY, TYPE)
    best_index = tl.full([BLOCK], 2147483647, tl.int32)
    for step in range(count):
        index = tl.zeros([BLOCK], tl.int32) + step
        value = tl.load(source + step * BLOCK + offsets)
        best, best_index = FUNCTION(best, best_index, value, index)
    tl.store(values + offsets, best)
    tl.store(indices + offsets, best_index)


def identity_of(name: str, dtype: torch.dtype) -> Any:
    if name in ("sum", "any"):
        return 0
    if name in ("prod", "all") or dtype == torch.bool:
        return int(name in ("prod", "all", "min", "argmin"))
    is_lowest = name in ("max", "argmax")
    if dtype.is_floating_point:
        return -math.inf if is_lowest else math.inf
    return torch.iinfo(dtype).min if is_lowest else torch.iinfo(dtype).max


def rows_of(dtype: torch.dtype, with_nan: bool = False) -> torch.Tensor:
    rows = random_values(dtype, 4 * 13, 5).reshape(4, 13)
    rows[1] = rows[1, 0]
    if dtype.is_floating_point:
        rows[2] = -math.inf
        if with_nan:
            rows[3, 5], rows[3, 9] = math.nan, math.nan
    return rows.to(DEVICE)


REDUCTIONS = {
    "sum": lambda x, axis: torch.sum(x, axis, keepdim=True, dtype=x.dtype),
    "max": lambda x, axis: torch.amax(x, axis, keepdim=True),
    "min": lambda x, axis: torch.amin(x, axis, keepdim=True),
}


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
@pytest.mark.parametrize("axis", [0, 1, None])
def test_reduction_of_a_tile(find: Find, name: str, axis: int | None) -> None:
    dtypes = [*FLOATS, *INTEGERS] + ([torch.bool] if name != "sum" else [])
    for dtype in dtypes:
        x = rows_of(dtype, with_nan=True)
        dimension = (0, 1) if axis is None else axis
        expected = REDUCTIONS[name](x, dimension)
        actual = torch.empty_like(expected)
        identity = identity_of(name, dtype)
        reduce_rows[(1,)](x, actual, 13, identity, find(name), axis, ROWS=4, BLOCK=16)
        steps = 4 if name == "sum" else 0
        assert_same(actual, expected, steps, signed_zeros=name != "sum")


def test_product_of_a_tile(find: Find) -> None:
    for dtype in (*FLOATS, *INTEGERS):
        x = rows_of(dtype, with_nan=True)
        expected = torch.prod(x, 1, dtype=dtype)
        actual = torch.empty_like(expected)
        reduce_rows[(1,)](x, actual, 13, 1, find("prod"), 1, ROWS=4, BLOCK=16)
        assert_same(actual, expected, 16, signed_zeros=False)


@pytest.mark.parametrize("name", ["any", "all"])
def test_any_and_all_of_a_tile(find: Find, name: str) -> None:
    x = torch.ones(4, 13, dtype=torch.bool, device=DEVICE)
    x[1], x[2, 1:], x[3, 4] = False, False, False
    for axis in (0, 1):
        expected = getattr(torch, name)(x, axis)
        actual = torch.empty_like(expected)
        identity = identity_of(name, torch.bool)
        reduce_rows[(1,)](x, actual, 13, identity, find(name), axis, ROWS=4, BLOCK=16)
        assert_same(actual, expected)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_position_of_the_extreme_of_a_row(find: Find, name: str) -> None:
    extreme = torch.max if name == "argmax" else torch.min
    for dtype in (*FLOATS, *INTEGERS, torch.bool):
        for x in (rows_of(dtype), rows_of(dtype, with_nan=True)):
            values = torch.empty(4, dtype=dtype, device=DEVICE)
            indices = torch.empty(4, dtype=torch.int32, device=DEVICE)
            identity = identity_of(name, dtype)
            find_rows[(1,)](x, values, indices, 13, identity, find(name), ROWS=4, BLOCK=16)
            assert_same(values, extreme(x, 1).values)
            is_first = (x == values[:, None]) | x.isnan()
            assert indices.tolist() == is_first.int().argmax(1).tolist()


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all"])
def test_accumulation_over_a_loop(find: Find, name: str) -> None:
    for dtype in (torch.float32, torch.int8) if name not in ("any", "all") else (torch.bool,):
        x = rows_of(dtype, with_nan=True)[:, :8].contiguous()
        actual = torch.empty(8, dtype=dtype, device=DEVICE)
        identity, function = identity_of(name, dtype), find(f"accumulate_{name}")
        fold_columns[(1,)](x, actual, 4, identity, function, TRITON_TYPES[dtype], BLOCK=8)
        options = {"dtype": dtype} if name in ("sum", "prod") else {}
        expected = getattr(torch, {"max": "amax", "min": "amin"}.get(name, name))(x, 0, **options)
        assert_same(actual, expected, 4 if name in ("sum", "prod") else 0)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_accumulation_of_positions_over_a_loop(find: Find, name: str) -> None:
    extreme = torch.max if name == "argmax" else torch.min
    for dtype in (*FLOATS, torch.int8, torch.uint8, torch.int64):
        x = rows_of(dtype, with_nan=True).T.contiguous()[:, :4].repeat(1, 2).contiguous()
        values = torch.empty(8, dtype=dtype, device=DEVICE)
        indices = torch.empty(8, dtype=torch.int32, device=DEVICE)
        identity, function = identity_of(name, dtype), find(f"accumulate_{name}")
        fold_positions[(1,)](
            x, values, indices, 13, identity, function, TRITON_TYPES[dtype], BLOCK=8
        )
        assert_same(values, extreme(x, 0).values)
        is_first = (x == values) | x.isnan()
        assert indices.tolist() == is_first.int().argmax(0).tolist()
