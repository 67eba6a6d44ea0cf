"""A region's schedule: its strategy, and the configurations of each of its kernels.

In: a graph, ops in program order, what is stored, and the iteration space. Out: the `Schedule`s
among which predicted time decides, the usual one first.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.device import DeviceSpec
from fuser.ir.dim import evaluate
from fuser.ir.graph import Graph, Op
from fuser.ir.kernel import Configuration
from fuser.ir.region import Region, Schedule, Strategy
from fuser.ir.space import Space
from fuser.passes.access import Access, accesses, is_column, primary_access, rows_together
from fuser.passes.columns import column_folds, rows_and_columns_schedule
from fuser.passes.configurations import (
    combine_configurations,
    looped_configurations,
    pointwise_configurations,
    row_configurations,
    split_parts,
)
from fuser.passes.live import live_values
from fuser.passes.product import product_kernels
from fuser.passes.stages import accumulators
from fuser.passes.strategy import MIN_LOOPED_ROW, strategy_for


def schedules_for(
    graph: Graph,
    ops: Sequence[Op],
    stored: frozenset[str],
    space: Space,
    primary: Access | None,
    device: DeviceSpec,
) -> tuple[Schedule, ...]:
    """How the ops, as one region, may be walked on `device`; `primary` decides the fast axis."""
    rows = evaluate(space.parallel_size, graph.hints)
    live = live_values(graph, ops, stored)
    if not any(op.reduced for op in ops):
        return (Schedule(Strategy.FLAT, (pointwise_configurations(rows, live, device),)),)
    by_column = is_column(primary, space)
    if column_folds(ops, space):
        return (rows_and_columns_schedule(graph, space, by_column, device),)
    row = evaluate(space.reduced_size, graph.hints)
    strategy = strategy_for(graph, ops, stored, space, by_column)
    is_either = row > MIN_LOOPED_ROW and not by_column and device.backend != "cpu"
    whole: tuple[Schedule, ...] = ()
    if strategy is Strategy.ROW_IN_REGISTERS:
        whole = (Schedule(strategy, (row_configurations(rows, row, by_column, live, device),)),)
        if not is_either:
            return whole
    sizes = {axis.name: evaluate(axis.size, graph.hints) for axis in space.axes}
    together = rows_together(primary, space, sizes)
    kept = accumulators(ops)
    if strategy is not Strategy.SPLIT:
        tiles = looped_configurations(rows, row, by_column, live, device, together, kept)
        return (*whole, Schedule(Strategy.LOOPED, (tiles,)))
    parts = split_parts(rows, row, by_column, device)
    tiles = looped_configurations(
        rows, max(1, row // parts), by_column, live, device, together, kept
    )
    combine = combine_configurations(rows, parts, device)
    return (Schedule(strategy, (_narrow_first(tiles), combine), parts),)


def _narrow_first(tiles: Sequence[Configuration]) -> tuple[Configuration, ...]:
    """Of a row that is read once, many small programs: nothing has to stay in L2."""
    first = next(tile for tile in tiles if tile.num_warps == tiles[-1].num_warps)
    return (first, *(tile for tile in tiles if tile is not first))


def other_schedules(graph: Graph, region: Region, device: DeviceSpec) -> tuple[Schedule, ...]:
    """The ways to walk a region's rows or tiles that predicted time decided against."""
    by_row = region.strategy in (Strategy.ROW_IN_REGISTERS, Strategy.LOOPED)
    if not by_row and not region.strategy.multiplies_tiles:
        return ()
    ops = graph.in_order(region.all_ops)
    stored = frozenset(region.outputs)
    found = accesses(graph, ops, stored, region.space)
    every: tuple[Schedule, ...]
    if by_row:
        every = schedules_for(graph, ops, stored, region.space, primary_access(found), device)
    else:
        most = device.max_registers_per_thread
        made = product_kernels(graph, ops, stored, region.space, found, device, most)
        every = tuple(kernel.schedule for kernel in made)
    return tuple(schedule for schedule in every if schedule.strategy is not region.strategy)
