"""What a suite is asked to do: which rows, which candidates, where the result goes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.results import COMMAND
from fuser.errors import UsageError

Item = TypeVar("Item")


@dataclass(frozen=True)
class Request:
    """`only` is searched in the names of rows; `commit` replaces what Git says."""

    suite: str
    only: re.Pattern[str]
    precisions: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    output: str | None = None
    commit: str = ""

    def selected(self, names: Sequence[str]) -> list[str]:
        """The names that match; a usage error lists them all where none does."""
        found = [name for name in names if self.only.search(name)]
        if not found:
            message = f"--only {self.only.pattern}: no row has such a name: {', '.join(names)}."
            raise UsageError(message=message, command=f"{COMMAND} {self.suite}")
        return found
