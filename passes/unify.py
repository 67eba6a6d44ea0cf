"""One iteration space for a group of ops, or the reason why they have none.

Input: a graph, the names of the ops in program order, and which of their values are stored. An
anchor op (a reduction, else the largest stored op) lends its domain's dimensions as loop axes; the
others get their index through the edges, readers to producers by the edge's map and producers to
readers by its inverse. Invariant of the result: every stored value and every reduction is computed
exactly once at each point of its domain.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fuser.ir.dim import Dim, divide, is_equal, product
from fuser.ir.graph import Argument, Graph, Op
from fuser.ir.index_map import IndexMap, Shape
from fuser.ir.ops import BY_KIND, Group, is_contraction
from fuser.ir.region import Reason
from fuser.ir.space import (
    Affine,
    Index,
    LoopAxis,
    NotLinear,
    Space,
    SplitAxis,
    covers_once,
    regroup,
    through,
)
from fuser.passes.anchor import anchor_of
from fuser.passes.base import after
from fuser.passes.columns import column_values, folded_axes, result_folds
from fuser.passes.parts import half_of, inverse_index, piece_index, piece_of


class NoSpace(Exception):
    """The ops have no common iteration space; `reason` and `detail` say why."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(reason.value, detail)
        self.reason = reason
        self.detail = detail


def unify(
    graph: Graph, ops: Sequence[Op], stored: frozenset[str], most_values: int | None = None
) -> Space:
    """The space of `ops`; raises `NoSpace`.

    `most_values` limits the values that are computed, an op counting once for each index it is
    needed at: twenty steps of a stencil read their first one at twenty-one places.
    """
    splits: dict[str, Dim] = {}
    while True:
        try:
            return _Unifier(graph, ops, stored, splits, most_values).run()
        except SplitAxis as split:
            splits[split.axis] = split.inner
        except NotLinear as failure:
            raise NoSpace(Reason.NOT_LINEAR, str(failure)) from None


def result_index(op: Op, index: Index) -> Index:
    """The index of an op's result, given the index of its domain."""
    if not op.reduced:
        return index
    if op.keepdim:
        return tuple(Affine() if k in op.reduced else a for k, a in enumerate(index))
    return tuple(a for k, a in enumerate(index) if k not in op.reduced)


class _Unifier:
    """One attempt with the axes split as `splits` says (axis name to inner size)."""

    def __init__(
        self,
        graph: Graph,
        ops: Sequence[Op],
        stored: frozenset[str],
        splits: Mapping[str, Dim],
        most_values: int | None,
    ) -> None:
        self.graph = graph
        self.ops = {op.name: op for op in ops}
        self.order = list(self.ops)
        self.stored = stored
        self.splits = splits
        self.most_values = most_values
        self.sizes: dict[str, Dim] = {}
        self.axes: list[LoopAxis] = []
        self.index: dict[str, Index] = {}
        self.after_reduction = after(ops, lambda op: bool(op.reduced))
        self.of_results = after(ops, is_contraction)
        self.halves: set[str] = set()

    def run(self) -> Space:
        for op in self.ops.values():
            if is_gather(op) and argument_of(op, 0).value in self.ops:
                raise NoSpace(Reason.DATA_DEPENDENT_READ, op.name)
        anchor = anchor_of(self.graph, self.ops, self.stored)
        self.index[anchor.name] = tuple(
            self.new_axes(f"d{k}", size, k in anchor.reduced)
            for k, size in enumerate(anchor.domain)
        )
        self.spread(anchor.name)
        for name in self.order:
            if name not in self.index:
                self.index[name] = self.beside(self.ops[name])
                self.spread(name)
        missing = next((name for name in self.order if name not in self.index), None)
        if missing is not None:
            raise NoSpace(Reason.OTHER_SPACE, f"{missing} is not connected")
        space = Space(tuple(self.axes), dict(self.index))
        self.check(space)
        return replace(space, halved=frozenset(self.halves))

    def new_axes(self, name: str, size: Dim, is_reduced: bool) -> Affine:
        """Loop axes for one dimension of the anchor, split where a reshape asked for it."""
        if size == 1:
            return Affine()
        inner = self.splits.get(name)
        if inner is None:
            self.axes.append(LoopAxis(name, size, is_reduced))
            self.sizes[name] = size
            return Affine(((name, 1),))
        outer = divide(size, inner)
        if outer is None:
            raise NotLinear(f"{size} does not divide by {inner}")
        left = self.new_axes(f"{name}o", outer, is_reduced)
        return left.scaled(inner, 0).plus(self.new_axes(f"{name}i", inner, is_reduced))

    def spread(self, start: str) -> None:
        """Give every op that is connected to `start` its index."""
        waiting = [start]
        while waiting:
            name = waiting.pop()
            op = self.ops[name]
            for position, operand in enumerate(op.operands):
                if isinstance(operand, Argument) and operand.value in self.ops:
                    producer = self.ops[operand.value]
                    if producer.name not in self.index:
                        self.from_reader(producer, self.read(op, position, self.index[name]))
                        waiting.append(producer.name)
            for reader in self.graph.readers[name]:
                if reader.name in self.ops and reader.name not in self.index:
                    self.from_producer(reader, op)
                    waiting.append(reader.name)

    def read(self, op: Op, position: int, index: Index) -> Index:
        """The index at which an op that stands at `index` reads an operand."""
        operand = argument_of(op, position)
        # Of a product a tile holds all parts.
        if operand.value in self.of_results:
            index = piece_index(op, position, index, self.sizes)
        return through(operand.map, index, self.sizes)

    def is_whole(self, op: Op) -> bool:
        """Whether an op has a value at its own index alone, and is not computed again at others."""
        if op.name in self.of_results:
            return bool(op.reduced)
        return op.name in self.after_reduction

    def from_reader(self, producer: Op, index: Index) -> None:
        if not producer.reduced:
            self.index[producer.name] = index
            return
        kept = list(index)
        if producer.keepdim:
            kept = [a for k, a in enumerate(index) if k not in producer.reduced]
        self.index[producer.name] = self.with_free(producer, kept)

    def with_free(self, op: Op, kept: Sequence[Affine]) -> Index:
        """A reduction's domain index: `kept` for the kept dimensions, the free axes for the
        rest."""
        known = iter(kept)
        partial = [None if k in op.reduced else next(known) for k in range(len(op.domain))]
        return self.fill(op, partial)

    def fill(self, op: Op, partial: Sequence[Affine | None]) -> Index:
        """Complete an index with the axes that it does not use yet, in the space's order.

        What an op folds is filled with folded axes, and the rest of its index with the others.
        What a product is summed over is no axis of its results.
        """
        used = {axis for affine in partial if affine is not None for axis in affine.axes}
        found = {k: affine for k, affine in enumerate(partial) if affine is not None}
        # What a row keeps is folded by columns, and the other way about.
        is_column = bool(op.reduced) and any(
            axis.is_reduced is (k not in op.reduced)
            for k, affine in found.items()
            for axis in self.axes
            if axis.name in affine.axes
        )
        for is_folded in (True, False):
            holes = [k for k in range(len(partial)) if k not in found]
            if op.reduced:
                holes = [k for k in holes if (k in op.reduced) is is_folded]
            axes = [
                axis
                for axis in self.axes
                if axis.name not in used
                and (
                    not axis.is_reduced
                    if op.name in self.of_results and not is_contraction(op)
                    else not op.reduced or axis.is_reduced is (is_folded is not is_column)
                )
            ]
            if holes:
                sizes = tuple(op.domain[k] for k in holes)
                found |= dict(zip(holes, self.walk(axes, sizes, op), strict=True))
        return tuple(found[k] for k in range(len(partial)))

    def from_producer(self, reader: Op, producer: Op) -> None:
        """Invert the edge's map; dimensions it says nothing about are filled with unused axes."""
        position, operand = next(
            (k, o)
            for k, o in enumerate(reader.operands)
            if isinstance(o, Argument) and o.value == producer.name
        )
        produced = result_index(producer, self.index[producer.name])
        if producer.name not in self.of_results:
            self.index[reader.name] = self.like(reader, operand, produced)
            return
        dimension = piece_of(reader, position)
        domain = [None if k == dimension else size for k, size in enumerate(reader.domain)]
        partial = self.inverse(operand.map, produced, reader, domain)
        if dimension is not None:
            # Along it run the axes that a piece says nothing of.
            used = {axis for affine in partial if affine is not None for axis in affine.axes}
            axes = [a for a in self.axes if a.name not in used and not a.is_reduced]
            partial[dimension] = self.walk(axes, (reader.domain[dimension],), reader)[0]
        self.index[reader.name] = self.complete(reader, partial)

    def beside(self, op: Op) -> Index:
        """The index of an op that no edge connects to those before it: where it reads the same
        elements as one of them, else the axes in their order."""
        for operand in read_in_place(op):
            if operand.value in self.ops:
                continue
            for name, index in self.index.items():
                for other in read_in_place(self.ops[name]):
                    if other.value == operand.value:
                        try:
                            return self.like(op, operand, through(other.map, index, self.sizes))
                        except (NoSpace, NotLinear):
                            continue
        return self.in_order(op)

    def like(self, op: Op, operand: Argument, read: Index) -> Index:
        """The index at which an operand reads the elements `read`."""
        if operand.map.is_identity:
            return read
        return self.complete(op, self.inverse(operand.map, read, op))

    def complete(self, op: Op, partial: Sequence[Affine | None]) -> Index:
        known = tuple(affine for affine in partial if affine is not None)
        return known if len(known) == len(partial) else self.fill(op, partial)

    def in_order(self, op: Op) -> Index:
        """An index that walks the axes as they come: those of the rows, then those of a row."""
        kept = [k for k in range(len(op.domain)) if k not in op.reduced]
        parallel = [axis for axis in self.axes if not axis.is_reduced]
        reduced = [axis for axis in self.axes if axis.is_reduced]
        if not op.reduced:
            is_whole = is_equal(product(op.domain), product(a.size for a in self.axes))
            return self.walk(self.axes if is_whole else parallel, op.domain, op)
        rows = iter(self.walk(parallel, tuple(op.domain[k] for k in kept), op))
        row = iter(self.walk(reduced, tuple(op.domain[k] for k in op.reduced), op))
        return tuple(next(rows if k in kept else row) for k in range(len(op.domain)))

    def walk(self, axes: Sequence[LoopAxis], shape: Shape, op: Op) -> Index:
        """The row-major index of `shape` while the axes run."""
        linear = Affine()
        step: Dim = 1
        for axis in reversed(axes):
            linear = linear.plus(Affine(((axis.name, step),)))
            step = product((step, axis.size))
        if not is_equal(step, product(shape)):
            raise NoSpace(
                Reason.OTHER_REDUCTION if op.reduced else Reason.OTHER_SPACE,
                f"{op.name} over {_text(op.domain)}",
            )
        return regroup(linear, shape, self.sizes)

    def inverse(
        self, index_map: IndexMap, index: Index, reader: Op, domain: Sequence[Dim | None] = ()
    ) -> list[Affine | None]:
        found = inverse_index(index_map, index, self.sizes, domain)
        if isinstance(found, str):
            raise NoSpace(Reason.OTHER_SPACE, found.format(reader.name))
        return found

    def check(self, space: Space) -> None:
        rows = {axis.name for axis in space.parallel}
        of_columns = column_values(list(self.ops.values()), space)
        results = result_folds(list(self.ops.values()), space)
        folded = {
            axis for name in results for axis in folded_axes(self.ops[name], self.index[name])
        }
        covered: set[object] = set()
        for name, op in self.ops.items():
            index = self.index[name]
            is_stored, is_column = name in self.stored, name in of_columns
            waits = is_column and not of_columns.isdisjoint(op.reads)
            if waits and any(affine.axes & rows for affine in index):
                raise NoSpace(Reason.OTHER_REDUCTION, f"{name} waits for all rows")
            if op.reduced or is_stored:
                # Most ops stand where another one stands.
                where = (index, op.domain, op.reduced, is_stored, is_column)
                if where not in covered:
                    self.check_covered(op, space, is_column, folded)
                    covered.add(where)
        self.check_reads()

    def check_covered(self, op: Op, space: Space, is_column: bool, folded: Collection[str]) -> None:
        """A reduction, or what is stored, is computed once at each point of its domain.

        `folded` are the axes of a product's results that are folded: a tile has them whole.
        """
        rows = {axis.name for axis in space.parallel}
        row = {axis.name for axis in space.reduced}
        index = self.index[op.name]
        used = {axis for affine in index for axis in affine.axes}
        if op.reduced:
            multiplies = any(map(is_contraction, self.ops.values()))
            # A statistic of a product's rows is formed again for every tile of columns.
            axes = used if multiplies and op.name not in self.stored else rows | row
            sides = [row, rows] if rows and row and not multiplies else [row]
            if folded and not is_contraction(op):
                sides, axes = [set(folded)], used if op.name not in self.stored else rows
            is_covered = covers_once(index, op.domain, self.sizes, axes)
            if not is_covered or folded_axes(op, index) not in sides:
                raise NoSpace(Reason.OTHER_REDUCTION, f"{op.name} over {_text(op.domain)}")
        else:
            axes = row if is_column else rows | row if used & row else rows
            if not used & set(folded):
                axes -= set(folded)
            if not covers_once(index, op.domain, self.sizes, axes):
                raise NoSpace(Reason.OUTPUT_NOT_COVERED, op.name)

    def check_reads(self) -> None:
        """Every index at which a value is read is linear; after a reduction it is the value's own.

        What waits for no reduction is computed again for a reader at another index.
        """
        waiting = list(self.index.items())
        seen: set[object] = set()
        """Ops and other indices than their own at which they are computed."""
        while waiting:
            name, index = waiting.pop()
            for position, operand in enumerate(self.ops[name].operands):
                if not isinstance(operand, Argument) or operand.value not in self.ops:
                    continue
                producer = self.ops[operand.value]
                wanted = self.read(self.ops[name], position, index)
                own = result_index(producer, self.index[producer.name])
                if wanted == own:
                    continue
                key = [a.key() for a in wanted]
                if key == [a.key() for a in own]:
                    continue
                elsewhere = f"{name} reads {producer.name} of another row"
                if is_contraction(producer):
                    half = half_of(wanted, own, self.sizes)
                    if half is None:
                        raise NoSpace(Reason.OTHER_SPACE, elsewhere)
                    self.halves.add(half.axis)
                elif not self.is_whole(producer):
                    if (producer.name, *key) not in seen:
                        seen.add((producer.name, *key))
                        waiting.append((producer.name, wanted))
                        computed = len(self.ops) + len(seen)
                        if self.most_values is not None and computed > self.most_values:
                            raise NoSpace(Reason.TOO_MANY_OPS, f"over {self.most_values} values")
                else:
                    raise NoSpace(Reason.OTHER_SPACE, elsewhere)


def is_gather(op: Op) -> bool:
    """Whether operand 0 is read at positions computed from the other operands."""
    return not op.is_opaque and BY_KIND[op.kind].group is Group.GATHER


def read_in_place(op: Op) -> list[Argument]:
    """The tensors whose elements an op reads at its own index."""
    operands = op.operands[1:] if is_gather(op) else op.operands
    return [operand for operand in operands if isinstance(operand, Argument)]


def argument_of(op: Op, position: int) -> Argument:
    operand = op.operands[position]
    assert isinstance(operand, Argument)
    return operand


def _text(shape: Shape) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
