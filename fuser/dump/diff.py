"""What changed from one plan to another, as data and as text.

In: two records. Out: a `PlanDiff`, empty for plans that fuse the same and cost the same. Regions
are matched by their ops: each to the one that it has most ops in common with, no region twice.
Names of regions and kernels, lines of the program, times of passes and gains of edges are not
compared: they change with every edit. What kernels compiled to is compared where both plans have
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fuser.dump.record import EdgeRecord, OpaqueRecord, PlanRecord, RegionRecord


@dataclass(frozen=True, slots=True)
class Change:
    """One field that is not the same in both; None where a plan does not have it."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class RegionChange:
    """A region that both plans have, wholly or in part, and what differs."""

    before: RegionRecord
    after: RegionRecord
    added: tuple[str, ...]
    """Ops that only the later region has."""
    removed: tuple[str, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class OpaqueChange:
    """An op that runs as its original call in one plan only, or for another reason."""

    name: str
    before: OpaqueRecord | None
    after: OpaqueRecord | None


@dataclass(frozen=True, slots=True)
class EdgeChange:
    """An edge that is decided otherwise or that only one plan has."""

    producer: str
    consumer: str
    before: EdgeRecord | None
    after: EdgeRecord | None


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """All that differs between two plans."""

    plan: tuple[Change, ...]
    """Of what is planned: target, phase, graph, symbols, order of steps, compiled or not."""
    totals: tuple[Change, ...]
    vanished: tuple[RegionRecord, ...]
    appeared: tuple[RegionRecord, ...]
    regions: tuple[RegionChange, ...]
    opaque: tuple[OpaqueChange, ...]
    edges: tuple[EdgeChange, ...]
    values: tuple[Change, ...]
    """Tensors of both plans that have another type."""

    @property
    def is_empty(self) -> bool:
        return not any(getattr(self, item.name) for item in fields(self))


def diff(before: PlanRecord, after: PlanRecord) -> PlanDiff:
    """What is different in `after`."""
    pairs = _matched(before.regions, after.regions)
    met = {earlier.name for earlier, _ in pairs}, {later.name for _, later in pairs}
    are_compiled = _is_compiled(before) and _is_compiled(after)
    found = [_region_change(earlier, later, are_compiled) for earlier, later in pairs]
    return PlanDiff(
        plan=_setting_changes(before, after),
        totals=_changes(_flat(before.totals), _flat(after.totals)),
        vanished=tuple(region for region in before.regions if region.name not in met[0]),
        appeared=tuple(region for region in after.regions if region.name not in met[1]),
        regions=tuple(item for item in found if item.added or item.removed or item.changes),
        opaque=tuple(_opaque_changes(before.opaque, after.opaque)),
        edges=tuple(_edge_changes(before.edges, after.edges)),
        values=tuple(
            Change(name, before.values[name], after.values[name])
            for name in before.values
            if name in after.values and before.values[name] != after.values[name]
        ),
    )


# Matching ---------------------------------------------------------------------------------------


def _matched(
    before: Sequence[RegionRecord], after: Sequence[RegionRecord]
) -> list[tuple[RegionRecord, RegionRecord]]:
    """Pairs that share ops, largest share first, in the order of the later plan."""
    owner = {op.name: number for number, region in enumerate(before) for op in region.ops}
    shared: Counter[tuple[int, int]] = Counter()
    for number, region in enumerate(after):
        shared.update((owner[op.name], number) for op in region.ops if op.name in owner)

    def rank(pair: tuple[int, int]) -> tuple[int, int, int, int]:
        earlier, later = pair
        different = len(before[earlier].ops) + len(after[later].ops) - 2 * shared[pair]
        return (-shared[pair], different, later, earlier)

    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for earlier, later in sorted(shared, key=rank):
        if earlier not in taken and later not in pairs:
            taken.add(earlier)
            pairs[later] = earlier
    return [(before[pairs[later]], after[later]) for later in sorted(pairs)]


def _region_change(before: RegionRecord, after: RegionRecord, are_compiled: bool) -> RegionChange:
    earlier = {op.name: op.op for op in before.ops}
    later = {op.name: op.op for op in after.ops}
    operations = {name: op for name, op in earlier.items() if name in later}
    return RegionChange(
        before,
        after,
        added=tuple(name for name in later if name not in earlier),
        removed=tuple(name for name in earlier if name not in later),
        changes=(
            *_changes(operations, {name: later[name] for name in operations}),
            *_changes(_region_facts(before, are_compiled), _region_facts(after, are_compiled)),
        ),
    )


def _region_facts(region: RegionRecord, are_compiled: bool) -> dict[str, Any]:
    predicted = _flat(region.predicted)
    # A consequence of the occupancy and of the tile.
    del predicted["blocks_per_processor"]
    facts = {
        "kind": region.kind,
        "strategy": region.strategy,
        "axes": region.axes,
        "tile": region.tiles,
        "recomputed": region.recomputed,
        "inputs": region.inputs,
        "outputs": region.outputs,
        "kernels": len(region.kernels),
        "bytes": region.bytes,
        "unfused_bytes": region.unfused_bytes,
        "cached_bytes": region.cached_bytes,
        "flops": region.flops,
        "special": region.special,
        **predicted,
        "notes": region.notes,
    }
    if region.launch is not None:
        facts["launch"] = region.launch.reason if region.launch.code != "shared" else "shared"
    if not region.bytes_by_size.isdecimal():
        # Of known sizes it is the number of bytes, which is compared already.
        facts["bytes_by_size"] = region.bytes_by_size
    if are_compiled and region.compiled is not None:
        for name in ("registers", "spills", "shared_bytes"):
            facts[f"compiled {name}"] = getattr(region.compiled, name)
    return facts


def _opaque_changes(
    before: Sequence[OpaqueRecord], after: Sequence[OpaqueRecord]
) -> Iterator[OpaqueChange]:
    earlier = {item.name: item for item in before}
    later = {item.name: item for item in after}
    for name in earlier | later:
        old, new = earlier.get(name), later.get(name)
        if old is None or new is None or (old.op, old.reason) != (new.op, new.reason):
            yield OpaqueChange(name, old, new)


def _edge_changes(
    before: Sequence[EdgeRecord], after: Sequence[EdgeRecord]
) -> Iterator[EdgeChange]:
    earlier = {(item.producer, item.consumer): item for item in before}
    later = {(item.producer, item.consumer): item for item in after}
    for pair in earlier | later:
        old, new = earlier.get(pair), later.get(pair)
        if old != new:
            yield EdgeChange(*pair, old, new)


def _setting_changes(before: PlanRecord, after: PlanRecord) -> tuple[Change, ...]:
    names = ("target", "phase", "graph", "symbols")
    earlier, later = ({name: getattr(plan, name) for name in names} for plan in (before, after))
    earlier["order"], later["order"] = _steps(before), _steps(after)
    if set(earlier["order"]) != set(later["order"]):
        # Other steps cannot have the same order; the regions say what is different.
        del earlier["order"], later["order"]
    earlier["compiled"], later["compiled"] = _is_compiled(before), _is_compiled(after)
    return _changes(earlier, later)


def _steps(plan: PlanRecord) -> tuple[tuple[str, ...], ...]:
    """The ops of each step in running order: the names of regions are only numbers."""
    ops = {region.name: tuple(op.name for op in region.ops) for region in plan.regions}
    return tuple(ops.get(step, (step,)) for step in plan.order)


def _is_compiled(plan: PlanRecord) -> bool:
    return any(region.compiled is not None for region in plan.regions)


def _flat(record: Any) -> dict[str, Any]:
    return {item.name: getattr(record, item.name) for item in fields(record)}


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    return tuple(
        Change(name, before.get(name), after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    )
