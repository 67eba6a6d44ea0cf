"""Deterministic names inside one kernel: values keep their graph names, copies get a number."""

from __future__ import annotations

import keyword
import re

RESERVED = frozenset({
    "x", "x_mask", "x_first", "x_start", "r", "r_mask", "r_start", "r_offset", "part", "part_size",
    "index", "m", "m_mask", "m_tile", "m_tiles", "n", "n_mask", "n_tile", "n_tiles", "tile", "o",
    "k_start", "ka", "ka_mask", "kb", "kb_mask", "tl", "fn", "triton", "float", "range",
})  # fmt: skip
"""Names that the templates and the expressions use."""

_AXIS = re.compile(r"([xrmno]|k[ab]|size_)\d+")


class Names:
    """Hands out identifiers; the same request twice gives two different ones."""

    def __init__(self) -> None:
        self.taken: set[str] = set(RESERVED)

    def fresh(self, wanted: str) -> str:
        base = re.sub(r"\W", "_", wanted)
        if not base or base[0].isdigit() or keyword.iskeyword(base) or _AXIS.fullmatch(base):
            base = f"v_{base}"
        name, count = base, 1
        while name in self.taken:
            count += 1
            name = f"{base}_at{count}"
        self.taken.add(name)
        return name
