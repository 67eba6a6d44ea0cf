"""FX graph of aten calls, with fake tensors in `meta["val"]`, to the compiler's own `Graph`.

Views become index maps on edges, calls in the op table become generated ops, everything else an
opaque op that keeps the original call and says why. Nothing is an error except a graph whose sizes
are computed from data (`DataDependentSize`), which the caller runs unfused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fuser import philox
from fuser.capture.rows import Row, row_for
from fuser.capture.views import MOVES, VIEWS
from fuser.ir.dim import Dim, add, as_dim, symbols_of
from fuser.ir.dtype import dtype_from_name
from fuser.ir.graph import (
    OPAQUE,
    Argument,
    Call,
    Effect,
    Graph,
    Input,
    Literal,
    Op,
    Output,
    SizeSlot,
    Slot,
    Source,
    Symbol,
    TensorType,
    Value,
    whole,
)

WRITTEN = "written_inputs"
"""Where an output node's `meta` says which results overwrite which placeholders, by name."""


class DataDependentSize(Exception):
    """The graph makes tensors whose sizes depend on data."""


def from_fx(module: fx.GraphModule, name: str = "graph") -> tuple[Graph, tuple[Any, ...]]:
    """The graph, and its constants' tensors in the order of `Graph.constants`."""
    importer = _Importer(module)
    for node in module.graph.nodes:
        importer.visit(node)
    graph = Graph(
        inputs=tuple(importer.inputs),
        ops=tuple(importer.ops),
        outputs=tuple(importer.outputs),
        symbols=tuple(Symbol(n, h) for n, h in sorted(importer.hints.items())),
        constants=tuple(importer.constants),
        name=name,
    )
    return graph, tuple(importer.constant_tensors)


def tensor_type(value: torch.Tensor) -> TensorType:
    """The type of a (fake) tensor, symbolic sizes kept symbolic."""
    strides = value.stride() if value.layout is torch.strided else ()
    return TensorType(
        dtype_from_name(str(value.dtype)),
        tuple(map(number, value.shape)),
        tuple(map(number, strides)),
        str(value.device),
    )


def number(value: Any) -> Dim:
    """An int, or the sympy expression behind a SymInt."""
    if isinstance(value, torch.SymInt):
        expression = value.node.expr
        # Whether a size is 1 decides how it is read; only guards know that some expressions are.
        is_one = not expression.is_Symbol and statically_known_true(value == 1)
        return 1 if is_one else as_dim(expression)
    return as_dim(value)


_MACHINERY = tuple(
    folder + os.sep
    for folder in (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))
)
_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in .*\n\s*(?P<code>.*)')


def source_of(node: fx.Node) -> Source:
    """The innermost line of the user's program that the node came from."""
    module = ""
    stack = node.meta.get("nn_module_stack")
    if stack:
        path = str(list(stack.values())[-1][0])
        module = path.replace("L['self'].", "").replace("L['self']", "")
    found = list(_LINE.finditer(node.meta.get("stack_trace") or ""))
    if not found:
        return Source(module=module)
    # Frames inside torch and this package say how those work, not what the user wrote.
    own = [match for match in found if not match["file"].startswith(_MACHINERY)]
    if not own:
        return Source(module=module)
    last = own[-1]
    return Source(last["file"], int(last["line"]), last["code"].strip(), module)


def origin_of(node: fx.Node) -> str:
    """What the ops of one decomposed call have in common: the call of the traced program, its
    place in the order of autograd, and the aten operation that eager would run."""
    original = node.meta.get("original_aten")
    if original is None:
        return ""
    calls = node.meta.get("source_fn_stack") or node.meta.get("fwd_source_fn_stack") or [("",)]
    return f"{calls[-1][0]}:{node.meta.get('seq_nr', '')}:{original}"


class _Importer:
    """One pass over the nodes; `known` maps each node to what later nodes see."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.known: dict[fx.Node, Any] = {}
        self.inputs: list[Input] = []
        self.ops: list[Op] = []
        self.outputs: list[Output] = []
        self.constants: list[Value] = []
        self.constant_tensors: list[Any] = []
        self.hints: dict[str, int] = {}
        self.storage_offsets: dict[str, Dim] = {}
        self.taken = {node.name for node in module.graph.nodes}

    def visit(self, node: fx.Node) -> None:
        visitors: Mapping[str, Callable[[fx.Node], None]] = {
            "placeholder": self.placeholder,
            "get_attr": self.constant,
            "call_function": self.call,
            "output": self.output,
        }
        visitors[node.op](node)

    def placeholder(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            named = Value(node.name, self.type_of(value))
            self.storage_offsets[node.name] = number(value.storage_offset())
            self.inputs.append(Input(node.name, value=named))
            self.known[node] = whole(named)
        elif isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
            self.inputs.append(Input(node.name, number=self.size(value)))
            self.known[node] = self.size(value)
        else:
            self.inputs.append(Input(node.name))
            self.known[node] = value

    def constant(self, node: fx.Node) -> None:
        owner: Any = self.module
        for part in str(node.target).split("."):
            owner = getattr(owner, part)
        if not isinstance(owner, torch.Tensor):
            self.known[node] = owner
            return
        value = node.meta.get("val", owner)
        named = Value(node.name, self.type_of(value))
        self.storage_offsets[node.name] = number(value.storage_offset())
        self.constants.append(named)
        self.constant_tensors.append(owner)
        self.known[node] = whole(named)

    def output(self, node: fx.Node) -> None:
        (results,) = node.args
        written = node.meta.get(WRITTEN, {})
        for position, result in enumerate(results):  # type: ignore[arg-type]
            known = self.known[result] if isinstance(result, fx.Node) else result
            if isinstance(known, Argument):
                self.outputs.append(Output(argument=known, into=written.get(position, "")))
            else:
                self.outputs.append(Output(number=known))

    def call(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        target = str(node.target)
        if isinstance(value, torch.SymInt):
            self.known[node] = self.size(value)
        elif isinstance(value, (torch.SymFloat, torch.SymBool)):
            self.known[node] = value.node.expr
        elif target == "<built-in function getitem>":
            source = self.known[node.args[0]]  # type: ignore[index]
            self.known[node] = source[node.args[1]]
        elif target in VIEWS:
            self.known[node] = self.view(node, target)
        else:
            self.known[node] = self.operation(node, value)

    def view(self, node: fx.Node, target: str) -> Argument:
        arguments = self.named_arguments(node)
        viewed = next(iter(arguments.values()))
        assert isinstance(viewed, Argument)
        value = node.meta["val"]
        kind = self.type_of(value)
        step = VIEWS[target](viewed.type.shape, kind.shape, arguments)
        base = self.storage_offsets.get(viewed.value, 0)
        offset = add(number(value.storage_offset()), -base if isinstance(base, int) else -1 * base)
        return Argument(viewed.value, viewed.map.after(step), kind, offset)

    def named_arguments(self, node: fx.Node) -> dict[str, Any]:
        """The call's arguments by parameter name, defaults filled in, nodes looked up."""
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return {}
        found: dict[str, Any] = {}
        for position, parameter in enumerate(schema.arguments):
            if position < len(node.args):
                given = node.args[position]
            else:
                given = node.kwargs.get(parameter.name, parameter.default_value)
            found[parameter.name] = fx.map_arg(given, self.look_up)
        return found

    def look_up(self, node: fx.Node) -> Any:
        return self.known[node]

    def operation(self, node: fx.Node, value: Any) -> Any:
        arguments: list[Argument] = []
        call = Call(
            # The op's own function: a call through torch's dispatcher takes twice as long.
            philox.draw_seed if node.target is philox.seed else node.target,
            tuple(self.slots(a, arguments) for a in node.args),
            tuple((k, self.slots(v, arguments)) for k, v in node.kwargs.items()),
        )
        results = tuple(self.results(node.name, value))
        source, origin = source_of(node), origin_of(node)
        row = row_for(str(node.target), self.named_arguments(node), arguments, results, MOVES)
        if isinstance(row, Row):
            if row.kind == "full":
                # Of the tensor it is like only the type matters, which is known: nothing is read.
                call, arguments = constant_call(row, results[0]), []
            op = Op(
                node.name, row.kind, row.operands, tuple(arguments), results, call, row.domain,
                row.reduced, row.keepdim, row.compute, row.attributes, source, origin=origin,
            )  # fmt: skip
        else:
            if _is_drawn(node.target) and self.named_arguments(node).get("dropout_p") != 0.0:
                row = "draws from torch's generator"
            op = Op(
                node.name, OPAQUE, (), tuple(arguments), results, call, source=source,
                reason=row, effect=effect_of(node.target), origin=origin,
            )  # fmt: skip
        self.ops.append(op)
        if isinstance(value, torch.Tensor):
            return whole(results[0])
        if isinstance(value, (tuple, list)):
            placed = {result.position: whole(result) for result in results}
            return [placed.get(k, item) for k, item in enumerate(value)]
        return None

    def results(self, name: str, value: Any) -> Sequence[Value]:
        if isinstance(value, torch.Tensor):
            self.storage_offsets[name] = number(value.storage_offset())
            return [Value(name, self.type_of(value))]
        if isinstance(value, (tuple, list)):
            found = []
            for position, item in enumerate(value):
                if isinstance(item, torch.Tensor):
                    fresh = self.fresh(f"{name}_{position}")
                    found.append(Value(fresh, self.type_of(item), position))
                    self.storage_offsets[found[-1].name] = number(item.storage_offset())
                elif item is not None and not isinstance(item, (int, float)):
                    raise DataDependentSize(f"{name} returns {type(item).__name__}")
            return found
        if value is None:
            return []
        raise DataDependentSize(f"{name} returns {type(value).__name__}")

    def fresh(self, wanted: str) -> str:
        """A name that no node has: `median_1` may be the second result or the second median."""
        while wanted in self.taken:
            wanted += "_"
        return wanted

    def slots(self, given: Any, arguments: list[Argument]) -> Any:
        """The call's argument tree with tensors replaced by slots and symbols by size slots."""

        def replace(item: Any) -> Any:
            if isinstance(item, fx.Node):
                item = self.known[item]
            if isinstance(item, Argument):
                arguments.append(item)
                return Slot(len(arguments) - 1)
            if isinstance(item, (tuple, list)):
                return type(item)([replace(part) for part in item])
            if isinstance(item, dict):
                return {key: replace(part) for key, part in item.items()}
            if isinstance(item, torch.SymInt):
                item = self.size(item)
            if hasattr(item, "free_symbols"):
                return SizeSlot(item)
            return item

        if isinstance(given, slice):
            return slice(replace(given.start), replace(given.stop), replace(given.step))
        return replace(given)

    def type_of(self, value: torch.Tensor) -> TensorType:
        for size in (*value.shape, *(value.stride() if value.layout is torch.strided else ())):
            self.size(size)
        return tensor_type(value)

    def size(self, value: Any) -> Dim:
        """The size as an expression, its symbols recorded with their hints."""
        dim = number(value)
        if isinstance(value, torch.SymInt):
            environment = value.node.shape_env
            for symbol in symbols_of([dim]):
                hint = (
                    environment.backed_var_to_val.get(symbol)
                    if hasattr(environment, "backed_var_to_val")
                    else environment.var_to_val.get(symbol)
                )
                if hint is None:
                    raise DataDependentSize(f"size {dim} depends on data")
                self.hints[symbol.name] = int(hint)
        return dim


def constant_call(row: Row, result: Value) -> Call:
    """The call that makes a constant tensor with the strides that eager gives it."""
    kind = result.type
    (fill,) = row.operands
    assert isinstance(fill, Literal)
    size, stride = (tuple(map(_slot, dims)) for dims in (kind.shape, kind.stride))
    dtype = getattr(torch, kind.dtype.value)
    return Call(filled, (size, stride, _slot(fill.value), dtype, torch.device(kind.device)))


def _slot(number: Any) -> Any:
    return SizeSlot(number) if hasattr(number, "free_symbols") else number


def filled(
    size: Sequence[int], stride: Sequence[int], value: Any, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A constant tensor in a given layout."""
    return torch.empty_strided(size, stride, dtype=dtype, device=device).fill_(value)


def effect_of(target: Any) -> Effect:
    """Whether the call must keep its place: it draws random numbers, writes, or is unknown."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return Effect.ORDERED
    if schema.is_mutable:
        return Effect.BARRIER
    return Effect.ORDERED if _is_drawn(target) else Effect.NONE


def _is_drawn(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
