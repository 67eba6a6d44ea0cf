"""Regions with views, borders, gathers, several outputs, roundings and numbers.

Each program is small and aims at one thing that a fused kernel could get wrong. Rows, axes, norms
and losses are in `test_reductions.py`, writes and aliases in `test_memory.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser.report import Plan
from support.compare import assert_matches_eager


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def halves(*shape: int) -> Tensor:
    return values(*shape, dtype=torch.bfloat16)


def numbers(*items: Any) -> Tensor:
    return torch.tensor(items)


def regions(plans: Iterable[Plan]) -> int:
    return sum(len(plan.regions) for plan in plans)


@dataclass(frozen=True)
class Program:
    """A function, its arguments, and how many kernels it should become (0: any number)."""

    call: Callable[..., Any]
    args: tuple[Any, ...]
    kernels: int = 0
    opaque: tuple[str, ...] = ()
    grad: bool = True


def parameters(programs: dict[str, Program]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("program", programs.values(), ids=programs.keys())


def check(program: Program, device: str) -> None:
    plans = assert_matches_eager(
        program.call, *program.args, device=device, expect_opaque=program.opaque
    )
    if program.kernels:
        assert regions(plans) == program.kernels, str(plans[0])
    if program.grad:
        assert_matches_eager(program.call, *program.args, grad=True, device=device)


# Several outputs, several readers -----------------------------------------------------------------


def three_outputs(x: Tensor) -> Any:
    shared = F.gelu(x) * 1.1
    return shared, shared.relu(), shared * shared


def residual_and_norm(x: Tensor, skip: Tensor, weight: Tensor) -> Any:
    total = x + skip
    return total, F.rms_norm(total, (x.shape[-1],), weight)


def residual_and_layer_norm(x: Tensor, skip: Tensor, weight: Tensor) -> Any:
    total = x + skip
    return F.layer_norm(total, (x.shape[-1],), weight, weight), total


def two_norms_of_one_value(x: Tensor) -> Any:
    y = torch.tanh(x)
    return F.layer_norm(y, (x.shape[-1],)), F.rms_norm(y, (x.shape[-1],)), y.sum(0)


def row_scale(x: Tensor) -> Any:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().to(torch.int8), scale


FAN_OUT = {
    "three_outputs": Program(three_outputs, (halves(5, 33),), kernels=1),
    "three_outputs_wide": Program(three_outputs, (values(5, 33),), kernels=1),
    "residual_and_norm": Program(
        residual_and_norm, (halves(6, 40), halves(6, 40), halves(40)), kernels=1
    ),
    "residual_and_layer_norm": Program(
        residual_and_layer_norm, (values(6, 40), values(6, 40), values(40)), kernels=1
    ),
    "two_norms": Program(two_norms_of_one_value, (halves(6, 40),)),
    "row_scale": Program(row_scale, (values(6, 40),), kernels=1, grad=False),
}


@parameters(FAN_OUT)
def test_fan_out(program: Program, device: str) -> None:
    check(program, device)


# Views and borders --------------------------------------------------------------------------------


def rotary(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = q.chunk(2, -1)
    return q * cos + torch.cat([-second, first], -1) * sin


def shifted_difference(x: Tensor) -> Tensor:
    return F.pad(x[:, 1:] - x[:, :-1], (1, 0), value=2.0) * 3


def windows(x: Tensor) -> Any:
    y = x.exp()
    return y[1:-1, ::2] + y[:-2, 1::2], y[-1], y[:, -3:], y[2:2]


def shuffles(x: Tensor) -> Any:
    y = x + 1
    return y.flip(0, 1) * 2, y.roll(2, 1) + y, y.roll((1, -1), (0, 1)), y.rot90()


def stacks(x: Tensor, y: Tensor) -> Any:
    both = torch.stack([x.sin(), y.cos()], 1)
    return both, torch.cat([both[:, 0], y, x * 2], 0), torch.stack([x, y], -1).flatten(-2)


def scatters(x: Tensor, y: Tensor) -> Any:
    inside = torch.slice_scatter(x, y[:, :3] * 2, 1, 2, 5)
    return inside + 1, torch.select_scatter(x, y[:, 0], 1, -1), torch.diagonal(inside) * 2


def transposes(x: Tensor, y: Tensor) -> Any:
    z = (x + y.t()).t()
    return (
        z * 2,
        z.reshape(-1) + 1,
        z.contiguous(),
        x.t().softmax(-1),
        z.unsqueeze(1).expand(-1, 3, -1),
    )


def heads(x: Tensor) -> Any:
    split = x.view(2, 6, 3, 8).transpose(1, 2)
    return (
        split.softmax(-1),
        split.transpose(-1, -2).sum(-1),
        split.transpose(1, 2).reshape(2, 6, 24),
    )


def borders_of_a_reduction(x: Tensor, y: Tensor) -> Any:
    joined = torch.cat([x, y], -1)
    return joined.softmax(-1), F.pad(joined, (2, 1)).sum(-1), F.pad(x, (-1, -2)).amax(0)


def triangles(x: Tensor) -> Any:
    return x.tril() + x.triu(1) * 2, x.masked_fill(torch.ones_like(x).triu() > 0, -1.5).softmax(-1)


BORDERS = {
    "rotary": Program(rotary, (halves(2, 5, 8), values(5, 8), values(5, 8)), kernels=1),
    "shifted_difference": Program(shifted_difference, (values(4, 9),), kernels=1),
    "windows": Program(windows, (values(5, 8),)),
    "shuffles": Program(shuffles, (values(4, 4),)),
    "stacks": Program(stacks, (values(3, 4), values(3, 4, seed=1))),
    "scatters": Program(scatters, (values(6, 6), values(6, 6, seed=1))),
    "transposes": Program(transposes, (values(5, 7), halves(7, 5))),
    "heads": Program(heads, (halves(2, 6, 24),)),
    "borders_of_a_reduction": Program(borders_of_a_reduction, (values(4, 6), values(4, 3))),
    "triangles": Program(triangles, (values(5, 5),)),
    "cat_of_nothing": Program(
        lambda x, y: torch.cat([x, y, x], 1) * 2, (values(3, 0), values(3, 2)), grad=False
    ),
    "single_values": Program(
        lambda x: (x.flip(0) + 1, x.roll(1), x.sum(-1), x.softmax(0), torch.stack([x, x]), x.t()),
        (values(),),
        grad=False,
    ),
    "reflected": Program(lambda x: F.pad(x, (2, 1), mode="reflect") * 2, (values(1, 3, 6),)),
}


@parameters(BORDERS)
def test_borders(program: Program, device: str) -> None:
    check(program, device)


# Gathers ------------------------------------------------------------------------------------------


def embedding_and_norm(ids: Tensor, table: Tensor, position: Tensor) -> Tensor:
    x = F.embedding(ids, table) * 2 + position
    return F.layer_norm(x, (table.shape[1],))


def lookups(x: Tensor, i: Tensor, j: Tensor) -> Any:
    y = x.exp()  # read at computed positions: has to be stored
    return x[i] * 2, x[:, j] + 1, x[i, j], y[j], x[i][:, None] - 1, x[None, i].sum(1)


def picked(x: Tensor, i: Tensor) -> Any:
    return x.gather(1, i[:, None]).squeeze(1) - x.logsumexp(1), x.take_along_dim(i[:, None], 1)


GATHERS = {
    "embedding_and_norm": Program(
        embedding_and_norm, (numbers([1, 0, 4], [4, 4, 2]), halves(5, 12), values(3, 12)), kernels=1
    ),
    "lookups": Program(lookups, (values(5, 6), numbers(0, -1, 4, -5), numbers(3, 3, -2, 0))),
    "int32_positions": Program(lambda x, i: x[i] + 1, (values(5, 6), numbers(-1, 3).int())),
    "picked": Program(picked, (values(4, 6), numbers(0, 5, 3, 3))),
    "negative_inside": Program(
        lambda x, i: (x * 2).index_select(0, i) + x[i - 5], (values(5, 6), numbers(0, 4, 2))
    ),
}


@parameters(GATHERS)
def test_gathers(program: Program, device: str) -> None:
    check(program, device)


def test_constants_are_read_at_computed_positions(device: str) -> None:
    def program(x: Tensor, i: Tensor) -> Any:
        ramp = torch.arange(6, device=x.device)
        return ramp[i] + x[0, i], torch.ones_like(x).gather(1, i[:, None])

    assert_matches_eager(program, values(3, 6), numbers(5, 0, 2), device=device)


# Rounding -----------------------------------------------------------------------------------------


def test_a_cast_that_the_user_wrote_rounds(device: str) -> None:
    def program(x: Tensor) -> Any:
        rounded = x.to(torch.bfloat16).to(torch.float32)
        wider = (x.to(torch.float16) * 1.1).to(torch.float32)
        product = (x * 1.1).to(torch.float16).to(torch.float64)
        return rounded, x - rounded, wider, product, x.to(torch.int32).to(torch.float32)

    assert_matches_eager(program, values(7, 33) * 100, device=device, expect_opaque=())


def test_a_stored_value_has_one_value(device: str) -> None:
    """What is read back from memory is what other readers computed with."""

    def itself(x: Tensor) -> Any:
        y = x * 1.1 + 0.3
        return y, y - y.clone(), (y - y.t().contiguous().t()).abs().sum()

    def through_a_copy(x: Tensor) -> Any:
        y = x * 1.1 + 0.3
        column = y.t().contiguous()
        return column, y - column.t()

    def across_regions(x: Tensor) -> Any:
        y = torch.tanh(x) * 3
        return y, y.float() - y.flip(0).flip(0).float(), y.sum(0, keepdim=True) - y

    for program in (itself, through_a_copy, across_regions):
        assert_matches_eager(program, halves(6, 6), device=device, expect_opaque=())


DECISIONS: dict[str, Callable[[Tensor], Any]] = {
    "comparisons": lambda y: (y > y.to(torch.float64), y == y.clone(), y <= 1.1, y.isinf()),
    "logic": lambda y: ((y * 1e-6).bool(), torch.logical_not(y * 1e-6), (y * 1e-6).any(-1)),
    "whole_numbers": lambda y: (y.to(torch.int32), y.long(), y.to(torch.int8)),
    "positions": lambda y: (y.argmax(-1), y.argmin(), y.max(-1), y.min(0)),
    "steps": lambda y: (y.floor(), y.round(), y.frac(), y.sign(), y % 0.25, y // 0.5, y.fmod(0.75)),
    "is_largest": lambda y: (y == y.amax(-1, keepdim=True), y.eq(y.max()).sum()),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", DECISIONS)
def test_what_is_decided_by_a_value_sees_it_rounded(
    name: str, dtype: torch.dtype, device: str
) -> None:
    """Bits that eager rounds away decide nothing: whole numbers and booleans are equal."""

    def program(x: Tensor) -> Any:
        return DECISIONS[name](x * 1.1)  # one operation: both round it once

    x = values(40, 65, dtype=dtype)
    assert_matches_eager(program, x, device=device, expect_opaque=())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_numbers_are_compared_in_the_type_of_the_tensor(dtype: torch.dtype, device: str) -> None:
    def program(x: Tensor, limit: Tensor, whole: Tensor) -> Any:
        return x <= 1.1, x == 0.1, x >= 0.1, x < limit, x != whole, whole > x, x.eq(301)

    near = torch.tensor([0.1, 1.1, 1.0, 301.0, -0.1, 300.0, torch.inf]).to(dtype)
    whole = torch.tensor([0, 1, 1, 301, 0, 301, 70_000])
    assert_matches_eager(program, near, torch.tensor(0.1), whole, device=device, expect_opaque=())


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("name", ["amax", "amin", "max", "maximum", "clamp", "relu"])
def test_gradients_go_where_the_extreme_is(name: str, dynamic: bool, device: str) -> None:
    """The extreme is saved as it is stored, and found again among values computed anew."""
    select: dict[str, Callable[[Tensor], Tensor]] = {
        "amax": lambda y: y.amax(1),
        "amin": lambda y: y.amin((0, 2), keepdim=True),
        "max": lambda y: y.max(),
        "maximum": lambda y: torch.maximum(y, y.flip(0)),
        "clamp": lambda y: y.clamp(0.3, 1.1),
        "relu": lambda y: (y - 1).relu(),
    }
    x = halves(3, 6, 8)
    assert_matches_eager(
        lambda x: select[name](x * x), x, grad=True, dynamic=dynamic, device=device
    )


# Numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
def test_python_numbers_and_sizes_are_values(dynamic: bool, device: str) -> None:
    def program(x: Tensor, n: int, f: float, flag: bool) -> Any:
        rows, columns = x.shape
        scaled = x * rows + columns / 3 - n if flag else x
        return (
            scaled, x.numel(), x.shape, n + 1, f, None, "text", scaled.mean() * f,
            torch.arange(columns, device=x.device) * n, x.new_full((rows + 1, 2), n),
            scaled.view(columns, rows).sum(-1) / rows, x.sum(-1) * columns**0.5,
        )  # fmt: skip

    assert_matches_eager(program, halves(6, 9), 3, 0.7, True, device=device, dynamic=dynamic)


@pytest.mark.parametrize("name", ["fan_out", "borders", "gathers"])
def test_the_same_programs_with_unknown_sizes(name: str, device: str) -> None:
    programs = {"fan_out": FAN_OUT, "borders": BORDERS, "gathers": GATHERS}[name]
    for program in programs.values():
        assert_matches_eager(program.call, *program.args, device=device, dynamic=True)


def test_a_computed_size_that_is_one_is_broadcast(device: str) -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        last = x.chunk(2, 0)[-1]
        return last.exp().sum(-1) + y, last * y, torch.cat([last, last]).mean(0)

    assert_matches_eager(program, values(3, 1, 8), values(3, 6, 1), device=device, dynamic=True)
