"""The suite `kernels`: each workload fused and in the competitors, as a fraction of its floor.

In: a request. Out: one row for each workload. A row's floor is the time that its bytes take at the
copy rate of this run, or its products at the product rate, whichever is longer; where that is
short, the row also has times of replayed CUDA graphs. What fuser computes is compared with eager
and float64, gradients included, before it is timed; what fails is a row with the error in place of
figures, and the run goes on.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from benchmarks.candidates import Candidate, candidates
from benchmarks.measure import Call, Rates, Timer, Timing
from benchmarks.names import PRECISIONS
from benchmarks.progress import progress
from benchmarks.request import Request
from benchmarks.results import Results, Row, error_text, origin
from benchmarks.workloads import Workload, workloads
from fuser.capture import registry
from fuser.verification.differential import verify_program

SHORT_MS = 0.05
"""With a floor below it, what starting a kernel takes is a part of the time that matters."""


class Clock(Protocol):
    """What a row needs of a timer."""

    def first_call(self, call: Call) -> float: ...

    def measure(self, call: Call) -> Timing: ...

    def replay_ms(self, call: Call) -> float: ...


def run(request: Request) -> int:
    """Measure, print and save; 1 where a row has an error, else 0."""
    every = workloads()
    names = request.selected(list(every))
    compared = candidates(request.precisions, request.against)
    timer = Timer()
    rates = timer.rates()
    header = {
        **origin(request.commit),
        "copy_bytes_per_second": rates.copy,
        "product_flops_per_second": rates.product,
        "candidates": [candidate.name for candidate in compared],
    }
    results = Results(request.suite, header, summary, request.output)
    print(
        f"{torch.cuda.get_device_name()}: a copy moves {rates.copy / 1e12:.2f} TB/s,"
        f" a bf16 product runs at {rates.product / 1e12:.0f} TFLOP/s",
        flush=True,
    )
    with progress(len(names)) as shown:
        start_compilers(compared)
        for name in names:
            row = measured_row(every[name], compared, timer, rates, "cuda", shown.now)
            results.add(row)
            shown.done(row_text(row))
    print(summary_text(results.data["summary"]))
    return 1 if results.data["summary"]["failed"] else 0


def start_compilers(compared: Sequence[Candidate], device: str = "cuda") -> None:
    """Let each compiler load what it needs, so that no row's first call pays for it."""
    for candidate in compared:
        # A compiler that fails here fails in each row, which then says so.
        with contextlib.suppress(Exception), torch.no_grad():
            candidate.wrap(_one_more)(torch.zeros(64, device=device))
        torch.compiler.reset()


def _one_more(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def measured_row(
    workload: Workload,
    compared: Sequence[Candidate],
    clock: Clock,
    rates: Rates,
    device: str,
    now: Callable[[str], None],
) -> Row:
    """One workload in every candidate."""
    floor = workload.floor_ms(rates.copy, rates.product)
    found: dict[str, Any] = {}
    for candidate in compared:
        now(f"{workload.name}: {candidate.name}")
        _release_memory()
        try:
            with torch.set_grad_enabled(workload.is_training):
                found[candidate.name] = _measured(workload, candidate, clock, floor, device)
        except Exception as error:
            found[candidate.name] = {"error": error_text(error)}
    return {
        "name": workload.name,
        "read_bytes": workload.read,
        "written_bytes": workload.written,
        "flops": workload.flops,
        "bound": workload.bound(rates.copy, rates.product),
        "floor_ms": floor,
        "candidates": found,
        "speedup": _speedups(found, "ms"),
        "replay_speedup": _speedups(found, "replay_ms"),
    }


def _measured(
    workload: Workload, candidate: Candidate, clock: Clock, floor_ms: float, device: str
) -> dict[str, Any]:
    """First call, verification where it is fuser's, then the timing, replayed too where short."""
    arguments = workload.make(device)
    compiled = candidate.wrap(workload.run)
    call = workload.call(compiled, arguments)
    first = clock.first_call(call)
    facts: dict[str, Any] = {}
    if candidate.options is not None:
        facts = fused_facts(compiled)
        report = verify_program(workload.run, arguments, {}, candidate.options)
        facts["verified_values"] = len(report.regions) + len(report.tensors)
        del report
        _release_memory(keep_code=True)
    timing = clock.measure(call)
    if timing.milliseconds <= 0:
        raise ValueError(f"{timing.milliseconds} ms: shorter than what two flushes vary by")
    if floor_ms < SHORT_MS and not candidate.has_graphs:
        facts |= _replayed(call, clock)
    return {
        "ms": timing.milliseconds,
        "fraction": floor_ms / timing.milliseconds,
        "spread_ms": timing.spread_ms,
        "host_us": timing.host_us,
        "is_host_hidden": timing.is_host_hidden,
        "first_call_s": first,
        **facts,
    }


def _replayed(call: Call, clock: Clock) -> dict[str, Any]:
    try:
        return {"replay_ms": clock.replay_ms(call)}
    except Exception as error:
        # A call that cannot be captured still has its time.
        return {"replay_error": error_text(error)}


def fused_facts(compiled: Any) -> dict[str, Any]:
    """What fuser made of a program: its kernels, and whatever did not become one."""
    graphs = registry.plans(compiled)
    plans = [graph.plan for graph in graphs if graph.plan is not None]
    executables = [graph.executable for graph in graphs if graph.executable is not None]
    return {
        "strategies": [region.strategy.value for plan in plans for region in plan.regions],
        "original_calls": [
            plan.graph.by_name[name].call.name for plan in plans for name in plan.opaque
        ],
        "fallbacks": {
            name: error_text(error)
            for item in executables
            for name, error in item.fallbacks.items()
        },
        "unfused_graphs": [graph.reason for graph in graphs if graph.executable is None],
    }


def _speedups(found: dict[str, Any], figure: str) -> dict[str, dict[str, float]]:
    """For each of fuser's precisions, how many times faster it is than each competitor."""
    times = {name: item[figure] for name, item in found.items() if figure in item}
    own = set(PRECISIONS.values())
    return {
        name: {other: times[other] / times[name] for other in times if other not in own}
        for name in times
        if name in own
    }


def _release_memory(keep_code: bool = False) -> None:
    if not keep_code:
        torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# Summary and text --------------------------------------------------------------------------------


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Geometric means of the fractions over the rows that every candidate completed."""
    whole = [row for row in rows if all("ms" in item for item in row["candidates"].values())]
    names = list(rows[0]["candidates"]) if rows else []
    return {
        "rows": len(rows),
        "compared_rows": len(whole),
        "geometric_mean": {
            name: statistics.geometric_mean(row["candidates"][name]["fraction"] for row in whole)
            for name in names
            if whole
        },
        "failed": {
            f"{row['name']}: {name}": item["error"]
            for row in rows
            for name, item in row["candidates"].items()
            if "error" in item
        },
    }


def row_text(row: Row) -> str:
    parts = [f"{row['name']:<26} floor {row['floor_ms']:7.4f} ms"]
    for name, item in row["candidates"].items():
        if "error" in item:
            parts.append(f"{name} FAILED {item['error'][:160]}")
        else:
            exact = "" if item["is_host_hidden"] else " with host time"
            parts.append(f"{name} {item['ms']:.4f} ({item['fraction']:.2f}){exact}")
        if "replay_ms" in item:
            parts[-1] += f" replayed {item['replay_ms']:.4f}"
        if "replay_error" in item:
            parts[-1] += f" not replayed: {item['replay_error'][:160]}"
    return " | ".join(parts)


def summary_text(found: dict[str, Any]) -> str:
    means = ", ".join(f"{name} {mean:.3f}" for name, mean in found["geometric_mean"].items())
    lines = [
        f"geometric mean of floor / time over {found['compared_rows']} of {found['rows']} rows:"
        f" {means or 'none'}"
    ]
    lines += [f"failed: {where}" for where in found["failed"]]
    return "\n".join(lines)
