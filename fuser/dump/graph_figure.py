"""The graph of a plan: a box for each step, a row for each op, curves for the values.

In: a plan, its steps and what flows between them. Out: a figure as plain data in Plotly's schema,
in units of one pixel at the natural size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx

from fuser.dump.facts import has_registers, operation
from fuser.dump.layered import Layered, arrange
from fuser.dump.looks import (
    FAMILY,
    FILL,
    FLOW,
    INK,
    LINE,
    MONO,
    QUIET,
    Figure,
    Lines,
    clipped,
    escaped,
    hover_label,
    time_line,
)
from fuser.dump.steps import Flow, FlowKind, Step, flow_lines
from fuser.dump.words import byte_text, count_text, needs_text, time_text
from fuser.ir.plan import FusionPlan

WIDTH = 216.0
HEADER = 40.0
ROW = 18.0
FOOT = 6.0
COLUMN_GAP = 96.0
BOX_GAP = 26.0
GUTTER = 36.0
"""Room at the right of the rows for the edges within a box."""
BEND = 8
"""Points of one bend of an edge."""
_TITLE_LETTERS = 27
_ROW_LETTERS = 25


@dataclass(frozen=True, slots=True)
class Box:
    """Where one step is drawn; y grows downwards."""

    step: Step
    left: float
    top: float
    height: float

    @property
    def right(self) -> float:
        return self.left + WIDTH

    def row(self, op: str) -> float:
        """The middle of the row of an op; a call is its header."""
        if self.step.region is None:
            return self.top + self.height / 2
        names = [item.name for item in self.step.ops]
        return self.top + HEADER + (names.index(op) + 0.5) * ROW


def place(steps: Sequence[Step], flows: Iterable[Flow]) -> tuple[tuple[Box, ...], Layered]:
    """The boxes in the order of the steps, and the layers they stand in."""
    flow: networkx.DiGraph = networkx.DiGraph()
    flow.add_nodes_from(str(step.number) for step in steps)
    flow.add_edges_from((str(f.source), str(f.target)) for f in flows if not f.is_inside)
    heights = {
        str(step.number): HEADER + (0 if step.region is None else len(step.ops) * ROW + FOOT)
        for step in steps
    }
    layered = arrange(flow, heights, BOX_GAP)
    boxes = []
    for step in steps:
        name = str(step.number)
        left = layered.layer[name] * (WIDTH + COLUMN_GAP)
        boxes.append(Box(step, left, layered.top[name], heights[name]))
    return tuple(boxes), layered


def graph_figure(plan: FusionPlan, steps: Sequence[Step], flows: Sequence[Flow]) -> Figure:
    """The plan's graph. `layout.meta` has the boxes for clicks, and the traces that are texts."""
    boxes, layered = place(steps, flows)
    right = max((box.right for box in boxes), default=WIDTH)
    bottom = max((box.top + box.height for box in boxes), default=HEADER)
    data = [
        trace
        for kind in reversed(FlowKind)
        for trace in _flow_traces(plan, kind, boxes, layered, flows)
    ]
    data.append(_hover_trace(plan, boxes))
    texts = len(data)
    data += [_titles(boxes), _subtitles(boxes), _rows(plan, boxes)]
    hidden = {"visible": False, "fixedrange": False}
    layout: Figure = {
        "xaxis": {**hidden, "range": [-40, right + 40]},
        "yaxis": {**hidden, "range": [bottom + 40, -40], "scaleanchor": "x", "scaleratio": 1},
        "shapes": [_shape(box) for box in boxes],
        "dragmode": "pan",
        "hovermode": "closest",
        "hoverdistance": 12,
        "showlegend": False,
        "margin": {"l": 0, "r": 0, "t": 0, "b": 0},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "font": {"family": FAMILY, "color": INK},
        "hoverlabel": hover_label(),
        "meta": {
            "boxes": [
                [round(box.left, 1), round(box.top, 1), WIDTH, box.height, LINE[box.step.bound]]
                for box in boxes
            ],
            "texts": [[texts, 12, 0.28], [texts + 1, 10, 0.5], [texts + 2, 11, 0.42]],
            "size": [right, bottom],
        },
    }
    return {"data": data, "layout": layout}


def _flow_traces(
    plan: FusionPlan,
    kind: FlowKind,
    boxes: Sequence[Box],
    layered: Layered,
    flows: Iterable[Flow],
) -> list[Figure]:
    """The curves of one kind, and the heads of their arrows."""
    lines = Lines()
    heads: list[tuple[float, float, float]] = []
    for flow in flows:
        if flow.kind is kind:
            points = (
                _arc(boxes[flow.source], flow) if flow.is_inside else _route(boxes, layered, flow)
            )
            lines.add(points, escaped(flow_lines(plan, flow)))
            heads.append((*points[-1], _angle(*points[-2:]) if flow.is_inside else 90.0))
    curves: Figure = {
        "type": "scatter",
        "mode": "lines",
        "name": kind.value,
        "x": lines.x,
        "y": lines.y,
        "text": lines.text,
        "hovertemplate": "%{text}<extra></extra>",
        "line": {"color": FLOW[kind], "width": 1.8 if kind is FlowKind.REFUSED else 1.2},
    }
    arrows: Figure = {
        "type": "scatter",
        "mode": "markers",
        "name": f"{kind.value}, heads",
        "x": [round(x, 1) for x, _, _ in heads],
        "y": [round(y, 1) for _, y, _ in heads],
        "hoverinfo": "skip",
        "marker": {
            "symbol": "arrow",
            "angle": [round(angle) for _, _, angle in heads],
            "size": 6 if kind is FlowKind.FUSED else 8,
            "color": FLOW[kind],
            "opacity": 1,
            "line": {"width": 0},
        },
    }
    return [curves, arrows]


def _angle(start: tuple[float, float], end: tuple[float, float]) -> float:
    """Degrees clockwise from upwards."""
    return math.degrees(math.atan2(end[0] - start[0], start[1] - end[1]))


def _route(boxes: Sequence[Box], layered: Layered, flow: Flow) -> list[tuple[float, float]]:
    """From the right of the producer's row, through free lanes, to the left of the reader's."""
    source, target = boxes[flow.source], boxes[flow.target]
    stops = [(source.right, source.row(flow.producer))]
    for layer, y in layered.passes(str(flow.source), str(flow.target)):
        left = layer * (WIDTH + COLUMN_GAP)
        stops += [(left, y), (left + WIDTH, y)]
    stops.append((target.left - 1, target.row(flow.consumer)))
    points = [stops[0]]
    for k, (start, end) in enumerate(pairwise(stops)):
        points += _bend(start, end) if k % 2 == 0 else [end]
    return points


def _bend(start: tuple[float, float], end: tuple[float, float]) -> list[tuple[float, float]]:
    """The points after `start` of a curve that is level at both ends."""
    if abs(start[1] - end[1]) < 0.5:
        return [((start[0] + end[0]) / 2, end[1]), end]
    found = []
    for k in range(1, BEND + 1):
        t = k / BEND
        x = start[0] + (end[0] - start[0]) * t
        found.append((x, start[1] + (end[1] - start[1]) * t * t * (3 - 2 * t)))
    return found


def _arc(box: Box, flow: Flow) -> list[tuple[float, float]]:
    """An arc in the gutter of a box, the wider the further the two rows are apart."""
    start, end = box.row(flow.producer) + 2, box.row(flow.consumer) - 2
    left = box.right - GUTTER
    reach = min(GUTTER - 5, 4 + 3.2 * (end - start) / ROW)
    return [
        (left + reach * math.sin(math.pi * k / BEND), start + (end - start) * k / BEND)
        for k in range(BEND + 1)
    ]


def _hover_trace(plan: FusionPlan, boxes: Sequence[Box]) -> Figure:
    """Unseen lines over the headers and rows, so that they have something to say."""
    lines = Lines()
    for box in boxes:
        cells = [(box.top + HEADER / 2, _header_lines(plan, box.step))]
        if box.step.region is not None:
            cells += [(box.row(op.name), op_lines(plan, box.step, op.name)) for op in box.step.ops]
        for y, text in cells:
            xs = [box.left + 8 + k * (WIDTH - GUTTER - 8) / 8 for k in range(9)]
            lines.add([(x, y) for x in xs], escaped(text))
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "cells",
        "x": lines.x,
        "y": lines.y,
        "text": lines.text,
        "hovertemplate": "%{text}<extra></extra>",
        "line": {"color": "rgba(0,0,0,0)", "width": 1},
    }


def _header_lines(plan: FusionPlan, step: Step) -> list[str]:
    if step.region is None:
        op = step.ops[0]
        return [
            f"{step.name}: {step.title}",
            f"because: {op.reason or 'not known'}",
            str(op.source),
        ]
    cost = step.region.cost
    moved = f"{byte_text(cost.bytes)} moved, {byte_text(cost.unfused_bytes)} unfused"
    needs = needs_text(cost.needs) if has_registers(plan.target) else ()
    return [f"{step.name}: {step.title}", moved, time_line(step), *needs]


def op_lines(plan: FusionPlan, step: Step, name: str) -> list[str]:
    """What an op is and where it comes from."""
    op = plan.graph.by_name[name]
    types = ", ".join(str(value.type) for value in op.results)
    again = step.region is not None and name in step.region.recomputed
    what = f"{name} = {operation(op)}" + (" (computed again here)" if again else "")
    return [line for line in (what, types, str(op.source), op.source.module) if line]


def _titles(boxes: Sequence[Box]) -> Figure:
    texts = [clipped(box.step.name, _TITLE_LETTERS) for box in boxes]
    return _texts(boxes, 12.0, [f"<b>{text}</b>" for text in texts], INK, 12, FAMILY)


def _subtitles(boxes: Sequence[Box]) -> Figure:
    texts = []
    for box in boxes:
        region = box.step.region
        if region is None:
            texts.append(clipped(f"call {box.step.title}", 36))
        else:
            kind = f"{region.kind.value}, {count_text(len(box.step.ops), 'op')}"
            texts.append(f"{kind} · {time_text(region.cost.time_us)}, {region.cost.bound}")
    return _texts(boxes, 28.0, texts, QUIET, 10, FAMILY)


def _texts(
    boxes: Sequence[Box], down: float, texts: list[str], colour: str, size: int, family: str
) -> Figure:
    return {
        "type": "scatter",
        "mode": "text",
        "x": [box.left + 8 for box in boxes],
        "y": [round(box.top + down, 1) for box in boxes],
        "text": texts,
        "textposition": "middle right",
        "textfont": {"size": size, "color": colour, "family": family},
        "hoverinfo": "skip",
    }


def _rows(plan: FusionPlan, boxes: Sequence[Box]) -> Figure:
    x, y, texts = [], [], []
    for box in boxes:
        if box.step.region is None:
            continue
        for op in box.step.ops:
            x.append(box.left + 8)
            y.append(round(box.row(op.name), 1))
            again = op.name in box.step.region.recomputed
            mark = "↻ " if again else ""
            result = any(value.name in plan.graph.output_values for value in op.results)
            texts.append(clipped(f"{mark}{op.name}", _ROW_LETTERS) + (" ⏎" if result else ""))
    figure = _texts((), 0, texts, INK, 11, MONO)
    return {**figure, "x": x, "y": y}


def _shape(box: Box) -> Figure:
    return {
        "type": "rect",
        "layer": "below",
        "x0": box.left,
        "x1": box.right,
        "y0": round(box.top, 1),
        "y1": round(box.top + box.height, 1),
        "fillcolor": FILL[box.step.bound],
        "line": {"color": LINE[box.step.bound], "width": 1},
    }
