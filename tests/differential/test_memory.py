"""What a program does to memory: writes to arguments, results that share it, random numbers.

The helper compares the arguments after the call, and which results share memory with what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fuser
from support.compare import assert_matches_eager, opaque_calls

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def parameters(programs: dict[str, Program]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("program", programs.values(), ids=programs.keys())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_random_numbers_can_be_eagers(dtype: torch.dtype, device: str) -> None:
    def program(x: Tensor) -> Any:
        dropped = F.dropout(x * 2, 0.5) + 1
        return dropped, torch.rand_like(x) * x, F.dropout(dropped, 0.1).sum(-1)

    x = values(5, 33, dtype=dtype)
    torch.compiler.reset()
    for seed in (3, 4):
        torch.manual_seed(seed)
        expected = program(x.to(device))
        torch.manual_seed(seed)
        compiled = fuser.compile(program, random="eager")
        for found, wanted in zip(compiled(x.to(device)), expected, strict=True):
            torch.testing.assert_close(found, wanted)
        assert "aten.native_dropout.default" in opaque_calls(fuser.plans(compiled))


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


WRITES: dict[str, Program] = {
    "all": (write_all, (values(4, 6), values(6))),
    "slices": (write_slices, (values(4, 6), values(4, 6, seed=1))),
    "new_tensor": (write_into_a_new_tensor, (values(4, 6), values(4, 6, seed=1))),
    "half": (write_half, (values(4, 6), values(4, 6, seed=1))),
    "transposed": (lambda x, y: x.add_(y), (values(6, 4).t(), values(4, 6))),
    "through_a_view": (lambda x: (x.t().mul_(3), x[0].zero_()), (values(4, 6),)),
    "positions": (
        lambda x, i: x.index_put_((i,), x[i] * 2) + 1, (values(5, 6), torch.tensor([0, -2]))
    ),
}  # fmt: skip


@parameters(WRITES)
def test_writes_reach_the_arguments(program: Program, device: str) -> None:
    assert_matches_eager(program[0], *program[1], device=device)


def test_arguments_that_share_memory(device: str) -> None:
    memory = values(40)
    left, right = memory[:20].view(4, 5), memory[10:30].view(4, 5)

    def program(x: Tensor, y: Tensor) -> Any:
        x.mul_(2)
        return y + 1, x.sum()

    assert_matches_eager(program, left, right, device=device)


ALIASES: dict[str, Program] = {
    "views_of_an_input": (lambda x: (x.t(), x[1:], x.view(-1), x), (values(4, 6),)),
    "views_of_a_result": (lambda x: (y := x + 1, y.t(), y[:, 1]), (values(4, 6),)),
    "one_result_twice": (lambda x: [y := x * 2, y, {"again": y}], (values(4, 6),)),
    "an_input_unchanged": (lambda x: (x, x * 1, x.contiguous()), (values(4, 6),)),
    "a_view_of_a_view": (lambda x: x[1:].t()[::2].unsqueeze(0), (values(4, 6),)),
    "expanded": (lambda x: (x.expand(3, 6), (x + 1).expand(3, 6)), (values(1, 6),)),
    "a_part_of_what_is_read": (lambda x: x[1, ::2], (values(8, 12)[::2, 1:],)),
    "bits": (lambda x: x.view(torch.int32) + 1, (values(4, 6),)),
    "complex_parts": (lambda x: torch.complex(x, x * 2).real + 1, (values(6),)),
}  # fmt: skip


@parameters(ALIASES)
def test_results_share_memory_as_in_eager(program: Program, device: str) -> None:
    assert_matches_eager(program[0], *program[1], device=device)
