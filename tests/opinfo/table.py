"""Outcomes as Markdown: totals, the original calls that are left, and a row for each operator.

In: the text of a file of outcomes. Out: Markdown, or a document with it between its marks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from opinfo.cases import Task
from opinfo.check import BEYOND, FAILED, FUSED, KNOWN, MIXED, OPAQUE, RAISED, UNTRACED, Outcome
from opinfo.families import is_of_another_family
from opinfo.results import read

START, END = "<!-- table: opinfo -->", "<!-- end: opinfo -->"
STATUSES = (FUSED, MIXED, OPAQUE, UNTRACED, RAISED, BEYOND, KNOWN, FAILED)


def table(text: str) -> str:
    """Markdown of a file of outcomes."""
    facts, outcomes = read(text)
    every = [outcome for found in outcomes.values() for outcome in found]
    lines = [
        f"{facts['device']}, torch {facts['torch']}, Triton {facts['triton']}, Python"
        f" {facts['python']}; at most {facts['samples']} samples of an operator and type as they"
        f" are{', sizes as symbols' if facts['dynamic'] else ''}.",
        "",
        *_head(["element type", "operators", "calls", *STATUSES, "covered"]),
    ]
    by_dtype = defaultdict(list)
    for task, found in outcomes.items():
        by_dtype[task.dtype].append(found)
    for dtype, groups in by_dtype.items():
        calls = [outcome for found in groups for outcome in found]
        lines.append(_line([dtype, str(len(groups)), str(len(calls)), *_counts(calls)]))
    lines.append(_line(["all", str(len(outcomes)), str(len(every)), *_counts(every)]))
    as_traced = sum(outcome.is_traced for outcome in every)
    lines += [
        "",
        f"Of {as_traced} calls, strides or shared memory are those of the graph that torch traced"
        " and not eager's. Original calls that are left in programs of the five families, with the"
        " number of programs:",
        "",
        *_left(every),
        "",
        *_head(["operator", *STATUSES, "covered", "original calls that are left"]),
        *_operators(outcomes),
    ]
    return "\n".join(lines)


def placed(document: str, text: str) -> str:
    """The document with the table between its marks. Raises ValueError where it has none."""
    before, found_start, rest = document.partition(START)
    _, found_end, after = rest.partition(END)
    if not found_start or not found_end:
        raise ValueError(f"the document has no line {START!r} with {END!r} after it")
    return f"{before}{START}\n{text}\n{END}{after}"


def _counts(found: Sequence[Outcome]) -> list[str]:
    counts = Counter(outcome.status for outcome in found)
    return [*(str(counts[status] or "") for status in STATUSES), _covered(found)]


def _covered(found: Iterable[Outcome]) -> str:
    """Which part of the calls of the five families is in kernels whole; in parentheses, with those
    of which all but lone products is."""
    chosen = [
        outcome
        for outcome in found
        if outcome.status in (FUSED, MIXED, OPAQUE) and not is_of_another_family(outcome.calls)
    ]
    if not chosen:
        return ""
    fused = [outcome for outcome in chosen if outcome.status == FUSED]
    whole = [outcome for outcome in fused if not outcome.products]
    parts = [f"{100 * len(part) / len(chosen):.0f} %" for part in (whole, fused)]
    return parts[0] if parts[0] == parts[1] else f"{parts[0]} ({parts[1]})"


def _left(found: Iterable[Outcome]) -> list[str]:
    counts = Counter(
        call
        for outcome in found
        if outcome.status in (MIXED, OPAQUE) and not is_of_another_family(outcome.calls)
        for call in outcome.calls
    )
    names = sorted(counts, key=lambda name: (-counts[name], name))
    return [", ".join(f"`{name.removeprefix('aten.')}` {counts[name]}" for name in names) + "."]


def _operators(outcomes: dict[Task, list[Outcome]]) -> list[str]:
    by_operator = defaultdict(list)
    for task, found in outcomes.items():
        by_operator[task.operator] += found
    lines = []
    for operator, found in by_operator.items():
        calls = sorted({call.removeprefix("aten.") for o in found for call in o.calls})
        lines.append(_line([f"`{operator}`", *_counts(found), ", ".join(f"`{c}`" for c in calls)]))
    return lines


def _head(cells: Sequence[str]) -> list[str]:
    return [_line(cells), "|" + "---|" * len(cells)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
