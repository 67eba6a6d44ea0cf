"""A compiled graph: its host program bound to its kernels.

In: a plan, the kernels of its regions, the host program's text and the graph's constants. Out: a
callable that takes the graph's inputs as a list, which it empties, and returns the graph's outputs.
A kernel that cannot be compiled is an event and not an error: its regions run unfused from then on.
"""

from __future__ import annotations

import hashlib
import linecache
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Protocol

import torch

from fuser.errors import KernelCompilationError
from fuser.ir.graph import Graph, TensorType
from fuser.ir.kernel import RegionKernels
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region
from fuser.log import get_logger, warn_once
from fuser.runtime.direct import LaunchCounts, has_hooks
from fuser.runtime.interpreter import is_interpreting
from fuser.runtime.kernel import Miss
from fuser.runtime.launcher import Launcher, current_stream
from fuser.runtime.sizes import number_at, shape_at, symbol_values
from fuser.runtime.unfused import in_planned_layout, initial_values, outputs_of, run_ops

__all__ = [
    "Executable",
    "Observer",
    "Program",
    "StepRunner",
    "runs_kernels",
    "should_run_unfused",
    "symbol_values",
]

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
    def gpu(self) -> str: ...


def runs_kernels(values: Sequence[Any]) -> bool:
    """Whether kernels can run on one of the tensors' devices; true where there is no tensor."""
    devices = {str(value.device) for value in values if isinstance(value, torch.Tensor)}
    return not devices or any(map(_runs_kernels, devices))


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


def _gpu_functions() -> dict[str, Callable[..., Any]]:
    """What the host program calls on a GPU, in the cheapest form that this torch has."""
    guards = getattr(torch._C._dynamo, "guards", None)

    def empty_on_gpu(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    return {
        "current_gpu": getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device),
        "current_stream": current_stream,
        "empty_on_gpu": getattr(guards, "_empty_strided_cuda", empty_on_gpu),
    }


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
        self.counts = LaunchCounts()
        self.steps = {
            entry.regions: StepRunner(plan, entry, self.fallbacks, self.counts)
            for entry in self.kernels
        }
        """What runs each step of the plan that has kernels, by the names of its regions."""
        self.call = self.bind()
        """The host program: takes the inputs in a list, which it empties."""

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        results: tuple[Any, ...] = self.call(inputs if isinstance(inputs, list) else list(inputs))
        return results

    @cached_property
    def call_hooked(self) -> Callable[[list[Any]], tuple[Any, ...]]:
        """The host program where Triton has launch hooks."""
        return self.bind(hooked=True)

    def bind(self, hooked: bool = False) -> Callable[[list[Any]], tuple[Any, ...]]:
        """The function that the host program defines, among the objects that it names."""
        source = self.program.source
        digest = hashlib.sha256(source.encode()).hexdigest()[:8]
        file = f"<host program {self.plan.graph.name} {digest}>"
        # For tracebacks and debuggers: there is no file.
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        names: dict[str, Any] = {"__name__": f"fuser_host_{self.plan.graph.name}"}
        names["planned_layout"] = in_planned_layout
        names["has_hooks"] = (lambda: False) if hooked else has_hooks
        names["call_hooked"] = lambda inputs: self.call_hooked(inputs)
        names.update(_gpu_functions())
        names.update(self.program.bindings)
        names.update(zip(self.program.constants, self.constants, strict=True))
        for runner in self.steps.values():
            names.update(runner.launches(self.program.gpu, hooked))
        exec(compile(source, file, "exec"), names)
        call: Callable[[list[Any]], tuple[Any, ...]] = names["call"]
        # Asks AOTAutograd for the calling convention in which the callee frees its inputs.
        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def walk(self, inputs: Sequence[Any], observer: Observer) -> tuple[Any, ...]:
        """Run the plan's steps with the same kernels and show each region's results."""
        graph = self.plan.graph
        symbols = symbol_values(graph, inputs)
        environment = initial_values(graph, inputs, self.constants, symbols)
        for step in self.plan.steps:
            runner = self.steps.get(step)
            if runner is None:
                run_ops(graph, step, environment, symbols)
                continue
            stored = runner.run(environment, symbols)
            before = types.MappingProxyType(dict(environment))
            for region in runner.regions:
                observer(region, before, {name: stored[name] for name in region.outputs})
            environment.update(stored)
        return outputs_of(graph, environment, symbols)


class StepRunner:
    """The kernels of regions that run at once, and their ops in place of them once one failed."""

    def __init__(
        self,
        plan: FusionPlan,
        entry: RegionKernels,
        fallbacks: dict[str, KernelCompilationError],
        counts: LaunchCounts,
    ) -> None:
        self.graph = plan.graph
        self.regions = tuple(plan.by_name[name] for name in entry.regions)
        self.outputs = tuple(name for region in self.regions for name in region.outputs)
        self.fallbacks = fallbacks
        self.symbols = tuple(symbol.name for symbol in plan.graph.symbols)
        self.device = plan.graph.values[self.outputs[0]].type.device
        self.specs = entry.kernels
        self.launchers = tuple(
            Launcher(spec, self.device, self.symbols, counts=counts) for spec in entry.kernels
        )
        self.is_out_of_reach = not _runs_kernels(self.device)
        self.handed_on = entry.handed_on
        last = len(self.specs) - 1
        self.functions = tuple(
            launcher.launches(
                partial(self.missed, position), len(self.handed_on) if position == last else 0
            )
            for position, launcher in enumerate(self.launchers)
        )

    def launches(self, gpu: str, hooked: bool = False) -> dict[str, Callable[..., None]]:
        """The launch function of each kernel by its name, as the host program calls it.

        On `gpu`, which the program has made the current one, it is given stream and addresses.
        """
        found: dict[str, Callable[..., None]] = {}
        for launcher, functions in zip(self.launchers, self.functions, strict=True):
            if self.device == gpu:
                found[launcher.spec.name] = functions[hooked]
            else:
                found[launcher.spec.name] = launcher.finding_stream(*functions)
        return found

    @property
    def is_unfused(self) -> bool:
        return self.is_out_of_reach or self.regions[0].name in self.fallbacks

    def missed(self, position: int, miss: Miss) -> None:
        """A launch that is the first of its kind, or one of regions that run unfused."""
        if not self.is_unfused:
            try:
                return self.launchers[position].miss(miss)
            except KernelCompilationError as error:
                self.fail(error)
        if position == len(self.specs) - 1:
            named = zip(miss.spec.arguments, miss.arguments, strict=True)
            seen = {a.name: given for a, given in named if a.kind == "buffer"}
            seen.update(zip(self.handed_on, miss.handed_on, strict=True))
            self.run_unfused(seen, dict(zip(self.symbols, miss.symbols, strict=True)))

    def run_unfused(self, seen: Tensors, symbols: Mapping[str, int]) -> None:
        """Compute the regions' outputs, which are allocated, op by op."""
        environment = {name: tensor for name, tensor in seen.items() if name not in self.outputs}
        for region in self.regions:
            run_ops(self.graph, region.all_ops, environment, symbols)
        for name in self.outputs:
            seen[name].copy_(environment[name])

    def fail(self, error: KernelCompilationError) -> None:
        names = [region.name for region in self.regions]
        self.fallbacks.update(dict.fromkeys(names, error))
        for launcher in self.launchers:
            launcher.forget()
        verb = "runs" if len(names) == 1 else "run"
        get_logger("runtime.executable").warning(
            "%s %s unfused from now on: %s", ", ".join(names), verb, error
        )

    def run(self, environment: Tensors, symbols: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Run the regions on values of the environment; returns what they store.

        An element that is not stored has no value that could be right by chance.
        """
        stored = {
            name: poison(self.empty(self.graph.values[name].type, symbols)) for name in self.outputs
        }
        scratch: dict[str, torch.Tensor] = {}
        trailing: list[Any] = [symbols[name] for name in self.symbols]
        launches = self.launches(gpu="")
        for spec in self.specs:
            values: list[Any] = []
            for argument in spec.arguments:
                if argument.kind == "size":
                    values.append(number_at(argument.size, symbols))
                elif argument.kind == "buffer":
                    name = argument.name
                    values.append(stored[name] if name in stored else environment[name])
                else:
                    if argument.name not in scratch:
                        kind = TensorType(argument.dtype, (argument.size,), (1,), self.device)
                        scratch[argument.name] = self.empty(kind, symbols)
                    values.append(scratch[argument.name])
            if spec is self.specs[-1]:
                named = {**environment, **stored}
                trailing += [named[name] for name in self.handed_on]
            launches[spec.name](*values, *trailing)
        return stored

    def empty(self, kind: TensorType, symbols: Mapping[str, int]) -> torch.Tensor:
        return torch.empty_strided(
            shape_at(kind.shape, symbols),
            shape_at(kind.stride, symbols),
            dtype=getattr(torch, kind.dtype.value),
            device=kind.device,
        )


def poison(fresh: torch.Tensor) -> torch.Tensor:
    """A new tensor, its memory full of NaN, or of bytes 0x7f where it has no NaN."""
    memory = torch.empty(0, dtype=torch.uint8, device=fresh.device)
    memory.set_(fresh.untyped_storage())
    memory.fill_(0xFF if fresh.is_floating_point() else 0x7F)
    return fresh
