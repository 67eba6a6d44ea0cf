"""Regions in one kernel side by side: their tiles, their needs, their time.

In: regions that do not wait for each other. Out: the same with tiles for one number of warps, which
all blocks of a launch have; and the predicted time of the launch. Each block runs one region, and
takes up as many registers as the region that needs most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuser.device import DeviceSpec
from fuser.ir.dim import evaluate
from fuser.ir.graph import Graph
from fuser.ir.kernel import Configuration
from fuser.ir.region import Needs, Region, Schedule, Strategy
from fuser.passes.configurations import pointwise_configurations
from fuser.passes.live import live_values
from fuser.passes.resources import needs_of, resident

ENOUGH = 0.5
"""Resident threads, as a fraction of what a processor holds, with which the latency of memory is
hidden: more of them make nothing faster."""


def own_launches_us(region: Region, device: DeviceSpec) -> float:
    return len(region.schedule.candidates) * device.launch_us


def busy_us(region: Region, device: DeviceSpec) -> float:
    """A region's predicted time without that of its launches."""
    return region.cost.time_us - own_launches_us(region, device)


def together_us(regions: Sequence[Region], device: DeviceSpec) -> float:
    """The predicted time of regions that share their launches, or of one by itself.

    Those with more threads on a processor than the launch allows are slower for it.
    """
    occupancy = min(_needs(regions, device).occupancy, ENOUGH)
    time = own_launches_us(regions[0], device)
    for region in regions:
        slower = max(1.0, min(region.cost.needs.occupancy, ENOUGH) / max(occupancy, 1e-3))
        time += busy_us(region, device) * slower
    return time


def _needs(regions: Sequence[Region], device: DeviceSpec) -> Needs:
    """What a block takes up that may run any of them."""
    if len(regions) == 1 or device.backend == "cpu":
        return regions[0].cost.needs
    registers = max(region.cost.needs.registers for region in regions)
    shared = max(region.cost.needs.shared_bytes for region in regions)
    warps = max(tiles[0].num_warps for region in regions for tiles in region.schedule.candidates)
    return resident(registers, shared, Configuration((), warps), device)


def tiled_alike(graph: Graph, regions: Sequence[Region], device: DeviceSpec) -> tuple[Region, ...]:
    """The regions with one number of warps for each of their launches.

    What is elementwise gets the tiles that a kernel over the elements of all would have; others
    keep theirs, with as many more rows as the launch has more warps than they want, or they share
    a row between more.
    """
    flat = [region for region in regions if region.strategy is Strategy.FLAT]
    size = sum(_rows(graph, region) for region in flat)
    wanted = [
        _flat(graph, region, size, device) if region in flat else region.schedule
        for region in regions
    ]
    warps = [
        max(schedule.candidates[kernel][0].num_warps for schedule in wanted)
        for kernel in range(len(wanted[0].candidates))
    ]
    found: list[Region] = []
    for region, schedule in zip(regions, wanted, strict=True):
        rows = _rows(graph, region)
        candidates = tuple(
            (_widened(tiles[0], count, rows),)
            for tiles, count in zip(schedule.candidates, warps, strict=True)
        )
        found.append(_scheduled(graph, region, replace(schedule, candidates=candidates), device))
    return tuple(found)


def _rows(graph: Graph, region: Region) -> int:
    return evaluate(region.space.parallel_size, graph.hints)


def _flat(graph: Graph, region: Region, size: int, device: DeviceSpec) -> Schedule:
    ops = graph.in_order(region.all_ops)
    live = live_values(graph, ops, frozenset(region.outputs))
    if device.backend == "cpu":
        # In the interpreter it is programs that cost time: no block larger than the tensor.
        size = _rows(graph, region)
    return replace(region.schedule, candidates=(pointwise_configurations(size, live, device),))


def _widened(tile: Configuration, warps: int, rows: int) -> Configuration:
    """The tile for more warps: as many more rows, as far as there are more."""
    blocks = dict(tile.blocks)
    count = tile.num_warps
    while count < warps and blocks["XBLOCK"] < rows:
        blocks["XBLOCK"] *= 2
        count *= 2
    return replace(tile, blocks=tuple(blocks.items()), num_warps=warps)


def _scheduled(graph: Graph, region: Region, schedule: Schedule, device: DeviceSpec) -> Region:
    """The region walked in this way, with what it then needs."""
    if schedule == region.schedule:
        return region
    ops = graph.in_order(region.all_ops)
    needs = needs_of(graph, ops, region.outputs, region.space, schedule, device)
    return replace(region, schedule=schedule, cost=replace(region.cost, needs=needs))
