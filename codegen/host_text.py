"""Small pieces of a host program's text: names, tuples, literals, comments."""

from __future__ import annotations

import builtins
import keyword
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from fuser.ir.dim import Dim, python_text

RESERVED = frozenset(
    {
        "call",
        "inputs",
        "math",
        "torch",
        "as_strided",
        "empty_strided",
        "planned_layout",
        "current_gpu",
        "current_stream",
        "empty_on_gpu",
        "stream",
        "misaligned",
        "has_hooks",
        "call_hooked",
    }
)


class HostNames:
    """Gives every value, and every object that the text refers to, an identifier of its own."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.taken = {*RESERVED, *dir(builtins), *taken}
        self.values: dict[str, str] = {}
        self.bound: list[tuple[str, Any]] = []

    @property
    def bindings(self) -> tuple[tuple[str, Any], ...]:
        return tuple(self.bound)

    def value(self, name: str) -> str:
        """The identifier of the graph's value `name`."""
        if name not in self.values:
            self.values[name] = self.fresh(name)
        return self.values[name]

    def bind(self, wanted: str, target: Any) -> str:
        """The identifier of an object that the runtime puts beside the program."""
        for name, known in self.bound:
            if known is target:
                return name
        name = self.fresh(wanted)
        self.bound.append((name, target))
        return name

    def fresh(self, wanted: str) -> str:
        base = re.sub(r"\W", "_", wanted)
        if not base or base[0].isdigit() or keyword.iskeyword(base):
            base = f"v_{base}"
        name, count = base, 1
        while name in self.taken:
            count += 1
            name = f"{base}_at{count}"
        self.taken.add(name)
        return name


def tuple_text(dims: Sequence[Dim]) -> str:
    texts = [python_text(dim) for dim in dims]
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def literal_text(item: Any) -> str | None:
    """The text that evaluates to `item`, or None where it has none."""
    # Exactly these: an enum can be an `int` and has another text.
    if item is None or type(item) in (bool, int, str):
        return repr(item)
    if isinstance(item, float):
        if math.isfinite(item):
            return repr(item)
        return "math.nan" if math.isnan(item) else "math.inf" if item > 0 else "-math.inf"
    if isinstance(item, (torch.dtype, torch.layout, torch.memory_format)):
        return str(item)
    if isinstance(item, torch.device):
        return f"torch.device({str(item)!r})"
    return None


def with_comment(text: str, comment: object) -> str:
    return f"{text}  # {comment}"


def keyword_text(name: str, text: str) -> str:
    """A keyword argument; the names of some are words of Python."""
    return f"**{{{name!r}: {text}}}" if keyword.iskeyword(name) else f"{name}={text}"
