"""Products that are read in slices as one product for each slice, and back.

In and out: a graph. A gated pair written with one linear layer and a chunk reads its product at two
places at once, and a kernel has a product's tile at one. As two products of slices of the weight it
has two tiles. `split_products` makes them, `joined` makes them one again where no kernel came of
it: two calls of the library in place of one would be slower.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fuser.ir.dim import Dim, add, multiply
from fuser.ir.graph import (
    Argument,
    Effect,
    Graph,
    Op,
    Output,
    Part,
    TensorType,
    Value,
    row_major_strides,
)
from fuser.ir.index_map import Axis, IndexMap, Shape, Strided, broadcast, same_shape
from fuser.ir.ops import BY_KIND, Group, is_contraction
from fuser.passes.linear_views import LinearView, linear_view


@dataclass(frozen=True, slots=True)
class _Move:
    """A value that is read in place of another, `shift` further along a dimension."""

    value: Value
    axis: int
    shift: Dim


Moves = Callable[[Argument], _Move | None]
"""Where the elements that an argument of a call reads have moved to, None where they have not."""


# Into slices --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Slices:
    """Slices of a product's result: `width` elements along `axis` each, the values by number."""

    product: str
    axis: int
    width: int
    values: Mapping[int, Value]

    def move(self, argument: Argument) -> _Move | None:
        view = linear_view(argument) if argument.value == self.product else None
        number = None if view is None else _number(view, self.axis, self.width)
        if number is None:
            return None
        return _Move(self.values[number], self.axis, -number * self.width)


def split_products(graph: Graph) -> Graph:
    """Products that are read only in slices of equal width, which meet again element by element,
    become one product for each slice that is read."""
    arguments: dict[str, list[tuple[Op, Argument]]] = {}
    for op in graph.ops:
        for argument in op.arguments:
            arguments.setdefault(argument.value, []).append((op, argument))
    found: dict[str, _Slices] = {}
    taken = set(graph.values)
    for op in graph.ops:
        if is_contraction(op) and op.part is None and op.name not in graph.output_values:
            slices = _slices(graph, op, arguments.get(op.name, ()), taken)
            if slices is not None:
                found[op.name] = slices

    def moves(argument: Argument) -> _Move | None:
        slices = found.get(argument.value)
        return None if slices is None else slices.move(argument)

    def parts(op: Op) -> Iterable[Op]:
        slices = found.get(op.name)
        if slices is None:
            return (op,)
        size = op.type.shape[slices.axis]
        return [
            replace(
                _resized(op, value, slices.axis, number * slices.width),
                part=Part(op.name, slices.axis, number * slices.width, size),
                origin=op.origin or op.name,
            )
            for number, value in sorted(slices.values.items())
        ]

    return _rewritten(graph, moves, parts) if found else graph


def _slices(
    graph: Graph, op: Op, reads: Sequence[tuple[Op, Argument]], taken: set[str]
) -> _Slices | None:
    """The slices that a product is read in, by columns or by rows, if it can be made in them."""
    views = [linear_view(argument) for _, argument in reads]
    if any(reader.effect is Effect.BARRIER for reader, _ in reads):
        return None
    rank = len(op.type.shape)
    for axis in (rank - 1, rank - 2):
        width = _width(views, op.type.shape[axis], axis)
        if width is None:
            continue
        values = {
            number: _value(op, axis, width, number, taken)
            for number in (_number(view, axis, width) for view in views if view is not None)
            if number is not None
        }
        slices = _Slices(op.name, axis, width, values)
        if all(_reread(reader, slices.move) for reader, _ in reads) and _meet(graph, reads, slices):
            taken.update(value.name for value in values.values())
            return slices
    return None


def _width(views: Sequence[LinearView | None], size: Dim, axis: int) -> int | None:
    """The width of equal slices along an axis of which each view reads one, and not all the same;
    None where there are none."""
    spans = [None if view is None else view.span(axis) for view in views]
    known = [span for span in spans if span is not None]
    if not known or len(known) < len(spans) or not isinstance(size, int):
        return None
    width = max(last - first + 1 for first, last in known)
    if size % width or any(first // width != last // width for first, last in known):
        return None
    return width if len({first // width for first, _ in known}) > 1 else None


def _number(view: LinearView, axis: int, width: int) -> int | None:
    span = view.span(axis)
    return None if span is None else span[0] // width


def _value(op: Op, axis: int, width: int, number: int, taken: Collection[str]) -> Value:
    name = f"{op.name}_slice_{number}"
    while name in taken:
        name += "_"
    return Value(name, _contiguous(op, axis, width))


def _meet(graph: Graph, reads: Sequence[tuple[Op, Argument]], slices: _Slices) -> bool:
    """Whether an op reads two slices, at the same place of each: itself, or through elementwise
    ops."""
    seen: dict[IndexMap, list[tuple[Op, str]]] = {}
    for reader, argument in reads:
        moved = _moved(argument, slices.move)
        if moved is not None and _is_elementwise(reader, argument.type.shape):
            seen.setdefault(moved.map, []).append((reader, moved.value))
    return any(_share_a_reader(graph, starts) for starts in seen.values())


def _share_a_reader(graph: Graph, starts: Sequence[tuple[Op, str]]) -> bool:
    """Whether elementwise ops lead from readers of two different values to one op."""
    reached: dict[str, str] = {}
    waiting = list(starts)
    while waiting:
        op, value = waiting.pop()
        if reached.get(op.name, value) != value:
            return True
        if op.name in reached:
            continue
        reached[op.name] = value
        for reader in graph.readers[op.name]:
            whole = [o for o in reader.operands if isinstance(o, Argument) and o.value == op.name]
            if all(o.map.is_identity for o in whole) and _is_elementwise(reader, op.domain):
                waiting.append((reader, value))
    return False


def _is_elementwise(op: Op, shape: Shape) -> bool:
    """Whether an op computes an element for each of `shape` and moves none."""
    if op.is_opaque or BY_KIND[op.kind].group is not Group.POINTWISE:
        return False
    return same_shape(op.domain, shape)


# Back into one ------------------------------------------------------------------------------------


def joined(graph: Graph, names: Collection[str]) -> Graph:
    """The graph with those products whole again of which one of the ops computes a part."""
    wanted = {op.part.whole for op in graph.ops if op.name in names and op.part is not None}
    parts = {op.name: op.part for op in graph.ops if op.part and op.part.whole in wanted}
    wholes: dict[str, Value] = {}
    first: set[str] = set()
    for op in graph.ops:
        part = parts.get(op.name)
        if part is not None and part.whole not in wholes:
            wholes[part.whole] = Value(part.whole, _contiguous(op, part.axis, part.size))
            first.add(op.name)

    def moves(argument: Argument) -> _Move | None:
        part = parts.get(argument.value)
        return None if part is None else _Move(wholes[part.whole], part.axis, part.start)

    def whole(op: Op) -> Iterable[Op]:
        part = parts.get(op.name)
        if part is None:
            return (op,)
        if op.name not in first:
            return ()
        return (replace(_resized(op, wholes[part.whole], part.axis, -part.start), part=None),)

    return _rewritten(graph, moves, whole) if wanted else graph


# Both ways ----------------------------------------------------------------------------------------


def _rewritten(graph: Graph, moves: Moves, made: Callable[[Op], Iterable[Op]]) -> Graph:
    """The graph with what each op is made into, reading what has moved where it is now."""
    ops: list[Op] = []
    for op in graph.ops:
        reading = _reread(op, moves)
        assert reading is not None, f"{op.name} reads no view"
        ops += made(reading)
    outputs = tuple(_output(output, moves) for output in graph.outputs)
    return replace(graph, ops=tuple(ops), outputs=outputs)


def _output(output: Output, moves: Moves) -> Output:
    if output.argument is None:
        return output
    moved = _moved(output.argument, moves)
    assert moved is not None, f"%{output.argument.value} is returned as no view"
    return replace(output, argument=moved)


def _reread(op: Op, moves: Moves) -> Op | None:
    """The op reading what has moved; None where that is no view."""
    moved = {a.value for a in op.arguments if moves(a) is not None}
    if not moved:
        return op
    arguments = [_moved(argument, moves) for argument in op.arguments]
    operands = [
        _operand(operand, op.arguments, arguments)
        if isinstance(operand, Argument) and operand.value in moved
        else operand
        for operand in op.operands
    ]
    seen = tuple(argument for argument in arguments if argument is not None)
    read = tuple(operand for operand in operands if operand is not None)
    if len(seen) < len(arguments) or len(read) < len(operands):
        return None
    return replace(op, arguments=seen, operands=read)


def _moved(argument: Argument, moves: Moves) -> Argument | None:
    move = moves(argument)
    if move is None:
        return argument
    view = linear_view(argument)
    return None if view is None else view.of(move.value, move.axis, move.shift)


def _operand(
    operand: Argument, before: Sequence[Argument], after: Sequence[Argument | None]
) -> Argument | None:
    """An operand that reads one of the arguments, after those have moved."""
    for old, new in zip(before, after, strict=True):
        if (old.value, old.type, old.storage_offset) != (
            operand.value,
            operand.type,
            operand.storage_offset,
        ):
            continue
        if old.map.compose(operand.window) == operand.map and new is not None:
            return replace(new, map=new.map.compose(operand.window), window=operand.window)
    return None


def _resized(op: Op, value: Value, axis: int, start: Dim) -> Op:
    """A product of which a dimension of the result begins at `start` and is as long as that of
    `value`, in its operands and in the arguments of its call."""
    size = value.type.shape[axis]
    domain = (*value.type.shape, op.domain[-1])
    steps = tuple(Axis(k, 1, start if k == axis else 0) for k in range(len(domain)))
    *batch, rows, columns, inner = range(len(domain))
    # A call names the tensor that is added before those that are multiplied.
    *added, left, right = op.arguments
    seen = [(a, _axes_of(a, op.type.shape)) for a in added]
    seen += [(left, [*batch, rows, inner]), (right, [*batch, inner, columns])]
    arguments = tuple(
        _window(argument, axes.index(axis), start, size) if axis in axes else argument
        for argument, axes in seen
    )
    operands = tuple(
        o.through(Strided(domain, steps)) if isinstance(o, Argument) else o for o in op.operands
    )
    return replace(
        op, name=value.name, operands=operands, arguments=arguments, results=(value,), domain=domain
    )


def _axes_of(argument: Argument, shape: Shape) -> list[int | None]:
    """The dimensions of a result along which an added tensor has its own, None where it has one
    element for all."""
    return [axis.reader_axis for axis in broadcast(argument.type.shape, shape).axes]


def _window(argument: Argument, axis: int, start: Dim, size: Dim) -> Argument:
    """A view of `size` elements along one dimension of an argument, from `start` on."""
    kind = argument.type
    shape = _with(kind.shape, axis, size)
    steps = tuple(Axis(k, 1, start if k == axis else 0) for k in range(len(shape)))
    return replace(
        argument,
        map=argument.map.after(Strided(shape, steps)),
        type=replace(kind, shape=shape),
        storage_offset=add(argument.storage_offset, multiply(start, kind.stride[axis])),
    )


def _contiguous(op: Op, axis: int, size: Dim) -> TensorType:
    shape = _with(op.type.shape, axis, size)
    return replace(op.type, shape=shape, stride=row_major_strides(shape))


def _with(shape: Shape, axis: int, size: Dim) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])
