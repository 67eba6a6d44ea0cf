"""The difference between two plans as a person reads it, at most 100 columns wide.

In: a `PlanDiff`. Out: a section for each thing that differs. `-` marks what only the first plan
has, `+` what only the second has, `~` what both have in another form.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fuser.dump.diff import Change, EdgeChange, OpaqueChange, PlanDiff, RegionChange
from fuser.dump.record import AxisRecord, RegionRecord, Tile, ValueRecord
from fuser.dump.words import WIDTH, block_text, byte_text, share_text, time_text

SHOWN = 12
"""Items listed under one heading; the rest are counted, unless all are asked for."""

NO_DIFFERENCE = "no difference"


def diff_text(difference: PlanDiff, *, verbose: bool = False) -> str:
    """The difference as text without a final newline; `verbose` lists everything in full."""
    if difference.is_empty:
        return NO_DIFFERENCE
    sections: list[list[str]] = []
    if difference.plan:
        sections.append(["plan", *map(_change, difference.plan)])
    if difference.totals:
        sections.append(["totals", *map(_change, difference.totals)])
    regions = [_region("-", item) for item in difference.vanished]
    regions += [_region("+", item) for item in difference.appeared]
    regions += ["\n".join(_region_change(item)) for item in difference.regions]
    for title, items in (
        ("regions", regions),
        ("opaque calls", list(map(_opaque, difference.opaque))),
        ("edges", [_edge(item) for item in sorted(difference.edges, key=_edge_rank)]),
        ("values", list(map(_change, difference.values))),
    ):
        if items:
            shown = items if verbose else items[:SHOWN]
            left = len(items) - len(shown)
            rest = [f"  and {left} more (--verbose shows all)"] if left else []
            sections.append([f"{title}: {_counts(title, difference, len(items))}", *shown, *rest])
    lines = "\n\n".join("\n".join(section) for section in sections).splitlines()
    return "\n".join(map(_wrapped if verbose else _cut, lines))


def _counts(title: str, difference: PlanDiff, count: int) -> str:
    if title != "regions":
        return f"{count} changed"
    numbers = {
        "vanished": len(difference.vanished),
        "appeared": len(difference.appeared),
        "changed": len(difference.regions),
    }
    return ", ".join(f"{number} {word}" for word, number in numbers.items() if number)


def _region(mark: str, region: RegionRecord) -> str:
    ops = ", ".join(op.name for op in region.ops)
    cost = f"{byte_text(region.bytes)}, {time_text(region.predicted.time_us)}"
    return f"  {mark} {region.name}: {region.kind}, {region.strategy}, {cost}: {ops}"


def _region_change(item: RegionChange) -> Iterator[str]:
    before, after = item.before, item.after
    name = before.name if before.name == after.name else f"{before.name} -> {after.name}"
    kept = [op.name for op in before.ops if op.name not in item.removed]
    yield f"  ~ {name}: {', '.join(kept)}"
    if item.removed:
        yield f"      - {', '.join(item.removed)}"
    if item.added:
        yield f"      + {', '.join(item.added)}"
    for change in item.changes:
        yield textwrap.indent(_change(change), "    ")


def _opaque(item: OpaqueChange) -> str:
    before, after = (
        None if record is None else f"{record.op}, because: {record.reason}"
        for record in (item.before, item.after)
    )
    return _either(item.name, before, after)


def _edge_rank(item: EdgeChange) -> int:
    """Decisions first, then reasons, then edges that only one of the plans has."""
    if item.before is None or item.after is None:
        return 2
    return 0 if item.before.fused != item.after.fused else 1


def _edge(item: EdgeChange) -> str:
    before, after = (
        None if record is None else f"{'' if record.fused else 'refused: '}{record.reason}"
        for record in (item.before, item.after)
    )
    return _either(f"{item.producer} -> {item.consumer}", before, after)


def _either(name: str, before: str | None, after: str | None) -> str:
    if before is None:
        return f"  + {name}: {after}"
    if after is None:
        return f"  - {name}: {before}"
    return f"  ~ {name}\n      - {before}\n      + {after}"


def _change(change: Change) -> str:
    name = change.field
    if isinstance(change.before, Mapping) and isinstance(change.after, Mapping):
        return "\n".join(_entries(name, change.before, change.after))
    before, after = _shown(name, change.before), _shown(name, change.after)
    if len(before) + len(after) > WIDTH - 34:
        return f"  {name}:\n      - {before}\n      + {after}"
    return f"  {name:<22} {before} -> {after}{_percent(change)}"


def _entries(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for key in {**before, **after}:
        if before.get(key) != after.get(key):
            yield _change(Change(f"{name} {key}", before.get(key), after.get(key)))


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, ValueRecord):
        return f"{value.dtype}[{_listed(value.shape)}] strides {_listed(value.stride)}"
    if isinstance(value, AxisRecord):
        return f"{value.name}={value.size}{' reduced' if value.reduced else ''}"
    if isinstance(value, Tile):
        return block_text(tuple(value.blocks.items()), value.warps)
    if isinstance(value, tuple):
        return _listed(value)
    if name == "occupancy":
        return share_text(value)
    if name.endswith("bytes"):
        return byte_text(value)
    if name.endswith("_us"):
        return time_text(value)
    return str(value)


def _listed(items: Sequence[Any]) -> str:
    return (
        ", ".join(
            f"({_listed(item)})" if isinstance(item, tuple) else _shown("", item) for item in items
        )
        or "none"
    )


def _percent(change: Change) -> str:
    before, after = change.before, change.after
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (before, after))
    if not numbers or not before or change.field == "occupancy":
        return ""
    return f"  ({(after - before) / before:+.1%})"


def _wrapped(line: str) -> str:
    if len(line) <= WIDTH:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 3] + "..."
