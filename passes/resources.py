"""Predicted registers, shared memory and occupancy of a region's largest kernel.

In: the ops with their space and schedule. Out: `Needs`. The figures are tested against what the
compiler allocates; docs/budgets.md has the table.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from fuser.device import DeviceSpec
from fuser.ir.graph import Graph, Op
from fuser.ir.kernel import Configuration
from fuser.ir.region import Needs, Schedule
from fuser.ir.space import Space
from fuser.passes.live import live_values

BASE_REGISTERS = 12
REGISTERS_PER_ARGUMENT = 1.5
REGISTERS_PER_LIVE_ELEMENT = 0.5


def needs_of(
    graph: Graph,
    ops: Sequence[Op],
    stored: Collection[str],
    space: Space,
    schedule: Schedule,
    device: DeviceSpec,
) -> Needs:
    """What the first configuration of the region's first kernel takes up."""
    tile = schedule.candidates[0][0]
    threads = tile.num_warps * device.warp_size
    elements = max(1, prod(size for _, size in tile.blocks) // threads)
    inside = {op.name for op in ops}
    arguments = len({value for op in ops for value in op.reads if value not in inside})
    registers = round(
        BASE_REGISTERS
        + REGISTERS_PER_ARGUMENT * (arguments + len(stored))
        + REGISTERS_PER_LIVE_ELEMENT * live_values(graph, ops, stored) * elements
    )
    shared = 4 * tile.num_warps * sum(bool(op.reduced) for op in ops)
    return resident(registers, shared, tile, device)


def resident(registers: int, shared: int, tile: Configuration, device: DeviceSpec) -> Needs:
    """How many blocks of these needs fit on a processor, and the share of threads that is."""
    threads = tile.num_warps * device.warp_size
    # Registers are given to warps in units of eight a thread.
    by_registers = device.registers_per_processor // (-(-max(registers, 1) // 8) * 8 * threads)
    by_shared = device.shared_bytes_per_processor // max(shared + device.shared_bytes_reserved, 1)
    by_threads = device.threads_per_processor // threads
    blocks = min(by_registers, by_shared, by_threads, device.blocks_per_processor)
    return Needs(registers, shared, blocks, blocks * threads / device.threads_per_processor)
