"""The suite `prediction`: the planner's times beside those of its kernels.

In: a request. Out: one row for each generated region, run by itself on the inputs that it has in
its program, with a cold L2 cache. Regions of one program with equal kernels are measured once.
"""

from __future__ import annotations

import functools
import gc
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from benchmarks.measure import Call, Timer, Timing
from benchmarks.progress import progress
from benchmarks.ranks import rank_correlation
from benchmarks.request import Request
from benchmarks.results import Results, Row, error_text, origin
from benchmarks.workloads import Workload, workloads
from fuser.capture.backend import Backend, CompileContext
from fuser.device import device_spec, present_target
from fuser.driver import compile_graph
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region
from fuser.runtime.executable import symbol_values

DIVISORS = (1, 4)
"""The programs are measured with all rows and with a quarter of them."""


class Clock(Protocol):
    """What a region needs of a timer."""

    def measure(self, call: Call) -> Timing: ...


def run(request: Request) -> int:
    """Measure, print and save; 1 where a program failed, else 0."""
    names = request.selected(list(workloads()))
    timer = Timer()
    target = present_target()
    header = {
        **origin(request.commit),
        "target": target,
        "launch_us": device_spec(target).launch_us,
        "copy_bytes_per_second": timer.rates().copy,
        "predicted_copy_bytes_per_second": device_spec(target).copy_rate,
    }
    results = Results(request.suite, header, summary, request.output)
    seen: set[tuple[str, int, int]] = set()
    with progress(len(names) * len(DIVISORS)) as shown:
        for divisor in DIVISORS:
            every = workloads(divisor)
            for name in names:
                shown.now(f"{name}, 1/{divisor} of the rows")
                workload = every[name]
                size = (name, workload.bytes, workload.flops)
                rows = [] if size in seen else measured_rows(workload, divisor, timer, "cuda")
                seen.add(size)
                results.add(*rows)
                shown.done(
                    "\n".join(map(row_text, rows))
                    or f"{name} 1/{divisor}: no kernel that is not above"
                )
    print(summary_text(results.data["summary"]))
    return 1 if results.data["summary"]["failed"] else 0


def measured_rows(workload: Workload, divisor: int, clock: Clock, device: str) -> list[Row]:
    """The regions of one program, or one row that says why there are none."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    recorder = _Recorder(clock)
    backend = Backend(functools.partial(_compile_measured, recorder=recorder))
    where = {"workload": workload.name, "divisor": divisor}
    try:
        with torch.set_grad_enabled(workload.is_training):
            arguments = workload.make(device)
            workload.call(torch.compile(workload.run, backend=backend), arguments)()
    except Exception as error:
        return [{**where, "error": error_text(error)}]
    return [{**where, **row} for row in recorder.rows]


@dataclass
class _Recorder:
    """The rows of one program so far, and the kernels that they stand for."""

    clock: Clock
    rows: list[Row] = field(default_factory=list)
    by_kernels: dict[tuple[str, ...], Row] = field(default_factory=dict)


def _compile_measured(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    context: CompileContext,
    recorder: _Recorder,
) -> Callable[..., Any]:
    """Compile as usual, but run step by step and time each that launches kernels."""
    compiled = compile_graph(module, inputs, context)
    executable, plan = compiled.executable, compiled.plan
    if executable is None or plan is None:
        recorder.rows.append({"error": f"a graph runs unfused: {compiled.reason}"})
        return compiled.run
    entries = {entry.regions[0]: entry for entry in compiled.kernels}

    def run_measured(given: list[Any]) -> Any:
        symbols = symbol_values(plan.graph, given)

        def observe(region: Region, before: Mapping[str, Any], _: Mapping[str, Any]) -> None:
            entry = entries.get(region.name)
            if entry is None:
                return  # it was timed with the first of those that share its launch
            key = tuple(spec.key for spec in entry.kernels)
            known = recorder.by_kernels.get(key)
            if known is not None:
                known["regions"] += len(entry.regions)
                return
            runner = executable.steps[entry.regions]
            timing = recorder.clock.measure(lambda: runner.run(before, symbols))
            row = _row(plan, entry.regions, context.phase, timing)
            if runner.is_unfused:
                row["error"] = error_text(executable.fallbacks[region.name])
            recorder.rows.append(row)
            recorder.by_kernels[key] = row

        return executable.walk(given, observe)

    return run_measured


def _row(plan: FusionPlan, names: Sequence[str], phase: str, timing: Timing) -> Row:
    """What is known of regions that run at once, mostly of one."""
    regions = [plan.by_name[name] for name in names]
    shared = plan.launch_of.get(names[0])
    saved = 0.0 if shared is None else shared.saved_us
    return {
        "phase": phase,
        "region": names[0] if shared is None else shared.name,
        "regions": len(regions),
        "kind": " and ".join(dict.fromkeys(region.kind.value for region in regions)),
        "strategy": regions[0].strategy.value if shared is None else "shared",
        "bytes": sum(region.cost.bytes for region in regions),
        "bound": " and ".join(dict.fromkeys(region.cost.bound for region in regions)),
        "predicted_us": sum(region.cost.time_us for region in regions) - saved,
        "measured_us": timing.milliseconds * 1e3,
        "spread_us": timing.spread_ms * 1e3,
        "is_host_hidden": timing.is_host_hidden,
    }


# Summary and text --------------------------------------------------------------------------------


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """How well predictions order the kernels, and by how much they are off."""
    usable = [row for row in rows if "error" not in row]
    groups = {row["strategy"]: [] for row in usable}
    for row in usable:
        groups[row["strategy"]].append(row)
    return {
        "regions": len(usable),
        **_agreement(usable),
        "by_strategy": {
            name: {"regions": len(found), **_agreement(found)} for name, found in groups.items()
        },
        "failed": {
            f"{row.get('workload')} 1/{row.get('divisor')} {row.get('region', '')}": row["error"]
            for row in rows
            if "error" in row
        },
    }


def _agreement(rows: Sequence[Row]) -> dict[str, float | None]:
    predicted = [row["predicted_us"] for row in rows]
    measured = [row["measured_us"] for row in rows]
    ratios = [m / p for m, p in zip(measured, predicted, strict=True) if m > 0 and p > 0]
    return {
        "rank_correlation": rank_correlation(predicted, measured),
        "median_measured_over_predicted": statistics.median(ratios) if ratios else None,
        "largest_factor": max((math.exp(abs(math.log(ratio))) for ratio in ratios), default=None),
    }


def row_text(row: Row) -> str:
    name = f"{row['workload']} 1/{row['divisor']}"
    if "error" in row:
        return f"{name:<32} FAILED {row['error'][:200]}"
    return (
        f"{name:<32} {row['phase']} {row['region']:<12} {row['strategy']:<16}"
        f" predicted {row['predicted_us']:9.1f} us, measured {row['measured_us']:9.1f} us"
    )


def summary_text(found: dict[str, Any]) -> str:
    correlation, ratio = found["rank_correlation"], found["median_measured_over_predicted"]
    lines = [
        f"{found['regions']} regions: rank correlation "
        f"{'undefined' if correlation is None else format(correlation, '.3f')},"
        f" median measured / predicted {'none' if ratio is None else format(ratio, '.2f')}"
    ]
    lines += [f"failed: {where}" for where in found["failed"]]
    return "\n".join(lines)
