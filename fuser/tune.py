"""The fastest tile of each kernel, measured once and remembered.

In: a plan with its kernels and a way to time them. Out: the plan with the fastest candidate of each
kernel first, and each region walked the faster way where there are two. What was measured is kept
in a folder by what the kernel computes, the sizes, the GPU and the versions, so that the same
program gets the same choice in every process that finds it. A candidate has to be clearly faster
than the one that the model prefers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from fuser.codegen.generate import generate, kernels_of
from fuser.ir.kernel import Configuration, KernelSpec, RegionKernels
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region, Schedule
from fuser.ir.timing import Memory

Measure = Callable[[Sequence[KernelSpec]], Sequence[float | None]]
"""Kernels with one configuration each to microseconds; None for one that cannot be used."""

Others = Callable[[Region], Sequence[Schedule]]
"""Other ways to walk a region than the one that was predicted to be fastest."""

WORTH_US = 4.0
"""Predicted microseconds beyond the launch from which a kernel is measured."""

CLEARLY = 0.98
"""Of the preferred candidate's time: what another one has to stay below to replace it."""


def tune(
    plan: FusionPlan,
    kernels: Sequence[RegionKernels],
    measure: Measure,
    memory: Memory,
    launch_us: float,
    rounds_everywhere: bool = False,
    others: Others = lambda _: (),
) -> tuple[FusionPlan, tuple[RegionKernels, ...]]:
    """The plan and its kernels with the fastest tile of each kernel first.

    `others` has the schedules that a region is timed with beside its own.
    """
    times: dict[str, list[float | None]] = {}
    hints = plan.graph.hints
    asked: list[tuple[str, KernelSpec]] = []
    ways: list[list[tuple[Region, Sequence[KernelSpec]]]] = []
    # What shares a launch is short.
    for entry in (entry for entry in kernels if len(entry.regions) == 1):
        region = plan.by_name[entry.regions[0]]
        ways.append([(region, entry.kernels)])
        if region.cost.time_us - launch_us * len(entry.kernels) < WORTH_US:
            continue
        for schedule in others(region):
            other = replace(region, schedule=schedule)
            specs = kernels_of(plan.graph, other, rounds_everywhere).kernels
            ways[-1].append((other, specs))
        for spec in (spec for _, specs in ways[-1] for spec in specs):
            key = memory.key(spec, hints)
            if key in times or (len(spec.configurations) == 1 and len(ways[-1]) == 1):
                continue
            known = memory.recall(key, len(spec.configurations))
            times[key] = known or []
            if known is None:
                asked.append((key, spec))
    _measure(asked, measure, memory, times)

    def of(specs: Sequence[KernelSpec]) -> list[list[float | None] | None]:
        return [times.get(memory.key(spec, hints)) for spec in specs]

    chosen = [_faster([(*way, of(way[1])) for way in each]) for each in ways]
    tuned = {region.name: _reordered(region, specs, of(specs)) for region, specs in chosen}
    regions = tuple(tuned.get(region.name, region) for region in plan.regions)
    if regions == plan.regions:
        return plan, tuple(kernels)
    plan = replace(plan, regions=regions)
    return plan, generate(plan, rounds_everywhere=rounds_everywhere)


def _measure(
    asked: Sequence[tuple[str, KernelSpec]],
    measure: Measure,
    memory: Memory,
    times: dict[str, list[float | None]],
) -> None:
    each = [
        (key, replace(spec, configurations=(tile,)))
        for key, spec in asked
        for tile in spec.configurations
    ]
    for (key, _), time in zip(each, measure([spec for _, spec in each]), strict=True):
        times[key].append(None if time is None else float(time))
    for key, _ in asked:
        memory.write(key, json.dumps(times[key]))


def _faster(
    ways: Sequence[tuple[Region, Sequence[KernelSpec], list[list[float | None] | None]]],
) -> tuple[Region, Sequence[KernelSpec]]:
    """The first way, or another one that is clearly faster with the best tile of each kernel."""
    region, specs, found = ways[0]
    least = _least(found)
    for other, other_specs, other_found in ways[1:]:
        time = _least(other_found)
        if time is not None and (least is None or time < CLEARLY * least):
            was = "" if least is None else f" {least:.1f} us {region.strategy.value},"
            note = f"{region.name}:{was} {time:.1f} us {other.strategy.value}"
            region = replace(other, notes=(*region.notes, note))
            specs, least = other_specs, time
    return region, specs


def _least(found: Sequence[list[float | None] | None]) -> float | None:
    """The microseconds of kernels with the best tile of each; None where one has no time."""
    total = 0.0
    for each in found:
        usable = [time for time in each or () if time is not None]
        if not usable:
            return None
        total += min(usable)
    return total


def _reordered(
    region: Region, specs: Sequence[KernelSpec], times: Sequence[list[float | None] | None]
) -> Region:
    """The region with the fastest candidate of each measured kernel in front."""
    candidates = list(region.schedule.candidates)
    notes = list(region.notes)
    for position, (spec, found) in enumerate(zip(specs, times, strict=True)):
        usable = [
            (time, tile)
            for time, tile in zip(found or (), candidates[position], strict=False)
            if time is not None
        ]
        if not usable:
            continue
        preferred, first = usable[0]
        fastest, tile = min(usable, key=lambda item: item[0])
        if fastest >= CLEARLY * preferred:
            fastest, tile = preferred, first
        candidates[position] = (tile, *(other for other in candidates[position] if other != tile))
        notes.append(f"{spec.name}: {_text(tile)} is fastest of {len(usable)}: {fastest:.1f} us")
    if notes == list(region.notes):
        return region
    schedule = replace(region.schedule, candidates=tuple(candidates))
    return replace(region, schedule=schedule, notes=tuple(notes))


def _text(tile: Configuration) -> str:
    blocks = " ".join(f"{name}={size}" for name, size in tile.blocks)
    return f"{blocks} with {tile.num_warps} warps"
