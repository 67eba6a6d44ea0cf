"""Schedules, needs and costs of regions of matrix products.

In: the ops of a region with its space and roles. Out: its schedule in each family of kernels that
the device can run, with the cost; the fastest of them. Multiplying takes the time of the tiles
(`passes/product_tiles.py`), device memory moves each tensor once. A product that nothing is fused
into is costed as the library's, which may split the inner axis as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from fuser.device import DeviceSpec
from fuser.ir.dim import evaluate
from fuser.ir.graph import Graph, Op
from fuser.ir.kernel import Configuration
from fuser.ir.ops import BY_KIND, is_contraction
from fuser.ir.region import Cost, Needs, Schedule
from fuser.ir.space import Space
from fuser.passes.access import Access
from fuser.passes.approximate import weight_of
from fuser.passes.contraction import Roles, factors_of, feeding, least_sides, roles_of
from fuser.passes.cost import SPECIAL_WEIGHT, bytes_by_size
from fuser.passes.kernel_model import VECTOR_BYTES
from fuser.passes.product_tiles import (
    DESCRIPTORS,
    VECTOR_EFFICIENCY,
    Extents,
    Family,
    best_tiles,
    families_of,
    tile_time_us,
)
from fuser.passes.result_rows import check_rows, held_tiles
from fuser.passes.windows import are_described

LIBRARY_VECTOR_EFFICIENCY = 0.8
"""Of the vector rate, what the library reaches without tensor cores."""

COPY_SHARE = 0.6
"""Of the rate of a copy, what products with few rows reach: a matrix of 4096 x 4096 for 4 to 64
rows took 14 to 17 us beside the launch on an H200."""

EXPOSED = 0.25
"""Of the shorter of multiplying and moving, what the longer does not hide: first loads, and stores
after a tile's last product."""


@dataclass(frozen=True, slots=True)
class ProductKernel:
    """One way to compute a region of products."""

    schedule: Schedule
    cost: Cost


def product_kernels(
    graph: Graph,
    ops: Sequence[Op],
    stored: Collection[str],
    space: Space,
    found: Sequence[Access],
    device: DeviceSpec,
    most_registers: int,
) -> tuple[ProductKernel, ...]:
    """A region of products in each family, by pointers first; raises `NoSpace`.

    Pointers take over from descriptors where those cannot be used, and have what needs whole rows
    or both halves of an axis in one tile. They also have a product alone, which takes as long as
    the library's. Tiles that need more registers than `most_registers` are left out, if there are
    others.
    """
    roles = roles_of(graph, ops, stored, space)
    check_rows(ops, space, roles)
    extents = extents_of(graph, ops, space, found, roles)
    beside = beside_of(graph, ops, space)
    made: list[ProductKernel] = []
    may_describe = len(ops) > 1 and extents.has_free_tiles
    for family in families_of(device):
        if family is DESCRIPTORS and not (may_describe and are_described(graph, ops, space, roles)):
            continue
        tiles, needs = best_tiles(extents, beside, device, family, most_registers)
        schedule = Schedule(family.strategy, (tiles,), 1, roles.rows, roles.columns)
        if made:
            schedule = replace(schedule, otherwise=made[0].schedule)
        cost = _cost(graph, ops, space, found, extents, tiles[0], needs, device, family)
        made.append(ProductKernel(schedule, cost))
    return tuple(made)


def fastest(made: Sequence[ProductKernel]) -> ProductKernel:
    """The one that is predicted to take least."""
    return min(made, key=lambda kernel: kernel.cost.time_us)


def extents_of(
    graph: Graph, ops: Sequence[Op], space: Space, found: Sequence[Access], roles: Roles
) -> Extents:
    sizes = {axis.name: evaluate(axis.size, graph.hints) for axis in space.axes}
    products = [op for op in ops if is_contraction(op)]
    read = [roles.operands(op) for op in products]
    batch, rows, columns, inner = (
        prod(sizes[axis] for axis in axes)
        for axes in (roles.batch, roles.rows, roles.columns, roles.inner)
    )
    return Extents(
        batch,
        rows,
        columns,
        inner,
        width=max(operand.type.dtype.bytes for pair in read for operand in pair),
        products=len(products),
        sides=(
            len({(row.value, row.map) for row, _ in read}),
            len({(column.value, column.map) for _, column in read}),
        ),
        precision=products[0].attribute("precision"),
        vector=min((_vector(a, sizes) for a in _operands(ops, found)), default=VECTOR_BYTES),
        held=held_tiles(ops, space, found, roles),
        least=least_sides(roles, space),
    )


def _operands(ops: Sequence[Op], found: Sequence[Access]) -> list[Access]:
    """What is read inside the loop."""
    inner = feeding(ops)
    read = {(op.name, o.value) for op in ops if is_contraction(op) for o in factors_of(op)}
    loads = (access for access in found if not access.is_store)
    return [a for a in loads if a.op in inner or (a.op, a.value) in read]


def _vector(access: Access, sizes: Mapping[str, int]) -> int:
    """Bytes of a run of memory that every row of an access begins with, up to what one instruction
    moves."""
    steps = [step for step in access.steps.values() if step]
    fast = [axis for axis, step in access.steps.items() if step == 1]
    if not fast:
        return access.width if steps else VECTOR_BYTES
    run = gcd(sizes[fast[0]], access.offset, *(step for step in steps if step != 1)) * access.width
    return min(run & -run, VECTOR_BYTES)


def beside_of(graph: Graph, ops: Sequence[Op], space: Space) -> int:
    """Tensors with an element for each of the result's, which are read after the loop."""
    inner = feeding(ops)
    read: set[str] = set()
    for op in ops:
        if op.name not in inner:
            operands = {o.value for o in factors_of(op)} if is_contraction(op) else set()
            read |= {value for value in op.reads if value not in space.index} - operands
    elements = evaluate(space.parallel_size, graph.hints)
    return sum(graph.numel_of[v] >= elements for v in read)


def _cost(
    graph: Graph,
    ops: Sequence[Op],
    space: Space,
    found: Sequence[Access],
    extents: Extents,
    tile: Configuration,
    needs: Needs,
    device: DeviceSpec,
    family: Family,
) -> Cost:
    """The cost of a region with products; of one alone, that of the library's kernel."""
    inner = feeding(ops)
    sizes = {axis.name: evaluate(axis.size, graph.hints) for axis in space.axes}
    moved = _moved(found, sizes)
    flops = special = around = 0
    for op in ops:
        size = graph.points_of[op.name]
        flops += weight_of(op) * size
        special += size if BY_KIND[op.kind].weight >= SPECIAL_WEIGHT else 0
        if is_contraction(op):
            continue
        again = _repeats(op, space, sizes, tile) if op.name in inner else 1
        around += weight_of(op) * size * again
    multiply_us = multiplying_us(extents, tile, needs, device, family, len(ops) == 1)
    memory_us = 1e6 * moved / (COPY_SHARE * device.copy_rate)
    around_us = 1e6 * around / (device.vector_rate / 2)
    hidden = (1 - EXPOSED) * min(multiply_us, memory_us)
    busy_us = multiply_us + memory_us - hidden + around_us
    bound = "compute" if multiply_us + around_us > memory_us else "memory"
    if busy_us < device.launch_us:
        bound = "launch"
    return Cost(
        bytes=moved,
        bytes_by_size=bytes_by_size(graph, {a.name: a.size for a in space.axes}, found, moved),
        # What all tiles ask for of their operands.
        cached_bytes=extents.tiles(tile) * extents.lines(tile) * extents.inner * extents.width,
        flops=flops,
        special=special,
        needs=needs,
        time_us=device.launch_us + busy_us,
        bound=bound,
    )


def multiplying_us(
    extents: Extents,
    tile: Configuration,
    needs: Needs,
    device: DeviceSpec,
    family: Family,
    is_lone: bool,
) -> float:
    """Microseconds of a kernel's products; of one alone, those that the library takes: where tiles
    are few, it has several programs share an inner axis."""
    tiles = extents.tiles(tile)
    shares = [n for n in (2, 4, 8) if is_lone and tiles * n <= device.processors]
    best = min(tile_time_us(extents, tile, needs, device, family, n) for n in (1, *shares))
    if is_lone and extents.precision == "ieee" and device.backend != "cpu":
        return best * VECTOR_EFFICIENCY / LIBRARY_VECTOR_EFFICIENCY
    return best


def _repeats(op: Op, space: Space, sizes: dict[str, int], tile: Configuration) -> int:
    """How many tiles compute an op on the way to an operand again, each for itself."""
    used = {axis for affine in space.index[op.name] for axis in affine.axes}
    others = prod(sizes[axis.name] for axis in space.parallel if axis.name not in used)
    return max(1, others // max(tile.block("MBLOCK"), tile.block("NBLOCK")))


def _moved(found: Sequence[Access], sizes: dict[str, int]) -> int:
    """Bytes of device memory, each element of a tensor once."""
    most: dict[tuple[str, bool], int] = {}
    for access in found:
        what = (access.value, access.is_store)
        distinct = prod(sizes[axis] for axis in access.steps)
        most[what] = min(most.get(what, 0) + distinct, access.numel)
    width = {(access.value, access.is_store): access.width for access in found}
    return sum(width[what] * numel for what, numel in most.items())
