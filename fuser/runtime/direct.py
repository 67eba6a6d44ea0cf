"""Launching a compiled kernel without what Triton does before it launches.

In: a kernel that Triton has compiled and loaded, and what its first launch is given. Out: what
later launches hand to Triton's own launcher (`CompiledKernel.run`). That interface is private:
where it is not as known from Triton 3.6 and 3.7, each launch goes through Triton instead, and is
counted with the reason.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import triton

from fuser.log import get_logger

__all__ = ["HOOKED", "Grid", "LaunchCounts", "Variant", "first_launch", "hook_holder"]

Grid: TypeAlias = tuple[int, int, int]

HOOKED = "Triton has launch hooks, as of a profiler"
"""Why a launch goes through Triton although it need not."""

_LAUNCHER_STARTS_WITH = ("gridx", "gridy", "gridz", "stream", "function")
_LEADING = 9
"""Grid, stream, function, metadata, launch metadata and two hooks come before the arguments."""


@dataclass
class LaunchCounts:
    """How the kernels of one executable are launched; the only thing here that changes."""

    direct: int = 0
    """Compiled variants of kernels that are launched directly."""
    indirect: Counter[str] = field(default_factory=Counter)
    """Launches that went through Triton, by the reason."""


class Variant(NamedTuple):
    """A compiled kernel as the launch functions of `fuser.runtime.kernel` unpack it.

    `run(x, y, z, stream, function, metadata, None, None, None, *addresses, *constants)` launches
    it; `hooked`, called alike, does so through Triton and calls Triton's launch hooks.
    """

    run: Callable[..., None]
    function: Any
    metadata: Any
    constants: tuple[Any, ...]
    hooked: Callable[..., None]


class _ThroughTriton:
    """Launches the way Triton documents, called like Triton's private launcher."""

    def __init__(self, compiled: Any, reason: str, counts: LaunchCounts) -> None:
        self.compiled = compiled
        self.reason = reason
        self.counts = counts

    def __call__(self, x: int, y: int, z: int, stream: int, *rest: Any) -> None:
        self.counts.indirect[self.reason] += 1
        self.compiled[(x, y, z)](*rest[_LEADING - 4 :], stream=stream)


def hook_holder() -> Any:
    """What has Triton's hooks in `launch_enter_hook.calls` and `launch_exit_hook.calls`.

    Where there is no such list, a launch cannot know and leaves hooks to Triton.
    """
    return getattr(getattr(triton, "knobs", None), "runtime", None)


def _hooks(compiled: Any, grid: Grid, stream: int, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """What Triton passes to its launcher for hooks: their argument, and the two of them."""
    holder = hook_holder()
    enter, leave = (getattr(holder, f"launch_{when}_hook", None) for when in ("enter", "exit"))
    if not any(getattr(hook, "calls", hook) for hook in (enter, leave)):
        return None, None, None
    return compiled.launch_metadata(grid, stream, *arguments), enter, leave


def first_launch(
    compiled: Any,
    constants: tuple[Any, ...],
    counts: LaunchCounts,
    grid: Grid,
    stream: int,
    addresses: Sequence[Any],
) -> Variant:
    """Launch a loaded kernel for the first time; returns how to do so again.

    Launched directly, if Triton's launcher takes its arguments as expected: what it refuses it
    has not launched, so that going through Triton after that launches once.
    """
    arguments = (*addresses, *constants)
    parts = _parts(compiled)
    if not isinstance(parts, str):
        run, function, metadata = parts
        try:
            hooks = _hooks(compiled, grid, stream, arguments)
            run(*grid, stream, function, metadata, *hooks, *arguments)
        except (TypeError, AttributeError) as error:
            parts = f"Triton's launcher refused its arguments: {error}"
        else:
            counts.direct += 1
            hooked = _ThroughTriton(compiled, HOOKED, counts)
            return Variant(run, function, metadata, constants, hooked)
    get_logger("runtime.direct").info("launches go through Triton: %s", parts)
    through = _ThroughTriton(compiled, parts, counts)
    through(*grid, stream, None, None, None, None, None, *arguments)
    return Variant(through, None, None, constants, through)


def _parts(compiled: Any) -> tuple[Callable[..., None], int, Any] | str:
    """Launcher, handle and metadata of a kernel, or why it cannot be launched directly."""
    try:
        run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    except AttributeError as error:
        return f"Triton's kernel is not as expected: {error}"
    if not isinstance(function, int) or not function:
        return f"Triton's kernel has {function!r} for a handle"
    try:
        names = list(inspect.signature(run).parameters)
        inspect.signature(run).bind(*range(_LEADING + 1))
    except (TypeError, ValueError) as error:
        return f"Triton's launcher is called otherwise: {error}"
    if tuple(map(str.lower, names[: len(_LAUNCHER_STARTS_WITH)])) != _LAUNCHER_STARTS_WITH:
        return f"Triton's launcher takes {', '.join(names)}"
    return run, function, metadata
