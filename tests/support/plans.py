"""Small graphs written by hand, for tests of what is done with a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from fuser.ir.dim import Dim
from fuser.ir.dtype import DType
from fuser.ir.graph import (
    OPAQUE,
    Argument,
    Call,
    Effect,
    Graph,
    Input,
    Literal,
    Op,
    Operand,
    Output,
    Slot,
    Source,
    Symbol,
    TensorType,
    Value,
    row_major_strides,
)
from fuser.ir.index_map import IDENTITY, Axis, Strided, broadcast
from fuser.ir.kernel import KernelSpec, RegionKernels
from fuser.ir.plan import FusionPlan
from fuser.passes.pipeline import plan_graph


def tensor(*shape: Dim, dtype: DType = DType.FLOAT32) -> TensorType:
    return TensorType(dtype, shape, row_major_strides(shape))


def read(value: Value) -> Argument:
    return Argument(value.name, IDENTITY, value.type)


def transposed(argument: Argument) -> Argument:
    rows, columns = argument.type.shape
    step = Strided((columns, rows), (Axis(1), Axis(0)))
    stride = tuple(reversed(argument.type.stride))
    kind = TensorType(argument.type.dtype, (columns, rows), stride)
    return Argument(argument.value, argument.map.after(step), kind)


class Sketch:
    """Collects inputs and ops; each method returns the new value, ready to be read."""

    def __init__(self, name: str = "sketch") -> None:
        self.name = name
        self.inputs: list[Input] = []
        self.ops: list[Op] = []
        self.symbols: list[Symbol] = []
        self.taken: dict[str, int] = {}

    def symbol(self, name: str, hint: int) -> sympy.Symbol:
        self.symbols.append(Symbol(name, hint))
        found = sympy.Symbol(name, positive=True, integer=True)
        self.inputs.append(Input(name, number=found))
        return found

    def input(self, name: str, *shape: Dim, dtype: DType = DType.FLOAT32) -> Argument:
        value = Value(name, tensor(*shape, dtype=dtype))
        self.inputs.append(Input(name, value=value))
        return read(value)

    def pointwise(self, kind: str, *operands: Argument | float, name: str = "") -> Argument:
        arguments = tuple(o for o in operands if isinstance(o, Argument))
        widest = max(arguments, key=lambda argument: len(argument.type.shape))
        shape = widest.type.shape
        return self._add(
            kind, tensor(*shape, dtype=widest.type.dtype), shape, operands, arguments, name
        )

    def reduction(
        self, kind: str, operand: Argument, *axes: int, keepdim: bool = False, name: str = ""
    ) -> Argument:
        domain = operand.type.shape
        shape = tuple(
            1 if k in axes else size for k, size in enumerate(domain) if keepdim or k not in axes
        )
        result = tensor(*shape, dtype=operand.type.dtype)
        return self._add(
            kind, result, domain, (operand,), (operand,), name, reduced=axes, keepdim=keepdim
        )

    def full(self, value: float, *shape: Dim, name: str = "") -> Argument:
        return self._add("full", tensor(*shape), shape, (value,), (), name)

    def call(
        self,
        target: str,
        *arguments: Argument,
        results: Sequence[TensorType],
        reason: str = "no generated form",
        effect: Effect = Effect.NONE,
        name: str = "",
    ) -> tuple[Argument, ...]:
        name = self._name(name or target.split(".")[1])
        names = [name] if len(results) == 1 else [f"{name}_{k}" for k in range(len(results))]
        values = tuple(map(Value, names, results))
        call = Call(_Target(target), tuple(Slot(k) for k in range(len(arguments))))
        self.ops.append(
            Op(
                name,
                OPAQUE,
                (),
                arguments,
                values,
                call,
                source=self._source(target),
                reason=reason,
                effect=effect,
            )
        )
        return tuple(map(read, values))

    def graph(self, *outputs: Argument) -> Graph:
        return Graph(
            inputs=tuple(self.inputs),
            ops=tuple(self.ops),
            outputs=tuple(Output(argument) for argument in outputs),
            symbols=tuple(self.symbols),
            name=self.name,
        )

    def _add(
        self,
        kind: str,
        result: TensorType,
        domain: Sequence[Dim],
        operands: Sequence[Argument | float],
        arguments: Sequence[Argument],
        name: str,
        **fields: Any,
    ) -> Argument:
        name = self._name(name or kind)
        value = Value(name, result)
        mapped: tuple[Operand, ...] = tuple(
            o.through(broadcast(o.type.shape, tuple(domain)))
            if isinstance(o, Argument)
            else Literal(o)
            for o in operands
        )
        call = Call(_Target(f"aten.{kind}.default"), tuple(map(Slot, range(len(arguments)))))
        self.ops.append(
            Op(
                name,
                kind,
                mapped,
                tuple(arguments),
                (value,),
                call,
                tuple(domain),
                source=self._source(kind),
                **fields,
            )
        )
        return read(value)

    def _name(self, wanted: str) -> str:
        count = self.taken.get(wanted, 0)
        self.taken[wanted] = count + 1
        return f"{wanted}_{count}" if count else wanted

    def _source(self, kind: str) -> Source:
        line = len(self.ops) + 10
        return Source("/home/someone/model.py", line, f"y = {kind}(x)", "layers.0")


class _Target:
    """Stands for a torch operation: only its name is looked at."""

    _schema = None

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


def small_graph() -> Graph:
    """A scaled operand, a product that stays a call, its activation, and a normalisation by row."""
    sketch = Sketch("small")
    x = sketch.input("x", 256, 1024, dtype=DType.BFLOAT16)
    bias = sketch.input("bias", 1024, dtype=DType.BFLOAT16)
    weight = sketch.input("weight", 1024, 1024, dtype=DType.BFLOAT16)
    scaled = sketch.pointwise("mul", x, 0.5)
    product = sketch.call(
        "aten.mm.default", scaled, weight, results=[tensor(256, 1024, dtype=DType.BFLOAT16)]
    )[0]
    shifted = sketch.pointwise("add", product, bias)
    active = sketch.pointwise("tanh", shifted)
    peak = sketch.reduction("amax", active, 1, keepdim=True)
    ratio = sketch.pointwise("divide", active, peak)
    return sketch.graph(ratio, shifted)


def small_plan(target: str = "sm_90") -> FusionPlan:
    return plan_graph(small_graph(), target)


def kernels(region: str, *names: str) -> RegionKernels:
    """Kernels of a region, of which only the names and the sources are looked at."""
    return RegionKernels(
        (region,),
        tuple(
            KernelSpec(
                name=name,
                source=f"# source of {name}\n",
                key=name,
                arguments=(),
                grid=(),
                configurations=(),
                extent=0,
            )
            for name in names
        ),
    )
