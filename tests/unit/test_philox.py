"""Random numbers: the published test vectors, kernels against the reference, and statistics.

Bounds of the statistics are six standard deviations of the estimate: one seed in a billion fails.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from fuser import philox
from fuser.runtime import device_functions as fn
from support.runtime import DEVICE, needs_kernels

COUNT = 1 << 20
SIGMAS = 6.0


def seed_of(value: int) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int64, device=DEVICE)


def uniforms(seed: int = 1, number: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    is_double = dtype is torch.float64
    return philox.uniform(seed_of(seed), number, [COUNT], dtype=dtype, is_double=is_double)


def normals(seed: int = 1, number: int = 0) -> torch.Tensor:
    return philox.normal(seed_of(seed), number, [COUNT], dtype=torch.float32)


def test_words_are_those_of_the_published_generator() -> None:
    """Random123's known answers for Philox 4x32-10, where counter and key are ours to choose."""
    zero = philox.words(seed_of(0), 0, 4).tolist()
    assert zero == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    words, key = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], (0x299F31D0 << 32) | 0xA4093822
    state = tuple(torch.tensor([word], dtype=torch.int64) for word in words)
    found = philox.scrambled(state, torch.tensor(key, dtype=torch.int64))
    assert [int(word) for word in found] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_an_element_does_not_depend_on_how_many_there_are() -> None:
    longest = philox.words(seed_of(-7), 3, 103)
    for count in (0, 1, 2, 3, 4, 5, 102):
        assert torch.equal(philox.words(seed_of(-7), 3, count), longest[:count])


# **** kernels ****


@triton.jit
def flat_kernel(
    seed_ptr, out, number: tl.constexpr, first: tl.constexpr, KIND: tl.constexpr,
    TYPE: tl.constexpr, SHARED: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    seed = tl.load(seed_ptr)
    index = tl.arange(0, BLOCK).to(tl.int64 if WIDE else tl.int32) + first
    if SHARED:
        firsts = 4 * tl.arange(0, BLOCK // 4).to(tl.int64 if WIDE else tl.int32) + first
        value = KIND(seed, number, firsts, TYPE, axis=0)
    else:
        value = KIND(seed, number, index, TYPE)
    tl.store(out + tl.arange(0, BLOCK), value)


@triton.jit
def tile_kernel(
    seed_ptr, out, KIND: tl.constexpr, TYPE: tl.constexpr, AXIS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Numbers of a matrix, row by row for axis 1, column by column for axis 0."""
    seed = tl.load(seed_ptr)
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    if AXIS == 1:
        value = KIND(seed, 2, row * COLUMNS + 4 * tl.arange(0, COLUMNS // 4)[None, :], TYPE, axis=1)
    else:
        value = KIND(seed, 2, 4 * tl.arange(0, ROWS // 4)[:, None] + column * ROWS, TYPE, axis=0)
    tl.store(out + row * COLUMNS + column, value)


KINDS = {"uniform": (fn.uniform, philox.uniform), "normal": (fn.normal, philox.normal)}
TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


def assert_numbers(kind: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    if kind == "uniform":
        assert torch.equal(found, expected)
    else:  # a GPU's logarithm and cosine are not torch's to the last bit
        steps = 16 * torch.finfo(found.dtype).eps
        torch.testing.assert_close(found, expected, rtol=steps, atol=steps)


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shared", [False, True], ids=["each", "fours"])
@pytest.mark.parametrize("first", [0, 2**34], ids=["narrow", "wide"])
def test_kernels_make_the_numbers_of_the_reference(
    kind: str, dtype: torch.dtype, shared: bool, first: int
) -> None:
    block, seed = 256, seed_of(-(2**62) + 12345)
    out = torch.empty(block, dtype=dtype, device=DEVICE)
    function, reference = KINDS[kind]
    flat_kernel[(1,)](seed, out, 5, first, function, TYPES[dtype], shared, first > 0, block)
    expected = slice_of(reference, seed, 5, first, block, dtype)
    assert_numbers(kind, out, expected)


def slice_of(
    reference: Any, seed: torch.Tensor, number: int, first: int, count: int, dtype: torch.dtype
) -> torch.Tensor:
    """A part of a long result, which would not fit into memory."""
    if first == 0:
        return reference(seed, number, [count], dtype=dtype, is_double=dtype is torch.float64)  # type: ignore[no-any-return]
    words = philox.words
    try:
        philox.words = lambda seed, number, count, stream=0: words(  # type: ignore[assignment]
            seed, number, count, stream, first
        )
        return slice_of(reference, seed, number, 0, count, dtype)
    finally:
        philox.words = words


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_tiles_share_calls_along_either_axis(kind: str, dtype: torch.dtype, axis: int) -> None:
    rows, columns, seed = 16, 32, seed_of(99)
    out = torch.empty(rows, columns, dtype=dtype, device=DEVICE)
    function, reference = KINDS[kind]
    tile_kernel[(1,)](seed, out, function, TYPES[dtype], axis, rows, columns)
    shape = [rows, columns] if axis == 1 else [columns, rows]
    expected = reference(seed, 2, shape, dtype=dtype, is_double=dtype is torch.float64)
    assert_numbers(kind, out, expected if axis == 1 else expected.t())


# **** statistics ****


def assert_mean(x: torch.Tensor, mean: float, deviation: float) -> None:
    assert abs(float(x.double().mean()) - mean) < SIGMAS * deviation / math.sqrt(x.numel())


def assert_unrelated(x: torch.Tensor, y: torch.Tensor) -> None:
    """No correlation between two sequences of one length."""
    x, y = x.double() - x.double().mean(), y.double() - y.double().mean()
    correlation = float((x * y).mean() / (x.std() * y.std()))
    assert abs(correlation) < SIGMAS / math.sqrt(x.numel())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_uniform_numbers_have_the_moments_of_their_distribution(dtype: torch.dtype) -> None:
    u = uniforms(dtype=dtype)
    digits = 24 if dtype is torch.float32 else 53
    assert u.dtype == dtype
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    assert torch.equal(u.double() * 2**digits, (u.double() * 2**digits).floor())
    assert_mean(u, 1 / 2, math.sqrt(1 / 12))
    assert_mean((u.double() - 0.5) ** 2, 1 / 12, math.sqrt(1 / 180))
    counts = torch.bincount((u.double() * 256).long(), minlength=256).double()
    expected = COUNT / 256
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - 255) < SIGMAS * math.sqrt(2 * 255)


def test_every_digit_is_a_fair_coin() -> None:
    digits = (uniforms().double() * 2**24).long()
    for place in range(24):
        assert_mean((digits >> place) & 1, 0.5, 0.5)


def test_float64_agrees_with_float32_in_the_leading_digits() -> None:
    wide, narrow = uniforms(dtype=torch.float64), uniforms()
    assert torch.equal((wide * 2**24).floor() / 2**24, narrow.double())
    assert_mean((wide * 2**53).long() & 1, 0.5, 0.5)


def test_normal_numbers_have_the_moments_of_their_distribution() -> None:
    z = normals().double()
    assert bool(torch.isfinite(z).all())
    assert_mean(z, 0, 1)
    assert_mean(z**2, 1, math.sqrt(2))
    assert_mean(z**3, 0, math.sqrt(15))
    assert_mean(z**4, 3, math.sqrt(96))
    for bound in (-2.0, -0.5, 0.0, 1.0, 3.0):
        below = 0.5 * (1 + math.erf(bound / math.sqrt(2)))
        assert_mean((z < bound).double(), below, math.sqrt(below * (1 - below)))


@pytest.mark.parametrize("draw", [uniforms, normals])
def test_neighbours_ops_and_calls_are_unrelated(draw: Any) -> None:
    x = draw()
    for distance in (1, 2, 3, 4, 5, 8, 64, 4096):
        assert_unrelated(x[:-distance], x[distance:])
        assert_unrelated(x[:-distance] ** 2, x[distance:] ** 2)
    for other in (
        draw(number=1),
        draw(number=2),
        draw(seed=2),
        draw(seed=1 + 2**32),
        draw(seed=-1),
    ):
        assert_unrelated(x, other)
        assert_unrelated(x**2, other**2)


def test_the_seed_follows_torchs_generator() -> None:
    device = torch.device(DEVICE)
    torch.manual_seed(4)
    first, second = philox.draw_seed(device), philox.draw_seed(device)
    torch.manual_seed(4)
    assert int(philox.draw_seed(device)) == int(first) != int(second)
