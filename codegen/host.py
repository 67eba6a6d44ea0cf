"""The host program of a plan: one flat Python function that allocates, launches and frees.

In: a plan and the kernels of its steps. Out: readable source text, one line for each step, and
the objects that its names stand for (original calls and arguments that have no literal). The
runtime adds kernels, constants and `planned_layout`. Every value lives exactly from the step that
makes it to the last one that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuser.codegen.host_memory import Buffer, Memory, StepNames
from fuser.codegen.host_sizes import size_lines
from fuser.codegen.host_text import (
    HostNames,
    keyword_text,
    literal_text,
    tuple_text,
    with_comment,
)
from fuser.errors import InvalidPlan
from fuser.ir.dim import python_text
from fuser.ir.dim_text import expression_text
from fuser.ir.graph import Argument, Effect, Graph, Op, Output, SizeSlot, Slot, TensorType
from fuser.ir.kernel import ALIGNMENT, KernelSpec, RegionKernels
from fuser.ir.plan import FusionPlan
from fuser.templates import render

__all__ = ["HostContext", "HostProgram", "HostStep", "host_program"]


@dataclass(frozen=True, slots=True)
class HostProgram:
    """Source text that defines `call(inputs)`, and what the names in it stand for."""

    source: str
    bindings: tuple[tuple[str, Any], ...]
    """Original calls and arguments of theirs that have no literal."""
    constants: tuple[str, ...]
    """The names of the graph's constants, in the graph's order."""
    gpu: str
    """The one GPU of the graph, or nothing where there are none or several. The program makes it
    the current one, and passes its stream to each kernel that runs on it."""


@dataclass(frozen=True, slots=True)
class HostStep:
    """What belongs together in the text: a step of the plan, the sizes."""

    comment: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostContext:
    """Everything that `host.py.jinja` uses."""

    title: str
    notes: tuple[str, ...]
    devices: tuple[tuple[str, str], ...]
    gpu: str
    inputs: tuple[str, ...]
    steps: tuple[HostStep, ...]
    results: tuple[str, ...]


def host_program(
    plan: FusionPlan, kernels: Sequence[RegionKernels], overwrites: bool = True
) -> HostProgram:
    """The program of `plan`; `kernels` holds an entry for each of its steps with regions.

    With `overwrites`, results that overwrite inputs are stored in their memory where possible.
    """
    by_step = {entry.regions: entry.kernels for entry in kernels}
    return _Writer(plan, by_step, overwrites).program()


@dataclass
class _Writer:
    """Writes one program; the names it has given out are its only state."""

    plan: FusionPlan
    kernels: Mapping[StepNames, tuple[KernelSpec, ...]]
    overwrites: bool

    def __post_init__(self) -> None:
        graph = self.plan.graph
        launched = [spec.name for specs in self.kernels.values() for spec in specs]
        symbols = [symbol.name for symbol in graph.symbols]
        self.names = HostNames((*symbols, *launched))
        self.memory = Memory(self.plan, self.kernels, self.overwrites)
        self.devices: dict[str, str] = {}
        self.buffers: dict[Buffer, str] = {}
        found = {value.type.device for value in graph.values.values()}
        gpus = sorted(device for device in found if device.startswith("cuda"))
        self.gpu = gpus[0] if len(gpus) == 1 and ":" in gpus[0] else ""
        self.addresses: dict[str, str] = {}
        """The name of the address of each value that kernels on that GPU are given."""
        for step in self.plan.steps if self.gpu else ():
            if self.is_on_gpu(step):
                made = [b.name for b in self.memory.buffers(step) if not b.is_scratch]
                taken = [self.memory.in_place.get(name, name) for name in made]
                for value in (*self.memory.passed(step), *made, *taken):
                    self.address(self.names.value(value))

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    def program(self) -> HostProgram:
        inputs = tuple(self.input_lines())
        steps = [self.entry_step()]
        for position, step in enumerate(self.plan.steps):
            is_ours = bool(self.memory.regions(step))
            made = (
                self.launch_step(step) if is_ours else self.call_step(self.graph.by_name[step[0]])
            )
            steps.append(self.ended(made, position))
        results = tuple(self.output_line(output) for output in self.graph.outputs)
        calls = len(self.plan.opaque)
        symbols = ", ".join(symbol.name for symbol in self.graph.symbols)
        context = HostContext(
            title=f"{self.graph.name}, {self.plan.phase} on {self.plan.target}",
            notes=(
                f"{len(self.plan.regions)} regions and {calls} original calls.",
                "The runtime binds kernels, calls and constants to the names used here.",
                *([f"After its arguments a kernel takes the sizes {symbols}."] if symbols else []),
            ),
            devices=tuple((name, text) for text, name in self.devices.items()),
            gpu=self.gpu.partition(":")[2],
            inputs=inputs,
            steps=tuple(step for step in steps if step.lines),
            results=results,
        )
        source = render("host.py.jinja", context)
        constants = tuple(self.names.value(value.name) for value in self.graph.constants)
        return HostProgram(source, self.names.bindings, constants, self.gpu)

    # **** entry ****

    def input_lines(self) -> list[str]:
        lines: list[str] = []
        bound: set[str] = set()
        for item in self.graph.inputs:
            if item.value is not None:
                lines.append(with_comment(f"{self.names.value(item.name)},", item.value.type))
                continue
            number = item.number
            is_symbol = number is not None and not isinstance(number, int) and number.is_Symbol
            name = str(number) if is_symbol else self.names.fresh(item.name)
            if name in bound:
                name = self.names.fresh(item.name)
            bound.add(name)
            lines.append(with_comment(f"{name},", "size"))
        return lines

    def entry_step(self) -> HostStep:
        lines = size_lines(self.graph, self.names)
        for item in self.graph.inputs:
            if item.value is None or item.value.name not in self.memory.read_by_stride:
                continue
            lines += self.layout_lines(item.value.name)
        if self.gpu:
            outside = [item.value.name for item in self.graph.inputs if item.value is not None]
            outside += [value.name for value in self.graph.constants]
            lines += self.address_lines(outside, "misaligned =") or ["misaligned = 0"]
        used = {*self.memory.last_use, *self.memory.kept, *self.memory.in_place.values()}
        unused = [
            self.names.value(item.value.name)
            for item in self.graph.inputs
            if item.value is not None and item.value.name not in used
        ]
        if unused:
            lines.append(f"del {', '.join(unused)}")
        return HostStep("sizes, layouts and addresses of the inputs", tuple(lines))

    # **** steps ****

    def launch_step(self, step: StepNames) -> HostStep:
        specs = self.kernels.get(step)
        if not specs:
            raise InvalidPlan(reason=f"there is no kernel for {', '.join(step)}")
        buffers = self.memory.buffers(step)
        for buffer in buffers:
            fresh = self.names.fresh if buffer.is_scratch else self.names.value
            self.buffers[buffer] = fresh(buffer.name)
        lines = [line for buffer in buffers for line in self.buffer_lines(buffer)]
        scratch = {b.name: self.buffers[b] for b in buffers if b.is_scratch}
        for spec in specs:
            lines += self.launch_lines(spec, step, scratch)
        leaving = self.memory.taken_over.values()
        ended = [self.buffers[b] for b in buffers if b.is_scratch and b not in leaving]
        if ended:
            lines.append(f"del {', '.join(ended)}")
        return HostStep(self.comment(step), tuple(lines))

    def comment(self, step: StepNames) -> str:
        regions = self.memory.regions(step)
        if len(regions) > 1:
            return f"{self.plan.launch_of[step[0]].name}, shared: {', '.join(step)}"
        (region,) = regions
        kinds = [self.graph.by_name[op].kind for op in region.all_ops]
        shown = ", ".join(kinds[:8]) + (", ..." if len(kinds) > 8 else "")
        return f"{region.name}, {region.strategy.value}: {shown}"

    def launch_lines(
        self, spec: KernelSpec, step: StepNames, scratch: Mapping[str, str]
    ) -> list[str]:
        """The call of a kernel's launch function, as the runtime binds it."""
        if self.is_empty(spec):
            return []
        passed: list[str] = []
        addresses: list[str] = []
        for argument in spec.arguments:
            if argument.kind == "size":
                passed.append(python_text(argument.size))
                continue
            is_value = argument.kind == "buffer"
            name = self.names.value(argument.name) if is_value else scratch[argument.name]
            passed.append(name)
            addresses.append(self.addresses.get(name, ""))
        if self.is_on_gpu(step):
            passed = ["stream", "misaligned", *passed, *addresses]
        passed += [symbol.name for symbol in self.graph.symbols]
        entry = RegionKernels(step, self.kernels[step])
        if spec is entry.kernels[-1]:
            passed += [self.names.value(name) for name in entry.handed_on]
        return [f"{spec.name}({', '.join(passed)})"]

    def is_empty(self, spec: KernelSpec) -> bool:
        """Whether a kernel stores no element, whatever the sizes that change."""
        stored = [a for a in spec.arguments if a.is_output]
        types = [self.graph.values[a.name].type for a in stored if a.kind == "buffer"]
        return bool(types) and len(types) == len(stored) and all(0 in t.shape for t in types)

    def is_on_gpu(self, step: StepNames) -> bool:
        """Whether kernels are given the stream and addresses."""
        made = [value for region in self.memory.regions(step) for value in region.outputs]
        return bool(self.gpu and made) and self.graph.values[made[0]].type.device == self.gpu

    def address(self, name: str) -> str:
        """The name of the address of the tensor that the program calls `name`."""
        if name not in self.addresses:
            self.addresses[name] = self.names.fresh(f"at_{name}")
        return self.addresses[name]

    def address_lines(self, values: Sequence[str], result: str) -> list[str]:
        """Lines that take the addresses of values from outside, as far as kernels are given them.

        Together they are tested for their alignment; own memory is aligned.
        """
        names = [self.names.value(value) for value in dict.fromkeys(values)]
        known = [name for name in names if name in self.addresses]
        if not known:
            return []
        together = " | ".join(self.addresses[name] for name in known)
        together = f"({together})" if len(known) > 1 else together
        taken = [f"{self.addresses[name]} = {name}.data_ptr()" for name in known]
        return [*taken, f"{result} {together} % {ALIGNMENT}"]

    def call_step(self, op: Op) -> HostStep:
        target = self.names.bind(op.call.name.removesuffix(".default"), op.call.target)
        passed = [self.item_text(item, op) for item in op.call.args]
        passed += [keyword_text(name, self.item_text(item, op)) for name, item in op.call.kwargs]
        call = f"{target}({', '.join(passed)})"
        used = [v for v in op.results if v.name in self.memory.last_use or self.is_output(v.name)]
        if not used:
            lines = [call]
        elif used[0].position is None:
            lines = self.result_lines(used[0].name, call)
        else:
            several = self.names.fresh(f"{op.name}_results")
            lines = [f"{several} = {call}"]
            for value in used:
                lines += self.result_lines(value.name, f"{several}[{value.position}]")
            lines.append(f"del {several}")
        outside = [value.name for value in used]
        if op.effect is Effect.BARRIER:
            # What is written to may get other memory.
            position = self.memory.position[op.name]
            seen = (argument.value for argument in op.arguments)
            outside += [v for v in seen if self.memory.last_use[v] > position]
        lines += self.address_lines(outside, "misaligned |=")
        reason = f": {op.reason}" if op.reason else ""
        return HostStep(f"{op.name}, the original call{reason}", tuple(lines))

    def result_lines(self, value: str, text: str) -> list[str]:
        line = with_comment(f"{self.names.value(value)} = {text}", self.graph.values[value].type)
        return [line, *(self.layout_lines(value) if value in self.memory.read_by_stride else [])]

    def layout_lines(self, value: str) -> list[str]:
        """Lines that hold a value from outside to its planned strides; mostly it has them."""
        name = self.names.value(value)
        kind = self.graph.values[value].type
        stride = tuple_text(kind.stride)
        # Writing to a copy would be lost, so what is written to has to come as planned.
        wanted = "assert {0} is {1}" if value in self.memory.written else "{0} = {1}"
        planned = wanted.format(name, f"planned_layout({name}, {stride})")
        # Cheaper, and of the same elements: the stride of a single one does not matter.
        is_other = f"not {name}.is_contiguous()"
        if not kind.is_contiguous:
            is_other = f"{name}.stride() != {stride}"
        return [f"if {is_other}:", f"    {planned}"]

    def buffer_lines(self, buffer: Buffer) -> list[str]:
        """Lines that make a buffer, or have it take the place of one that has ended."""
        name = self.buffers[buffer]
        old = self.memory.taken_over.get(buffer)
        if buffer.name in self.memory.in_place and not buffer.is_scratch:
            taken = self.names.value(self.memory.in_place[buffer.name])
            lines = [with_comment(f"{name} = {taken}", f"{buffer.type}, in place")]
            address = self.addresses.get(taken, f"{name}.data_ptr()")
        elif old is None:
            lines = [self.empty(name, buffer.type)]
            address = f"{name}.data_ptr()"
        else:
            known = self.buffers[old]
            comment = f"{buffer.type}, in the memory of {known}"
            lines = [with_comment(f"{name} = {known}", comment), f"del {known}"]
            address = self.addresses.get(known, f"{name}.data_ptr()")
        if self.is_on_gpu(buffer.step) or name in self.addresses:
            lines.append(f"{self.address(name)} = {address}")
        return lines

    def empty(self, name: str, kind: TensorType) -> str:
        size, stride = tuple_text(kind.shape), tuple_text(kind.stride)
        if kind.device == self.gpu:
            made = f"{name} = empty_on_gpu({size}, {stride}, torch.{kind.dtype.value})"
            return with_comment(made, kind)
        where = f"dtype=torch.{kind.dtype.value}, device={self.device(kind.device)}"
        return with_comment(f"{name} = empty_strided({size}, {stride}, {where})", kind)

    def device(self, text: str) -> str:
        if text not in self.devices:
            self.devices[text] = self.names.fresh(text)
        return self.devices[text]

    def ended(self, step: HostStep, position: int) -> HostStep:
        """The step with the values freed that nothing reads after it."""
        leaving = {b.name for b in self.memory.taken_over.values() if not b.is_scratch}
        dead = [
            self.names.value(name)
            for name, last in self.memory.last_use.items()
            if last == position and name not in (self.memory.kept | leaving)
        ]
        if not dead:
            return step
        return HostStep(step.comment, (*step.lines, f"del {', '.join(dead)}"))

    # **** texts ****

    def item_text(self, item: Any, op: Op) -> str:
        """An argument of an original call."""
        if isinstance(item, Slot):
            return self.view_text(op.arguments[item.position])
        if isinstance(item, SizeSlot):
            return expression_text(item.expression)
        if isinstance(item, list):
            return f"[{', '.join(self.item_text(part, op) for part in item)}]"
        if isinstance(item, tuple):
            parts = [self.item_text(part, op) for part in item]
            return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
        if isinstance(item, dict):
            pairs = (f"{key!r}: {self.item_text(part, op)}" for key, part in item.items())
            return f"{{{', '.join(pairs)}}}"
        if isinstance(item, slice):
            bounds = (self.item_text(b, op) for b in (item.start, item.stop, item.step))
            return f"slice({', '.join(bounds)})"
        text = literal_text(item)
        return self.names.bind("constant_argument", item) if text is None else text

    def view_text(self, argument: Argument) -> str:
        name = self.names.value(argument.value)
        if self.memory.is_whole(argument):
            return name
        kind = argument.type
        parts = [name, tuple_text(kind.shape), tuple_text(kind.stride)]
        if argument.storage_offset != 0:
            offset = python_text(argument.storage_offset)
            is_ours = argument.value in self.plan.region_of
            parts.append(offset if is_ours else f"{name}.storage_offset() + {offset}")
        return f"as_strided({', '.join(parts)})"

    def output_line(self, output: Output) -> str:
        if output.argument is not None:
            return with_comment(f"{self.view_text(output.argument)},", output.argument.type)
        text = literal_text(output.number)
        return f"{expression_text(output.number) if text is None else text},"

    def is_output(self, value: str) -> bool:
        return value in self.graph.output_values
