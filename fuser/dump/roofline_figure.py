"""The roofline of a plan's regions: operations per byte against operations per second.

In: the steps of a plan and its device. Out: a figure as plain data in Plotly's schema: the roof of
the device's vector units and that of its tensor cores, and a point for each region.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuser.device import DeviceSpec
from fuser.dump.looks import (
    FAMILY,
    FILL,
    INK,
    LINE,
    QUIET,
    Figure,
    Lines,
    escaped,
    hover_label,
    time_line,
)
from fuser.dump.steps import Step

VECTOR_ROOF = "attainable"
TENSOR_ROOF = "with tensor cores"


def roofline_figure(steps: Sequence[Step], device: DeviceSpec) -> Figure:
    """Operations per byte against predicted operations per second, under the device's roofs."""
    regions = [step for step in steps if step.region is not None]
    points = {step.number: _point(step) for step in regions}
    before = {step.number: _point(step, fused=False) for step in regions}
    ridge = device.vector_rate / device.copy_rate
    best_rate = max(device.vector_rate, device.tensor_rate)
    known = [(x, y) for x, y in [*points.values(), *before.values()] if x > 0 and y > 0]
    low = min([*(x for x, _ in known), ridge / 100]) / 3
    high = max([*(x for x, _ in known), best_rate / device.copy_rate]) * 4
    floor = min([*(y for _, y in known), low * device.copy_rate]) / 4

    tera = device.copy_rate / 1e12
    roofs = [_roof(VECTOR_ROOF, low, high, device.vector_rate, device)]
    notes = [
        _roof_note(low * 1.2, low * 1.2 * device.copy_rate, "right", f"{tera:.3g} TB/s"),
        _roof_note(high, device.vector_rate, "left", rate_text(device.vector_rate)),
    ]
    if device.tensor_rate > device.vector_rate:
        roofs.append(_roof(TENSOR_ROOF, ridge, high, device.tensor_rate, device, dash="dash"))
        text = f"{rate_text(device.tensor_rate)}, tensor cores"
        notes.append(_roof_note(high, device.tensor_rate, "left", text))
    saved = Lines()
    for number, (x, y) in points.items():
        old = before[number]
        saved.add([_shown(old, low, floor), _shown((x, y), low, floor)], "")
    data: list[Figure] = [
        *roofs,
        {
            "type": "scatter",
            "mode": "lines",
            "name": "from the same ops unfused",
            "x": saved.x,
            "y": saved.y,
            "line": {"color": "#c3cbd2", "width": 1, "dash": "dot"},
            "hoverinfo": "skip",
        },
    ]
    for bound in ("memory", "compute", "launch"):
        chosen = [step for step in regions if step.bound == bound]
        shown = [_shown(points[step.number], low, floor) for step in chosen]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"bound by {bound}",
                "x": [x for x, _ in shown],
                "y": [y for _, y in shown],
                "text": [escaped(_roof_lines(step)) for step in chosen],
                "customdata": [step.number for step in chosen],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {
                    "size": 10,
                    "color": FILL[bound],
                    "symbol": {"memory": "circle", "compute": "square", "launch": "diamond"}[bound],
                    "line": {"color": LINE[bound], "width": 1.5},
                },
                "selected": {"marker": {"opacity": 1, "size": 15}},
                "unselected": {"marker": {"opacity": 0.75}},
            }
        )
    axis = {
        "type": "log",
        "gridcolor": "#edf0f2",
        "linecolor": "#c3cbd2",
        "zeroline": False,
        "dtick": 1,
    }
    layout = {
        "xaxis": {
            **axis,
            "title": {"text": "operations per byte moved", "font": {"size": 11}},
            "exponentformat": "none",
        },
        "yaxis": {
            **axis,
            "title": {"text": "operations per second", "font": {"size": 11}},
            "exponentformat": "SI",
            "range": [math.log10(floor), math.log10(best_rate * 3)],
        },
        "annotations": notes,
        "hovermode": "closest",
        "dragmode": "pan",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "margin": {"l": 62, "r": 14, "t": 8, "b": 44},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "font": {"family": FAMILY, "color": QUIET, "size": 11},
        "hoverlabel": hover_label(),
    }
    return {"data": data, "layout": layout}


def _roof(
    name: str, start: float, end: float, rate: float, device: DeviceSpec, dash: str = "solid"
) -> Figure:
    """Up the slope of the memory to what is computed at most, and on at that height."""
    x = [start, rate / device.copy_rate, end]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": [min(each * device.copy_rate, rate) for each in x],
        "line": {"color": INK, "width": 1.5, "dash": dash},
        "hoverinfo": "skip",
        # A label at its end names each roof; there is little room for the legend.
        "showlegend": dash == "solid",
    }


def _point(step: Step, *, fused: bool = True) -> tuple[float, float]:
    """Operations per byte and predicted operations per second."""
    assert step.region is not None
    cost = step.region.cost
    moved, time = (cost.bytes, cost.time_us) if fused else (cost.unfused_bytes, cost.unfused_us)
    return cost.flops / max(moved, 1), cost.flops / max(time, 1e-9) * 1e6


def _shown(point: tuple[float, float], low: float, floor: float) -> tuple[float, float]:
    """A region without arithmetic has no place on a logarithmic scale: it goes into the corner."""
    return (low, floor * 1.5) if point[0] <= 0 or point[1] <= 0 else point


def _roof_lines(step: Step) -> list[str]:
    assert step.region is not None
    cost = step.region.cost
    _, y = _point(step)
    what = f"{intensity_text(cost.flops, cost.bytes)} operations per byte, {rate_text(y)}"
    return [f"{step.name}: {step.title}", what, time_line(step)]


def _roof_note(x: float, y: float, side: str, text: str) -> Figure:
    """A text above the roof, to the `side` of a point of it."""
    return {
        "x": math.log10(x),
        "y": math.log10(y),
        "text": text,
        "showarrow": False,
        "xanchor": "left" if side == "right" else "right",
        "yshift": 20 if side == "right" else 9,
        "font": {"size": 10, "color": INK},
    }


def intensity_text(flops: int, moved: int) -> str:
    return f"{flops / moved:.3g}" if moved and flops else "none"


def rate_text(rate: float) -> str:
    for unit, factor in (("Tflop/s", 1e12), ("Gflop/s", 1e9), ("Mflop/s", 1e6)):
        if rate >= factor:
            return f"{rate / factor:.3g} {unit}"
    return f"{rate:.3g} flop/s"
