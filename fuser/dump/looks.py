"""How the figures of a plan's page look, and what they share.

Colours, fonts, polylines, and texts in which Plotly finds no tags: it reads a few HTML tags, so
every text is escaped here.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuser.dump.steps import FlowKind, Step
from fuser.dump.words import time_text

Figure = dict[str, Any]
"""A figure, or a part of one, in Plotly's schema."""

FILL: Mapping[str, str] = {
    "memory": "#dcebf8",
    "compute": "#fbe6c3",
    "launch": "#e8e2f4",
    "call": "#eef0f2",
}
LINE: Mapping[str, str] = {
    "memory": "#2f6da8",
    "compute": "#a86a12",
    "launch": "#6a4fa3",
    "call": "#7a8791",
}
FLOW: Mapping[FlowKind, str] = {
    FlowKind.FUSED: "#5d6b76",
    FlowKind.REFUSED: "#c62828",
    FlowKind.CALL: "#e39a9a",
    FlowKind.LOADED: "#a9b3bb",
}

HOVER_COLUMNS = 64

INK = "#1f2a33"
QUIET = "#5b6872"
FAMILY = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
MONO = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"


@dataclass
class Lines:
    """Polylines of one trace, separated by gaps, with a text at every point."""

    x: list[float | None] = field(default_factory=list)
    y: list[float | None] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def add(self, points: Sequence[tuple[float, float]], text: str) -> None:
        for x, y in points:
            self.x.append(round(x, 1))
            self.y.append(round(y, 1))
            self.text.append(text)
        self.x.append(None)
        self.y.append(None)
        self.text.append("")


def time_line(step: Step) -> str:
    assert step.region is not None
    cost = step.region.cost
    return f"{time_text(cost.time_us)}, {time_text(cost.unfused_us)} unfused, bound by {cost.bound}"


def hover_label() -> Figure:
    font = {"family": MONO, "size": 12, "color": INK}
    return {"bgcolor": "#ffffff", "bordercolor": "#9aa5ae", "align": "left", "font": font}


def escaped(lines: Iterable[str]) -> str:
    """Lines for Plotly, which knows `<br>`; everything else is text."""
    wrapped = [part for line in lines for part in textwrap.wrap(line, HOVER_COLUMNS)]
    return "<br>".join(html.escape(part) for part in wrapped)


def clipped(text: str, letters: int) -> str:
    text = " ".join(text.split())
    return html.escape(text if len(text) <= letters else text[: letters - 1] + "…")
