"""A plan as a person reads it in a terminal, at most 100 columns wide.

In: a plan, the kernels of its regions once they are generated, what those compiled to, and the
memory that it holds, where that is known. Out: what it costs, each step in running order with what
it needs, its ops and their lines of the program, and why values were not fused. `to_text` is plain
and the same for the same plan; `write_text` adds colours where it writes to a terminal.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from fuser.dump.facts import (
    NOT_COMPILED,
    CompiledKernels,
    compiled_of,
    edges,
    has_registers,
    kernel_names,
    most,
    operation,
    tiles,
)
from fuser.dump.launches import alone, launch_lines, launches_title, shares_text
from fuser.dump.record import Peaks
from fuser.dump.recording import totals
from fuser.dump.words import (
    WIDTH,
    byte_text,
    count_text,
    needs_text,
    resources_text,
    tiles_text,
    time_text,
)
from fuser.ir.dim import python_text
from fuser.ir.graph import Graph, Op
from fuser.ir.kernel import RegionKernels, Resources
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Reason, Region, Verdict

SHOWN_EDGES = 6
"""Refused edges listed under one reason; the rest are counted, unless all are asked for."""
CACHED_SHOWN = 1.1
"""Bytes that L2 serves are listed from this many times what memory moves."""

_NAME_WIDTH = 28
_KIND_WIDTH = 20
_TYPE_WIDTH = 36


@dataclass(frozen=True, slots=True)
class _Line:
    """One line and the style that it has in a terminal."""

    text: str
    style: str = ""


def to_text(
    plan: FusionPlan,
    kernels: Sequence[RegionKernels] = (),
    resources: CompiledKernels = NOT_COMPILED,
    peaks: Peaks | None = None,
    *,
    verbose: bool = False,
) -> str:
    """The plan as plain text without a final newline.

    `verbose` lists every refused edge and ends with the time that each pass took.
    """
    return "\n".join(line.text for line in _plan(plan, kernels, resources, peaks, verbose))


def write_text(
    plan: FusionPlan,
    stream: TextIO,
    kernels: Sequence[RegionKernels] = (),
    resources: CompiledKernels = NOT_COMPILED,
    peaks: Peaks | None = None,
    *,
    verbose: bool = False,
) -> None:
    """Write the text to a stream, in colours when that is a terminal."""
    if not stream.isatty():
        stream.write(to_text(plan, kernels, resources, peaks, verbose=verbose) + "\n")
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, soft_wrap=True)
    for line in _plan(plan, kernels, resources, peaks, verbose):
        console.print(Text(line.text, style=line.style))


def headline(plan: FusionPlan, kernels: Sequence[RegionKernels] = ()) -> str:
    """The counts of a plan, as `12 ops in 3 kernels + 1 opaque call`."""
    facts = totals(plan, kernels)
    return (
        f"{count_text(facts.ops, 'op')} in {count_text(facts.kernels, 'kernel')}"
        f" + {count_text(facts.opaque_calls, 'opaque call')}"
    )


def edge_line(verdict: Verdict) -> str:
    """One edge with its decision, in full."""
    return f"{verdict.producer} -> {verdict.consumer}: {verdict.text}"


def _plan(
    plan: FusionPlan,
    kernels: Sequence[RegionKernels],
    resources: CompiledKernels,
    peaks: Peaks | None,
    verbose: bool,
) -> Iterator[_Line]:
    yield from _header(plan, kernels, resources, peaks)
    names = kernel_names(kernels)
    for number, step in enumerate(plan.order, 1):
        yield _Line("")
        region = plan.by_name.get(step)
        if region is None:
            yield from _opaque(number, plan.graph.by_name[step])
        else:
            yield from _region(number, plan, region, names.get(step, ()), resources)
    yield _Line("")
    yield from _edges(edges(plan), verbose)
    if plan.launches or verbose:
        yield from _launches(plan, verbose)
    if verbose and plan.passes:
        yield _Line("")
        yield _Line("passes:", "bold")
        for record in plan.passes:
            left = f"{record.before} -> {record.after}"
            yield _Line(f"  {record.name:<24} {left:<14} {record.milliseconds:8.2f} ms", "dim")


def _header(
    plan: FusionPlan,
    kernels: Sequence[RegionKernels],
    resources: CompiledKernels,
    peaks: Peaks | None,
) -> Iterator[_Line]:
    facts = totals(plan, kernels)
    name = "" if plan.graph.name == plan.phase else f" of {plan.graph.name}"
    yield _Line(_cut(f"plan{name} for {plan.target}, {plan.phase}"), "bold")
    yield _Line(f"  {headline(plan, kernels)}", "bold")
    if plan.regions:
        note = "  (opaque calls not counted)" if plan.opaque else ""
        yield _Line(
            f"  {byte_text(facts.bytes)} moved, {byte_text(facts.unfused_bytes)} unfused;  "
            f"{time_text(facts.predicted_us)} predicted, "
            f"{time_text(facts.unfused_us)} unfused{note}"
        )
    if peaks is not None:
        yield _Line(f"  peak memory {byte_text(peaks.planned)}, {byte_text(peaks.eager)} in eager")
    largest = most(list(resources.values()))
    if largest is not None:
        yield _Line(f"  compiled: at most {resources_text(largest)}", _warning(largest))
    if plan.graph.symbols:
        hints = [f"{symbol.name}={symbol.hint}" for symbol in plan.graph.symbols]
        yield from _listed("  sizes seen while tracing: ", hints, "dim")


def _region(
    number: int,
    plan: FusionPlan,
    region: Region,
    names: Sequence[str],
    resources: CompiledKernels,
) -> Iterator[_Line]:
    graph = plan.graph
    kind = f"{region.kind.value}, {region.strategy.value}"
    yield _Line(_cut(f"{number:>3}  {region.name}: {kind} over {_space(region)}"), "bold green")
    yield from _costs(plan, region)
    yield from _needs(plan.target, region, names, resources)
    for note in region.notes:
        lines = textwrap.wrap(f"       note: {note}", WIDTH, subsequent_indent=" " * 13)
        yield from (_Line(line, "yellow") for line in lines)
    if tuple(names) != (region.name,):
        yield from _listed("       kernel ", names, "green")
    if shares := shares_text(plan, region.name):
        yield _Line(f"       {shares}", "green")
    modules = dict.fromkeys(graph.by_name[name].source.module for name in region.ops)
    yield from _listed("       from ", [module for module in modules if module], "dim")
    yield from _listed("       in   ", _typed(graph, region.inputs), "dim")
    ops = graph.in_order(region.all_ops)
    again = set(region.recomputed)
    rows = [
        _Row(
            f"%{op.name}",
            f"{op.kind} (again)" if op.name in again else op.kind,
            str(op.type),
            str(op.source),
        )
        for op in ops
    ]
    yield from _table("       ", rows)
    yield from _listed("       out  ", _typed(graph, region.outputs), "dim")


def _costs(plan: FusionPlan, region: Region) -> Iterator[_Line]:
    """Bytes and times, and the bytes as an expression where sizes change from call to call."""
    cost = region.cost
    items = [
        f"{byte_text(cost.bytes)} ({byte_text(cost.unfused_bytes)} unfused)",
        f"{time_text(cost.time_us)} ({time_text(cost.unfused_us)} unfused)",
        f"bound by {cost.bound}",
    ]
    if cost.cached_bytes > CACHED_SHOWN * cost.bytes:
        items.append(f"{byte_text(cost.cached_bytes)} served by L2")
    yield from _listed("       ", items, "green")
    if not isinstance(cost.bytes_by_size, int):
        yield _Line(_cut(f"       {python_text(cost.bytes_by_size)} bytes moved"), "green")


def _needs(
    target: str, region: Region, names: Sequence[str], resources: CompiledKernels
) -> Iterator[_Line]:
    """What the kernels take up: predicted, and beside that compiled where it is known."""
    found = compiled_of(names, resources)
    items = list(needs_text(region.cost.needs, found)) if has_registers(target) else []
    if tiles(region):
        items.append(f"tile {tiles_text(tiles(region))}")
    yield from _listed("       ", items, _warning(found) or "green", "; ")
    if len(names) > 1:
        for name in names:
            if name in resources:
                each = resources[name]
                text = f"       compiled {name}: {resources_text(each)}"
                yield _Line(_cut(text), _warning(each) or "green")


def _warning(found: Resources | None) -> str:
    """The style of a line about a kernel that goes through memory for want of registers."""
    return "bold red" if found is not None and found.spills else ""


def _opaque(number: int, op: Op) -> Iterator[_Line]:
    title = f"{number:>3}  {op.name}: opaque call {operation(op)}"
    reason = f"because: {op.reason or 'not known'}"
    if len(f"{title}, {reason}") <= WIDTH:
        yield _Line(f"{title}, {reason}", "bold yellow")
    else:
        yield _Line(_cut(title), "bold yellow")
        yield _Line(_cut(f"       {reason}"), "yellow")
    yield from _listed("       from ", [op.source.module] if op.source.module else [], "dim")
    yield from _listed("       in   ", [f"{a} {a.type}" for a in op.arguments], "dim")
    rows = [
        _Row(f"%{value.name}", "", str(value.type), str(op.source) if position == 0 else "")
        for position, value in enumerate(op.results)
    ]
    yield from _table("       out  ", rows or [_Row("nothing", "", "", str(op.source))])


def _edges(verdicts: Sequence[Verdict], verbose: bool) -> Iterator[_Line]:
    fused = [verdict for verdict in verdicts if verdict.fused]
    yield _Line(
        f"{count_text(len(verdicts), 'edge')} between ops: {len(fused)} fused, "
        f"{len(verdicts) - len(fused)} refused",
        "bold",
    )
    for reason in Reason:
        found = [verdict for verdict in verdicts if verdict.reason is reason]
        if not found:
            continue
        if found[0].fused:
            yield _Line(f"  {len(found):>4}  {reason.value}", "green")
            continue
        yield _Line(f"  {len(found):>4}  refused: {reason.value}", "red")
        shown = found if verbose else found[:SHOWN_EDGES]
        for verdict in shown:
            detail = f"  ({verdict.detail})" if verdict.detail else ""
            yield _Line(_cut(f"          {verdict.producer} -> {verdict.consumer}{detail}"))
        if len(shown) < len(found):
            yield _Line(f"          and {len(found) - len(shown)} more", "dim")


def _launches(plan: FusionPlan, verbose: bool) -> Iterator[_Line]:
    """The launches that are shared, and why other regions share none."""
    yield _Line(launches_title(plan), "bold")
    yield from (_Line(f"  {text}", "green") for text in launch_lines(plan))
    for reason, names in alone(plan):
        yield _Line(f"  {len(names):>4}  apart: {reason.value}", "red")
        if verbose:
            yield from _listed("          ", names, "")


@dataclass(frozen=True, slots=True)
class _Row:
    """The columns of one op."""

    name: str
    kind: str
    type: str
    source: str


def _table(indent: str, rows: Sequence[_Row]) -> Iterator[_Line]:
    """The rows with their columns aligned; `indent` stands in front of the first one only."""
    name_width = min(_NAME_WIDTH, max((len(row.name) for row in rows), default=0))
    kind_width = min(_KIND_WIDTH, max((len(row.kind) for row in rows), default=0))
    type_width = min(_TYPE_WIDTH, max((len(row.type) for row in rows), default=0))
    for position, row in enumerate(rows):
        front = indent if position == 0 else " " * len(indent)
        kind = f"  {row.kind:<{kind_width}}" if kind_width else ""
        cells = f"{front}{row.name:<{name_width}}{kind}  {row.type:<{type_width}}  {row.source}"
        yield _Line(_cut(cells))


def _space(region: Region) -> str:
    parallel = [f"{axis.name}={python_text(axis.size)}" for axis in region.space.parallel]
    reduced = [f"{axis.name}={python_text(axis.size)}" for axis in region.space.reduced]
    text = " ".join(parallel) or "one element"
    return f"{text}, reducing {' '.join(reduced)}" if reduced else text


def _typed(graph: Graph, names: Iterable[str]) -> list[str]:
    return [f"%{name} {graph.values[name].type}" for name in names]


def _listed(front: str, items: Sequence[str], style: str, separator: str = ", ") -> Iterator[_Line]:
    """`front` and the items with separators between, on as many lines as they need."""
    if not items:
        return
    line = front
    for position, item in enumerate(items):
        piece = item if position == len(items) - 1 else f"{item}{separator}"
        if len(line) > len(front) and len(line) + len(piece.rstrip()) > WIDTH:
            yield _Line(_cut(line.rstrip()), style)
            line = " " * len(front)
        line += piece
    yield _Line(_cut(line), style)


def _cut(text: str) -> str:
    text = text.rstrip()
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."
