"""Predicted registers, shared memory and occupancy of generated kernels.

In: ops with their space and schedule. Out: for each kernel and tile the registers of a thread and
the shared memory of a block, and `Needs` of the region's largest kernel. The model follows the
compiler: a tile is laid out over threads as Triton does it (`layout`), and registers are the words
that a lane then holds (`live`) and a few more for addresses, loops and slow functions.
docs/budgets.md has its errors and the command that measures them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fuser.device import DeviceSpec
from fuser.ir.graph import Graph, Op
from fuser.ir.kernel import Configuration
from fuser.ir.region import Needs, Schedule
from fuser.ir.space import Space
from fuser.passes.access import Access
from fuser.passes.bodies import LOAD, STORE
from fuser.passes.kernel_model import Kernel, kernels_of
from fuser.passes.layout import layout_of, shared_bytes, staged_bytes
from fuser.passes.live import SLOW_WEIGHT, Lane, held

BASE_REGISTERS = 8.5
"""Program and thread numbers, offsets and masks. This and the next six are fitted to what Triton
3.7 and its ptxas allocate for half of the programs of `benchmarks.resources` on sm_90 and sm_80."""

LOAD_REGISTERS = 1.25
"""For each tensor that is read: its address, two registers, is soon replaced by what it loads."""

STORE_REGISTERS = 2.0
"""For each tensor that is written: its address is there together with the values."""

LOOP_REGISTERS = 6.0
"""Of a loop over the row: its counter and bound, and addresses that outlive a step."""

SLOW_REGISTERS = 2.0
"""Temporaries of a slow function, for each 16 operations of its table weight."""

MOVING_SHARE = 0.58
"""Of the words that come together in program order, those that the compiler leaves together."""

ADDRESS_SHARE = 0.4
"""Of the words of addresses, those that are there when most values are."""

SPILL_MARGIN = 1.15
"""How far a prediction may pass the hardware's limit before a tile is taken to spill: the compiler
reorders more where it has to."""

REGISTER_UNIT = 8
"""Registers of a thread are allocated in units of this many."""

SHARED_UNIT = 128
"""Bytes of shared memory are allocated in units of this many."""

SCHEDULERS = 4
"""Parts of a processor, each with its share of warps: so on NVIDIA and AMD."""


def needs_of(
    graph: Graph,
    ops: Sequence[Op],
    stored: Collection[str],
    space: Space,
    schedule: Schedule,
    device: DeviceSpec,
    found: Sequence[Access] | None = None,
) -> Needs:
    """What the region's largest kernel takes up, with the tile that it is likely to run with: the
    first that is not predicted to spill, the smallest where all are.

    `found` are the accesses of `ops`, where the caller has them.
    """
    if device.backend == "cpu":
        return Needs()  # the interpreter allocates nothing
    kernels = kernels_of(graph, ops, stored, space, schedule, found)
    each = [
        _fitting(kernel, tiles, device)
        for kernel, tiles in zip(kernels, schedule.candidates, strict=True)
    ]
    return min(each, key=lambda needs: needs.occupancy)


def _fitting(kernel: Kernel, tiles: Sequence[Configuration], device: DeviceSpec) -> Needs:
    """The needs of the first tile that is not predicted to spill, else of the last."""
    for tile in tiles:
        registers, shared = predict(kernel, tile, device)
        limit = register_limit(tile, device)
        if registers <= limit * SPILL_MARGIN:
            return resident(min(registers, limit), shared, tile, device)
    return resident(registers, shared, tile, device)


def resident(registers: int, shared: int, tile: Configuration, device: DeviceSpec) -> Needs:
    """How many blocks of these needs fit on a processor, and the share of threads that is."""
    unit = _up(max(registers, 1), REGISTER_UNIT) * device.warp_size
    warps = device.registers_per_processor // unit // SCHEDULERS * SCHEDULERS
    bytes_of_block = _up(shared, SHARED_UNIT) + device.shared_bytes_reserved
    threads = tile.num_warps * device.warp_size
    blocks = min(
        warps // tile.num_warps,
        device.shared_bytes_per_processor // max(bytes_of_block, 1),
        device.threads_per_processor // threads,
        device.blocks_per_processor,
    )
    return Needs(registers, shared, blocks, blocks * threads / device.threads_per_processor)


def register_limit(tile: Configuration, device: DeviceSpec) -> int:
    """The most registers that a thread of a block of this many warps can have."""
    threads = tile.num_warps * device.warp_size
    fair = device.registers_per_processor // threads // REGISTER_UNIT * REGISTER_UNIT
    return min(fair, device.max_registers_per_thread)


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def predict(kernel: Kernel, tile: Configuration, device: DeviceSpec) -> tuple[int, int]:
    """Registers of a thread and bytes of shared memory of a block, for one tile of a kernel.

    Registers are those that the compiler would like: where they are more than `register_limit`, it
    spills.
    """
    layout = layout_of(kernel, tile, device)
    shared, is_mixed = shared_bytes(kernel, layout)
    shared = max(shared, staged_bytes(kernel, layout, dict(tile.blocks).get("STAGES", 1)))
    walk = kernel.walks[layout.axis]
    vector = 1 << layout.vector
    lane = Lane(
        counts=layout.counts,
        axis=layout.axis,
        vector=vector,
        aligned=walk.aligned,
        run=min(vector, walk.run),
        is_split=walk.is_split and not kernel.combines,
        exchanges=layout.row_warps > 0,
        is_mixed=is_mixed,
    )
    words = 0.0
    for body in kernel.bodies:
        kept, moving, addresses = held(body, lane)
        words = max(words, max(kept, MOVING_SHARE * moving) + ADDRESS_SHARE * addresses)
    return round(_overhead(kernel) + words), shared


def _overhead(kernel: Kernel) -> float:
    """Registers that do not grow with the tile."""
    loads: set[str] = set()
    stores: set[str] = set()
    parts = slow = 0
    for body in kernel.bodies:
        for kind, _, _, touch, weight in body.steps:
            if touch is not None:
                (stores if kind == STORE else loads).add(touch.value)
            elif kind == LOAD:
                parts += 1  # of a split reduction: each has a tensor of its own
            elif weight > slow:
                slow = weight
    return (
        BASE_REGISTERS
        + LOAD_REGISTERS * (len(loads) + parts)
        + STORE_REGISTERS * (len(stores) + kernel.results)
        + LOOP_REGISTERS * kernel.has_loop
        + SLOW_REGISTERS * (slow if slow >= SLOW_WEIGHT else 0) / 16
    )
