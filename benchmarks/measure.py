"""Timing on a GPU: device time without the host, host time without the device.

In: a function to call. Out: a `Timing`. One method serves calls of every length:

- The host is hidden. A kernel that only spins goes first and lasts longer than the host needs to
  enqueue the call, so when the clock starts all work is queued and launches follow each other as
  they do in a busy stream. That this held is checked each time: the start event must not have been
  reached when the last launch was enqueued.
- The L2 cache is cold and the account balanced. A call is timed between two flushes (writes of
  `FLUSH_BYTES`), and what two flushes take by themselves is taken off. The first makes the call
  read from memory; the second makes it pay for what it wrote and left in the cache, as the call
  pays for the first one's. With one flush, a call that only reads would be charged for lines that
  are not its own.
- Both are repeated in turn and their medians taken, so a slow change of clocks cancels.

Short calls are also replayed: a CUDA graph holds flushes with a call after each but the last,
another the flushes alone, and the difference is shared out. Of the launches it keeps what the GPU
needs to go from one kernel to the next.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[], Any]

FLUSH_BYTES = 256 << 20
"""More than any L2 cache in `fuser.device`."""
WARM_UP = 3
REPETITIONS = 25
HOST_REPETITIONS = 15
REPLAYED = 20
"""Calls in a graph that is replayed."""
REPLAY_PAUSE_US = 3000.0
"""What launching a graph may take."""
PAUSE_US = 300.0
"""What enqueuing the flushes and events may take, beside the call."""
LONGEST_PAUSE_US = 100_000.0


@dataclass(frozen=True)
class Timing:
    """One call. `is_host_hidden` is false where `milliseconds` may contain waiting for the host:
    a call that synchronises, or one with more launches than the driver's queue holds."""

    milliseconds: float
    spread_ms: float
    """Between the quartiles of the repetitions."""
    host_us: float
    """Until the call returns, with an idle GPU."""
    is_host_hidden: bool


@dataclass(frozen=True)
class Rates:
    """The two ceilings of a run, in bytes and operations a second."""

    copy: float
    product: float


class Timer:
    """Times calls on the current GPU; owns the memory that flushes its cache."""

    def __init__(self) -> None:
        self._flushed = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        self._cycles_per_us = self._clock()

    def first_call(self, call: Call) -> float:
        """Seconds until a call is done, as a user would wait for it."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def measure(self, call: Call) -> Timing:
        """Times of a call that may be repeated; a few calls come first to warm up."""
        for _ in range(WARM_UP):
            call()
        host_us = self.host_us(call)
        milliseconds, spread, is_hidden = self._device(call, host_us)
        return Timing(milliseconds, spread, host_us, is_hidden)

    def host_us(self, call: Call) -> float:
        """Microseconds until `call` returns when the GPU has nothing else to do."""
        times: list[float] = []
        for _ in range(HOST_REPETITIONS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        return statistics.median(times) * 1e6

    def busy_us(self, call: Call, calls: int = 20, rounds: int = 30) -> tuple[float, float]:
        """Microseconds a call of the host alone and of both, in a loop of `calls`, warm cache."""
        host: list[float] = []
        both: list[float] = []
        for _ in range(rounds):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            host.append(time.perf_counter() - start)
            torch.cuda.synchronize()
            both.append(time.perf_counter() - start)
        return (
            statistics.median(host) / calls * 1e6,
            statistics.median(both) / calls * 1e6,
        )

    def replay_ms(self, call: Call) -> float:
        """Milliseconds of a call that CUDA graphs replay; raises where it cannot be captured."""
        graphs = [self._captured(repeated) for repeated in (call, _nothing)]
        pairs = [[self._replayed(graph) for graph in graphs] for _ in range(REPETITIONS)]
        return statistics.median(whole - flushes for whole, flushes in pairs) / REPLAYED

    def rates(self) -> Rates:
        """What a copy of 1 GiB and a bfloat16 product of 8192 x 8192 matrices reach now."""
        source = torch.empty(1 << 29, device="cuda", dtype=torch.bfloat16).normal_()
        target = torch.empty_like(source)
        copy_ms = self.measure(lambda: target.copy_(source)).milliseconds
        moved = 2 * source.numel() * source.element_size()
        size = 8192
        # Random numbers: a product of zeros draws less power and runs faster.
        left, right = source[: 2 * size * size].view(2, size, size)
        out = target[: size * size].view(size, size)
        product_ms = self.measure(lambda: torch.mm(left, right, out=out)).milliseconds
        return Rates(moved / copy_ms * 1e3, 2 * size**3 / product_ms * 1e3)

    def _device(self, call: Call, host_us: float) -> tuple[float, float, bool]:
        """Milliseconds of `call` on the device, their spread, and whether the host was hidden."""
        pause_us = min(2 * host_us + PAUSE_US, LONGEST_PAUSE_US)
        hidden: list[float] = []
        others: list[float] = []
        flushes: list[float] = []
        for _ in range(2 * REPETITIONS):
            elapsed, is_hidden = self._between_flushes(call, pause_us)
            (hidden if is_hidden else others).append(elapsed)
            if not is_hidden:
                pause_us = min(2 * pause_us, LONGEST_PAUSE_US)
            flushes.append(self._between_flushes(_nothing, pause_us)[0])
            if len(hidden) == REPETITIONS:
                break
        is_enough = len(hidden) >= REPETITIONS // 2
        times = hidden if is_enough else hidden + others
        low, middle, high = statistics.quantiles(times, n=4)
        return middle - statistics.median(flushes), high - low, is_enough

    def _between_flushes(self, call: Call, pause_us: float) -> tuple[float, bool]:
        """Milliseconds of a flush, `call` and a flush; whether all was queued before they ran."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(pause_us * self._cycles_per_us))
        start.record()
        self._flushed.zero_()
        call()
        self._flushed.zero_()
        end.record()
        is_hidden = not start.query()
        torch.cuda.synchronize()
        return start.elapsed_time(end), is_hidden

    def _captured(self, call: Call) -> torch.cuda.CUDAGraph:
        """`REPLAYED` calls, each between two flushes."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(REPLAYED):
                self._flushed.zero_()
                call()
            self._flushed.zero_()
        graph.replay()  # the first launch also loads it
        return graph

    def _replayed(self, graph: torch.cuda.CUDAGraph) -> float:
        """Milliseconds of the graph; raises where its launch outlasts the pause before it."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(int(REPLAY_PAUSE_US * self._cycles_per_us))
        start.record()
        graph.replay()
        end.record()
        if start.query():
            raise ValueError(f"a graph of {REPLAYED} calls takes too long to launch")
        torch.cuda.synchronize()
        return start.elapsed_time(end)

    def _clock(self) -> float:
        """Cycles a microsecond of the spinning kernel."""
        cycles = 20_000_000
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(cycles)  # the first launch of a kernel also loads it
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        torch.cuda.synchronize()
        return cycles / (start.elapsed_time(end) * 1e3)


def _nothing() -> None:
    pass
