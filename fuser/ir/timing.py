"""What was measured of kernels before: the contract between tuning and the place it is kept in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fuser.ir.kernel import KernelSpec


@dataclass(frozen=True)
class Memory:
    """What was measured, by a digest of the kernel and of all that its time depends on."""

    read: Callable[[str], str | None]
    write: Callable[[str, str], None]
    context: str
    """The GPU and the versions of what compiles for it."""

    def key(self, spec: KernelSpec, hints: Mapping[str, int]) -> str:
        # Unknown sizes count by their magnitude.
        sizes = {name: size.bit_length() for name, size in sorted(hints.items())}
        tiles = [str(tile) for tile in spec.configurations]
        text = json.dumps([spec.key, sizes, tiles, self.context])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def recall(self, key: str, count: int) -> list[float | None] | None:
        """The times of each candidate, None where they are not known or not readable."""
        text = self.read(key)
        try:
            found = json.loads(text) if text is not None else None
        except ValueError:
            return None
        if not isinstance(found, list) or len(found) != count:
            return None
        if not all(time is None or isinstance(time, float) for time in found):
            return None
        return found
