"""Replay of a compiled graph's launches as a CUDA graph, for `mode="reduce-overhead"`.

In: the host program of a graph, and the graph. Out: a callable of the same convention that runs the
program twice, recording it the second time, and from then on replays the record; or the reason why
the program runs as it is. Memory, liveness and streams are those of PyTorch's CUDA graph trees, so
what `torch.compile(mode="reduce-overhead")` promises and asks for holds here too: results are
overwritten by the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._guards import TracingContext

from fuser.ir.dim import symbols_of
from fuser.ir.graph import Effect, Graph
from fuser.log import get_logger
from fuser.runtime.sizes import function_from

__all__ = ["MOST_SIZES", "Replay", "refusal", "replay"]

Runner: TypeAlias = Callable[[list[Any]], Any]

MOST_SIZES = 32
"""A graph is recorded for each set of sizes; calls with further ones are not replayed."""


@dataclass(frozen=True)
class Replay:
    """What runs in the place of a host program; `reason` says why it is not replayed."""

    run: Runner
    reason: str = ""

    @property
    def is_replayed(self) -> bool:
        return not self.reason


def replay(
    run: Runner,
    graph: Graph,
    module: fx.GraphModule,
    phase: str,
    constants: Sequence[torch.Tensor] = (),
    is_forward_replayed: bool = False,
) -> Replay:
    """`run` replayed where `refusal` has no objection.

    `module` is the graph as it was captured; call this while it is being compiled. A backward takes
    what its forward kept, so it is replayed only where the forward is.
    """
    reason = refusal(graph, module)
    if phase == "backward" and not is_forward_replayed:
        reason = reason or "its forward is not replayed"
    elif phase == "backward" and reason:
        run = _unrecorded_backward(run, _device_index(graph))
    if reason:
        return Replay(run, reason)
    return Replay(_Recorder(run, graph, module, phase, tuple(constants)))


def refusal(graph: Graph, module: fx.GraphModule) -> str:
    """Why the graph cannot be recorded, or nothing."""
    devices = {value.type.device for value in graph.values.values()}
    elsewhere = sorted(
        value.name
        for value in graph.values.values()
        if torch.device(value.type.device).type != "cuda"
    )
    if elsewhere:
        return f"it has tensors that are not on a GPU ({', '.join(elsewhere[:3])})"
    if len(devices) != 1:
        return f"it has tensors on {len(devices)} devices"
    written = _written_inputs(graph)
    if written:
        return f"an original call writes to its input {written[0]}"
    if any(item.value is None and item.number is None for item in graph.inputs):
        return "it has an input that is neither a tensor nor a size"
    if any(isinstance(output.number, float) for output in graph.outputs):
        return "it returns a float"
    from torch._inductor.utils import get_first_incompatible_cudagraph_node

    node = get_first_incompatible_cudagraph_node(module)
    return "" if node is None else f"{node.target} cannot be recorded"


def _written_inputs(graph: Graph) -> list[str]:
    inputs = {item.value.name for item in graph.inputs if item.value is not None}
    writers = (op for op in graph.ops if op.effect is Effect.BARRIER)
    return [a.value for op in writers for a in op.arguments if a.value in inputs]


class _Recorder:
    """Records the program for each set of sizes."""

    def __init__(
        self,
        run: Runner,
        graph: Graph,
        module: fx.GraphModule,
        phase: str,
        constants: tuple[torch.Tensor, ...],
    ) -> None:
        # Imported where a compilation needs it: it brings in most of Inductor.
        from torch._inductor.cudagraph_trees import cudagraphify_impl
        from torch._inductor.cudagraph_utils import get_placeholder_info
        from torch._inductor.utils import count_tangents

        self.program = run
        self.recording: Callable[..., Runner] = cudagraphify_impl
        self.name = graph.name
        self.size_key = _size_key(graph)
        if phase == "backward":
            # What the forward kept lies where its record put it; gradients come from anywhere.
            self.stable: Sequence[int] = range(count_tangents(module))
        else:
            self.stable = _parameters()
        self.facts: dict[str, Any] = {
            "device_index": _device_index(graph),
            "is_backward": phase == "backward",
            "is_inference": phase == "inference",
            "stack_traces": _stack_traces(module),
            "constants": constants,
            "placeholders": tuple(get_placeholder_info(module.graph)),
            "mutated_input_idxs": (),
        }
        self.by_sizes: dict[tuple[int, ...], Runner] = {}
        self.has_said_so = False
        self._boxed_call = True

    def __call__(self, inputs: list[Any]) -> Any:
        sizes = self.size_key(inputs)
        found = self.by_sizes.get(sizes)
        if found is None:
            found = self.recorded(sizes, inputs)
        return found(inputs)

    def recorded(self, sizes: tuple[int, ...], inputs: list[Any]) -> Runner:
        """The program for inputs of these sizes, to be recorded when it runs again."""
        if len(self.by_sizes) >= MOST_SIZES:
            if not self.has_said_so:
                self.has_said_so = True
                get_logger("runtime.graphs").warning(
                    "%s was recorded for %d sets of sizes; calls with others are not replayed",
                    *(self.name, MOST_SIZES),
                )
            return self.program
        made: Runner = self.recording(self.program, inputs, self.stable, **self.facts)
        self.by_sizes[sizes] = made
        return made


def _size_key(graph: Graph) -> Callable[[list[Any]], tuple[int, ...]]:
    """The numbers of a call that its symbolic sizes follow from."""
    shown: dict[Any, str] = {}
    for position, item in enumerate(graph.inputs):
        dims = [(item.number, f"inputs[{position}]")] if item.number is not None else []
        if item.value is not None:
            kind = item.value.type
            dims = [(size, f"inputs[{position}].size({k})") for k, size in enumerate(kind.shape)]
            dims += [(s, f"inputs[{position}].stride({k})") for k, s in enumerate(kind.stride)]
        for dim, text in dims:
            symbols = symbols_of([dim])
            if len(symbols) == 1:
                shown.setdefault(symbols.pop(), text)
    texts = "".join(f"{text}, " for text in shown.values())
    body = f"def size_key(inputs):\n    return ({texts})\n"
    return function_from(body, "size_key", {}, title="sizes")


def _parameters() -> Sequence[int]:
    """Positions of the inputs that stay where they are: parameters and buffers."""
    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    return tuple(getattr(metadata, "static_input_indices", None) or ())


def _device_index(graph: Graph) -> int:
    devices = (torch.device(value.type.device) for value in graph.values.values())
    found = next((device.index for device in devices if device.type == "cuda"), 0)
    return found or 0


def _stack_traces(module: fx.GraphModule) -> list[str | None]:
    """Where in the program each output was made, for the error about one that was overwritten."""
    (output,) = module.graph.find_nodes(op="output")
    return [getattr(node, "stack_trace", None) for node in output.args[0]]


def _unrecorded_backward(run: Runner, device_index: int) -> Runner:
    """A backward that is not replayed tells the trees that the forward's memory is free again."""

    def backward(inputs: list[Any]) -> Any:
        from torch._inductor.cudagraph_trees import get_manager

        manager = get_manager(device_index, create_if_none_exists=False)
        if manager is not None:
            manager.set_to_running_backward()
        return run(inputs)

    backward._boxed_call = True  # type: ignore[attr-defined]
    return backward
