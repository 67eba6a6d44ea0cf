"""Guard against inputs that begin to overlap after compilation.

In: a captured graph's example inputs and which of them it writes to. Out: `overlaps(inputs)`, true
when memory that the graph writes is also read or written through another input in a way that was
not so at compilation. Functionalised code is wrong then, and no guard of Dynamo's notices.
Overlap is judged by address ranges: interleaved views count, which is slower but never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Subclasses may have no memory of their own: fake tensors, distributed ones.
_WITH_ADDRESS = (Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class _Group:
    """Inputs that shared one storage at compilation; between them AOTAutograd set its guards."""

    positions: tuple[int, ...]
    written: bool


def overlap_check(
    inputs: Sequence[Any], written: Sequence[int], fixed: Sequence[int]
) -> Callable[[Sequence[Any]], bool] | None:
    """The check for these inputs, or None when the graph writes to none of them.

    `fixed` are parameters and buffers, whose relations among themselves do not change by call.
    """
    if not written:
        return None
    every_fixed = set(fixed)
    moving_written = any(k not in every_fixed for k in written)
    groups: dict[Any, list[int]] = {}
    for k, x in enumerate(inputs):
        watched = moving_written or k not in every_fixed or k in written
        if watched and isinstance(x, Tensor) and x.layout is torch.strided:
            groups.setdefault(x.untyped_storage()._cdata, []).append(k)
    chosen = [_Group(tuple(g), any(k in written for k in g)) for g in groups.values()]
    if len(chosen) < 2:
        return None

    def overlaps(actual: Sequence[Any]) -> bool:
        ranges = []
        for group in chosen:
            spans = [span(actual[k]) for k in group.positions]
            low, high = min(s[0] for s in spans), max(s[1] for s in spans)
            if low < high:
                ranges.append((low, high, group.written))
        ranges.sort()
        end_of_all = end_of_written = 0
        for low, high, is_written in ranges:
            if low < (end_of_all if is_written else end_of_written):
                return True
            end_of_all = max(end_of_all, high)
            if is_written:
                end_of_written = max(end_of_written, high)
        return False

    return overlaps


def span(x: Tensor) -> tuple[int, int]:
    """The first address of a tensor's elements and the one after the last."""
    if x.numel() == 0 or type(x) not in _WITH_ADDRESS:
        return 0, 0
    start = x.data_ptr()
    if x.is_contiguous():
        return start, start + x.nbytes
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return start, start + (last + 1) * x.element_size()
