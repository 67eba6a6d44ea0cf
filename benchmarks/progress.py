"""Progress of a suite: a bar on a terminal, finished rows as lines on standard output.

In: the number of rows. Out: a `Progress` to be told what runs and what is done. Without a terminal
there is no bar, and lines are written as they come, so a log shows how far a run got.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """`now(text)` says what runs; `done(line)` prints a finished row and counts it."""

    now: Callable[[str], None]
    done: Callable[[str], None]


@contextlib.contextmanager
def progress(rows: int) -> Iterator[Progress]:
    if not sys.stderr.isatty():
        yield Progress(lambda text: None, lambda line: print(line, flush=True))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    # Rows go above the bar where both are on the terminal, and stay out of it where they are not.
    settings = {"transient": True, "redirect_stdout": sys.stdout.isatty()}
    with Bar(*columns, console=Console(stderr=True), **settings) as bar:
        task = bar.add_task("", total=rows)

        def done(line: str) -> None:
            print(line, flush=True)
            bar.advance(task)

        yield Progress(lambda text: bar.update(task, description=text), done)
