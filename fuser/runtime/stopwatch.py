"""Times of kernels on the GPU that is present, on tensors of their own.

In: kernels with one configuration each, and the types of the graph's values. Out: microseconds for
each, None where it spills, does not compile or does not fit into free memory. Tensors hold zeros,
which are valid positions too; the L2 cache is cold for every launch. Kernels that compute the same
share their tensors, and the repetitions of all go round in turn, so that a change of clocks meets
them alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import triton
from torch.utils._python_dispatch import _disable_current_modes

from fuser.errors import FuserError
from fuser.ir.dim import evaluate
from fuser.ir.graph import TensorType
from fuser.ir.kernel import KernelSpec, Resources
from fuser.ir.timing import Memory
from fuser.log import get_logger
from fuser.runtime.cache import folder, read_trusted, write_atomically
from fuser.runtime.launcher import Launcher
from fuser.runtime.offline import compile_many

FLUSH_BYTES = 256 << 20
"""More than any L2 cache holds."""

REPETITIONS = 9

TUNED = "tuned"
"""The folder of results in the cache."""


def tuning_memory() -> Memory:
    """What this GPU and these versions have measured before, in the cache folder."""
    name = torch.cuda.get_device_name()
    context = f"{name}, torch {torch.__version__}, triton {triton.__version__}"

    def read(key: str) -> str | None:
        data = read_trusted(folder(TUNED) / f"{key}.json")
        return data.decode(errors="replace") if data is not None else None

    def write(key: str, text: str) -> None:
        try:
            write_atomically(folder(TUNED) / f"{key}.json", text.encode())
        except OSError as error:
            get_logger("runtime.stopwatch").info("%s not stored: %s", key, error)

    return Memory(read, write, context)


def measure(
    specs: Sequence[KernelSpec],
    types: Mapping[str, TensorType],
    hints: Mapping[str, int],
    target: str,
) -> list[float | None]:
    """The median microseconds of each kernel on the current GPU."""
    # Plans are made while tensors are traced: what is timed has to be real.
    with _disable_current_modes():
        return _measure(specs, types, hints, target)


def _measure(
    specs: Sequence[KernelSpec],
    types: Mapping[str, TensorType],
    hints: Mapping[str, int],
    target: str,
) -> list[float | None]:
    needs = compile_many(specs, target, hints)
    times: list[float | None] = [None] * len(specs)
    by_key: dict[str, list[int]] = {}
    for position, (spec, need) in enumerate(zip(specs, needs, strict=True)):
        if isinstance(need, Resources) and not need.spills:
            by_key.setdefault(spec.key, []).append(position)
    if not by_key:
        return times
    device = torch.device("cuda", torch.cuda.current_device())
    flushed = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
    for positions in by_key.values():
        try:
            found = _times([specs[k] for k in positions], types, hints, device, flushed)
        except (FuserError, RuntimeError) as error:
            get_logger("runtime.stopwatch").info("%s: %s", specs[positions[0]].name, error)
            continue
        for position, time in zip(positions, found, strict=True):
            times[position] = time
    return times


def _times(
    specs: Sequence[KernelSpec],
    types: Mapping[str, TensorType],
    hints: Mapping[str, int],
    device: torch.device,
    flushed: torch.Tensor,
) -> list[float]:
    """Of kernels with the same arguments."""
    arguments = _arguments(specs[0], types, hints, device)
    symbols = tuple(hints)
    calls: list[Callable[[], Any]] = []
    for spec in specs:
        launcher = Launcher(spec, device, symbols)
        calls.append(partial(launcher, *arguments, *hints.values()))
    for call in calls:
        call()
    return in_turns(calls, flushed, REPETITIONS)


def in_turns(calls: Sequence[Callable[[], Any]], flushed: torch.Tensor, turns: int) -> list[float]:
    """The median microseconds of each call on the current stream, all in turn, each after writing
    `flushed`, which leaves nothing else in L2."""
    measured: list[list[float]] = [[] for _ in calls]
    for _ in range(turns):
        for call, found in zip(calls, measured, strict=True):
            start, end = (_event(), _event())
            flushed.zero_()
            start.record()
            call()
            end.record()
            end.synchronize()
            found.append(start.elapsed_time(end) * 1e3)
    return [statistics.median(found) for found in measured]


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _arguments(
    spec: KernelSpec,
    types: Mapping[str, TensorType],
    hints: Mapping[str, int],
    device: torch.device,
) -> list[Any]:
    """A tensor of zeros for every buffer, and the sizes."""
    found: list[Any] = []
    free, _ = torch.cuda.mem_get_info(device)
    for argument in spec.arguments:
        if argument.kind == "size":
            found.append(evaluate(argument.size, hints))
            continue
        dtype = getattr(torch, argument.dtype.value)
        if argument.kind == "workspace":
            shape, stride = [evaluate(argument.size, hints)], [1]
        else:
            shape, stride = layout_of(types[argument.name], hints)
        free -= max(_extent(shape, stride), 0) * dtype.itemsize
        if free < FLUSH_BYTES:
            raise RuntimeError("too little free memory to measure this kernel")
        found.append(zeros(shape, stride, dtype, device))
    return found


def layout_of(kind: TensorType, hints: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Shape and strides, with hints for unknown sizes."""
    return (
        [evaluate(size, hints) for size in kind.shape],
        [evaluate(step, hints) for step in kind.stride],
    )


def zeros(
    shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A tensor of zeros in a given layout, also one in which elements share memory. Without
    elements it is one zero: kernels are given its address."""
    storage = torch.zeros(max(_extent(shape, stride), 1), dtype=dtype, device=device)
    return storage if 0 in shape else storage.as_strided(shape, stride)


def _extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if shape else 1
