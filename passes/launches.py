"""Short kernels that do not wait for each other share a launch.

In: a graph and its regions in running order, the device, and the memory that may be held. Out: the
same regions with the tiles that they have in common launches, an order in which those of a launch
follow each other, the launches, and a verdict for each region. An optimizer's step over many small
tensors takes a launch for each, which is longer than the work in it. Products of one matrix share
one as well, however long they are: their tiles are of one kind.

What shares a launch runs at once, so there is no path between any two of them, through others
neither. Every step has a wave, later than those of all that it waits for, and regions of one launch
are of one wave: however many launches are made, none of them waits for itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fuser.device import DeviceSpec
from fuser.ir.graph import Graph
from fuser.ir.launch import LaunchReason, LaunchVerdict, SharedLaunch
from fuser.ir.region import Region, RegionKind
from fuser.passes.analysis import Step, eager_peak_bytes, peak_of
from fuser.passes.base import OF_THIS_ORDER, dependencies, in_canonical_order
from fuser.passes.together import busy_us, tiled_alike, together_us
from fuser.passes.woven import are_siblings, is_product, woven

MOST_ARGUMENTS = 320
"""Pointers of one launch: eight bytes each of the 4096 that a launch can pass."""

MOST_OPS = 512
"""Computed ops of one kernel: the compiler takes some seconds for them."""

SHORT = 4.0
"""Launches in whose time a kernel has to be done: of a longer one the launch is a small part."""


_Refused = dict[str, tuple[LaunchReason, str]]
"""The regions that share no launch: why, and more about it."""


@dataclass(frozen=True, slots=True)
class Launches:
    """What `share_launches` decided."""

    regions: tuple[Region, ...]
    order: tuple[str, ...]
    launches: tuple[SharedLaunch, ...]
    verdicts: tuple[LaunchVerdict, ...]


def share_launches(
    graph: Graph,
    regions: Sequence[Region],
    order: Sequence[str],
    device: DeviceSpec,
    peak: int,
    unshared: Collection[str] = (),
) -> Launches:
    """Let regions share launches where that saves time and holds no more memory.

    `peak` is what is held at once without, `unshared` are ops whose regions could not share one.
    """
    # What may run together does not depend on how the program was written.
    steps = _Steps(graph, regions, order, graph)
    canonical = replace(steps, along=in_canonical_order(graph))
    kept_apart = [region.name for region in regions if set(region.ops) & set(unshared)]
    refused: _Refused = dict.fromkeys(kept_apart, (LaunchReason.NOT_COMPILED, ""))
    groups = _grouped(canonical, device, refused)
    most = max(eager_peak_bytes(canonical.along), canonical.peak([]))
    groups = _within(canonical, groups, most, refused, "")
    groups = _within(steps, groups, max(eager_peak_bytes(graph), peak), refused, OF_THIS_ORDER)
    groups = [_tiled(canonical, group, device) for group in groups]
    return _decided(steps, groups, refused)


@dataclass(frozen=True)
class _Steps:
    """Regions and original calls in running order; `along` is the order of ops to keep near to."""

    graph: Graph
    regions: Sequence[Region]
    order: Sequence[str]
    along: Graph

    @cached_property
    def by_name(self) -> Mapping[str, Region]:
        return {region.name: region for region in self.regions}

    def ops(self, step: str) -> tuple[str, ...]:
        return self.by_name[step].all_ops if step in self.by_name else (step,)

    @cached_property
    def place(self) -> Mapping[str, int]:
        """Where in the graph the last op is that each step owns."""
        position = self.along.position
        found = {name: position[name] for name in self.order if name not in self.by_name}
        return found | {r.name: max(position[op] for op in r.ops) for r in self.regions}

    @cached_property
    def needs(self) -> Mapping[str, frozenset[str]]:
        """Step to the steps that must run before it."""
        owner = {op: region.name for region in self.regions for op in region.ops}
        needed = dependencies(self.graph)
        found: dict[str, set[str]] = {}
        for step in self.order:
            inside = self.ops(step)
            # Also of constants: a kernel that computes one for itself has it among its ops.
            before = {name for op in inside for name in needed[op]} - set(inside)
            found[step] = {owner.get(name, name) for name in before}
        # What reads an input stays before what overwrites it, which can then do so in place.
        seen: dict[str, list[str]] = {}
        into: dict[str, set[str]] = {}
        for output in self.graph.outputs:
            if output.into and output.argument is not None and output.argument.value in owner:
                into.setdefault(owner[output.argument.value], set()).add(output.into)
        for step in self.order:
            for value in into.get(step, ()):
                found[step].update(seen.get(value, ()))
            for value in {v for op in self.ops(step) for v in self.graph.by_name[op].reads}:
                seen.setdefault(value, []).append(step)
        return {step: frozenset(before - {step}) for step, before in found.items()}

    def running(self, groups: Sequence[_Group] = ()) -> Iterator[tuple[str, ...]]:
        """The steps in an order that respects every need, as near to the graph's as it can: those
        of a group at once."""
        together = {name: group.names for group in groups for name in group.names}
        units = list(dict.fromkeys(together.get(step, (step,)) for step in self.order))
        unit_of = {step: unit for unit in units for step in unit}
        before = {
            unit: {unit_of[need] for step in unit for need in self.needs[step]} for unit in units
        }
        after: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for unit, earlier in before.items():
            for other in earlier:
                after.setdefault(other, []).append(unit)
        waiting = {unit: len(earlier) for unit, earlier in before.items()}
        last = {unit: max(self.place[step] for step in unit) for unit in units}
        ready = [(last[unit], unit) for unit in units if not waiting[unit]]
        heapq.heapify(ready)
        while ready:
            _, unit = heapq.heappop(ready)
            yield unit
            for other in after.get(unit, ()):
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, (last[other], other))

    def peak(self, groups: Sequence[_Group]) -> int:
        """The most bytes held at once: a launch has the results of all of its regions."""
        found: list[Step] = []
        for unit in self.running(groups):
            made: list[str] = []
            read: list[str] = []
            for step in unit:
                region = self.by_name.get(step)
                if region is None:
                    op = self.graph.by_name[step]
                    made += [value.name for value in op.results]
                    read += op.reads
                else:
                    made += region.outputs
                    read += region.inputs
            found.append(Step(tuple(made), tuple(read)))
        return peak_of(self.graph, found)


@dataclass(frozen=True)
class _Group:
    """Regions of one launch, in canonical order."""

    regions: tuple[Region, ...]
    wave: int
    device: str
    saved_us: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(region.name for region in self.regions)

    @cached_property
    def values(self) -> frozenset[str]:
        return frozenset(v for region in self.regions for v in (*region.inputs, *region.outputs))

    @cached_property
    def ops(self) -> int:
        return sum(len(region.all_ops) for region in self.regions)

    def with_region(self, region: Region) -> _Group:
        return replace(self, regions=(*self.regions, region))

    def halves(self) -> tuple[_Group, ...]:
        half = len(self.regions) // 2
        both = (self.regions[:half], self.regions[half:])
        return tuple(replace(self, regions=each) for each in both if len(each) > 1)


# What could run together --------------------------------------------------------------------------


def _grouped(steps: _Steps, device: DeviceSpec, refused: _Refused) -> list[_Group]:
    """Groups of two and more; `refused` gets the reason of each region that is in none."""
    groups: list[_Group] = []
    waves: dict[str, int] = {}
    for (step,) in steps.running():
        wave = 1 + max((waves[need] for need in steps.needs[step]), default=-1)
        waves[step] = wave
        region = steps.by_name.get(step)
        if region is None or step in refused:
            continue
        if region.kind is RegionKind.CONTRACTION:
            refused[step] = (LaunchReason.PRODUCT, "")
            if not is_product(region):
                continue
        else:
            busy = busy_us(region, device)
            if busy > SHORT * device.launch_us:
                refused[step] = (LaunchReason.LONG, f"{busy:.1f} us")
                continue
            refused[step] = (LaunchReason.NO_OTHER, "")
        place = steps.graph.values[region.outputs[0]].type.device
        free = [
            k
            for k, g in enumerate(groups)
            if g.wave >= wave and g.device == place and _may_join(steps.along, g, region)
        ]
        for number in sorted(free, key=lambda k: groups[k].wave):
            group = groups[number]
            reason = _against(steps.along, group, region, device)
            if reason is None:
                groups[number] = group.with_region(region)
                waves[step] = group.wave
                break
            refused[step] = (reason, "")
        else:
            groups.append(_Group((region,), wave, place))
    several = [group for group in groups if len(group.regions) > 1]
    for name in (name for group in several for name in group.names):
        del refused[name]
    return several


def _may_join(graph: Graph, group: _Group, region: Region) -> bool:
    """Whether a region is of the same kind as those of a group: a product one that multiplies what
    they multiply."""
    first = group.regions[0]
    if is_product(first) != is_product(region):
        return False
    return not is_product(region) or are_siblings(graph, first, region)


def _against(
    graph: Graph, group: _Group, region: Region, device: DeviceSpec
) -> LaunchReason | None:
    """Why a region cannot join a group that does not wait for it."""
    first = group.regions[0]
    if len(first.schedule.candidates) != len(region.schedule.candidates):
        return LaunchReason.NO_OTHER
    if group.ops + len(region.all_ops) > MOST_OPS:
        return LaunchReason.TOO_MANY_OPS
    if len(group.values.union(region.inputs, region.outputs)) > MOST_ARGUMENTS:
        return LaunchReason.TOO_MANY_ARGUMENTS
    together = _launch_us(graph, (*group.regions, region), device)
    if together is None:
        return LaunchReason.PRODUCT
    if together >= (_launch_us(graph, group.regions, device) or 0.0) + region.cost.time_us:
        return LaunchReason.NO_GAIN
    return None


def _launch_us(graph: Graph, regions: Sequence[Region], device: DeviceSpec) -> float | None:
    """The predicted time of regions in one launch; None where their tiles do not go together."""
    if len(regions) == 1 or not is_product(regions[0]):
        return together_us(regions, device)
    found = woven(graph, regions, device)
    return None if found is None else found.time_us


def _within(
    steps: _Steps, groups: Sequence[_Group], most: int, refused: _Refused, detail: str
) -> list[_Group]:
    """Of the groups as many, halved where need be, as together hold at most so many bytes."""
    kept = _fitting(steps, [], groups, most)
    left = {name for group in kept for name in group.names}
    lost = [name for group in groups for name in group.names if name not in left]
    refused.update(dict.fromkeys(lost, (LaunchReason.PEAK_MEMORY, detail)))
    return kept


def _fitting(
    steps: _Steps, there: Sequence[_Group], more: Sequence[_Group], most: int
) -> list[_Group]:
    """Those that are there, and of the others as many as memory allows."""
    if not more or steps.peak([*there, *more]) <= most:
        return [*there, *more]
    half = len(more) // 2
    parts = [more[:half], more[half:]] if half else [[group] for group in more[0].halves()]
    for part in parts:
        there = _fitting(steps, there, part, most)
    return list(there)


# What was decided ---------------------------------------------------------------------------------


def _tiled(steps: _Steps, group: _Group, device: DeviceSpec) -> _Group:
    """The group with the tiles that its regions have in one launch, and what that saves."""
    apart = sum(region.cost.time_us for region in group.regions)
    found = woven(steps.along, group.regions, device) if is_product(group.regions[0]) else None
    if found is not None:
        return replace(group, regions=found.regions, saved_us=apart - found.time_us)
    alike = tiled_alike(steps.along, group.regions, device)
    saved = apart - together_us(alike, device)
    return replace(group, regions=alike, saved_us=saved)


def _decided(steps: _Steps, groups: Sequence[_Group], refused: _Refused) -> Launches:
    saved = {group.names: group.saved_us for group in groups}
    alike = {region.name: region for group in groups for region in group.regions}
    launches: list[SharedLaunch] = []
    order: list[str] = []
    verdicts = {name: LaunchVerdict(name, *why) for name, why in refused.items()}
    place = {name: position for position, name in enumerate(steps.order)}
    for unit in steps.running(groups):
        names = sorted(unit, key=place.__getitem__)
        order += names
        if unit in saved:
            launch = SharedLaunch(f"launch_{len(launches)}", tuple(names), saved[unit])
            launches.append(launch)
            for name in names:
                verdicts[name] = LaunchVerdict(name, LaunchReason.SHARED, launch.name)
    return Launches(
        tuple(alike.get(region.name, region) for region in steps.regions),
        tuple(order) if groups else tuple(steps.order),
        tuple(launches),
        tuple(verdicts[region.name] for region in steps.regions),
    )
