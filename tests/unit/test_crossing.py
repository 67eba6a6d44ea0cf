"""Tiles over two axes: when operands disagree on what is contiguous, and what is computed then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fuser
from fuser.ir.region import Region, Strategy
from support.graphs import only_region, plan_of

Program = Callable[..., Any]


def region_of(program: Program, *args: Tensor) -> Region:
    return only_region(plan_of(program, *args, target="sm_90"))


def shaped(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype)


CROSSED: dict[str, tuple[Program, tuple[Tensor, ...]]] = {
    "a transposed operand": (lambda x, y: x + y.t(), (shaped(2048, 4096), shaped(4096, 2048))),
    "a transposed result": (lambda x: x.t().contiguous() * 2, (shaped(2048, 4096),)),
    "channels last": (
        lambda x: torch.relu(x.permute(0, 3, 1, 2).contiguous()),
        (shaped(16, 56, 56, 96),),
    ),
    "heads": (lambda x: x.permute(2, 0, 1).contiguous() + 1, (shaped(512, 64, 128),)),
    "a batch": (lambda x, y: x * y.transpose(1, 2), (shaped(8, 512, 256), shaped(8, 256, 512))),
}
STRAIGHT: dict[str, tuple[Program, tuple[Tensor, ...]]] = {
    "the same order": (lambda x, y: x + y, (shaped(2048, 4096), shaped(2048, 4096))),
    "rows in another order": (
        lambda x: x.permute(1, 0, 2).contiguous() + 1,
        (shaped(128, 64, 512),),
    ),
    "a broadcast column": (lambda x, y: x + y, (shaped(2048, 4096), shaped(2048, 1))),
    "a short row": (lambda x, y: x + y.t(), (shaped(4096, 1), shaped(1, 4096))),
}


@pytest.mark.parametrize("case", CROSSED)
def test_operands_that_lie_across_get_tiles(case: str) -> None:
    program, args = CROSSED[case]
    region = region_of(program, *args)
    assert region.strategy is Strategy.TILED
    sides = {*region.schedule.across, *region.schedule.along}
    assert sides <= {axis.name for axis in region.space.axes}
    assert set(region.schedule.across).isdisjoint(region.schedule.along)
    moved = sum(2 * x.numel() for x in args)
    assert region.cost.bytes <= 2 * moved


@pytest.mark.parametrize("case", STRAIGHT)
def test_all_others_are_walked_flat(case: str) -> None:
    program, args = STRAIGHT[case]
    assert region_of(program, *args).strategy is Strategy.FLAT


SHAPES = [(64, 64), (70, 33), (1, 200), (129, 257), (3, 1000)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32])
def test_tiles_compute_what_eager_does(shape: tuple[int, int], dtype: torch.dtype) -> None:
    rows, columns = shape
    x = torch.randint(-50, 50, (rows, columns)).to(dtype)
    y = torch.randint(-50, 50, (columns, rows)).to(dtype)

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = x + y.t()
        return z, (z * 2).t().contiguous()

    compiled = fuser.compile(program)
    for found, wanted in zip(compiled(x, y), program(x, y), strict=True):
        assert torch.equal(found, wanted)
        assert found.stride() == wanted.stride()


def test_tiles_with_other_axes_outside() -> None:
    x, y = torch.randn(3, 5, 40, 65), torch.randn(65, 3, 40, 5)

    def program(x: Tensor, y: Tensor) -> Tensor:
        return x * y.permute(1, 3, 2, 0) + x[:, :1]

    compiled = fuser.compile(program)
    assert torch.equal(compiled(x, y), program(x, y))
    (plan,) = fuser.plans(compiled)
    assert [region.strategy for region in plan.regions] == [Strategy.TILED]


def test_a_size_that_is_unknown_may_lie_along_the_tile() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return x + y.t()

    compiled = fuser.compile(program, dynamic=True)
    for rows, columns in [(40, 70), (33, 128), (2, 7)]:
        x, y = torch.randn(rows, columns), torch.randn(columns, rows)
        assert torch.equal(compiled(x, y), program(x, y))
