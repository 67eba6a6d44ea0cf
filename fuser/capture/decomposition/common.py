"""What the decompositions share: casts that are told apart from the user's, and dimension helpers.

A cast made inside a decomposition is `prims.convert_element_type`; a cast that the user (or
autocast) wrote stays `aten._to_copy`. Later stages may keep a value wide across the former and
must round at the latter. `rule` marks a decomposition so that every cast traced while it runs is
of the first kind.
"""

# mypy: disable-error-code="no-any-return"
# (`torch.ops` is untyped, so a call of an aten op is Any to the type checker)

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch._prims  # registers torch.ops.prims
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import guard_or_false

aten = torch.ops.aten
prims = torch.ops.prims

Rule = Callable[..., Any]
HALF_DTYPES = (torch.float16, torch.bfloat16)


class _Nesting(threading.local):
    depth = 0


_nesting = _Nesting()


def rule(function: Rule) -> Rule:
    """Wrap a decomposition: casts traced while it runs are internal, not the user's."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        _nesting.depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            _nesting.depth -= 1

    return run


def as_rules(functions: Mapping[Any, Rule]) -> Mapping[Any, Rule]:
    return MappingProxyType({target: rule(function) for target, function in functions.items()})


def inside_rule() -> bool:
    return _nesting.depth > 0


def user_cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A cast that rounds in every mode, although a decomposition emits it."""
    if x.dtype == dtype:
        return x
    saved, _nesting.depth = _nesting.depth, 0
    try:
        return aten._to_copy.default(x, dtype=dtype)
    finally:
        _nesting.depth = saved


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else prims.convert_element_type.default(x, dtype)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type eager's kernels compute in: float32 for the two half types, else the type itself."""
    return torch.float32 if dtype in HALF_DTYPES else dtype


def wide(x: Tensor) -> Tensor:
    return cast(x, wide_dtype(x.dtype))


def maybe_wide(x: Tensor | None) -> Tensor | None:
    return None if x is None else wide(x)


def axes(x: Tensor, dims: int | Sequence[int] | None) -> list[int]:
    """Sorted non-negative reduction axes; None and () mean all of them, as in eager."""
    if isinstance(dims, int):
        dims = [dims]
    if not dims:
        return list(range(x.dim()))
    return sorted({d % x.dim() for d in dims}) if x.dim() else []


def count(x: Tensor, dims: Sequence[int]) -> Any:
    """Number of elements reduced into one; an int or a symbolic int."""
    total: Any = 1
    for d in dims:
        total = total * x.shape[d]
    return total


def is_empty(x: Tensor) -> bool:
    return bool(guard_or_false(x.numel() == 0))


def is_contiguous(x: Tensor) -> bool:
    """Contiguous as far as is known without a new guard on unbacked sizes."""
    expected: Any = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if guard_or_false(size == 1):
            continue
        if not guard_or_false(stride == expected):
            return False
        expected = expected * size
    return True


def contiguous(x: Tensor) -> Tensor:
    """Eager's kernel returns a contiguous tensor here; the copy fuses into the producer."""
    if is_contiguous(x) or is_empty(x):
        return x
    return aten.clone.default(x, memory_format=torch.contiguous_format)


def like_input_format(out: Tensor, x: Tensor) -> Tensor:
    """Contiguous in the format that eager suggests for `x` (channels-last stays channels-last)."""
    if suggest_memory_format(x) == torch.contiguous_format:
        return contiguous(out)
    return out


def total(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    return aten.sum.dim_IntList(x, list(dims), keepdim)


def average(x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    return aten.div.Tensor(total(x, dims, keepdim), count(x, dims))


def constant(value: float, x: Tensor) -> Tensor:
    """A 0-d tensor of x's dtype and device."""
    return aten.full.default([], value, dtype=x.dtype, device=x.device)


def unsqueeze_to(x: Tensor, rank: int, axis: int) -> Tensor:
    """Place a vector on `axis` of a tensor of the given rank, size one elsewhere."""
    shape: list[Any] = [1] * rank
    shape[axis] = x.shape[0]
    return aten.view.default(x, shape) if rank != 1 else x
