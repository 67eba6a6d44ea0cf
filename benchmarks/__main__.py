"""`python -m benchmarks kernels [--only RE] [--against eager,inductor] [-o FILE]`.

Measures each workload fused, with every operation rounded as eager does, and in the competitors,
all in this process, as a fraction of the time that its bytes take at the copy rate of this run.
Every fused result is compared with eager and float64 before it is timed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fuser
from benchmarks.measure import copy_rate, flush_buffer, milliseconds
from benchmarks.workloads import WORKLOADS, Workload
from fuser.env_report import environment

COMPETITORS = {
    "eager": lambda run: run,
    "inductor": lambda run: torch.compile(run, backend="inductor"),
}


def main(words: list[str] | None = None) -> int:
    options = _parser().parse_args(words)
    if not torch.cuda.is_available():
        print("benchmarks: no GPU; timings in Triton's interpreter mean nothing", file=sys.stderr)
        return 2
    flush = flush_buffer()
    rate = copy_rate(flush)
    print(f"{torch.cuda.get_device_name()}: a copy moves {rate / 1e12:.2f} TB/s", flush=True)
    rows = []
    for name, workload in WORKLOADS.items():
        if re.search(options.only, name):
            rows.append(_row(name, workload, rate, flush, options.against.split(",")))
            print(_text(rows[-1]), flush=True)
    result = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": options.commit or _commit(),
        "environment": environment(),
        "copy_bytes_per_second": rate,
        "rows": rows,
    }
    if options.output:
        Path(options.output).write_text(json.dumps(result, indent=1, default=str) + "\n")
    return 0


def _row(
    name: str, workload: Workload, rate: float, flush: torch.Tensor, against: list[str]
) -> dict[str, Any]:
    arguments = workload.make("cuda")
    row: dict[str, Any] = {"name": name, "floor_ms": workload.bytes / rate * 1e3}
    with torch.no_grad():
        fuser.verify(workload.run, *arguments)
        for label, wrap in _candidates(against).items():
            torch._dynamo.reset()
            compiled = wrap(workload.run)
            start = time.perf_counter()
            compiled(*arguments)
            torch.cuda.synchronize()
            row[f"{label}_first_call_s"] = time.perf_counter() - start
            row[f"{label}_ms"] = milliseconds(lambda: compiled(*arguments), flush)  # noqa: B023
            if label == "fuser":
                row["kernels"] = [
                    region.strategy.value
                    for plan in fuser.plans(compiled)
                    for region in plan.regions
                ]
    return row


def _candidates(against: list[str]) -> dict[str, Callable[[Any], Any]]:
    return {
        "fuser": fuser.compile,
        "fuser_eager_precision": lambda run: fuser.compile(run, precision="eager"),
        **{name: COMPETITORS[name] for name in against if name},
    }


def _text(row: dict[str, Any]) -> str:
    times = {key.removesuffix("_ms"): value for key, value in row.items() if key.endswith("_ms")}
    floor = times.pop("floor")
    parts = [f"{label} {value:.3f} ms ({floor / value:.2f})" for label, value in times.items()]
    return f"{row['name']:<16} floor {floor:.3f} ms | " + " | ".join(parts)


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", choices=["kernels"])
    parser.add_argument("--only", default="", metavar="RE", help="workloads whose name matches")
    parser.add_argument("--against", default="eager", help="eager, inductor, or both with a comma")
    parser.add_argument("--commit", default="", help="what to record where git is not at hand")
    parser.add_argument("-o", "--output", metavar="FILE", help="also write the figures as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
