"""Regions with views, borders, gathers, several outputs, writes and calls that stay original.

Each program is small and aims at one thing that a fused kernel could get wrong. Rows, axes, norms
and losses are in `test_reductions.py`.
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
from support.compare import assert_matches_eager, opaque_calls


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
    "scatters": Program(
        scatters, (values(6, 6), values(6, 6, seed=1)), opaque=("aten.diagonal.default",)
    ),
    "transposes": Program(transposes, (values(5, 7), halves(7, 5))),
    "heads": Program(heads, (halves(2, 6, 24),)),
    "borders_of_a_reduction": Program(borders_of_a_reduction, (values(4, 6), values(4, 3))),
    "triangles": Program(triangles, (values(5, 5),)),
    "cat_of_nothing": Program(
        lambda x, y: torch.cat([x, y, x], 1) * 2, (values(3, 0), values(3, 2)), grad=False
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


# Rounding -----------------------------------------------------------------------------------------


def test_a_cast_that_the_user_wrote_rounds(device: str) -> None:
    def program(x: Tensor) -> Any:
        rounded = x.to(torch.bfloat16).to(torch.float32)
        product = (x * 1.1).to(torch.float16).to(torch.float64)
        return rounded, x - rounded, product, x.to(torch.int32).to(torch.float32)

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


# Random numbers, writes, aliases ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_random_numbers_are_eagers(dtype: torch.dtype, device: str) -> None:
    def program(x: Tensor) -> Any:
        dropped = F.dropout(x * 2, 0.5) + 1
        return dropped, torch.rand_like(x) * x, F.dropout(dropped, 0.1).sum(-1)

    x = values(5, 33, dtype=dtype)
    plans = assert_matches_eager(program, x, grad=True, device=device, has_reference=False)
    assert opaque_calls(plans)


def write_all(x: Tensor, y: Tensor) -> Any:
    x.mul_(2).add_(y)
    y.copy_(x.sum(0))
    return x.sum(), y + 1


def write_slices(x: Tensor, y: Tensor) -> Any:
    x[:, 1] += 3
    x[1:, ::2] = y[1:, ::2] * 2
    x.view(-1)[-1] = 7
    return x.amax()


def write_into_a_new_tensor(x: Tensor, y: Tensor) -> Any:
    z = torch.zeros_like(x)
    z[1] = x[0]
    z[:, 0].copy_(y[:, 0])
    z.masked_fill_(z > 1, -1).clamp_(max=0.5)
    return z, z.t()


def write_half(x: Tensor, y: Tensor) -> Any:
    x.copy_(y.to(torch.bfloat16))
    return (x.sigmoid_() + 1).sum()


WRITES = {
    "all": Program(write_all, (values(4, 6), values(6))),
    "slices": Program(write_slices, (values(4, 6), values(4, 6, seed=1))),
    "new_tensor": Program(write_into_a_new_tensor, (values(4, 6), values(4, 6, seed=1))),
    "half": Program(write_half, (values(4, 6), values(4, 6, seed=1))),
    "transposed": Program(lambda x, y: x.add_(y), (values(6, 4).t(), values(4, 6))),
    "through_a_view": Program(lambda x: (x.t().mul_(3), x[0].zero_()), (values(4, 6),)),
    "positions": Program(
        lambda x, i: x.index_put_((i,), x[i] * 2) + 1, (values(5, 6), numbers(0, -2))
    ),
}  # fmt: skip


@parameters(WRITES)
def test_writes_reach_the_arguments(program: Program, device: str) -> None:
    assert_matches_eager(program.call, *program.args, device=device)


def test_arguments_that_share_memory(device: str) -> None:
    memory = values(40)
    left, right = memory[:20].view(4, 5), memory[10:30].view(4, 5)

    def program(x: Tensor, y: Tensor) -> Any:
        x.mul_(2)
        return y + 1, x.sum()

    assert_matches_eager(program, left, right, device=device)


ALIASES = {
    "views_of_an_input": Program(lambda x: (x.t(), x[1:], x.view(-1), x), (values(4, 6),)),
    "views_of_a_result": Program(lambda x: (y := x + 1, y.t(), y[:, 1]), (values(4, 6),)),
    "one_result_twice": Program(lambda x: [y := x * 2, y, {"again": y}], (values(4, 6),)),
    "an_input_unchanged": Program(lambda x: (x, x * 1, x.contiguous()), (values(4, 6),)),
    "a_view_of_a_view": Program(lambda x: x[1:].t()[::2].unsqueeze(0), (values(4, 6),)),
    "expanded": Program(lambda x: (x.expand(3, 6), (x + 1).expand(3, 6)), (values(1, 6),)),
    "a_part_of_what_is_read": Program(lambda x: x[1, ::2], (values(8, 12)[::2, 1:],)),
    "bits": Program(lambda x: x.view(torch.int32) + 1, (values(4, 6),)),
    "complex_parts": Program(lambda x: torch.complex(x, x * 2).real + 1, (values(6),)),
}  # fmt: skip


@parameters(ALIASES)
def test_results_share_memory_as_in_eager(program: Program, device: str) -> None:
    assert_matches_eager(program.call, *program.args, device=device)


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
