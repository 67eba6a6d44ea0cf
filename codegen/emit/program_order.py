"""Which programs of a shared kernel do the work of which region.

In: the finished kernels of the regions. Out: lines that a program runs first, where the programs of
each region end, and the program's numbers in the region's own grid. Regions come one after another,
but for products with tiles of one height: there each band of rows has the tiles of all of them,
which so find the rows in L2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch.utils._sympy.functions import FloorDiv

from fuser.codegen.axes import SizeArguments
from fuser.ir.dim import Dim, add, as_dim, is_equal, product
from fuser.ir.kernel import Configuration, GridAxis, KernelSpec


@dataclass(frozen=True, slots=True)
class ProgramOrder:
    """`number` is what a program compares with `ends`, in which each region has one; `numbers` are
    its numbers along each axis of the grid that a region's own kernel has."""

    lines: tuple[str, ...]
    number: str
    ends: tuple[str, ...]
    numbers: tuple[tuple[str, ...], ...]


def program_order(specs: Sequence[KernelSpec], sizes: SizeArguments) -> ProgramOrder:
    """The order of the programs of all kernels, each with its first configuration."""
    return _in_bands(specs, sizes) if _have_bands(specs) else _in_a_row(specs, sizes)


def programs_of(spec: KernelSpec) -> Dim:
    """How many programs a kernel has."""
    return product(_count(axis, spec.configurations[0]) for axis in spec.grid)


def _count(axis: GridAxis, configuration: Configuration) -> Dim:
    """The programs along one axis of a grid."""
    others = product(_count(other, configuration) for other in axis.times)
    if axis.block is None:
        return product((axis.size, others))
    block = configuration.block(axis.block)
    if isinstance(axis.size, int):
        return product((-(-axis.size // block), others))
    return product((as_dim(FloorDiv(add(axis.size, block - 1), block)), others))


def _count_text(axis: GridAxis, configuration: Configuration, sizes: SizeArguments) -> str:
    """The same as a kernel works it out from the sizes."""
    count = _count(axis, configuration)
    if isinstance(count, int):
        return sizes.text(count)
    own = sizes.text(axis.size)
    if axis.block is not None:
        own = f"tl.cdiv({own}, {configuration.block(axis.block)})"
    return " * ".join([own, *(_count_text(other, configuration, sizes) for other in axis.times)])


# One region after another -------------------------------------------------------------------------


def _in_a_row(specs: Sequence[KernelSpec], sizes: SizeArguments) -> ProgramOrder:
    lines: list[str] = []
    ends: list[str] = []
    numbers: list[tuple[str, ...]] = []
    for spec in specs:
        start = ends[-1] if ends else "0"
        numbers.append(_own_numbers(spec, start, sizes))
        programs = programs_of(spec)
        if isinstance(programs, int) and start.isdecimal():
            ends.append(str(int(start) + programs))
            continue
        tile = spec.configurations[0]
        counts = " * ".join(_count_text(axis, tile, sizes) for axis in spec.grid)
        ends.append(f"end_{len(ends)}")
        lines.append(f"{ends[-1]} = {start} + {counts}")
    return ProgramOrder(tuple(lines), "program", tuple(ends), tuple(numbers))


def _own_numbers(spec: KernelSpec, start: str, sizes: SizeArguments) -> tuple[str, ...]:
    """The numbers of a program along each axis of its own kernel's grid."""
    own = "program" if start == "0" else f"program - {start}"
    numbers: list[str] = []
    for axis in spec.grid[:-1]:
        count = _count_text(axis, spec.configurations[0], sizes)
        numbers.append(f"({own}) % {count}")
        own = f"({own}) // {count}"
    return (*numbers, own)


# Bands of rows ------------------------------------------------------------------------------------


def _have_bands(specs: Sequence[KernelSpec]) -> bool:
    """Whether all are products without a batch, with as many rows in tiles of one height."""
    rows: list[GridAxis] = []
    for spec in specs:
        if len(spec.grid) != 1 or len(spec.grid[0].times) != 2 or spec.grid[0].times[1].size != 1:
            return False
        rows.append(spec.grid[0])
    blocks = {tuple(s.configurations[0].block(b) for b in ("MBLOCK", "GROUP")) for s in specs}
    return len(blocks) == 1 and all(is_equal(axis.size, rows[0].size) for axis in rows)


def _in_bands(specs: Sequence[KernelSpec], sizes: SizeArguments) -> ProgramOrder:
    """A program's own kernel has it in the same band: there as well, tiles of `GROUP` rows of tiles
    follow each other."""
    tile, rows = specs[0].configurations[0], specs[0].grid[0]
    group = tile.block("GROUP")
    high = _count_text(GridAxis(rows.size, rows.block), tile, sizes)
    counts = [_count_text(s.grid[0].times[0], s.configurations[0], sizes) for s in specs]
    starts = ["0"]
    lines: list[str] = []
    for position, count in enumerate(counts):
        if count.isdecimal() and starts[-1].isdecimal():
            starts.append(str(int(starts[-1]) + int(count)))
        else:
            lines.append(f"columns_{position} = {starts[-1]} + {count}")
            starts.append(f"columns_{position}")
    lines += [
        f"# A band has {group} rows of tiles of each region, the last one those that are left.",
        f"band = program // ({group} * {starts[-1]})",
        f"high = tl.minimum({high} - {group} * band, {group})",
        f"within = program - {group} * band * {starts[-1]}",
    ]
    numbers: list[tuple[str, ...]] = []
    for count, start in zip(counts, starts, strict=False):
        before = f" - high * {start}" if start != "0" else ""
        count = count if count.isdecimal() else f"({count})"
        numbers.append((f"{group} * band * {count} + within{before}",))
    ends = [f"high * {end}" for end in starts[1:]]
    return ProgramOrder(tuple(lines), "within", tuple(ends), tuple(numbers))
