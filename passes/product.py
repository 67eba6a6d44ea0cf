"""Schedules, needs and costs of regions of matrix products.

In: the ops of a region with its space and roles. Out: the tiles to try, the fastest as predicted
first, what each takes up, and the cost. A tile's time is the longer of what the tensor cores
multiply and what L2 serves; tiles run in rounds over the processors, so a last round that is not
full costs as much as a full one. Device memory moves each tensor once. A product that nothing is
fused into is costed as the library's, which may split the inner axis as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod

from fuser.device import DeviceSpec
from fuser.ir.dim import evaluate
from fuser.ir.graph import Graph, Op
from fuser.ir.kernel import Configuration
from fuser.ir.ops import BY_KIND, is_contraction
from fuser.ir.region import Cost, Needs, Reason, Schedule, Strategy
from fuser.ir.space import Space
from fuser.passes.access import Access
from fuser.passes.approximate import weight_of
from fuser.passes.configurations import power_of_two
from fuser.passes.contraction import Roles, factors_of, feeding, least_sides, roles_of
from fuser.passes.cost import LATENCY_S, SPECIAL_WEIGHT, bytes_by_size
from fuser.passes.kernel_model import VECTOR_BYTES
from fuser.passes.resources import register_limit, resident
from fuser.passes.result_rows import FOLDING, check_rows, held_tiles, tiles_of_rows
from fuser.passes.unify import NoSpace

EFFICIENCY = 0.72
"""Of the data sheet's tensor rate, what large products reach: 684 to 786 of 989 TFLOP/s on an
H200."""

VECTOR_EFFICIENCY = 0.3
"""Of the vector rate, what a generated product reaches without tensor cores."""

LIBRARY_VECTOR_EFFICIENCY = 0.8
"""The same of the library's."""

FEED = 1.7
"""Of the rate of L2 for elementwise work, what operands of products are served at: 8.9 TB/s were
seen on an H200."""

COPY_SHARE = 0.6
"""Of the rate of a copy, what products with few rows reach: a matrix of 4096 x 4096 for 4 to 64
rows took 14 to 17 us beside the launch on an H200."""

EXPOSED = 0.25
"""Of the shorter of multiplying and moving, what the longer does not hide: first loads, and stores
after a tile's last product."""

LEAST_SIDE = 16
"""The least side of a tile that tensor cores multiply."""

GROUP = 8
"""Tiles along the rows that run one after another, so that they share columns in L2."""

BASE_REGISTERS = 34
"""Of a product's kernel, apart from its tile: addresses of operands, the loop, tile numbers."""

ASYNCHRONOUS_BYTES = 4
"""The least that is copied to shared memory without passing through registers."""

UNALIGNED_WORDS = 3
"""Registers of an element that is loaded by itself: its address, and what is loaded."""

FRAGMENT_REGISTERS = 64
"""Of each product, for the parts of operands that are multiplied next, where tensor cores read them
from registers."""

MOST_TILES = 5
"""Candidates that are kept."""

# Rows, columns, bytes along the inner axis, warps, stages.
_GPU_TILES = (
    (128, 256, 128, 8, 3),
    (256, 128, 128, 8, 3),
    (128, 128, 128, 8, 3),
    (128, 128, 128, 4, 3),
    (128, 64, 128, 4, 4),
    (64, 128, 128, 4, 4),
    (64, 64, 128, 4, 4),
    (64, 32, 256, 4, 4),
    (32, 64, 256, 4, 4),
    (16, 64, 256, 4, 5),
    (64, 16, 256, 4, 5),
    (32, 32, 256, 2, 5),
    (16, 32, 256, 2, 5),
    (32, 16, 256, 2, 5),
    (16, 16, 512, 2, 5),
)

INTERPRETER_SIDE = 256


@dataclass(frozen=True, slots=True)
class Extents:
    """Elements along each role, and what one tile of it is made of."""

    batch: int
    rows: int
    columns: int
    inner: int
    width: int
    """Bytes of an operand's element."""
    products: int
    sides: tuple[int, int]
    """Distinct tiles of operands along the rows and along the columns."""
    precision: str
    vector: int
    """Bytes that one instruction can move of every operand."""
    held: int
    """Tiles of results that a program holds while it folds their rows, 0 where it folds none."""
    least: tuple[int, int] = (1, 1)
    """Rows and columns that are in one tile."""

    def tiles(self, tile: Configuration) -> int:
        """How many tiles of this kind the results have."""
        rows, columns = tile.block("MBLOCK"), tile.block("NBLOCK")
        return self.batch * -(-self.rows // rows) * -(-self.columns // columns)

    def lines(self, tile: Configuration) -> int:
        """Rows and columns of all operands of a tile, each of which runs along the inner axis."""
        along_rows, along_columns = self.sides
        return along_rows * tile.block("MBLOCK") + along_columns * tile.block("NBLOCK")


def product_kernel(
    graph: Graph,
    ops: Sequence[Op],
    stored: Collection[str],
    space: Space,
    found: Sequence[Access],
    device: DeviceSpec,
    most_registers: int,
) -> tuple[Schedule, Cost]:
    """The schedule of a region with products and its cost; raises `NoSpace`.

    Tiles that need more registers than `most_registers` are left out, if there are others.
    """
    roles = roles_of(graph, ops, stored, space)
    check_rows(ops, space, roles)
    extents = extents_of(graph, ops, space, found, roles)
    tiles, needs = _best_tiles(extents, beside_of(graph, ops, space), device, most_registers)
    schedule = Schedule(Strategy.PRODUCT, (tiles,), 1, roles.rows, roles.columns)
    return schedule, _cost(graph, ops, space, found, extents, tiles[0], needs, device)


def _best_tiles(
    extents: Extents, beside: int, device: DeviceSpec, most_registers: int
) -> tuple[tuple[Configuration, ...], Needs]:
    """The tiles that fit, the fastest first, and the needs of that."""
    tiles = _tiles(extents, device)
    needs = {tile: needs_of_tile(extents, tile, beside, device) for tile in tiles}
    limit = device.shared_bytes_per_block
    fitting = [
        tile
        for tile in tiles
        if needs[tile].shared_bytes <= limit
        and needs[tile].registers <= min(most_registers, register_limit(tile, device))
    ] or tiles[-1:]
    fitting.sort(key=lambda tile: tile_time_us(extents, tile, needs[tile], device))
    return tuple(fitting[:MOST_TILES]), needs[fitting[0]]


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


def _tiles(extents: Extents, device: DeviceSpec) -> list[Configuration]:
    """The tiles that suit a product's extents, none much larger than it."""
    rows, columns, inner = (
        max(LEAST_SIDE, power_of_two(size))
        for size in (extents.rows, extents.columns, extents.inner)
    )
    if device.backend == "cpu":
        most = INTERPRETER_SIDE
        wide = columns if extents.held else min(columns, most)
        return [_configuration(min(rows, most), wide, min(inner, most), 4, 1)]
    found: dict[Configuration, None] = {}
    for high, wide, deep, warps, stages in tiles_of_rows(columns) if extents.held else _GPU_TILES:
        if extents.vector < ASYNCHRONOUS_BYTES:
            # Operands pass through registers: fewer of them at once.
            deep, stages = deep // 4, 2
        if device.backend == "hip":
            stages = 2  # one tile is multiplied while the next one is on its way
        tile = _configuration(
            min(high, rows),
            min(wide, columns),
            max(LEAST_SIDE, min(deep // extents.width, inner)),
            warps,
            stages,
        )
        found[tile] = None
    high, wide = extents.least
    whole = [t for t in found if t.block("MBLOCK") % high == t.block("NBLOCK") % wide == 0]
    if not whole:
        raise NoSpace(Reason.OTHER_SPACE, f"no tile of {high} rows and {wide} columns")
    return whole


def _configuration(rows: int, columns: int, inner: int, warps: int, stages: int) -> Configuration:
    blocks = (("MBLOCK", rows), ("NBLOCK", columns), ("KBLOCK", inner), ("GROUP", GROUP))
    return Configuration(blocks, num_warps=warps, num_stages=stages)


def needs_of_tile(extents: Extents, tile: Configuration, beside: int, device: DeviceSpec) -> Needs:
    """Registers, shared memory and occupancy of one tile."""
    if device.backend == "cpu":
        return Needs()  # the interpreter allocates nothing
    rows, columns, inner = (tile.block(name) for name in ("MBLOCK", "NBLOCK", "KBLOCK"))
    lane = rows * columns // (tile.num_warps * device.warp_size)
    elements = extents.lines(tile) * inner
    buffers = min(tile.num_stages, -(-extents.inner // inner))
    # Of what is read in halves, an element's own value and both halves are alive at once.
    values = extents.products if extents.least == (1, 1) else max(extents.products, 3)
    registers = BASE_REGISTERS + values * lane + beside * min(lane, 32) // 2
    if extents.held:
        registers += max(0, extents.held - extents.products) * lane + int(FOLDING * lane)
    if not _multiplies_from_shared(device):
        buffers = max(1, buffers - 1)
        registers += FRAGMENT_REGISTERS * extents.products
    if extents.vector < ASYNCHRONOUS_BYTES:
        # Each element is loaded by itself, by an address of its own.
        buffers = 1
        registers += UNALIGNED_WORDS * elements // (tile.num_warps * device.warp_size)
    # Results are dealt out anew before they are stored, through the memory that the loop has left.
    shared = max(elements * extents.width * buffers, rows * columns * 2)
    return resident(min(registers, register_limit(tile, device) + 1), shared, tile, device)


def _multiplies_from_shared(device: DeviceSpec) -> bool:
    """Whether tensor cores read shared memory, where a tile then stays until it is multiplied."""
    return isinstance(device.architecture, int) and device.architecture >= 90


def tile_time_us(
    extents: Extents, tile: Configuration, needs: Needs, device: DeviceSpec, parts: int = 1
) -> float:
    """Microseconds that the processors multiply, and wait for L2 meanwhile."""
    tiles = parts * extents.tiles(tile)
    busy, waiting = work_of_tile(extents, tile, device, parts)
    if device.backend == "cpu":
        return 1e6 * busy * tiles
    each = -(-tiles // device.processors)
    together = max(1, min(needs.blocks_per_processor, each))
    return 1e6 * (-(-each // together) * max(waiting, together * busy) + LATENCY_S)


def work_of_tile(
    extents: Extents, tile: Configuration, device: DeviceSpec, parts: int = 1
) -> tuple[float, float]:
    """Seconds that one tile keeps a processor busy, and at least takes from its start to its end: a
    step waits for what was asked for some steps ago, while other tiles multiply."""
    steps = -(-extents.inner // (parts * tile.block("KBLOCK")))
    inner = steps * tile.block("KBLOCK")
    flops = 2 * tile.block("MBLOCK") * tile.block("NBLOCK") * inner * extents.products
    moved = extents.lines(tile) * inner * extents.width
    busy = max(flops / _rate(extents, device), moved / (FEED * device.l2_rate)) * device.processors
    return busy, steps * LATENCY_S / max(1, tile.num_stages - 1)


def _rate(extents: Extents, device: DeviceSpec) -> float:
    """Operations a second of a generated product."""
    if device.backend == "cpu":
        return device.tensor_rate
    if extents.precision == "ieee":
        return device.vector_rate * VECTOR_EFFICIENCY
    return device.tensor_rate * EFFICIENCY / (2 if extents.precision == "tf32" else 1)


def _cost(
    graph: Graph,
    ops: Sequence[Op],
    space: Space,
    found: Sequence[Access],
    extents: Extents,
    tile: Configuration,
    needs: Needs,
    device: DeviceSpec,
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
    time_us = library_us if len(ops) == 1 else tile_time_us
    multiply_us = time_us(extents, tile, needs, device)
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


def library_us(extents: Extents, tile: Configuration, needs: Needs, device: DeviceSpec) -> float:
    """The library's time: where tiles are few, it has several programs share an inner axis."""
    tiles = extents.tiles(tile)
    shares = [parts for parts in (1, 2, 4, 8) if parts == 1 or tiles * parts <= device.processors]
    best = min(tile_time_us(extents, tile, needs, device, parts) for parts in shares)
    if extents.precision == "ieee" and device.backend != "cpu":
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
