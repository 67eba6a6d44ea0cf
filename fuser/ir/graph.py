"""The graph: frozen operations on logical tensors, in an order in which they may run.

Every op keeps the torch call it came from, so that any op, alone or in a group, can also be run
unfused: as the fallback, as the reference that fused code is compared with, and as the kernel for
what has no generated form. Views are index maps on the edges and are never ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any

from fuser.ir.dim import Dim, evaluate, product, python_text
from fuser.ir.dtype import DType
from fuser.ir.index_map import IDENTITY, IndexMap, Shape, Step, same_shape


@dataclass(frozen=True, slots=True)
class TensorType:
    """What a tensor is: element type, sizes, eager's strides (in elements) and device."""

    dtype: DType
    shape: Shape
    stride: Shape
    device: str = "cpu"

    @property
    def numel(self) -> Dim:
        return product(self.shape)

    @property
    def bytes(self) -> Dim:
        numel = self.numel
        return numel * self.dtype.bytes

    @property
    def is_contiguous(self) -> bool:
        return same_shape(
            tuple(s for s, n in zip(self.stride, self.shape, strict=True) if n != 1),
            tuple(
                s for s, n in zip(row_major_strides(self.shape), self.shape, strict=True) if n != 1
            ),
        )

    def __str__(self) -> str:
        text = f"{self.dtype.short}[{', '.join(map(python_text, self.shape))}]"
        if not self.is_contiguous:
            text += "{" + ", ".join(map(python_text, self.stride)) + "}"
        return text


def row_major_strides(shape: Shape) -> Shape:
    """Strides of a contiguous tensor, in elements, as torch computes them."""
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * 1 if size == 0 else product((step, size))
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor as an op reads it: `value` seen through `map`, with the view's own type.

    `type` and `storage_offset` (in elements from the value's start) describe the view's memory
    where the value is stored. `window` is the part of `map` that leads from the reader's index to
    the view's: broadcasts and shifts, empty for the arguments of a call.
    """

    value: str
    map: IndexMap
    type: TensorType
    storage_offset: Dim = 0
    window: IndexMap = IDENTITY

    def through(self, step: Step) -> Argument:
        """The same view read by an op whose index reaches it through `step`."""
        return replace(self, map=self.map.after(step), window=self.window.after(step))

    def __str__(self) -> str:
        return f"%{self.value}{self.map}"


@dataclass(frozen=True, slots=True)
class Literal:
    """A Python number or a symbolic size among an op's operands."""

    value: bool | int | float | Dim

    def __str__(self) -> str:
        return str(self.value)


Operand = Argument | Literal


@dataclass(frozen=True, slots=True)
class Slot:
    """In a `Call`: the place of the tensor operand with this position in `Op.arguments`."""

    position: int


@dataclass(frozen=True, slots=True)
class SizeSlot:
    """In a `Call`: the place of a symbolic number, evaluated when the call is made."""

    expression: Dim


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """The torch call an op stands for; tensors are `Slot`s, symbolic numbers `SizeSlot`s."""

    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """`aten.add.Tensor`, or a higher-order op's or function's own name."""
        if hasattr(self.target, "_schema"):
            return str(self.target)
        return str(getattr(self.target, "__name__", self.target))


@dataclass(frozen=True, slots=True)
class Source:
    """Where an op came from in the user's program."""

    file: str = ""
    line: int = 0
    code: str = ""
    module: str = ""

    def __str__(self) -> str:
        if not self.file:
            return self.module or "?"
        where = f"{self.file.rsplit('/', 1)[-1]}:{self.line}"
        return f"{where} {self.code}".rstrip()


@dataclass(frozen=True, slots=True)
class Value:
    """A named tensor: a graph input, a constant, or a result of an op.

    `position` is its place in the tuple that an op's call returns, None where it is all of it.
    """

    name: str
    type: TensorType
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size known only when the graph is called; `hint` is the size seen while tracing."""

    name: str
    hint: int


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of another op's result an op computes: along `axis`, of `size` elements, from
    `start` on. `whole` is that op's name, which the graph does not have any more."""

    whole: str
    axis: int
    start: Dim
    size: Dim


OPAQUE = "opaque"


class Effect(Enum):
    """What an op does beyond returning its results."""

    NONE = "none"
    ORDERED = "ordered"
    """It draws random numbers or is unknown: it keeps its place among its like."""
    BARRIER = "barrier"
    """It writes to its arguments: everything else keeps its side of it."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `kind` is its row in the op table, or `OPAQUE` for the original call.

    `operands` is what generated code computes with, in the row's order, each with a map from the
    op's domain (broadcasts and shifts included); `arguments` are the tensors of `call`, as the call
    sees them. For a reduction `domain` is the index space it reads and `reduced` the axes of that
    space that disappear; for anything else `domain` is the result's shape and `reduced` is empty.
    """

    name: str
    kind: str
    operands: tuple[Operand, ...]
    arguments: tuple[Argument, ...]
    results: tuple[Value, ...]
    call: Call
    domain: Shape = ()
    reduced: tuple[int, ...] = ()
    keepdim: bool = False
    compute: DType = DType.FLOAT32
    attributes: tuple[tuple[str, Any], ...] = ()
    source: Source = Source()
    reason: str = ""
    effect: Effect = Effect.NONE
    origin: str = ""
    """The call of the program that the op is a part of; ops it was decomposed into share it."""
    part: Part | None = None
    """For an op that computes a slice of what the program computes at once (passes/slices.py)."""
    reads: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The values the op reads, each once, in operand order."""

    def __post_init__(self) -> None:
        source = self.arguments if self.is_opaque else self.operands
        reads = dict.fromkeys(o.value for o in source if isinstance(o, Argument))
        object.__setattr__(self, "reads", tuple(reads))

    @property
    def is_opaque(self) -> bool:
        return self.kind == OPAQUE

    @property
    def type(self) -> TensorType:
        """The type of the only result (generated ops have exactly one)."""
        return self.results[0].type

    def attribute(self, name: str) -> Any:
        return dict(self.attributes)[name]

    def __str__(self) -> str:
        results = ", ".join(f"%{value.name}" for value in self.results)
        types = ", ".join(str(value.type) for value in self.results)
        name = f"call {self.call.name}" if self.is_opaque else self.kind
        operands = ", ".join(map(str, self.arguments if self.is_opaque else self.operands))
        extra = "".join(f" {key}={value}" for key, value in self.attributes)
        if self.reduced:
            extra += f" over={list(self.reduced)}" + (" keepdim" if self.keepdim else "")
        return f"{results} = {name}({operands}){extra} : {types}    # {self.source}"


@dataclass(frozen=True, slots=True)
class Output:
    """One output of the graph: a tensor seen through a view, a number, or None."""

    argument: Argument | None = None
    number: Dim | float | None = None
    into: str = ""
    """The input that the program overwrites with it, if any: whoever calls the graph copies it
    there, unless it is there already."""

    def __str__(self) -> str:
        if self.argument is not None:
            return str(self.argument) + (f" into %{self.into}" if self.into else "")
        return str(self.number)


@dataclass(frozen=True, slots=True)
class Input:
    """One input of the graph: a tensor (`value`) or a symbolic number (`symbol` expression)."""

    name: str
    value: Value | None = None
    number: Dim | None = None


@dataclass(frozen=True)
class Graph:
    """Inputs, ops in program order, outputs; `symbols` are the sizes known only at the call."""

    inputs: tuple[Input, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Output, ...]
    symbols: tuple[Symbol, ...] = ()
    constants: tuple[Value, ...] = ()
    name: str = "graph"

    @cached_property
    def producers(self) -> Mapping[str, Op]:
        """Value name to the op that makes it (inputs and constants are absent)."""
        return {value.name: op for op in self.ops for value in op.results}

    @cached_property
    def by_name(self) -> Mapping[str, Op]:
        return {op.name: op for op in self.ops}

    @cached_property
    def position(self) -> Mapping[str, int]:
        return {op.name: index for index, op in enumerate(self.ops)}

    def in_order(self, names: Iterable[str]) -> list[Op]:
        """The named ops as the program has them."""
        return [self.by_name[name] for name in sorted(names, key=self.position.__getitem__)]

    @cached_property
    def values(self) -> Mapping[str, Value]:
        found = {item.value.name: item.value for item in self.inputs if item.value is not None}
        found |= {value.name: value for value in self.constants}
        found |= {value.name: value for op in self.ops for value in op.results}
        return found

    @cached_property
    def readers(self) -> Mapping[str, tuple[Op, ...]]:
        """Value name to the ops that read it, each once, in program order."""
        found: dict[str, list[Op]] = {name: [] for name in self.values}
        for op in self.ops:
            for name in op.reads:
                found[name].append(op)
        return {name: tuple(ops) for name, ops in found.items()}

    @cached_property
    def output_values(self) -> frozenset[str]:
        return frozenset(o.argument.value for o in self.outputs if o.argument is not None)

    @cached_property
    def bytes_of(self) -> Mapping[str, int]:
        """Value name to its bytes, with hints for unknown sizes."""
        return {name: evaluate(value.type.bytes, self.hints) for name, value in self.values.items()}

    @cached_property
    def numel_of(self) -> Mapping[str, int]:
        """Value name to its elements, likewise."""
        return {name: evaluate(value.type.numel, self.hints) for name, value in self.values.items()}

    @cached_property
    def points_of(self) -> Mapping[str, int]:
        """Op name to the points of its domain, likewise."""
        return {op.name: evaluate(product(op.domain), self.hints) for op in self.ops}

    @cached_property
    def hints(self) -> Mapping[str, int]:
        return {symbol.name: symbol.hint for symbol in self.symbols}

    def __str__(self) -> str:
        inputs = ", ".join(
            f"%{item.name}: {item.value.type}" if item.value else f"{item.name} = {item.number}"
            for item in self.inputs
        )
        lines = [f"graph {self.name}({inputs}):"]
        lines += [f"  %{value.name} = constant : {value.type}" for value in self.constants]
        lines += [f"  {op}" for op in self.ops]
        lines.append("  return " + ", ".join(map(str, self.outputs)))
        return "\n".join(lines)


def whole(value: Value) -> Argument:
    """The value read as it is."""
    return Argument(value.name, IDENTITY, value.type)
