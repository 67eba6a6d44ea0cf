"""How a compiled kernel is launched: by the call that Triton's own launcher ends in.

In: a kernel that Triton compiled. Out: that call, found by letting Triton's Python code make it on
marks in the place of arguments and writing down what it passes. So nothing is assumed about the
order, which differs between versions of Triton, and no launch runs that Python code again. A
Triton whose calls have another form is used as it is, which takes some microseconds more for each
launch; so is every Triton while a profiler listens to launches.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton

from fuser.log import warn_once

__all__ = ["ENTER", "HOOKS", "LEAVE", "PACKS", "Bound", "direct", "through_triton"]

HOOKS = triton.knobs.runtime
ENTER = HOOKS.launch_enter_hook
LEAVE = HOOKS.launch_exit_hook
"""Chains whose `calls` are empty while nobody listens; `HOOKS` says whether they are still used."""

_CAN_TELL = hasattr(ENTER, "calls") and hasattr(LEAVE, "calls")
_GRID = (2, 3, 5)
_STREAM = 7


def _packs() -> bool:
    """Whether Triton's launcher hands over a kernel's arguments as one tuple (from 3.7 on)."""
    package, name = ("amd", "HIPLauncher") if torch.version.hip else ("nvidia", "CudaLauncher")
    try:
        launcher = getattr(importlib.import_module(f"triton.backends.{package}.driver"), name)
    except (ImportError, AttributeError):
        return False
    return "kernel_signature" in launcher.__call__.__code__.co_names


PACKS = _packs()


class Bound(NamedTuple):
    """`launch(x, y, z, stream, *before, *arguments)` launches a kernel; with `PACKS` the arguments
    are one tuple.

    The three numbers are the grid. Arguments are addresses and sizes, then something in the place
    of each compile-time argument.
    """

    launch: Callable[..., Any]
    before: tuple[Any, ...] = ()


def direct(kernel: Any, arguments: Sequence[Any], constants: Sequence[Any]) -> Bound:
    """The shortest way to launch `kernel`; nothing is launched here."""
    if _CAN_TELL and _calls_run_as_known(kernel, (*arguments, *constants)):
        return _driver_call(kernel, len(arguments) + len(constants)) or _run_call(kernel)
    warn_once(
        "indirect launches",
        f"Triton {triton.__version__} launches kernels in a way that fuser does not know; "
        "each launch takes the longer way through Triton and some microseconds more",
    )
    return through_triton(kernel, constants)


def through_triton(kernel: Any, constants: Sequence[Any]) -> Bound:
    """The same launch as Triton makes it, with its hooks."""
    constants = tuple(constants)
    end = -len(constants) or None

    def launch(x: int, y: int, z: int, stream: int, *given: Any) -> None:
        arguments = given[0] if PACKS else given
        kernel[(x, y, z)](*arguments[:end], *constants, stream=stream)

    return Bound(launch)


def _run_call(kernel: Any) -> Bound:
    """The launch by Triton's launcher object."""
    run = kernel.run
    before = (kernel.function, kernel.packed_metadata, None, None, None)
    if not PACKS:
        return Bound(run, before)
    return Bound(lambda x, y, z, stream, given: run(x, y, z, stream, *before, *given))


def _calls_run_as_known(kernel: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether Triton hands to `kernel.run` what `_run_call` does; a twin of the kernel sees it."""
    if not isinstance(getattr(type(kernel), "run", None), property) or "_run" not in vars(kernel):
        return False
    seen: list[tuple[Any, ...]] = []
    twin = copy.copy(kernel)
    twin._run = lambda *given: seen.append(given)
    try:
        twin[_GRID](*arguments, stream=_STREAM)
    except (TypeError, AttributeError):
        return False
    known = (*_GRID, _STREAM, kernel.function, kernel.packed_metadata)
    return len(seen) == 1 and (seen[0][:6], seen[0][9:]) == (known, arguments)


def _driver_call(kernel: Any, count: int) -> Bound | None:
    """The call of the driver's function that `kernel.run` makes, where it has the form of `Bound`.

    A twin of the launcher makes it on marks; one that allocates memory for each launch cannot.
    """
    if not hasattr(kernel.run, "launch"):
        return None
    marks = [object() for _ in range(4 + count)]
    seen: list[tuple[Any, ...]] = []
    twin = copy.copy(kernel.run)
    twin.launch = lambda *given: seen.append(given)
    before = (kernel.function, kernel.packed_metadata, None, None, None)
    try:
        twin(*marks[:4], *before, *marks[4:])
        (given,) = seen
        tail = [*given[-1]] if PACKS else [*given[-count:]]
    except (TypeError, AttributeError, ValueError):
        return None
    between = given[4:-1] if PACKS else given[4:-count]
    # Objects that are equal only to themselves: in order, and none of them elsewhere.
    if [*given[:4], *tail] != marks or any(part is mark for part in between for mark in marks):
        return None
    return Bound(kernel.run.launch, tuple(between))
