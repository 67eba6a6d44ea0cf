"""A result as a picture.

In: the data of a result file and the name of an output. Out: bars of floor / time for `kernels`,
measured over predicted times for `prediction`; the name's suffix chooses the format. Nothing is
shown on a screen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.results import COMMAND, source_line
from fuser.errors import MissingPackage, UsageError

FORMATS = (".svg", ".png", ".pdf")
# Okabe and Ito's colours, which readers with any kind of colour vision can tell apart.
COLOURS = ("#0072B2", "#56B4E9", "#999999", "#E69F00", "#D55E00", "#CC79A7")
MARKS = ("o", "s", "^", "D", "v", "P")


def draw(data: dict[str, Any], output: str) -> None:
    """Write the picture of a result; a usage error where there is none of this kind."""
    makers = {"kernels": _kernels, "prediction": _prediction}
    suffix = Path(output).suffix
    if suffix not in FORMATS:
        raise _unusable(f"{output}: the name has to end in {', '.join(FORMATS)}.")
    if data["suite"] not in makers:
        raise _unusable(f"{data['suite']} has no chart; `{COMMAND} table` shows it.")
    if not data["rows"]:
        raise _unusable("the result has no rows to draw.")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackage(feature="a chart", package="matplotlib", extra="bench") from None
    # The same result gives the same file.
    settings = {"svg.hashsalt": "benchmarks", "svg.fonttype": "none", "font.size": 9}
    with matplotlib.rc_context(settings):
        figure = Figure(layout="constrained")
        makers[data["suite"]](figure, data)
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix[1:])
        try:
            figure.savefig(output, dpi=150, metadata=metadata)
        except OSError as error:
            raise _unusable(f"cannot write {output}: {error.strerror}.") from error


def _kernels(figure: Any, data: dict[str, Any]) -> None:
    rows, names = data["rows"], data["candidates"]
    figure.set_size_inches(max(6.0, 0.9 + 0.42 * len(rows)), 5.0)
    axes = figure.subplots()
    width = 0.8 / len(names)
    means = data["summary"]["geometric_mean"]
    for k, name in enumerate(names):
        items = [row["candidates"].get(name, {}) for row in rows]
        places = [position + (k - (len(names) - 1) / 2) * width for position in range(len(rows))]
        label = f"{name}, mean {means[name]:.2f}" if name in means else name
        axes.bar(
            places, [item.get("fraction", 0.0) for item in items], width,
            label=label, color=COLOURS[k % len(COLOURS)],
        )  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_ylabel("floor / time (1 is perfect)")
    axes.set_xticks(range(len(rows)), [row["name"] for row in rows], rotation=60, ha="right")
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_title(source_line(data), fontsize=8)
    axes.legend(ncols=len(names), fontsize=8, loc="lower left", bbox_to_anchor=(0, 1.06))


def _prediction(figure: Any, data: dict[str, Any]) -> None:
    rows = [row for row in data["rows"] if "error" not in row and row["measured_us"] > 0]
    figure.set_size_inches(6.0, 6.0)
    axes = figure.subplots()
    strategies = sorted({row["strategy"] for row in rows})
    for k, strategy in enumerate(strategies):
        chosen = [row for row in rows if row["strategy"] == strategy]
        axes.scatter(
            [row["predicted_us"] for row in chosen], [row["measured_us"] for row in chosen],
            label=strategy, s=22, color=COLOURS[k % len(COLOURS)], marker=MARKS[k % len(MARKS)],
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    times = [row[key] for row in rows for key in ("predicted_us", "measured_us")]
    ends = [min(times, default=1.0) / 1.5, max(times, default=10.0) * 1.5]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_aspect("equal")
    axes.set_xlabel("predicted, us")
    axes.set_ylabel("measured, us")
    correlation = data["summary"]["rank_correlation"]
    shown = "undefined" if correlation is None else f"{correlation:.3f}"
    axes.set_title(f"{source_line(data)}\nrank correlation {shown}", fontsize=8)
    axes.legend(fontsize=8)


def _unusable(message: str) -> UsageError:
    return UsageError(message=message, command=COMMAND)
