"""What the page of a plan shows, as the template reads it.

Frozen records of finished texts: nothing is computed here and nothing is escaped.
"""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class Link:
    """A step that a value comes from or goes to."""

    step: int
    name: str


@dataclass(frozen=True, slots=True)
class OpLine:
    """One op in a step's list; `again` where another region owns it."""

    name: str
    operation: str
    type: str
    where: str
    code: str
    module: str
    again: bool


@dataclass(frozen=True, slots=True)
class ValueLine:
    """One input or output of a step, and the steps at the other end of it."""

    name: str
    type: str
    bytes: str
    role: str
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """One value that was not fused, seen from one of its two steps."""

    producer: str
    consumer: str
    reason: str
    gain: str
    link: Link


@dataclass(frozen=True, slots=True)
class KernelText:
    """One kernel: its name, what it compiled to where that is known, its coloured source."""

    name: str
    resources: str
    source: Markup


@dataclass(frozen=True, slots=True)
class StepPage:
    """One step in full: a row of the table and the text that a click on it shows."""

    number: int
    name: str
    title: str
    bound: str
    space: str
    reason: str
    op_count: int
    facts: tuple[tuple[str, str], ...]
    cells: tuple[tuple[str, float], ...]
    ops: tuple[OpLine, ...]
    inputs: tuple[ValueLine, ...]
    outputs: tuple[ValueLine, ...]
    refused: tuple[RefusedLine, ...]
    kernels: tuple[KernelText, ...]
    words: str


@dataclass(frozen=True, slots=True)
class PlanPage:
    """Everything that `plan.html.jinja` shows."""

    title: str
    subtitle: str
    totals: tuple[tuple[str, str, str], ...]
    columns: tuple[str, ...]
    reasons: tuple[tuple[int, str], ...]
    steps: tuple[StepPage, ...]
    fills: tuple[tuple[str, str, str], ...]
    legend: tuple[tuple[str, str, int], ...]
    figures: Markup
    library: Markup
    source_style: Markup
