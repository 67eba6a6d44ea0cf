"""The host program of a plan: one flat Python function that allocates, launches and frees.

In: a plan and the kernels of its regions. Out: readable source text, one line for each step, and
the objects that its names stand for (original calls and arguments that have no literal). The
runtime adds kernels, constants and `planned_layout`. Every value lives exactly from the step that
makes it to the last one that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fuser.codegen.host_text import (
    HostNames,
    keyword_text,
    literal_text,
    tuple_text,
    with_comment,
)
from fuser.codegen.in_place import stored_in_place
from fuser.errors import InvalidPlan
from fuser.ir.dim import Dim, python_text, symbols_of
from fuser.ir.dim_text import expression_text
from fuser.ir.graph import Argument, Effect, Graph, Op, Output, SizeSlot, Slot, TensorType
from fuser.ir.kernel import KernelSpec, RegionKernels
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region
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
    """What belongs together in the text: a region, an original call, the sizes."""

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


def host_program(plan: FusionPlan, kernels: Sequence[RegionKernels]) -> HostProgram:
    """The program of `plan`; `kernels` holds an entry for each of its regions."""
    return _Writer(plan, {entry.region: entry.kernels for entry in kernels}).program()


@dataclass
class _Writer:
    """Writes one program; the names it has given out are its only state."""

    plan: FusionPlan
    kernels: Mapping[str, tuple[KernelSpec, ...]]

    def __post_init__(self) -> None:
        graph = self.plan.graph
        launched = [spec.name for specs in self.kernels.values() for spec in specs]
        symbols = [symbol.name for symbol in graph.symbols]
        self.names = HostNames((*symbols, *launched))
        self.devices: dict[str, str] = {}
        found = {value.type.device for value in graph.values.values()}
        gpus = sorted(device for device in found if device.startswith("cuda"))
        self.gpu = gpus[0] if len(gpus) == 1 and ":" in gpus[0] else ""

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    def program(self) -> HostProgram:
        inputs = tuple(self.input_lines())
        steps = [self.entry_step()]
        for position, name in enumerate(self.plan.order):
            region = self.plan.by_name.get(name)
            made = self.region_step(region) if region else self.call_step(self.graph.by_name[name])
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
        lines = self.size_lines()
        by_stride = {*self.read_by_stride, *self.in_place.values()}
        for item in self.graph.inputs:
            if item.value is None or item.value.name not in by_stride:
                continue
            lines += self.layout_lines(item.value.name)
        used = {*self.last_use, *self.graph.output_values, *self.in_place.values()}
        unused = [
            self.names.value(item.value.name)
            for item in self.graph.inputs
            if item.value is not None and item.value.name not in used
        ]
        if unused:
            lines.append(f"del {', '.join(unused)}")
        return HostStep("sizes and layouts of the inputs", tuple(lines))

    def size_lines(self) -> list[str]:
        """Each size symbol from the number, size or stride of an input that shows it."""
        shown: list[tuple[str, Dim]] = []
        known = set()
        for item in self.graph.inputs:
            if item.number is not None:
                if not isinstance(item.number, int) and item.number.is_Symbol:
                    known.add(str(item.number))
            elif item.value is not None:
                name = self.names.value(item.name)
                shape, stride = item.value.type.shape, item.value.type.stride
                shown += [(f"{name}.size({k})", size) for k, size in enumerate(shape)]
                shown += [(f"{name}.stride({k})", step) for k, step in enumerate(stride)]
        lines: list[str] = []
        for symbol in self.graph.symbols:
            if symbol.name not in known:
                lines.append(self.symbol_line(symbol.name, shown))
        return lines

    def symbol_line(self, symbol: str, shown: list[tuple[str, Dim]]) -> str:
        for text, dim in shown:
            if not isinstance(dim, int) and dim.is_Symbol and dim.name == symbol:
                return f"{symbol} = {text}"
        for text, dim in shown:
            # A multiple of it will do: the quotient is exact.
            if isinstance(dim, int) or {s.name for s in symbols_of([dim])} != {symbol}:
                continue
            factor, rest = dim.as_coeff_Mul()
            if rest.is_Symbol and factor.is_Integer:
                return f"{symbol} = {text} // {factor}"
        raise InvalidPlan(reason=f"no input of the graph shows the size {symbol}")

    # **** steps ****

    def region_step(self, region: Region) -> HostStep:
        specs = self.kernels.get(region.name)
        if not specs:
            raise InvalidPlan(reason=f"there is no kernel for {region.name}")
        lines = [self.allocation(name) for name in region.outputs]
        scratch: dict[str, str] = {}
        device = self.graph.values[region.outputs[0]].type.device
        symbols = [symbol.name for symbol in self.graph.symbols]
        for spec in specs:
            passed: list[str] = []
            for argument in spec.arguments:
                if argument.kind == "size":
                    passed.append(python_text(argument.size))
                elif argument.kind == "buffer":
                    passed.append(self.names.value(argument.name))
                else:
                    if argument.name not in scratch:
                        scratch[argument.name] = self.names.fresh(argument.name)
                        kind = TensorType(argument.dtype, (argument.size,), (1,), device)
                        lines.append(self.empty(scratch[argument.name], kind))
                    passed.append(scratch[argument.name])
            if self.gpu and device == self.gpu:
                passed.insert(0, "stream")
            lines.append(f"{spec.name}({', '.join([*passed, *symbols])})")
        if scratch:
            lines.append(f"del {', '.join(scratch.values())}")
        kinds = [self.graph.by_name[op].kind for op in region.all_ops]
        shown = ", ".join(kinds[:8]) + (", ..." if len(kinds) > 8 else "")
        return HostStep(f"{region.name}, {region.strategy.value}: {shown}", tuple(lines))

    def call_step(self, op: Op) -> HostStep:
        target = self.names.bind(op.call.name.removesuffix(".default"), op.call.target)
        passed = [self.item_text(item, op) for item in op.call.args]
        passed += [keyword_text(name, self.item_text(item, op)) for name, item in op.call.kwargs]
        call = f"{target}({', '.join(passed)})"
        used = [v for v in op.results if v.name in self.last_use or self.is_output(v.name)]
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
        reason = f": {op.reason}" if op.reason else ""
        return HostStep(f"{op.name}, the original call{reason}", tuple(lines))

    def result_lines(self, value: str, text: str) -> list[str]:
        line = with_comment(f"{self.names.value(value)} = {text}", self.graph.values[value].type)
        return [line, *(self.layout_lines(value) if value in self.read_by_stride else [])]

    def layout_lines(self, value: str) -> list[str]:
        """Lines that hold a value from outside to its planned strides; mostly it has them."""
        name = self.names.value(value)
        stride = tuple_text(self.graph.values[value].type.stride)
        # Writing to a copy would be lost, so what is written to has to come as planned.
        wanted = "assert {0} is {1}" if value in self.written else "{0} = {1}"
        planned = wanted.format(name, f"planned_layout({name}, {stride})")
        return [f"if {name}.stride() != {stride}:", f"    {planned}"]

    def allocation(self, value: str) -> str:
        if value in self.in_place:
            taken = self.names.value(self.in_place[value])
            return with_comment(f"{self.names.value(value)} = {taken}", "written in place")
        return self.empty(self.names.value(value), self.graph.values[value].type)

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
        kept = {*self.graph.output_values, *(value.name for value in self.graph.constants)}
        dead = [
            self.names.value(name)
            for name, last in self.last_use.items()
            if last == position and name not in kept
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
        if self.is_whole(argument):
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

    # **** who reads what ****

    def is_whole(self, argument: Argument) -> bool:
        """Whether the view shows the value as it is."""
        same = argument.type == self.graph.values[argument.value].type
        return argument.map.is_identity and same

    def is_output(self, value: str) -> bool:
        return value in self.graph.output_values

    def reads(self, name: str) -> tuple[str, ...]:
        """The values that a step of the plan reads."""
        if name not in self.plan.by_name:
            return tuple(argument.value for argument in self.graph.by_name[name].arguments)
        region = self.plan.by_name[name]
        made = set(region.outputs)
        buffers = [
            argument.name
            for spec in self.kernels.get(name, ())
            for argument in spec.arguments
            if argument.kind == "buffer" and argument.name not in made
        ]
        return (*region.inputs, *buffers)

    @cached_property
    def last_use(self) -> Mapping[str, int]:
        """The position in the plan's order of the last step that reads a value."""
        found: dict[str, int] = {}
        for position, name in enumerate(self.plan.order):
            for value in self.reads(name):
                found[value] = position
        return found

    @cached_property
    def in_place(self) -> Mapping[str, str]:
        """Values to the inputs that they overwrite."""
        return stored_in_place(self.plan, self.last_use)

    @cached_property
    def read_by_stride(self) -> frozenset[str]:
        """Values from outside the kernels that are read by the strides that the plan gives them."""
        found = {v for name in self.plan.by_name for v in self.reads(name)}
        views = [a for op in self.graph.ops if op.is_opaque for a in op.arguments]
        views += [output.argument for output in self.graph.outputs if output.argument is not None]
        found |= {argument.value for argument in views if not self.is_whole(argument)}
        return frozenset(found - set(self.plan.region_of))

    @cached_property
    def written(self) -> frozenset[str]:
        """Values that an original call may write to."""
        writers = (op for op in self.graph.ops if op.effect is Effect.BARRIER)
        return frozenset(argument.value for op in writers for argument in op.arguments)
