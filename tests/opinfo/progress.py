"""Progress of a run: a bar on a terminal, and a line for each operator that is done."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from opinfo.cases import Task
from opinfo.check import FAILED, Outcome

Show = Callable[[Task, Sequence[Outcome]], None]


@contextlib.contextmanager
def progress(number: int) -> Iterator[Show]:
    """A function to be told of each finished task."""
    columns = (
        BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"),
    )  # fmt: skip
    is_shown = sys.stderr.isatty()
    settings = {"transient": True, "redirect_stdout": sys.stdout.isatty(), "disable": not is_shown}
    with Progress(*columns, console=Console(stderr=True), **settings) as bar:
        handle = bar.add_task("", total=number)

        def show(task: Task, found: Sequence[Outcome]) -> None:
            counts = Counter(outcome.status for outcome in found)
            text = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
            print(f"{task.operator} {task.dtype}: {text or 'no samples'}", flush=True)
            for outcome in found:
                if outcome.status == FAILED:
                    print(f"  {outcome.name}: {outcome.detail}", flush=True)
            bar.update(handle, description=task.operator, advance=1)

        yield show
