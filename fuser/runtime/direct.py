"""Launching a compiled kernel without what Triton does before it launches.

In: a kernel that Triton has compiled and loaded, and what its first launch is given. Out: what
later launches hand to Triton's own launcher (`CompiledKernel.run`), or in Triton 3.6 to the C
function below it. These interfaces are private: where they are not as known from Triton 3.6 and
3.7, each launch goes through Triton instead, and is counted with the reason.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

import triton

from fuser.log import get_logger

__all__ = ["HOOKED", "Grid", "LaunchCounts", "Variant", "first_launch", "has_hooks"]

Grid: TypeAlias = tuple[int, int, int]

HOOKED = "Triton has launch hooks, as of a profiler"
"""Why a launch goes through Triton although it need not."""

_LAUNCHER_STARTS_WITH = ("gridx", "gridy", "gridz", "stream", "function")
_PARAMETERS_3_6 = ("gridX", "gridY", "gridZ", "stream", "function")
_LEADING = 9
"""Grid, stream, function, metadata, launch metadata and two hooks come before the arguments."""
_NO_HOOKS = (None, None, None)


@dataclass
class LaunchCounts:
    """How the kernels of one executable are launched; the only thing here that changes."""

    direct: int = 0
    """Compiled variants of kernels that are launched directly."""
    indirect: Counter[str] = field(default_factory=Counter)
    """Launches that went through Triton, by the reason."""


class Variant(NamedTuple):
    """A compiled kernel as the launch functions of `fuser.runtime.kernel` unpack it.

    `run(x, y, z, stream, *head, *addresses_and_sizes, *tail)` launches it.
    """

    run: Callable[..., None]
    head: tuple[Any, ...]
    tail: tuple[Any, ...]


class _ThroughTriton:
    """Launches the way Triton documents."""

    def __init__(self, compiled: Any, reason: str, counts: LaunchCounts) -> None:
        self.compiled = compiled
        self.reason = reason
        self.counts = counts

    def __call__(self, x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
        self.counts.indirect[self.reason] += 1
        self.compiled[(x, y, z)](*arguments, stream=stream)


_holder = getattr(getattr(triton, "knobs", None), "runtime", None)


def has_hooks() -> bool:
    """Whether launches have to go through Triton, for its hooks to be called.

    Where hooks are not as known from Triton 3.6 and 3.7, they are left to Triton, too.
    """
    try:
        return bool(_holder.launch_enter_hook.calls or _holder.launch_exit_hook.calls)  # type: ignore[union-attr]
    except AttributeError:
        return True


def _hooks(compiled: Any, grid: Grid, stream: int, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """What Triton passes to its launcher for hooks: their argument, and the two of them."""
    enter, leave = (getattr(_holder, f"launch_{when}_hook", None) for when in ("enter", "exit"))
    if not any(getattr(hook, "calls", hook) for hook in (enter, leave)):
        return _NO_HOOKS
    return compiled.launch_metadata(grid, stream, *arguments), enter, leave


def first_launch(
    compiled: Any,
    constants: tuple[Any, ...],
    counts: LaunchCounts,
    grid: Grid,
    stream: int,
    addresses: Sequence[Any],
) -> tuple[Variant, Variant]:
    """Launch a loaded kernel for the first time; returns how to do so again, and how with hooks.

    Launched directly, if Triton's launcher takes its arguments as expected: what it refuses it
    has not launched, so that going through Triton after that launches once.
    """
    arguments = (*addresses, *constants)
    reason = ""
    for find in (_c_function, _launcher):
        try:
            run, head = find(compiled)
            hooks = _hooks(compiled, grid, stream, arguments)
            run(*grid, stream, *head, *hooks, *arguments)
        except _NotAsKnown as unknown:
            reason = str(unknown)
        except (TypeError, AttributeError) as error:
            reason = f"Triton's launcher refused its arguments: {error}"
        else:
            counts.direct += 1
            hooked = _ThroughTriton(compiled, HOOKED, counts)
            return Variant(run, (*head, *_NO_HOOKS), constants), Variant(hooked, (), constants)
    get_logger("runtime.direct").info("launches go through Triton: %s", reason)
    through = _ThroughTriton(compiled, reason, counts)
    through(*grid, stream, *arguments)
    return Variant(through, (), constants), Variant(through, (), constants)


class _NotAsKnown(Exception):
    """What makes a kernel of Triton's another one than those that can be launched directly."""


Way: TypeAlias = tuple[Callable[..., None], tuple[Any, ...]]
"""What to call, and what comes between the stream and the hooks."""


def _launcher(compiled: Any) -> Way:
    """Triton's launcher, with handle and metadata of the kernel."""
    try:
        run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    except AttributeError as error:
        raise _NotAsKnown(f"Triton's kernel is not as expected: {error}") from error
    if not isinstance(function, int) or not function:
        raise _NotAsKnown(f"Triton's kernel has {function!r} for a handle")
    try:
        names = list(inspect.signature(run).parameters)
        inspect.signature(run).bind(*range(_LEADING + 1))
    except (TypeError, ValueError) as error:
        raise _NotAsKnown(f"Triton's launcher is called otherwise: {error}") from error
    if tuple(map(str.lower, names[: len(_LAUNCHER_STARTS_WITH)])) != _LAUNCHER_STARTS_WITH:
        raise _NotAsKnown(f"Triton's launcher takes {', '.join(names)}")
    return run, (function, metadata)


def _c_function(compiled: Any) -> Way:
    """The C function below Triton 3.6's launcher for NVIDIA.

    For a kernel without scratch memory the launcher does nothing but call it, with two flags and
    two empty places for that memory.
    """
    launcher, (function, metadata) = _launcher(compiled)
    kind = type(launcher)
    names = tuple(inspect.signature(launcher).parameters)
    is_known = kind.__name__ == "CudaLauncher" and names == (*_PARAMETERS_3_6, "args")
    if not is_known or not triton.__version__.startswith("3.6."):
        raise _NotAsKnown(f"{kind.__name__} of Triton {triton.__version__}")
    called: Any = launcher
    scratch = (called.global_scratch_size, called.profile_scratch_size)
    # For tensor descriptors it is a function of Python that unpacks them.
    if scratch != (0, 0) or isinstance(called.launch, FunctionType):
        raise _NotAsKnown("a kernel with scratch memory or tensor descriptors")
    flags = (called.launch_cooperative_grid, called.launch_pdl)
    return called.launch, (function, *flags, None, None, metadata)
