"""Ways of computing the same, raced on the GPU that is present.

In: ways, each a list of kernels and original calls. Out: microseconds of each, None where one
cannot be used. A way is replayed as a CUDA graph, so that what starting it costs the host does not
count; L2 is cold at its start, and between its steps as warm as they leave it. The ways take turns,
so that a change of clocks meets them alike. Floating-point tensors hold random numbers, because
zeros are multiplied at a higher clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fuser.ir.dim import evaluate
from fuser.ir.graph import Graph, Op, TensorType
from fuser.ir.kernel import KernelSpec
from fuser.log import get_logger
from fuser.runtime.launcher import Launcher
from fuser.runtime.stopwatch import FLUSH_BYTES, in_turns, layout_of, zeros
from fuser.runtime.unfused import run_ops

TURNS = 15

Step = Callable[[], None]


class Way(Protocol):
    """Kernels and calls of a graph, in order."""

    @property
    def graph(self) -> Graph: ...
    @property
    def steps(self) -> Sequence[KernelSpec | Op]: ...


def race(ways: Sequence[Way]) -> list[float | None]:
    """The median microseconds of each way on the current GPU."""
    # Plans are made while tensors are traced: what is timed has to be real.
    with _disable_current_modes():
        replays = [_replay_or_none(way) for way in ways]
        entered = [replay for replay in replays if replay is not None]
        if not entered:
            return [None for _ in ways]
        flushed = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        times = iter(in_turns(entered, flushed, TURNS))
        return [None if replay is None else next(times) for replay in replays]


@dataclass(frozen=True, slots=True)
class _Replay:
    """A captured way. Its steps own the tensors that the graph reads and writes: while it can be
    replayed no one else may be given their memory."""

    graph: torch.cuda.CUDAGraph
    steps: Sequence[Step]

    def __call__(self) -> None:
        self.graph.replay()


def _replay_or_none(way: Way) -> _Replay | None:
    try:
        return _replay(way)
    except Exception as error:
        # Whatever a way lacks, the plan is right without it.
        get_logger("runtime.race").warning("not measured: %s", error)
        return None


def _replay(way: Way) -> _Replay:
    """What computes the way once, as a CUDA graph."""
    device = torch.device("cuda", torch.cuda.current_device())
    tensors = _tensors(way.graph, device)
    steps = [_step(way.graph, step, tensors, device) for step in way.steps]
    # Compiles kernels, and has libraries allocate what they need.
    for step in steps:
        step()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for step in steps:
            step()
    return _Replay(graph, steps)


def _step(
    graph: Graph, step: KernelSpec | Op, tensors: dict[str, torch.Tensor], device: torch.device
) -> Step:
    hints = graph.hints
    if isinstance(step, Op):
        return lambda: run_ops(graph, [step.name], tensors, hints)
    launcher = Launcher(step, device, tuple(hints))
    scratch = {
        argument.name: torch.empty(
            evaluate(argument.size, hints), dtype=_dtype(argument.dtype.value), device=device
        )
        for argument in step.arguments
        if argument.kind == "workspace"
    }

    def launch() -> None:
        arguments: list[Any] = []
        for argument in step.arguments:
            if argument.kind == "size":
                arguments.append(evaluate(argument.size, hints))
            else:
                arguments.append(scratch.get(argument.name, tensors.get(argument.name)))
        launcher(*arguments, *hints.values())

    return launch


def _tensors(graph: Graph, device: torch.device) -> dict[str, torch.Tensor]:
    """A tensor for each value that is not the result of a call."""
    free, _ = torch.cuda.mem_get_info(device)
    if free < sum(graph.bytes_of.values()) + FLUSH_BYTES:
        raise RuntimeError("too little free memory to measure this region")
    called = {value.name for op in graph.ops if op.is_opaque for value in op.results}
    return {
        name: _filled(value.type, graph.hints, device)
        for name, value in graph.values.items()
        if name not in called
    }


def _filled(kind: TensorType, hints: Mapping[str, int], device: torch.device) -> torch.Tensor:
    shape, stride = layout_of(kind, hints)
    tensor = zeros(shape, stride, _dtype(kind.dtype.value), device)
    if kind.dtype.is_float and not kind.dtype.is_float8:
        # Elements may share memory: what is filled is what they lie in.
        torch.as_strided(
            tensor, (tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,)
        ).normal_()
    return tensor


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name)  # type: ignore[no-any-return]
