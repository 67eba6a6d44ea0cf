"""Timing on a GPU: the median of event-timed calls, each on a cold L2 cache.

In: a function to call. Out: milliseconds. A call is timed with what the host adds to it, so figures
of a few tens of microseconds say more about the host than about the kernel.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

WARM_UP = 5
CALLS = 30
FLUSH_BYTES = 256 << 20
"""More than any L2 cache in `fuser.device`."""


def milliseconds(call: Callable[[], Any], flush: torch.Tensor) -> float:
    """The median time of `call`; `flush` is written before each call."""
    for _ in range(WARM_UP):
        call()
    times: list[float] = []
    for _ in range(CALLS):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def flush_buffer() -> torch.Tensor:
    return torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")


def copy_rate(flush: torch.Tensor) -> float:
    """Bytes a second that a large copy reads and writes: the floor's rate in this run."""
    source = torch.randn(1 << 29, device="cuda").to(torch.bfloat16)
    target = torch.empty_like(source)
    time = milliseconds(lambda: target.copy_(source), flush)
    return 2 * source.numel() * source.element_size() / (time * 1e-3)
