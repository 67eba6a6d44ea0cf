"""A result as Markdown.

In: the data of a result file. Out: tables under a line that says where the figures come from, as
text or between two marks of a document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import COMMAND, source_line
from fuser.errors import UsageError

FURTHEST = 8
"""How many of the worst predictions are listed."""


def tables(data: dict[str, Any]) -> str:
    """The tables of any suite's result."""
    makers: dict[str, Callable[[dict[str, Any]], list[str]]] = {
        "kernels": _kernels,
        "overhead": _overhead,
        "prediction": _prediction,
    }
    return "\n".join([*makers[data["suite"]](data), *_failures(data)])


def replaced(path: str, suite: str, text: str) -> None:
    """Put `text` between the marks of `suite` in the document."""
    start, end = f"<!-- table: {suite} -->", f"<!-- end: {suite} -->"
    document = Path(path)
    try:
        whole = document.read_text(encoding="utf-8")
        before, found_start, rest = whole.partition(start)
        _, found_end, after = rest.partition(end)
        if not found_start or not found_end:
            raise UsageError(
                message=f"{path} has no line {start!r} with {end!r} after it.", command=COMMAND
            )
        document.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")
    except OSError as error:
        raise UsageError(message=f"{path}: {error.strerror}.", command=COMMAND) from error


def _kernels(data: dict[str, Any]) -> list[str]:
    names = data["candidates"]
    copy, product = data["copy_bytes_per_second"], data["product_flops_per_second"]
    found = data["summary"]
    lines = [
        f"{source_line(data)}; in the same run a copy moved {copy / 1e12:.2f} TB/s and a product of"
        f" 8192 x 8192 bfloat16 matrices ran at {product / 1e12:.0f} TFLOP/s.",
        "",
        *_head(["workload", "floor", *names]),
    ]
    for row in data["rows"]:
        cells = [_figure(row["candidates"].get(name)) for name in names]
        lines.append(_line([row["name"], _milliseconds(row["floor_ms"]), *cells]))
    means = [found["geometric_mean"].get(name) for name in names]
    label = f"geometric mean of {found['compared_rows']}"
    lines.append(_line([label, "", *("" if m is None else f"**{m:.2f}**" for m in means)]))
    lines += [
        "",
        "Host microseconds until a call returns, and seconds of the first call from empty caches:",
        "",
        *_head(["workload", *names]),
    ]
    for row in data["rows"]:
        cells = [_host(row["candidates"].get(name)) for name in names]
        lines.append(_line([row["name"], *cells]))
    return lines


def _figure(item: dict[str, Any] | None) -> str:
    if item is None:
        return ""
    if "error" in item:
        return "failed"
    mark = "" if item["is_host_hidden"] else " with host time"
    replayed = f", replayed {_milliseconds(item['replay_ms'])}" if "replay_ms" in item else ""
    return f"{_milliseconds(item['ms'])} ({item['fraction']:.2f}){mark}{replayed}"


def _host(item: dict[str, Any] | None) -> str:
    if item is None or "error" in item:
        return "" if item is None else "failed"
    return f"{item['host_us']:.0f} us, {item['first_call_s']:.2f} s"


def _overhead(data: dict[str, Any]) -> list[str]:
    lines = [
        f"{source_line(data)}. Microseconds a call in a loop: of the host, and until the GPU is"
        " done.",
        "",
        *_head(["program", "candidate", "host", "call"]),
    ]
    for row in data["rows"]:
        for name, item in row["candidates"].items():
            if "error" in item:
                lines.append(_line([row["name"], name, "failed", ""]))
                continue
            cells = [row["name"], name, f"{item['host_us']:.1f}", f"{item['call_us']:.1f}"]
            lines.append(_line(cells))
    split = [
        (row["name"], item)
        for row in data["rows"]
        for item in row["candidates"].values()
        if "guards_us" in item
    ]
    parts = ["guards_us", "entry_us", "launches_us", "rest_us", "beyond_us"]
    lines += ["", "Where fuser's microseconds of the host go:", ""]
    lines += _head(
        ["program", "kernels", "original calls", *(p.removesuffix("_us") for p in parts)]
    )
    for name, item in split:
        counts = [str(item["kernels"]), str(item["original_calls"])]
        lines.append(_line([name, *counts, *(f"{item[part]:.1f}" for part in parts)]))
    return lines


def _prediction(data: dict[str, Any]) -> list[str]:
    found = data["summary"]
    groups = {**found["by_strategy"], "all": found}
    lines = [
        f"{source_line(data)}; a copy moved {data['copy_bytes_per_second'] / 1e12:.2f} TB/s, and"
        f" the planner expects {data['predicted_copy_bytes_per_second'] / 1e12:.2f} TB/s and"
        f" {data['launch_us']:.1f} us a launch.",
        "",
        *_head(["strategy", "kernels", "rank correlation", "measured / predicted", "furthest"]),
    ]
    for name, group in groups.items():
        figures = [
            "" if group[key] is None else format(group[key], ".2f")
            for key in ("rank_correlation", "median_measured_over_predicted", "largest_factor")
        ]
        lines.append(_line([name, str(group["regions"]), *figures]))
    usable = [row for row in data["rows"] if "error" not in row and row["measured_us"] > 0]
    far = sorted(usable, key=_factor, reverse=True)[:FURTHEST]
    lines += ["", "The predictions that are furthest off, in microseconds:", ""]
    lines += _head(["workload", "rows", "region", "strategy", "predicted", "measured"])
    for row in far:
        where = [row["workload"], f"1/{row['divisor']}", f"{row['phase']} {row['region']}"]
        times = [f"{row['predicted_us']:.1f}", f"{row['measured_us']:.1f}"]
        lines.append(_line([*where, row["strategy"], *times]))
    return lines


def _factor(row: dict[str, Any]) -> float:
    ratio: float = row["measured_us"] / row["predicted_us"]
    return max(ratio, 1 / ratio)


def _failures(data: dict[str, Any]) -> list[str]:
    failed = data["summary"]["failed"]
    lines = [f"- {where}: {text}" for where, text in failed.items()]
    return ["", "Failed:", "", *lines] if lines else []


def _milliseconds(value: float) -> str:
    return f"{value:.3f}" if value >= 0.1 else f"{value:.4f}"


def _head(names: Sequence[str]) -> list[str]:
    return [_line(names), "|---" * len(names) + "|"]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
