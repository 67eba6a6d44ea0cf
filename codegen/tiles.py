"""The tile variables of each kind of kernel, as the templates set them: `x`, and `r` beside it.

A body that needs another tile over the same elements, such as every fourth of them, writes it from
these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from fuser.ir.kernel import Configuration

__all__ = [
    "FLAT", "LOOPED", "PARTIAL", "ROW", "TILED", "VARIABLES", "WALKED",
    "Tile", "Tiles", "quartered",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tile:
    """One variable: its first element, the block it spans, and its axis of the kernel's tiles."""

    start: str
    block: str
    axis: int
    place: str

    def every(self, step: int) -> str:
        """The text of a tile with each `step`-th element, the first one included."""
        steps = f"{step} * tl.arange(0, {self.block} // {step}){self.place}"
        return f"({self.start} + {steps}).to(INDEX_TYPE)"


Tiles = Mapping[str, Tile]

VARIABLES = ("x", "m", "kb", "r", "n", "ka")
"""All tile variables, those along the first axis of a tile before those along the second."""


def _program(number: int, block: str) -> str:
    return f"tl.program_id({number}).to(INDEX_TYPE) * {block}"


def _two(x_start: str, r_start: str) -> Tiles:
    x = Tile(x_start, "XBLOCK", 0, "[:, None]")
    return MappingProxyType({"x": x, "r": Tile(r_start, "RBLOCK", 1, "[None, :]")})


FLAT: Tiles = MappingProxyType({"x": Tile(_program(0, "XBLOCK"), "XBLOCK", 0, "")})
TILED: Tiles = _two(_program(1, "XBLOCK"), _program(0, "RBLOCK"))
ROW: Tiles = _two(_program(0, "XBLOCK"), "0")
LOOPED: Tiles = _two(_program(0, "XBLOCK"), "r_start")
PARTIAL: Tiles = _two(_program(0, "XBLOCK"), "part * part_size + r_offset")
WALKED: Tiles = _two("x_start", "0")


def quartered(tiles: Tiles, configurations: Sequence[Configuration]) -> Tiles:
    """The tiles that have four elements in a row in every configuration."""
    return {
        name: tile
        for name, tile in tiles.items()
        if all(each.block(tile.block) % 4 == 0 for each in configurations)
    }
