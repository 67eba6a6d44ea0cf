"""Rewrites that compute one element of a row where a whole row was computed to use one of it.

In and out: a graph. `gather_early` picks from what is in memory already and computes on what was
picked. `sum_one_hot` replaces the sum over a row that is zero but at one computed place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from fuser.ir.dim import evaluate, is_equal, product
from fuser.ir.dtype import DType
from fuser.ir.graph import (
    Argument,
    Call,
    Graph,
    Literal,
    Op,
    Operand,
    Slot,
    TensorType,
    Value,
    row_major_strides,
    whole,
)
from fuser.ir.index_map import Axis, IndexMap, Shape, Strided, same_shape
from fuser.ir.ops import BY_KIND, Group

_ATEN = torch.ops.aten

MUCH_SMALLER = 4
"""How many times more elements a row has than are picked of it, so that picking first pays."""


def gather_early(graph: Graph) -> Graph:
    """Gathers from elementwise results become gathers from what those are computed of."""
    ops: list[Op] = []
    taken = set(graph.values)
    for op in graph.ops:
        ops += _Picked(graph, op, taken).ops() if _picks_one_axis(graph, op) else (op,)
    return replace(graph, ops=tuple(ops))


def _picks_one_axis(graph: Graph, op: Op) -> bool:
    """Whether the op is a gather along one axis that leaves all others whole, of few elements."""
    if op.is_opaque or op.kind != "gather":
        return False
    source = op.operands[0]
    assert isinstance(source, Argument)
    shape = source.type.shape
    picked = [k for k, (kind, _) in enumerate(op.attribute("positions")) if kind == "index"]
    if len(picked) != 1 or not source.map.is_identity:
        return False
    sizes = enumerate(zip(op.domain, shape, strict=True))
    if not all(k in picked or is_equal(few, all_of_it) for k, (few, all_of_it) in sizes):
        return False
    whole_size, size = (evaluate(product(dims), graph.hints) for dims in (shape, op.domain))
    return size * MUCH_SMALLER <= whole_size


class _NotElementwise(Exception):
    """A value on the way would have to be stored to be picked from."""


@dataclass
class _Picked:
    """One gather, and the ops that take its place."""

    graph: Graph
    gather: Op
    taken: set[str]
    made: list[Op] = field(default_factory=list)
    known: dict[str, Value] = field(default_factory=dict)

    def ops(self) -> Sequence[Op]:
        source = self.gather.operands[0]
        assert isinstance(source, Argument)
        producer = self.graph.producers.get(source.value)
        if producer is None or producer.is_opaque:
            return (self.gather,)
        try:
            self.pick(source.value, self.gather.name)
        except _NotElementwise:
            return (self.gather,)
        self.taken |= {op.name for op in self.made}
        return self.made

    @property
    def axis(self) -> int:
        positions: Sequence[tuple[str, int]] = self.gather.attribute("positions")
        return next(k for k, (kind, _) in enumerate(positions) if kind == "index")

    def pick(self, value: str, name: str = "") -> Value:
        """The picked elements of a whole value, computed or loaded."""
        if value in self.known:
            return self.known[value]
        op = self.graph.producers.get(value)
        if op is None or op.is_opaque:
            made = self.loaded(self.graph.values[value], name)
        elif BY_KIND[op.kind].group is Group.POINTWISE and op.kind not in ("copy", "cast"):
            made = self.computed(op, name)
        else:
            raise _NotElementwise
        self.made.append(made)
        self.known[value] = made.results[0]
        return made.results[0]

    def loaded(self, value: Value, name: str) -> Op:
        _, *rest = self.gather.operands
        _, *others = self.gather.arguments
        return replace(
            self.gather,
            name=self.fresh(name or f"{value.name}_picked"),
            operands=(whole(value), *rest),
            arguments=(whole(value), *others),
            results=(self.result(value.type, name or f"{value.name}_picked"),),
            compute=value.type.dtype.compute,
        )

    def computed(self, op: Op, name: str) -> Op:
        operands = tuple(self.operand(op, operand) for operand in op.operands)
        arguments = tuple(self.argument(op, argument) for argument in op.arguments)
        name = name or f"{op.name}_picked"
        return replace(
            op,
            name=self.fresh(name),
            operands=operands,
            arguments=arguments,
            results=(self.result(op.type, name),),
            domain=self.gather.domain,
            origin=self.gather.origin,
        )

    def operand(self, op: Op, operand: Operand) -> Operand:
        if not isinstance(operand, Argument):
            return operand
        if operand.map.is_identity and same_shape(operand.type.shape, op.domain):
            return whole(self.pick(operand.value))
        narrow = _without_axis(operand, self.axis, self.gather.domain)
        if narrow is None:
            raise _NotElementwise
        return narrow

    def argument(self, op: Op, argument: Argument) -> Argument:
        """What the op's call gets: the picked elements, or what is broadcast to them."""
        if same_shape(argument.type.shape, op.domain):
            if not argument.map.is_identity:
                raise _NotElementwise
            return whole(self.pick(argument.value))
        return argument

    def result(self, kind: TensorType, name: str) -> Value:
        shape = self.gather.domain
        return Value(self.fresh(name), replace(kind, shape=shape, stride=row_major_strides(shape)))

    def fresh(self, name: str) -> str:
        """The gather's own name, or one that nothing has; the same whenever it is asked for."""
        while name != self.gather.name and name in self.taken:
            name = f"{name}_"
        return name


def _without_axis(operand: Argument, axis: int, domain: Shape) -> Argument | None:
    """An operand that is the same all along an axis, read over a domain in which that is short."""

    def narrowed(index_map: IndexMap) -> IndexMap | None:
        first = index_map.steps[0] if index_map.steps else None
        if not isinstance(first, Strided) or any(a.reader_axis == axis for a in first.axes):
            return None
        return IndexMap((Strided(domain, first.axes), *index_map.steps[1:]))

    whole_map, window = narrowed(operand.map), narrowed(operand.window)
    if whole_map is None or window is None:
        return None
    return replace(operand, map=whole_map, window=window)


# Sums of one element ------------------------------------------------------------------------------


def sum_one_hot(graph: Graph) -> Graph:
    """`sum(where(iota == place, value, 0))` becomes the value, if its place is in the row."""
    ops: list[Op] = []
    taken = set(graph.values)
    for op in graph.ops:
        ops += _one_element(graph, op, taken) or (op,)
    return replace(graph, ops=tuple(ops))


def _one_element(graph: Graph, fold: Op, taken: set[str]) -> Sequence[Op]:
    """What the sum is, without the row; nothing where the row is not zero but at one place."""
    if fold.kind != "sum" or len(fold.reduced) != 1 or not fold.keepdim:
        return ()
    (axis,) = fold.reduced
    size = fold.domain[axis]
    op, conversions = fold, [fold]
    while op in conversions:
        operand = op.operands[0]
        if not isinstance(operand, Argument) or not operand.map.is_identity:
            return ()
        if operand.value not in graph.by_name:
            return ()
        op = graph.by_name[operand.value]
        if op.kind == "convert":
            conversions.append(op)
    test = _producer(graph, op.operands[0]) if op.kind == "where" else None
    if test is None or test.kind != "eq" or not _is_zero(graph, op.operands[2]):
        return ()
    numbers, place = test.operands
    counter = _producer(graph, numbers)
    if counter is None or counter.kind != "iota" or not _counts_along(counter, numbers, axis):
        return ()
    shape = fold.type.shape
    if not isinstance(size, int) or not all(
        isinstance(o, Argument) and same_shape(test.domain, op.domain) for o in (place, numbers)
    ):
        return ()
    try:
        maker = _Maker(axis, shape, taken, fold)
        after = maker.make("ge", _ATEN.ge.Scalar, test, (place, Literal(0)), DType.BOOL)
        before = maker.make("lt", _ATEN.lt.Scalar, test, (place, Literal(size)), DType.BOOL)
        inside = maker.make(
            "logical_and", _ATEN.logical_and.default, test, (after, before), DType.BOOL
        )
        made = maker.make("where", _ATEN.where.self, op, (inside, *op.operands[1:]))
        for conversion in reversed(conversions[1:]):
            made = maker.again(conversion, made)
    except _NotElementwise:
        return ()
    return maker.finished()


def _producer(graph: Graph, operand: Operand) -> Op | None:
    return graph.by_name.get(operand.value) if isinstance(operand, Argument) else None


def _is_zero(graph: Graph, operand: Operand) -> bool:
    if isinstance(operand, Literal):
        return operand.value == 0
    op = _producer(graph, operand)
    return op is not None and op.kind == "full" and op.operands == (Literal(0.0),)


def _counts_along(counter: Op, numbers: Operand, axis: int) -> bool:
    """Whether the numbers are 0, 1, 2, ... along the axis."""
    if not isinstance(numbers, Argument) or counter.operands != (Literal(0), Literal(1)):
        return False
    step = numbers.map.steps[0] if len(numbers.map.steps) == 1 else None
    return isinstance(step, Strided) and [a for a in step.axes if a != Axis(None)] == [Axis(axis)]


@dataclass
class _Maker:
    """Makes ops over the short domain, in which an axis has one element."""

    axis: int
    shape: Shape
    taken: set[str]
    fold: Op
    made: list[Op] = field(default_factory=list)

    def make(
        self,
        kind: str,
        target: object,
        like: Op,
        operands: Sequence[Operand],
        dtype: DType | None = None,
    ) -> Argument:
        """An op on operands of `like`, or on what was made before."""
        short: list[Operand] = []
        arguments: list[Argument] = []
        args: list[object] = []
        for operand in operands:
            if not isinstance(operand, Argument):
                short.append(operand)
                args.append(operand.value)
                continue
            is_made = any(op.name == operand.value for op in self.made)
            narrow = operand if is_made else _without_axis(operand, self.axis, self.shape)
            seen = operand if is_made else _as_seen(like, operand)
            if narrow is None or seen is None:
                raise _NotElementwise
            short.append(narrow)
            args.append(Slot(len(arguments)))
            arguments.append(seen)
        tested = like.operands[1] if dtype is DType.BOOL else None
        compute = tested.type.dtype if isinstance(tested, Argument) else like.compute
        if kind == "logical_and":
            compute = DType.BOOL
        made = replace(
            like,
            kind=kind,
            operands=tuple(short),
            arguments=tuple(arguments),
            call=Call(target, tuple(args)),
            compute=compute,
            attributes=(),
        )
        return self.add(made, dtype or like.type.dtype)

    def again(self, conversion: Op, operand: Argument) -> Argument:
        made = replace(conversion, operands=(operand,), arguments=(operand,))
        return self.add(made, conversion.type.dtype)

    def add(self, op: Op, dtype: DType) -> Argument:
        name = f"{self.fold.name}_{op.kind}"
        while name in self.taken:
            name = f"{name}_"
        self.taken.add(name)
        kind = TensorType(dtype, self.shape, row_major_strides(self.shape), op.type.device)
        value = Value(name, kind)
        self.made.append(
            replace(op, name=name, results=(value,), domain=self.shape, origin=self.fold.origin)
        )
        return whole(value)

    def finished(self) -> Sequence[Op]:
        """The ops, of which the last has the sum's name."""
        *rest, last = self.made
        (value,) = last.results
        return (
            *rest,
            replace(last, name=self.fold.name, results=(replace(value, name=self.fold.name),)),
        )


def _as_seen(op: Op, operand: Argument) -> Argument | None:
    """The argument of the op's call that an operand is."""
    return next(
        (a for a in op.arguments if a.value == operand.value and a.type == operand.type), None
    )
