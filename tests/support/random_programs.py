"""What the tests of random programs share: arguments, compilation, calls from one seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import fuser
from fuser.ir.ops import BY_KIND, Group

__all__ = ["FLOATS", "RANDOM", "Program", "compiled", "twice", "values"]

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
RANDOM = {row.kind for row in BY_KIND.values() if row.group is Group.RANDOM}

Program = Callable[..., Any]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def compiled(program: Program, **options: Any) -> Program:
    torch.compiler.reset()
    return fuser.compile(program, **options)  # type: ignore[no-any-return]


def twice(program: Program, *args: Any, seed: int = 11) -> tuple[Any, Any]:
    """Two calls, each from the same state of torch's generator."""
    results = []
    for _ in range(2):
        torch.manual_seed(seed)
        results.append(program(*args))
    return results[0], results[1]
