"""A compiled graph: its host program bound to its kernels.

In: a plan, the kernels of its regions, the host program's text and the graph's constants. Out: a
callable that takes the graph's inputs as a list, which it empties, and returns the graph's outputs.
A kernel that cannot be compiled is an event and not an error: its region runs unfused from then on.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from fuser.errors import KernelCompilationError
from fuser.ir.graph import Effect, Graph, Output, TensorType
from fuser.ir.kernel import KernelArgument, RegionKernels
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region
from fuser.log import get_logger, warn_once
from fuser.runtime.interpreter import is_interpreting
from fuser.runtime.launcher import Launch, on_device, stream_of
from fuser.runtime.sizes import function_from, number_at, shape_at, symbol_values
from fuser.runtime.unfused import in_planned_layout, run_ops, view

__all__ = ["Executable", "Observer", "Program", "should_run_unfused", "symbol_values"]

Tensors = Mapping[str, torch.Tensor]
Observer = Callable[[Region, Tensors, Tensors], None]
"""Called with a region, the values there were before it ran, and those it stored."""


class Program(Protocol):
    """The host program, as code generation hands it over."""

    @property
    def source(self) -> str: ...

    @property
    def bindings(self) -> tuple[tuple[str, Any], ...]: ...

    @property
    def constants(self) -> tuple[str, ...]: ...

    @property
    def device(self) -> str: ...


# torch's functions for compiled code do not spend time on telling overloads apart.
_guards: Any = torch._C._dynamo.guards
_HELPERS = {
    "planned_layout": in_planned_layout,
    "reinterpreted": _guards._reinterpret_tensor,
    "current_stream": getattr(torch._C, "_cuda_getCurrentRawStream", None),
}
"""What host programs call beside regions and torch's public functions."""


def _allocate(device: str) -> Callable[..., torch.Tensor]:
    """`allocate(size, stride, dtype)` on a device that is the current one of its kind."""
    kind = torch.device(device).type
    if kind in ("cpu", "cuda"):
        found: Callable[..., torch.Tensor] = getattr(_guards, f"_empty_strided_{kind}")
        return found
    return lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device=device)


def should_run_unfused(graph: Graph) -> bool:
    """Whether no kernel can run where the graph's tensors are; says so once.

    Single regions in such a place, beside others on a GPU, are left to the executable.
    """
    devices = {value.type.device for op in graph.ops if not op.is_opaque for value in op.results}
    if not devices or any(map(_runs_kernels, devices)):
        return False
    places = ", ".join(sorted(devices))
    warn_once(
        ("unfused device", places),
        f"this model runs on {places}, where generated kernels run only in Triton's interpreter; "
        "its operations run one by one, as without fuser. For speed, move it to a GPU; to try the "
        "kernels on the CPU (slowly), set TRITON_INTERPRET=1 before Python starts.",
    )
    return True


def _runs_kernels(device: str) -> bool:
    return device.startswith("cuda") or is_interpreting()


class Executable:
    """`executable(inputs)` runs the graph; `walk` does so step by step, for an observer."""

    def __init__(
        self,
        plan: FusionPlan,
        kernels: Sequence[RegionKernels],
        program: Program,
        constants: Sequence[torch.Tensor] = (),
    ) -> None:
        self.plan = plan
        self.kernels = tuple(kernels)
        self.program = program
        self.constants = tuple(constants)
        self.fallbacks: dict[str, KernelCompilationError] = {}
        """The regions that run unfused, by name, with the reason."""
        self.regions = {
            entry.region: _RegionRunner(plan, entry, self.fallbacks) for entry in self.kernels
        }
        self.call = on_device(self.bind(), torch.device(program.device))
        # Asks AOTAutograd for the calling convention in which the callee frees its inputs.
        self._boxed_call = self.call._boxed_call = True  # type: ignore[attr-defined]

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        results: tuple[Any, ...] = self.call(inputs if isinstance(inputs, list) else list(inputs))
        return results

    def bind(self) -> Callable[[list[Any]], tuple[Any, ...]]:
        """The function that the host program defines, among the objects that it names."""
        names: dict[str, Any] = {"__name__": f"fuser_host_{self.plan.graph.name}", **_HELPERS}
        names["allocate"] = _allocate(self.program.device)
        names.update(self.program.bindings)
        names.update(zip(self.program.constants, self.constants, strict=True))
        for name, runner in self.regions.items():
            device = torch.device(runner.device)
            is_elsewhere = runner.device != self.program.device
            names[name] = on_device(runner.run, device) if is_elsewhere else runner.run
        title = f"host program {self.plan.graph.name}"
        call: Callable[[list[Any]], tuple[Any, ...]]
        call = function_from(self.program.source, "call", names, title)
        return call

    def walk(self, inputs: Sequence[Any], observer: Observer) -> tuple[Any, ...]:
        """Run the plan's steps with the same kernels and show each region's results."""
        graph = self.plan.graph
        symbols = symbol_values(graph, inputs)
        environment = self.environment(inputs, symbols)
        for name in self.plan.order:
            runner = self.regions.get(name)
            if runner is None:
                run_ops(graph, [name], environment, symbols)
                continue
            stored = runner.step(environment, symbols)
            observer(runner.region, types.MappingProxyType(dict(environment)), stored)
            environment.update(stored)
        return tuple(self.output(output, environment, symbols) for output in graph.outputs)

    def environment(
        self, inputs: Sequence[Any], symbols: Mapping[str, int]
    ) -> dict[str, torch.Tensor]:
        """The values that are there before the first step."""
        graph = self.plan.graph
        writers = (op for op in graph.ops if op.effect is Effect.BARRIER)
        written = {argument.value for op in writers for argument in op.arguments}
        found: dict[str, torch.Tensor] = {}
        for item, given in zip(graph.inputs, inputs, strict=True):
            if item.value is None:
                continue
            # Writing to a copy would be lost, so what is written to has to come as planned.
            if item.value.type.stride and item.value.name not in written:
                given = in_planned_layout(given, shape_at(item.value.type.stride, symbols))
            found[item.value.name] = given
        named = zip(graph.constants, self.constants, strict=True)
        return found | {value.name: tensor for value, tensor in named}

    def output(self, output: Output, environment: Tensors, symbols: Mapping[str, int]) -> Any:
        if output.argument is not None:
            tensor = environment[output.argument.value]
            return view(self.plan.graph, output.argument, tensor, symbols)
        return None if output.number is None else number_at(output.number, symbols)


class _RegionRunner:
    """The kernels of one region, and its ops in their place once a kernel has failed."""

    def __init__(
        self, plan: FusionPlan, entry: RegionKernels, fallbacks: dict[str, KernelCompilationError]
    ) -> None:
        self.graph = plan.graph
        self.region = plan.by_name[entry.region]
        self.fallbacks = fallbacks
        self.symbols = tuple(symbol.name for symbol in plan.graph.symbols)
        self.device = plan.graph.values[self.region.outputs[0]].type.device
        self.tensors = entry.tensors
        self.run: Callable[..., None] = self.out_of_reach
        """`run(stream, *tensors, *symbols)`; the host program calls it by the region's name."""
        if _runs_kernels(self.device):
            sizes = [self.graph.values[name].type.numel for name in self.region.outputs]
            launch = Launch(
                entry,
                self.device,
                self.symbols,
                # What regions store lies in memory that was allocated for it.
                aligned={
                    argument.name for argument in entry.tensors if self.is_ours(plan, argument)
                },
                may_be_empty=not any(isinstance(size, int) and size for size in sizes),
                instead=self.run_unfused,
            )
            self.run = launch.run

    @staticmethod
    def is_ours(plan: FusionPlan, argument: KernelArgument) -> bool:
        return argument.kind == "workspace" or argument.name in plan.region_of

    def out_of_reach(self, stream: Any, *values: Any) -> None:
        """The region's ops, on a device where no kernel runs."""
        count = len(self.tensors)
        self.compute(values[:count], values[count:])

    def run_unfused(
        self,
        error: KernelCompilationError,
        tensors: Sequence[torch.Tensor],
        symbols: Sequence[int],
    ) -> None:
        """Compute the outputs op by op, in place of kernels that failed."""
        if self.region.name not in self.fallbacks:
            self.fallbacks[self.region.name] = error
            get_logger("runtime.executable").warning(
                "%s runs unfused from now on: %s", self.region.name, error
            )
        self.compute(tensors, symbols)

    def compute(self, tensors: Sequence[torch.Tensor], symbols: Sequence[int]) -> None:
        """Compute the region's outputs, which are allocated, op by op."""
        outputs = self.region.outputs
        given = dict(zip((argument.name for argument in self.tensors), tensors, strict=True))
        environment = {name: tensor for name, tensor in given.items() if name not in outputs}
        sizes = dict(zip(self.symbols, symbols, strict=True))
        run_ops(self.graph, self.region.all_ops, environment, sizes)
        for name in outputs:
            given[name].copy_(environment[name])

    def step(self, environment: Tensors, symbols: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Run the region on values of the environment; returns what it stores."""
        stored = {
            name: self.empty(self.graph.values[name].type, symbols) for name in self.region.outputs
        }
        passed: list[torch.Tensor] = []
        for argument in self.tensors:
            if argument.kind == "workspace":
                kind = TensorType(argument.dtype, (argument.size,), (1,), self.device)
                passed.append(self.empty(kind, symbols))
            else:
                found = stored if argument.name in stored else environment
                passed.append(found[argument.name])
        device = torch.device(self.device)
        values = [symbols[name] for name in self.symbols]
        on_device(self.run, device)(stream_of(device), *passed, *values)
        return stored

    def empty(self, kind: TensorType, symbols: Mapping[str, int]) -> torch.Tensor:
        return torch.empty_strided(
            shape_at(kind.shape, symbols),
            shape_at(kind.stride, symbols),
            dtype=getattr(torch, kind.dtype.value),
            device=kind.device,
        )
