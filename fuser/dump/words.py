"""Amounts and needs in words, the same in each form of a plan that people read.

In: numbers, what a region is predicted to need, and what its kernels compiled to. Out: short texts.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.ir.kernel import Configuration, Resources
from fuser.ir.region import Needs

WIDTH = 100
"""Columns that every text for a terminal fits."""


def byte_text(count: int) -> str:
    """A number of bytes in decimal units, as the rates of devices are given."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            amount = count / factor
            digits = 2 if amount < 9.995 else 1 if amount < 99.95 else 0
            return f"{amount:.{digits}f} {unit}"
    return f"{count} B"


def time_text(microseconds: float) -> str:
    """A predicted time in the unit that suits it."""
    for unit, factor in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= factor:
            return f"{microseconds / factor:.2f} {unit}"
    return f"{microseconds:.1f} us"


def count_text(number: int, noun: str, plural: str = "") -> str:
    """A number of things, with the plural where it is due."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or f'{noun}s'}"


def share_text(fraction: float) -> str:
    """A fraction in percent."""
    return f"{100 * fraction:.0f}%"


def block_text(blocks: Sequence[tuple[str, int]], warps: int) -> str:
    """The sizes of a tile and the warps that work on it."""
    sizes = " ".join(f"{name}={size}" for name, size in blocks)
    return f"{sizes}, {count_text(warps, 'warp')}"


def tiles_text(tiles: Sequence[Configuration]) -> str:
    """The tile of each kernel of a region, in launch order."""
    return ", then ".join(block_text(tile.blocks, tile.num_warps) for tile in tiles)


def resources_text(found: Resources) -> str:
    """What a kernel compiled to."""
    spilled = f"{found.spills} spilled" if found.spills else "none spilled"
    return f"{found.registers} registers, {spilled}, {byte_text(found.shared_bytes)} shared memory"


def registers_text(needs: Needs, found: Resources | None) -> str:
    """Registers of a thread: predicted, and beside that those of the compiled kernels."""
    predicted = f"{needs.registers} predicted"
    if found is None:
        return predicted
    return f"{predicted}, {found.registers} compiled, {found.spills} spilled"


def shared_text(needs: Needs, found: Resources | None) -> str:
    """Shared memory of a block: predicted, and beside that what was compiled."""
    predicted = f"{byte_text(needs.shared_bytes)} predicted"
    return predicted if found is None else f"{predicted}, {byte_text(found.shared_bytes)} compiled"


def needs_text(needs: Needs, found: Resources | None = None) -> tuple[str, ...]:
    """What the largest kernel of a region takes up: registers, shared memory, occupancy."""
    return (
        f"registers {registers_text(needs, found)}",
        f"shared memory {shared_text(needs, found)}",
        f"occupancy {share_text(needs.occupancy)} predicted",
    )
