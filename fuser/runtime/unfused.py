"""Any list of ops run one by one, as the torch calls they came from.

In: an environment of tensors by value name. Out: the same environment with the ops' results added.
This is the fallback where there is no kernel and, in float64, the reference that kernels are
compared with. Every result is put into the layout that the plan gives it, because views of it are
taken by that layout's strides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from fuser.ir.graph import (
    Argument,
    Effect,
    Graph,
    Literal,
    Op,
    Output,
    SizeSlot,
    Slot,
    TensorType,
    Value,
)
from fuser.ir.ops import BY_KIND, Group
from fuser.runtime.sizes import number_at, shape_at

__all__ = ["in_planned_layout", "initial_values", "outputs_of", "run_ops", "view"]

Environment = MutableMapping[str, torch.Tensor]
Symbols = Mapping[str, int]


def run_ops(
    graph: Graph,
    op_names: Iterable[str],
    environment: Environment,
    symbols: Symbols,
    precision: torch.dtype | None = None,
) -> None:
    """Run the ops in program order.

    With a `precision` floating tensors are read in it, element types that calls name become it, and
    so do floating results; complex types follow. A call that cannot run in it runs in its own.
    """
    runner = _Runner(graph, environment, symbols, precision)
    for op in runner.needed(op_names):
        runner.run(op)


def initial_values(
    graph: Graph,
    inputs: Sequence[Any],
    constants: Sequence[torch.Tensor],
    symbols: Symbols,
) -> dict[str, torch.Tensor]:
    """The values that are there before the first op."""
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
    named = zip(graph.constants, constants, strict=True)
    return found | {value.name: tensor for value, tensor in named}


def outputs_of(
    graph: Graph, environment: Mapping[str, torch.Tensor], symbols: Symbols
) -> tuple[Any, ...]:
    """What the graph returns, once the values are there that it returns."""

    def at(output: Output) -> Any:
        if output.argument is not None:
            return view(graph, output.argument, environment[output.argument.value], symbols)
        return None if output.number is None else number_at(output.number, symbols)

    return tuple(map(at, graph.outputs))


def in_planned_layout(tensor: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """The tensor itself where its elements lie as planned, else a copy that lies so."""
    actual = tensor.stride()
    if actual == stride:
        return tensor
    size = tensor.shape
    pairs = zip(size, actual, stride, strict=True)
    # Where a dimension has no second element, its stride says nothing.
    if 0 in size or all(n == 1 or a == s for n, a, s in pairs):
        return tensor
    for dim, step in enumerate(stride):
        if step == 0 and size[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    planned = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    planned.copy_(tensor)
    return planned if planned.shape == size else planned.as_strided(size, stride)


def view(graph: Graph, argument: Argument, tensor: torch.Tensor, symbols: Symbols) -> torch.Tensor:
    """The tensor as `argument` sees it."""
    if argument.map.is_identity and argument.type == graph.values[argument.value].type:
        return tensor
    return tensor.as_strided(
        shape_at(argument.type.shape, symbols),
        shape_at(argument.type.stride, symbols),
        tensor.storage_offset() + int(number_at(argument.storage_offset, symbols)),
    )


class _Runner:
    """The state of one `run_ops`: what has been converted to the precision so far."""

    def __init__(
        self,
        graph: Graph,
        environment: Environment,
        symbols: Symbols,
        precision: torch.dtype | None,
    ) -> None:
        self.graph = graph
        self.environment = environment
        self.symbols = symbols
        self.precision = precision
        self.widened: dict[str, torch.Tensor] = {}

    def needed(self, op_names: Iterable[str]) -> list[Op]:
        """The ops in program order, with the constants that they read and nobody stores."""
        names = set(op_names)
        waiting = list(names)
        while waiting:
            for argument in self.graph.by_name[waiting.pop()].arguments:
                producer = self.graph.producers.get(argument.value)
                if argument.value in self.environment or producer is None:
                    continue
                if producer.name not in names and _is_creation(producer):
                    names.add(producer.name)
                    waiting.append(producer.name)
        return sorted((self.graph.by_name[n] for n in names), key=self.position)

    def position(self, op: Op) -> int:
        return self.graph.position[op.name]

    def run(self, op: Op) -> None:
        if op.kind == "full" and not all(a.value in self.environment for a in op.arguments):
            self.store(op, op.results[0], self.filled(op))
            return
        given = self.call(op, self.precision)
        for value in op.results:
            made = _result(op, value, given)
            # Attention kernels return nothing where their description promises a tensor that only
            # a backward pass would read.
            if made is not None:
                self.store(op, value, made)

    def call(self, op: Op, precision: torch.dtype | None) -> Any:
        if precision is None:
            return self.call_in(op, None)
        try:
            given = self.call_in(op, precision)
        except (RuntimeError, TypeError):
            return self.call_in(op, None)
        for value in op.results:
            # A call that reinterprets memory gives another shape when elements are wider.
            shape = shape_at(value.type.shape, self.symbols)
            if tuple(_result(op, value, given).shape) != shape:
                return self.call_in(op, None)
        return given

    def call_in(self, op: Op, precision: torch.dtype | None) -> Any:
        tensors = [self.read(argument, precision) for argument in op.arguments]
        args = [self.fill(item, tensors, precision) for item in op.call.args]
        kwargs = {name: self.fill(item, tensors, precision) for name, item in op.call.kwargs}
        return op.call.target(*args, **kwargs)

    def read(self, argument: Argument, precision: torch.dtype | None) -> torch.Tensor:
        tensor = self.environment[argument.value]
        if precision is not None:
            tensor = self.wide(argument.value, tensor, precision)
        elif self.precision is not None:
            # What an earlier op left in the precision goes back to the type the call expects.
            tensor = _converted(tensor, _torch_dtype(argument.type, tensor.dtype))
        return view(self.graph, argument, tensor, self.symbols)

    def wide(self, name: str, tensor: torch.Tensor, precision: torch.dtype) -> torch.Tensor:
        if name not in self.widened:
            self.widened[name] = _converted(tensor, _widened(tensor.dtype, precision))
        return self.widened[name]

    def fill(self, item: Any, tensors: list[torch.Tensor], precision: torch.dtype | None) -> Any:
        """An argument of the call with tensors and numbers in the places kept for them."""
        if isinstance(item, Slot):
            return tensors[item.position]
        if isinstance(item, SizeSlot):
            return number_at(item.expression, self.symbols)
        if isinstance(item, (list, tuple)):
            parts = [self.fill(part, tensors, precision) for part in item]
            return parts if isinstance(item, list) else tuple(parts)
        if isinstance(item, dict):
            return {key: self.fill(part, tensors, precision) for key, part in item.items()}
        if isinstance(item, slice):
            bounds = (item.start, item.stop, item.step)
            return slice(*(self.fill(bound, tensors, precision) for bound in bounds))
        if isinstance(item, torch.dtype) and precision is not None:
            return _widened(item, precision)
        return item

    def filled(self, op: Op) -> torch.Tensor:
        """The result of `full` and its like, whose tensor argument only says where and how."""
        (operand,) = op.operands
        assert isinstance(operand, Literal)
        made = torch.empty_strided(
            shape_at(op.type.shape, self.symbols),
            shape_at(op.type.stride, self.symbols),
            dtype=_torch_dtype(op.type, torch.float32),
            device=op.type.device,
        )
        return made.fill_(number_at(operand.value, self.symbols))

    def store(self, op: Op, value: Value, tensor: torch.Tensor) -> None:
        if self.precision is not None:
            tensor = _converted(tensor, _widened(tensor.dtype, self.precision))
        if tensor.layout is torch.strided:
            tensor = in_planned_layout(tensor, shape_at(value.type.stride, self.symbols))
        self.environment[value.name] = tensor
        self.widened.pop(value.name, None)


def _is_creation(op: Op) -> bool:
    return not op.is_opaque and BY_KIND[op.kind].group is Group.CREATION


def _result(op: Op, value: Value, given: Any) -> Any:
    """The part of a call's result that is `value`."""
    return given if value.position is None else given[value.position]


def _widened(dtype: torch.dtype, precision: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return precision.to_complex()
    return precision if dtype.is_floating_point else dtype


def _torch_dtype(kind: TensorType, otherwise: torch.dtype) -> torch.dtype:
    found = getattr(torch, kind.dtype.value, None)
    return found if isinstance(found, torch.dtype) else otherwise


def _converted(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in another element type, strides and overlaps kept."""
    if tensor.dtype == dtype or tensor.layout is not torch.strided:
        return tensor
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=tensor.device)
    # All that lies between its first and its last element, converted as it lies.
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * step for size, step in pairs)
    flat = tensor.as_strided((span,), (1,), tensor.storage_offset()).to(dtype)
    return flat.as_strided(tensor.shape, tensor.stride(), 0)
