"""Dynamo and AOTAutograd around a compile function.

In: the graphs Dynamo hands over. Out: callables for them, each made of the forward, backward or
inference graph (functional, decomposed, with fake tensors in `meta["val"]`) that `compile_graph`
compiled. What AOTAutograd refuses runs as eager would, with a warning; inputs that begin to
overlap after compilation do too. Nothing here knows what `compile_graph` does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import fx
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.utils import flatten_graph_inputs
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import CompileContext as DynamoContext
from torch._guards import TracingContext

from fuser.capture import second_order
from fuser.capture.aliasing import overlap_check
from fuser.capture.decomposition.table import decompositions
from fuser.capture.from_fx import WRITTEN
from fuser.capture.partition import partition
from fuser.capture.registry import GraphRecord, current_caller
from fuser.capture.second_order import untraced
from fuser.capture.seeds import is_random, share_seeds
from fuser.errors import FuserError
from fuser.log import get_logger, warn_once

__all__ = ["Backend", "CompileContext", "CompileGraph", "Phase"]

Phase = Literal["inference", "forward", "backward"]
Runner = Callable[[list[Any]], Any]

_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CompileContext:
    """What a graph given to `compile_graph` is."""

    phase: Phase
    graph_index: int
    """Counts the graphs of one backend; a forward and its backward have the same."""
    compile_id: str
    """Dynamo's own name for the compilation, as in its logs; `-` outside of Dynamo."""
    options: Mapping[str, Any] = field(default_factory=lambda: _NO_OPTIONS, compare=False)
    """The backend's options, overlaid with those of `torch.compile(..., options=...)`."""
    record: GraphRecord | None = field(default=None, compare=False, repr=False)

    def register(self, plan: Any) -> None:
        """Make `plan` one of those that `fuser.plans` finds for the compiled object."""
        if self.record is not None:
            self.record.plans.append(plan)


RunsKernels = Callable[[Sequence[Any]], bool]


def _always(_: Sequence[Any]) -> bool:
    return True


CompileGraph = Callable[[fx.GraphModule, Sequence[Any], CompileContext], Any]
"""Returns a callable over one flat list of inputs, or a module to be run as it is."""


class Backend:
    """A `torch.compile` backend. One instance can serve many models and threads."""

    fuser_backend = True

    def __init__(
        self,
        compile_graph: CompileGraph,
        options: Mapping[str, Any] = _NO_OPTIONS,
        name: str = "fuser",
        fall_back: bool = True,
        runs_kernels: RunsKernels = _always,
    ) -> None:
        """With `fall_back` False, what AOTAutograd refuses raises instead of running as eager.

        Where `runs_kernels` says of a graph's inputs that no kernel will run, eager's own draws of
        random numbers are the fastest and stay.
        """
        self.__name__ = name
        self._compile_graph = compile_graph
        self._options = MappingProxyType(dict(options))
        self._fall_back = fall_back
        self._runs_kernels = runs_kernels
        self._indices = itertools.count()

    def __deepcopy__(self, memo: dict[int, Any]) -> Backend:
        return self  # a copy of a compiled module is compiled by the same backend

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self._compile_graph, dict(self._options), self.__name__, self._fall_back)
        return Backend, (*arguments, self._runs_kernels)

    def __call__(
        self,
        module: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        options: Mapping[str, Any] | None = None,
        mode: str | None = None,
    ) -> Callable[..., Any]:
        if any(isinstance(x, (list, tuple, dict)) for x in example_inputs):
            return flatten_graph_inputs(module, example_inputs, self)
        given = {**self._options, **(options or {})}
        if mode is not None:
            given["mode"] = mode
        return _Compilation(self, module, example_inputs, MappingProxyType(given)).run()


class _Compilation:
    """One graph of Dynamo's on its way through AOTAutograd."""

    def __init__(
        self,
        backend: Backend,
        module: fx.GraphModule,
        example_inputs: Sequence[Any],
        options: Mapping[str, Any],
    ) -> None:
        self.compile_graph = backend._compile_graph
        self.fall_back = backend._fall_back
        self.indices = backend._indices
        self.index: int | None = None
        self.module = module
        self.inputs = example_inputs
        self.options = options
        asked = options.get("random", "fused") == "fused"
        self.fuses_random = asked and backend._runs_kernels(example_inputs)
        self.keeps_steps = options.get("precision", "fused") == "eager"
        self.compile_id = str(DynamoContext.current_compile_id() or "-")
        self.owned = _owned_by_modules(module, example_inputs)
        self.record = GraphRecord(current_caller(), self.owned)
        self.written: Sequence[int] = ()
        self.again = False
        self.failure: BaseException | None = None

    def run(self) -> Callable[..., Any]:
        try:
            compiled = aot_module_simplified(
                self.module,
                self.inputs,
                fw_compiler=self.forward,
                # The backward is compiled when it first runs, possibly inside compiled Python:
                # neither the compiler nor what it returns may be traced.
                bw_compiler=untraced(self.backward),
                inference_compiler=self.inference,
                decompositions=decompositions(self.fuses_random, self.keeps_steps),
                partition_fn=partition,
                keep_inference_input_mutations=False,
            )
        except (FuserError, TorchDynamoException):  # ours, and Dynamo's requests to trace again
            raise
        except Exception as error:
            if error is self.failure or not self.fall_back:
                raise
            return self.as_eager(error)
        return self.guarded(compiled)

    def as_eager(self, error: Exception) -> Callable[..., Any]:
        reason = str(error).strip().partition("\n")[0]
        kind = type(error).__name__
        get_logger("capture.backend").info("graph %s: %s", self.compile_id, error)
        warn_once(
            ("aot", self.compile_id, kind),
            f"graph {self.compile_id} runs unfused: AOTAutograd refused it ({kind}: {reason})",
        )
        return self.module.forward

    def guarded(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """`compiled`, watched for overlapping inputs and for whose parameters it runs with."""
        record, seen = self.record, self.record.seen
        eager = self.module.forward
        first = self.owned[0] if self.owned else None
        overlaps = overlap_check(self.inputs, self.written, self.owned)
        again = self.again
        passing = [
            k
            for k, x in enumerate(self.inputs)
            if isinstance(x, torch.Tensor) and k not in set(self.owned)
        ]

        def call(*inputs: Any) -> Any:
            if first is not None and id(inputs[first]) not in seen:
                record.note(inputs)
            if overlaps is not None and overlaps(inputs):
                return eager(*inputs)
            outputs = compiled(*inputs)
            if again:
                second_order.attach(eager, inputs, passing, outputs)
            return outputs

        # Without parameters nothing above refers to the record, which lives as long as this.
        call.fuser_record = record  # type: ignore[attr-defined]
        return call

    def inference(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Runner:
        self.written = _written_inputs(_metadata(), len(self.inputs))
        share_seeds(gm)
        return self.phase("inference", gm, example_inputs)

    def forward(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Runner:
        metadata = _metadata()
        self.written = _written_inputs(metadata, len(self.inputs))
        self.again = not is_random(gm) and second_order.can_differentiate_again(
            self.module, metadata
        )
        return self.phase("forward", gm, example_inputs)

    def backward(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Runner:
        runner = self.phase("backward", gm, example_inputs)
        return untraced(runner)

    def phase(self, phase: Phase, module: fx.GraphModule, inputs: Sequence[Any]) -> Runner:
        if self.index is None:  # not earlier: Dynamo may trace again before anything is compiled
            self.index = next(self.indices)
        context = CompileContext(phase, self.index, self.compile_id, self.options, self.record)
        _name_copies(module)
        if phase != "backward":
            _mark_written(module, _metadata())
        try:
            result = self.compile_graph(module, inputs, context)
        except Exception as error:
            self.failure = error
            raise
        return _boxed(result)


def _name_copies(module: fx.GraphModule) -> None:
    """Tracing calls the copy of a constant `lift_fresh_copy`; it is a clone like any other."""
    for node in module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.lift_fresh_copy.default
    ):
        node.target = torch.ops.aten.clone.default
    module.recompile()


def _mark_written(module: fx.GraphModule, metadata: Any) -> None:
    """Note on the output node which results are new contents of inputs; AOTAutograd copies them
    there after the call, and they are its first ones."""
    written = getattr(metadata, "mutated_inp_runtime_indices", ())
    if not written or getattr(metadata, "tokens", None):
        return
    placeholders = module.graph.find_nodes(op="placeholder")
    (output,) = module.graph.find_nodes(op="output")
    output.meta[WRITTEN] = {
        position: placeholders[index].name for position, index in enumerate(written)
    }


def _boxed(result: Any) -> Runner:
    """With AOTAutograd's mark that it takes a list, which it may empty to free its inputs."""
    if isinstance(result, torch.nn.Module):
        return make_boxed_func(result.forward)
    if getattr(result, "_boxed_call", False):
        return result  # type: ignore[no-any-return]

    def run(inputs: list[Any]) -> Any:
        return result(inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _owned_by_modules(module: fx.GraphModule, inputs: Sequence[Any]) -> list[int]:
    """Positions of the inputs that are parameters or buffers."""
    graph = getattr(module, "graph", None)
    nodes = [] if graph is None else [n for n in graph.nodes if n.op == "placeholder"]
    if len(nodes) != len(inputs):
        return []
    return [
        k
        for k, (node, x) in enumerate(zip(nodes, inputs, strict=True))
        if isinstance(x, torch.Tensor)
        and (isinstance(x, torch.nn.Parameter) or _is_module_source(node))
    ]


def _is_module_source(node: fx.Node) -> bool:
    source = getattr(node, "_dynamo_source", None)
    kind = getattr(source, "guard_source", None)
    kind = kind() if callable(kind) else kind  # a method before torch 2.10
    return "NN_MODULE" in getattr(kind, "name", "")


def _metadata() -> Any:
    """What AOTAutograd found out about the graph being compiled: mutations and aliases."""
    return getattr(TracingContext.try_get(), "fw_metadata", None)


def _written_inputs(metadata: Any, number: int) -> Sequence[int]:
    """Positions of the inputs that the graph being compiled writes to."""
    if metadata is None:
        return ()
    written = [k for k, info in enumerate(metadata.input_info) if info.mutates_data]
    if written and len(metadata.input_info) != number:
        # Duplicate or overlapping inputs were merged, so positions have moved: watch all.
        return range(number)
    return written
