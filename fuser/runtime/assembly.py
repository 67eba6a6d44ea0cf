"""What NVIDIA's assembler gets wrong, seen in the text that it is given.

In: a compiled kernel. Out: nothing, or an error for one whose instructions cannot be relied on. A
pair of 16-bit integers in one register is such: where one half of a sum is used alone, ptxas 12.8
adds the other half's constant to it. LLVM makes pairs of indices that it knows to be small, and
drops what is not used, but for what only a load or a store uses that never runs: the assembler
alone sees that. It gave wrong elements on an H200.
"""

from __future__ import annotations

import re
from typing import Any

_PAIRED = re.compile(r"\b\w+(?:\.\w+)*\.[su]16x2\b")
_NEVER = re.compile(r"\bmov\.pred\s+%p\d+, 0;")


class UnreliableInstruction(Exception):
    """An instruction that the assembler is known to get wrong."""


def check_assembly(compiled: Any) -> None:
    """Raise `UnreliableInstruction` for a kernel that the assembler may get wrong."""
    text = compiled.asm.get("ptx", "")
    found = _PAIRED.search(text)
    if found is not None and _NEVER.search(text):
        raise UnreliableInstruction(
            f"{found[0]} beside what never runs is wrong as ptxas 12.8 assembles it"
        )
