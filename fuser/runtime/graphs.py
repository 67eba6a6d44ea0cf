"""CUDA graphs: one launch for all kernels of a call, where its inputs allow it.

In: what runs a compiled graph, and that graph. Out: the same through PyTorch's own machinery, the
CUDA graph trees that `torch.compile(mode="reduce-overhead")` uses; or the reason why not, which is
logged and kept. Recording, copies of inputs, the memory pool that all graphs share, and the error
for a result that a later call has overwritten are PyTorch's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext

from fuser.ir.graph import Graph, Op
from fuser.ir.plan import FusionPlan
from fuser.log import get_logger

__all__ = ["CudaGraphUse", "refusal", "refused", "with_cuda_graphs"]

Runner = Callable[[list[Any]], Any]

LARGEST_NUMBER_OF_SIZES = 16
"""Each combination of sizes is a recording of its own, with memory of its own."""

MOST_SIZES_REMEMBERED = 1024

UNSEEN = "sizes that were not seen before"
TOO_MANY = f"sizes beyond the first {LARGEST_NUMBER_OF_SIZES} that came twice"


@dataclass
class CudaGraphUse:
    """Whether calls of one compiled graph replay CUDA graphs, and how many did."""

    refusal: str = ""
    """Why no call does; empty where they do."""
    handed_over: int = 0
    """Calls given to PyTorch's CUDA graphs: it warms up, records, then replays."""
    plain: Counter[str] = field(default_factory=Counter)
    """Calls made kernel by kernel, by the reason."""

    def __str__(self) -> str:
        if self.refusal:
            return f"CUDA graphs: none, {self.refusal}"
        parts = [f"{self.handed_over} calls so far"] if self.handed_over else []
        parts += [f"{count} without for {reason}" for reason, count in self.plain.items()]
        return f"CUDA graphs: replayed{': ' if parts else ''}{', '.join(parts)}"


def with_cuda_graphs(
    run: Runner,
    module: fx.GraphModule,
    plan: FusionPlan,
    constants: Sequence[torch.Tensor],
    forward: CudaGraphUse | None = None,
) -> tuple[Runner, CudaGraphUse]:
    """`run` with its calls replayed; `forward` is the use of the forward, for a backward graph."""
    use = CudaGraphUse()
    if plan.phase == "backward" and (forward is None or forward.refusal):
        use.refusal = "its forward pass does not use CUDA graphs"
        return refused(run, use, forward), use
    use.refusal = refusal(module, plan)
    if use.refusal:
        return refused(run, use, forward), use
    graphed = _through_trees(run, module, plan, constants)
    replay = _counted(run, graphed, use, plan.graph)
    replay._boxed_call = True  # type: ignore[attr-defined]
    return replay, use


def refused(run: Runner, use: CudaGraphUse, forward: CudaGraphUse | None = None) -> Runner:
    """`run`, with its refusal logged; `forward` is the use of its forward, if it is a backward."""
    get_logger("runtime.graphs").warning("a graph runs without CUDA graphs: %s", use.refusal)
    if forward is None or forward.refusal:
        return run

    def run_backward(inputs: list[Any]) -> Any:
        # Otherwise the trees wait for a backward pass before they give memory back.
        from torch._inductor.cudagraph_trees import get_manager

        manager = get_manager(torch.cuda.current_device(), create_if_none_exists=False)
        if manager is not None:
            manager.set_to_running_backward()
        return run(inputs)

    run_backward._boxed_call = True  # type: ignore[attr-defined]
    return run_backward


def _counted(run: Runner, graphed: Runner, use: CudaGraphUse, graph: Graph) -> Runner:
    """Calls `graphed`, for sizes that change once the same have come twice."""
    numbers = [
        position
        for position, item in enumerate(graph.inputs)
        if item.number is not None and not isinstance(item.number, int)
    ]
    if not numbers:

        def replay(inputs: list[Any]) -> Any:
            use.handed_over += 1
            return graphed(inputs)

        return replay

    seen: set[tuple[Any, ...]] = set()
    recorded: set[tuple[Any, ...]] = set()

    def replay_known_sizes(inputs: list[Any]) -> Any:
        sizes = tuple([inputs[position] for position in numbers])
        if sizes not in recorded:
            if sizes not in seen:
                if len(seen) >= MOST_SIZES_REMEMBERED:
                    seen.clear()
                seen.add(sizes)
                use.plain[UNSEEN] += 1
                get_logger("runtime.graphs").info("without a CUDA graph: sizes %s are new", sizes)
                return run(inputs)
            if len(recorded) >= LARGEST_NUMBER_OF_SIZES:
                use.plain[TOO_MANY] += 1
                return run(inputs)
            recorded.add(sizes)
        use.handed_over += 1
        return graphed(inputs)

    return replay_known_sizes


def _through_trees(
    run: Runner, module: fx.GraphModule, plan: FusionPlan, constants: Sequence[torch.Tensor]
) -> Runner:
    from torch._dynamo.backends.cudagraphs import get_stack_traces
    from torch._inductor.compile_fx import cudagraphify
    from torch._inductor.cudagraph_utils import get_placeholder_info

    (device,) = _devices(plan.graph)
    graphed: Runner = cudagraphify(
        run,
        _static_inputs(module, plan.phase),
        device_index=torch.device(device).index,
        stack_traces=get_stack_traces(module),
        is_backward=plan.phase == "backward",
        is_inference=plan.phase == "inference",
        constants=tuple(constants),
        placeholders=get_placeholder_info(module.graph),
        mutated_input_idxs=tuple(_written_inputs(module)),
    )
    return graphed


def _static_inputs(module: fx.GraphModule, phase: str) -> Sequence[int]:
    """Positions of the inputs whose memory stays: a recording reads it in place.

    Parameters and buffers, and in a backward pass what its forward has saved. PyTorch records again
    where one moves.
    """
    if phase == "backward":
        from torch._inductor.utils import count_tangents

        return range(count_tangents(module))
    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    return tuple(getattr(metadata, "static_input_indices", None) or ())


# Reasons against ---------------------------------------------------------------------------------


def refusal(module: fx.GraphModule, plan: FusionPlan) -> str:
    """Why calls of a graph cannot be replayed, or nothing."""
    try:
        return (
            _other_devices(plan)
            or _changing_sizes(plan)
            or _no_launch(plan)
            or _unsafe_call(module)
            or _mutation(module, plan.phase)
        )
    except ImportError as error:
        return f"this version of PyTorch has other CUDA graphs: {error}"


def _devices(graph: Graph) -> list[str]:
    return sorted({value.type.device for value in graph.values.values()})


def _other_devices(plan: FusionPlan) -> str:
    devices = _devices(plan.graph)
    if len(devices) > 1:
        return f"its tensors are on several devices: {', '.join(devices)}"
    if devices != ["cpu"]:
        return ""
    # A plan for a GPU that is absent is made of tensors on the CPU.
    return "its tensors are on the CPU" if plan.target == "cpu" else ""


def _changing_sizes(plan: FusionPlan) -> str:
    graph = plan.graph
    if not graph.symbols:
        return ""
    if plan.phase != "inference":
        # Forward and backward have to agree call by call on whether they replay.
        return "its sizes change and it has a backward pass"
    shown = {str(item.number) for item in graph.inputs if item.number is not None}
    hidden = [symbol.name for symbol in graph.symbols if symbol.name not in shown]
    return f"the size {hidden[0]} is not an input by itself" if hidden else ""


def _unsafe_call(module: fx.GraphModule) -> str:
    from torch._inductor.utils import get_first_incompatible_cudagraph_node

    node = get_first_incompatible_cudagraph_node(module)
    return f"{node.target} waits for the GPU or may not be recorded" if node is not None else ""


def _written_inputs(module: fx.GraphModule) -> set[int]:
    from torch._dynamo.backends.cudagraphs import find_input_mutations

    return set(find_input_mutations(module.graph))


def _mutation(module: fx.GraphModule, phase: str) -> str:
    moving = _written_inputs(module) - set(_static_inputs(module, phase))
    if not moving:
        return ""
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    return f"it writes to its input {names[min(moving)]}"


def _no_launch(plan: FusionPlan) -> str:
    """An empty recording is one more thing to do for a call, and PyTorch warns of it."""
    types = {name: value.type for name, value in plan.graph.values.items()}
    stored = (types[name] for region in plan.regions for name in region.outputs)
    if any(0 not in kind.shape for kind in stored):
        return ""
    opaque = (plan.graph.by_name[name] for name in plan.opaque)
    return "" if any(map(_launches, opaque)) else "it launches nothing"


def _launches(op: Op) -> bool:
    """Whether an original call surely launches work: not a view, not an allocation."""
    schema = getattr(op.call.target, "_schema", None)
    if schema is None or "empty" in schema.name:
        return False
    shared = [result.alias_info for result in schema.returns if result.alias_info is not None]
    if any(not alias.is_write for alias in shared):
        return False
    return any(0 not in value.type.shape for value in op.results)
