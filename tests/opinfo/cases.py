"""The calls to check: PyTorch's list of operators with its samples for each of them.

In: the name of an operator and an element type. Out: `Case`s, each a function and its arguments.
A sample is called as it is, with strided tensors, and in place where the operator has such a form;
calls that torch lists as errors are cases, too.
"""

from __future__ import annotations

import functools
import itertools
import sys
import types
import unittest
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["DTYPES", "Case", "Task", "cases_of", "tasks"]

DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "bool")
"""The element types that are run unless others are asked for."""

MOST_SAMPLES = 200
"""Of some operators torch makes thousands, which takes minutes."""

UNINITIALISED = ("empty", "new_empty")
"""How the names of operators begin whose results hold whatever was in memory."""


@dataclass(frozen=True, order=True)
class Task:
    """One operator with one element type: what a worker is given at once."""

    operator: str
    dtype: str


@dataclass(frozen=True)
class Case:
    """One call, with the arguments that a call in float64 has where a type is among them."""

    name: str
    program: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grad: bool = False
    has_values: bool = True
    is_error: bool = False
    is_elementwise: bool = False
    """Whether an element of the result depends on few elements of the arguments."""

    @property
    def widened(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return pytree.tree_map(_wide, self.args), pytree.tree_map(_wide, self.kwargs)


@functools.cache
def operators() -> dict[str, Any]:
    """torch's `OpInfo`s by name."""
    if "expecttest" not in sys.modules:
        # torch's test utilities derive a class from this package's; the samples use none of it.
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal import common_methods_invocations as database

    # Each call sets torch's seed inside, which Dynamo does not trace. It is set before each run.
    database.wrapper_set_seed = _called
    return {info.formatted_name: info for info in database.op_db}


def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def tasks(matches: Callable[[str], Any], dtypes: Sequence[str], device: str) -> list[Task]:
    """The operators whose names match, with those of the types that each supports on a device."""
    kind = torch.device(device).type
    return [
        Task(name, dtype)
        for name, info in operators().items()
        if matches(name)
        for dtype in dtypes
        if getattr(torch, dtype) in info.supported_dtypes(kind)
    ]


def cases_of(task: Task, device: str, number: int) -> Iterator[Case]:
    """At most `number` of torch's samples as they are, and one in each other form."""
    info, dtype = operators()[task.operator], getattr(torch, task.dtype)
    grad = info.supports_autograd and dtype in info.supported_backward_dtypes(
        torch.device(device).type
    )
    torch.manual_seed(zlib.crc32(f"{task.operator} {task.dtype}".encode()))
    made = itertools.islice(info.sample_inputs(device, dtype, requires_grad=grad), MOST_SAMPLES)
    samples = [sample for sample in made if _is_dense(sample)]
    case = functools.partial(
        _case,
        has_values=not task.operator.startswith(UNINITIALISED),
        is_elementwise=isinstance(info, _elementwise_kinds()),
    )
    for position in _spread(len(samples), number):
        yield case(f"sample {position}", info.op, samples[position], grad=grad)
    if not samples:
        return
    middle = len(samples) // 2
    strided = samples[middle].noncontiguous()
    yield case(f"sample {middle} strided", info.op, strided, grad=grad)
    changed = next((sample for sample in samples if not sample.broadcasts_input), None)
    if info.inplace_variant is not None and changed is not None:
        yield case("in place", info.inplace_variant, changed)
    if info.error_inputs_func is not None:
        errors = [error.sample_input for error in info.error_inputs(device)]
        errors = [error for error in errors if _is_dense(error)]
        for position in _spread(len(errors), number):
            yield case(f"error {position}", info.op, errors[position], is_error=True)


def _elementwise_kinds() -> tuple[type, ...]:
    from torch.testing._internal.opinfo import core

    return core.UnaryUfuncInfo, core.BinaryUfuncInfo


def _spread(length: int, number: int) -> list[int]:
    """`number` positions, evenly apart: torch orders samples from plain to unusual."""
    if length <= number:
        return list(range(length))
    return [k * (length - 1) // max(number - 1, 1) for k in range(number)]


def _is_dense(sample: Any) -> bool:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return all(x.layout is torch.strided for x in leaves if isinstance(x, torch.Tensor))


def _case(name: str, function: Any, sample: Any, **fields: Any) -> Case:
    def program(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return Case(name, program, (sample.input, *sample.args), dict(sample.kwargs), **fields)


def _wide(leaf: Any) -> Any:
    is_float = isinstance(leaf, torch.dtype) and leaf.is_floating_point
    return torch.float64 if is_float else leaf
