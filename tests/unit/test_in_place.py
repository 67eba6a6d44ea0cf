"""Inputs that a program overwrites: their new contents are stored where the old ones were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuser
from fuser.capture import registry
from support.device_functions import DEVICE

Program = Callable[..., Any]


def step(parameter: Tensor, gradient: Tensor, mean: Tensor) -> None:
    mean.lerp_(gradient, 0.1)
    parameter.sub_(mean.sqrt() * 0.01)


def read_elsewhere(x: Tensor, y: Tensor, _: Tensor) -> Tensor:
    """Each element is read by the columns of others, in a kernel before."""
    total = x.sum(0)
    x.add_(total).mul_(y)
    return x.sum()


def shifted(x: Tensor, y: Tensor, _: Tensor) -> None:
    x[1:] = x[:-1] * y[1:]


def transposed(x: Tensor, y: Tensor, _: Tensor) -> None:
    x.copy_(x.t() + y)


def overwritten(x: Tensor, y: Tensor, _: Tensor) -> None:
    x.copy_(y.exp())


def returned(x: Tensor, y: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    return x.mul_(y), x + 1


def read_by_a_call(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    old = x.clone()
    x.mul_(y)
    return torch.cumsum(old, 0) + z


IN_PLACE: dict[str, tuple[Program, int]] = {
    "step": (step, 2),
    "overwritten": (overwritten, 1),
    "read elsewhere": (read_elsewhere, 1),
    "shifted": (shifted, 0),
    "transposed": (transposed, 0),
    "read by a call": (read_by_a_call, 1),
}


def arguments(columns: int = 33) -> list[Tensor]:
    return [torch.rand(33, columns, device=DEVICE) for _ in range(3)]


def taken_over(compiled: Any) -> int:
    """Results that the host programs store in an input's memory."""
    executables = [each.executable for each in registry.plans(compiled)]
    return sum(each.program.source.count(", in place") for each in executables if each)


def assert_same(program: Program, compiled: Any, given: list[Tensor]) -> None:
    expected = [x.clone() for x in given]
    wanted, found = program(*expected), compiled(*given)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    torch.testing.assert_close(given, expected, equal_nan=True)


@pytest.mark.parametrize("name", IN_PLACE)
def test_only_what_nothing_else_reads_is_stored_in_place(name: str) -> None:
    program, number = IN_PLACE[name]
    compiled = fuser.compile(program)
    for _ in range(2):
        assert_same(program, compiled, arguments())
    assert taken_over(compiled) == number


def test_what_is_returned_as_well() -> None:
    compiled = fuser.compile(returned)
    assert_same(returned, compiled, arguments())
    x, y, z = arguments()
    first, _ = compiled(x, y, z)
    assert first is x, "eager returns its own argument"


def test_an_input_in_another_layout_is_not_lost() -> None:
    compiled = fuser.compile(step)
    assert_same(step, compiled, arguments())
    given = [x.t() for x in arguments()]
    assert_same(step, compiled, given)


def test_sizes_that_change() -> None:
    compiled = fuser.compile(step, dynamic=True)
    for columns in (5, 7, 1, 16):
        assert_same(step, compiled, arguments(columns))


def test_inputs_that_overlap() -> None:
    compiled = fuser.compile(step)
    memory = torch.rand(3, 40, device=DEVICE)
    for first, second in ((0, 20), (0, 3)):
        given = [memory[0, first : first + 20], memory[1, :20], memory[0, second : second + 20]]
        kept = memory.clone()
        views = [kept[0, first : first + 20], kept[1, :20], kept[0, second : second + 20]]
        step(*views)
        compiled(*given)
        torch.testing.assert_close(memory, kept, equal_nan=True)


def test_statistics_of_a_module_in_training() -> None:
    torch.manual_seed(0)
    modules = [nn.Sequential(nn.BatchNorm1d(7), nn.GELU()).to(DEVICE) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    compiled = fuser.compile(modules[0])
    for _ in range(3):
        x = torch.randn(11, 7, device=DEVICE)
        found, wanted = compiled(x), modules[1](x)
        torch.testing.assert_close(found, wanted)
        found.sum().backward()
        wanted.sum().backward()
        for a, b in zip(modules[0].buffers(), modules[1].buffers(), strict=True):
            torch.testing.assert_close(a, b)
    assert taken_over(compiled) >= 2


def test_a_leaf_that_requires_gradients() -> None:
    parameters = [nn.Parameter(torch.ones(5, 6, device=DEVICE)) for _ in range(2)]

    def program(x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            x.mul_(y)

    compiled = fuser.compile(program)
    y = torch.rand(5, 6, device=DEVICE)
    program(parameters[1], y)
    compiled(parameters[0], y)
    torch.testing.assert_close(parameters[0], parameters[1])
    assert parameters[0].is_leaf
    assert parameters[0].requires_grad
