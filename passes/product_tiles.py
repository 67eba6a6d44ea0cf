"""The tiles of products: what there is to try, what each takes up, and how long it takes.

In: the extents of a region's products. Out: tiles with registers, shared memory and predicted time.
There are two families of kernels. Both compute the same lines; one reads its operands by pointers
and has a program for each tile, the other reads them by tensor descriptors and has programs that
walk tiles, as many as run at once. A tile's time is the longer of what the tensor cores multiply
and what L2 serves; tiles run in rounds over the processors, so a last round that is not full costs
as much as a full one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fuser.device import DeviceSpec
from fuser.ir.kernel import Configuration
from fuser.ir.region import Needs, Reason, Schedule, Strategy
from fuser.passes.configurations import power_of_two
from fuser.passes.cost import LATENCY_S
from fuser.passes.resources import register_limit, resident
from fuser.passes.result_rows import FOLDING, tiles_of_rows
from fuser.passes.unify import NoSpace

VECTOR_EFFICIENCY = 0.3
"""Of the vector rate, what a generated product reaches without tensor cores."""

FEED = 1.7
"""Of the rate of L2 for elementwise work, what operands of products are served at: 8.9 TB/s were
seen on an H200."""

LEAST_SIDE = 16
"""The least side of a tile that tensor cores multiply."""

GROUP = 8
"""Tiles along the rows that run one after another, so that they share columns in L2."""

ASYNCHRONOUS_BYTES = 4
"""The least that is copied to shared memory without passing through registers."""

UNALIGNED_WORDS = 3
"""Registers of an element that is loaded by itself: its address, and what is loaded."""

FRAGMENT_REGISTERS = 64
"""Of each product, for the parts of operands that are multiplied next, where tensor cores read them
from registers."""

MOST_TILES = 5
"""Candidates that are kept."""

INTERPRETER_SIDE = 256

BARRIER_BYTES = 256
"""Of shared memory, beside tiles that descriptors copy: what says that they are there."""

HALVED_REGISTERS = 128
"""Sums of a lane from which they are worked on in halves after the loop: what follows them needs
registers of its own."""


@dataclass(frozen=True, slots=True)
class Family:
    """A way to write a product's kernel, with the tiles to try and what they reach."""

    strategy: Strategy
    tiles: tuple[tuple[int, int, int, int, int], ...]
    """Rows, columns, bytes along the inner axis, warps, stages."""
    least_side: int
    """Of a tile, however small the product."""
    efficiency: float
    """Of the data sheet's tensor rate, what large products reach."""
    base_registers: int
    """Of a kernel, apart from its tile."""
    start_s: float
    """Before the first tile can be asked for."""
    is_persistent: bool = False
    """Whether programs walk tiles, and work on large sums in halves."""


POINTERS = Family(
    Strategy.PRODUCT,
    (
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
    ),
    least_side=LEAST_SIDE,
    efficiency=0.72,  # 684 to 786 of 989 TFLOP/s on an H200
    base_registers=34,
    start_s=0.0,
)

DESCRIPTORS = Family(
    Strategy.DESCRIBED_PRODUCT,
    (
        (128, 256, 128, 8, 4),
        (256, 128, 128, 8, 4),
        (128, 256, 128, 8, 3),
        (256, 128, 128, 8, 3),
        (128, 128, 128, 8, 4),
        (128, 128, 128, 8, 3),
        (128, 128, 128, 4, 4),
        (128, 64, 128, 4, 4),
        (64, 128, 128, 4, 4),
        (64, 64, 128, 4, 4),
    ),
    least_side=64,
    # 764 of 989 TFLOP/s on an H200, where the library had 680: 8192 x 8192 x 8192, 128 x 256 tiles.
    efficiency=0.77,
    base_registers=52,
    start_s=LATENCY_S,  # a descriptor lies in memory and is fetched first
    is_persistent=True,
)


def family_of(schedule: Schedule) -> Family:
    """The family of a schedule of products."""
    return DESCRIPTORS if schedule.strategy is DESCRIPTORS.strategy else POINTERS


def families_of(device: DeviceSpec) -> tuple[Family, ...]:
    """The families that a device can run."""
    return (POINTERS, DESCRIPTORS) if device.has_descriptors else (POINTERS,)


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

    @property
    def has_free_tiles(self) -> bool:
        """Whether a tile's sums may be worked on in parts of any columns."""
        return not self.held and self.least == (1, 1)

    def tiles(self, tile: Configuration) -> int:
        """How many tiles of this kind the results have."""
        rows, columns = tile.block("MBLOCK"), tile.block("NBLOCK")
        return self.batch * -(-self.rows // rows) * -(-self.columns // columns)

    def lines(self, tile: Configuration) -> int:
        """Rows and columns of all operands of a tile, each of which runs along the inner axis."""
        along_rows, along_columns = self.sides
        return along_rows * tile.block("MBLOCK") + along_columns * tile.block("NBLOCK")


def best_tiles(
    extents: Extents, beside: int, device: DeviceSpec, family: Family, most_registers: int
) -> tuple[tuple[Configuration, ...], Needs]:
    """The tiles that fit, the fastest first, and the needs of that."""
    needs = {
        tile: needs_of_tile(extents, tile, beside, device, family)
        for tile in _tiles(extents, device, family)
    }
    limit = device.shared_bytes_per_block
    fitting = [
        tile
        for tile in needs
        if needs[tile].shared_bytes <= limit
        and needs[tile].registers <= min(most_registers, register_limit(tile, device))
    ] or list(needs)[-1:]
    fitting.sort(key=lambda tile: tile_time_us(extents, tile, needs[tile], device, family))
    kept = fitting[:MOST_TILES]
    return tuple(_programs(tile, needs[tile], device, family) for tile in kept), needs[fitting[0]]


def _programs(
    tile: Configuration, needs: Needs, device: DeviceSpec, family: Family
) -> Configuration:
    """The tile with as many programs as run at once, if they walk tiles."""
    if not family.is_persistent:
        return tile
    most = device.processors * needs.blocks_per_processor
    # Several tiles for a program also in the interpreter.
    programs = 2 if device.backend == "cpu" else most
    return replace(tile, blocks=(*tile.blocks, ("PROGRAMS", programs)))


def _tiles(extents: Extents, device: DeviceSpec, family: Family) -> list[Configuration]:
    """The tiles that suit a product's extents, none much larger than it."""
    least = family.least_side
    rows, columns = (max(least, power_of_two(n)) for n in (extents.rows, extents.columns))
    inner = max(LEAST_SIDE, power_of_two(extents.inner))
    if device.backend == "cpu":
        most = least if family.is_persistent else INTERPRETER_SIDE
        wide = columns if extents.held else min(columns, most)
        sides = min(rows, most), wide, min(inner, most)
        return [_configuration(extents, *sides, 4, 1, family)]
    found: dict[Configuration, None] = {}
    for high, wide, deep, warps, stages in tiles_of_rows(columns) if extents.held else family.tiles:
        if extents.vector < ASYNCHRONOUS_BYTES:
            # Operands pass through registers: fewer of them at once.
            deep, stages = deep // 4, 2
        if device.backend == "hip":
            stages = 2  # one tile is multiplied while the next one is on its way
        tile = _configuration(
            extents,
            min(high, rows),
            min(wide, columns),
            max(LEAST_SIDE, min(deep // extents.width, inner)),
            warps,
            stages,
            family,
        )
        found[tile] = None
    high, wide = extents.least
    whole = [t for t in found if t.block("MBLOCK") % high == t.block("NBLOCK") % wide == 0]
    if not whole:
        raise NoSpace(Reason.OTHER_SPACE, f"no tile of {high} rows and {wide} columns")
    return whole


def _configuration(
    extents: Extents, rows: int, columns: int, inner: int, warps: int, stages: int, family: Family
) -> Configuration:
    blocks = [("MBLOCK", rows), ("NBLOCK", columns), ("KBLOCK", inner), ("GROUP", GROUP)]
    if family.is_persistent:
        sums = extents.products * rows * columns // (warps * 32)
        blocks.append(("PARTS", 2 if sums >= HALVED_REGISTERS else 1))
    return Configuration(tuple(blocks), num_warps=warps, num_stages=stages)


def needs_of_tile(
    extents: Extents,
    tile: Configuration,
    beside: int,
    device: DeviceSpec,
    family: Family = POINTERS,
) -> Needs:
    """Registers, shared memory and occupancy of one tile."""
    if device.backend == "cpu":
        return Needs()  # the interpreter allocates nothing
    rows, columns, inner = (tile.block(name) for name in ("MBLOCK", "NBLOCK", "KBLOCK"))
    lane = rows * columns // (tile.num_warps * device.warp_size)
    elements = extents.lines(tile) * inner
    buffers = min(tile.num_stages, -(-extents.inner // inner))
    # Of what is read in halves, an element's own value and both halves are alive at once.
    values = extents.products if extents.least == (1, 1) else max(extents.products, 3)
    registers = family.base_registers + values * lane + beside * min(lane, 32) // 2
    if extents.held:
        registers += max(0, extents.held - values) * lane + int(FOLDING * lane)
    if not device.has_descriptors:
        buffers = max(1, buffers - 1)
        registers += FRAGMENT_REGISTERS * extents.products
    if extents.vector < ASYNCHRONOUS_BYTES:
        # Each element is loaded by itself, by an address of its own.
        buffers = 1
        registers += UNALIGNED_WORDS * elements // (tile.num_warps * device.warp_size)
    # Results are dealt out anew before they are stored, through the memory that the loop has left.
    shared = max(elements * extents.width * buffers, rows * columns * 2)
    if family.is_persistent:
        shared = _shared_of_described(extents, tile, elements * extents.width)
    return resident(min(registers, register_limit(tile, device) + 1), shared, tile, device)


def _shared_of_described(extents: Extents, tile: Configuration, step: int) -> int:
    """Shared memory where descriptors copy `step` bytes for each step of the inner axis."""
    rows, columns, inner = (tile.block(name) for name in ("MBLOCK", "NBLOCK", "KBLOCK"))
    steps = -(-extents.inner // inner)
    shared = step * min(tile.num_stages, steps) + BARRIER_BYTES
    if steps == 1:
        # The loop that loads ahead is then that over tiles, while results are dealt out as well.
        results = rows * columns // tile.block("PARTS") * 2
        shared = step * tile.num_stages + results + BARRIER_BYTES
    if extents.precision == "tf32":
        # Of 4-byte elements tensor cores read only what runs along the inner axis: what does not
        # is turned on the way.
        shared += 2 * max(rows, columns) * inner * extents.width
    return shared


def tile_time_us(
    extents: Extents,
    tile: Configuration,
    needs: Needs,
    device: DeviceSpec,
    family: Family = POINTERS,
    parts: int = 1,
) -> float:
    """Microseconds that the processors multiply, and wait for L2 meanwhile."""
    tiles = parts * extents.tiles(tile)
    busy, waiting = work_of_tile(extents, tile, device, family, parts)
    if device.backend == "cpu":
        return 1e6 * busy * tiles
    each = -(-tiles // device.processors)
    together = max(1, min(needs.blocks_per_processor, each))
    rounds = -(-each // together) * max(waiting, together * busy)
    return 1e6 * (rounds + LATENCY_S + family.start_s)


def work_of_tile(
    extents: Extents,
    tile: Configuration,
    device: DeviceSpec,
    family: Family = POINTERS,
    parts: int = 1,
) -> tuple[float, float]:
    """Seconds that one tile keeps a processor busy, and at least takes from its start to its end: a
    step waits for what was asked for some steps ago, while other tiles multiply."""
    steps = -(-extents.inner // (parts * tile.block("KBLOCK")))
    inner = steps * tile.block("KBLOCK")
    flops = 2 * tile.block("MBLOCK") * tile.block("NBLOCK") * inner * extents.products
    moved = extents.lines(tile) * inner * extents.width
    fed = moved / (FEED * device.l2_rate)
    busy = max(flops / _rate(extents, device, family), fed) * device.processors
    return busy, steps * LATENCY_S / max(1, tile.num_stages - 1)


def _rate(extents: Extents, device: DeviceSpec, family: Family) -> float:
    """Operations a second of a generated product."""
    if device.backend == "cpu":
        return device.tensor_rate
    if extents.precision == "ieee":
        return device.vector_rate * VECTOR_EFFICIENCY
    return device.tensor_rate * family.efficiency / (2 if extents.precision == "tf32" else 1)
