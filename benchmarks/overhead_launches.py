"""The launches of a compiled program by themselves.

In: a program that fuser has compiled and a call of it. Out: the same launches, of the same kernels
on the same addresses, without anything around them; and how those of the program are made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.measure import Call
from fuser.driver import Compiled
from fuser.runtime.launcher import Launcher


def launchers(graphs: Sequence[Compiled]) -> list[Launcher]:
    """The launcher of each kernel of the graphs."""
    found: list[Launcher] = []
    for graph in graphs:
        if graph.executable is not None:
            found += [k for runner in graph.executable.steps.values() for k in runner.launchers]
    return found


def bare_launches(graphs: Sequence[Compiled], call: Call) -> tuple[Call, int]:
    """What launches the kernels that `call` launches, and their number.

    The addresses are those of one call. Its intermediate results are gone by then; their memory
    stays with PyTorch, so the launches are valid as long as nothing else is allocated.
    """
    recorded: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def recording(run: Callable[..., None]) -> Callable[..., None]:
        def record(*values: Any) -> None:
            recorded.append((run, values))
            run(*values)

        return record

    before = [(item, dict(item.variants)) for item in launchers(graphs)]
    for item, variants in before:
        for key, variant in variants.items():
            item.variants[key] = variant._replace(run=recording(variant.run))
    try:
        call()
    finally:
        for item, variants in before:
            item.variants.update(variants)

    def launch() -> None:
        for run, values in recorded:
            run(*values)

    return launch, len(recorded)


def indirect_launches(graphs: Sequence[Compiled]) -> dict[str, int]:
    """Launches that had to go through Triton, by the reason."""
    total: Counter[str] = Counter()
    for graph in graphs:
        if graph.executable is not None:
            total += graph.executable.counts.indirect
    return dict(total)
