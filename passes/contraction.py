"""The parts that axes play in a region of products: rows, columns, batch, and what is summed over.

In: ops with their iteration space. Out: `Roles`, or `NoSpace` where the products of the region do
not share tiles. An axis that only one operand of a product depends on is a row or a column of it,
one that both depend on is batch, whatever the call was: a matrix that is read for every batch makes
rows of the batch. Where results are folded, that is along the columns: a tile then has whole rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fuser.ir.dim import Dim, evaluate, product
from fuser.ir.graph import Argument, Graph, Op
from fuser.ir.ops import is_contraction
from fuser.ir.region import Reason
from fuser.ir.space import Index, LoopAxis, Space, memory_offset, through
from fuser.passes.access import operand_offset
from fuser.passes.columns import folded_axes, result_folds
from fuser.passes.unify import NoSpace, argument_of, result_index

ROWS, COLUMNS, RESULT = ("o", "m", "ka"), ("o", "kb", "n"), ("o", "m", "n")
"""The variables along which the operands on either side and the results vary."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Axis names by the part that they play, outermost first."""

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    inner: tuple[str, ...]
    turned: frozenset[str]
    """The products whose first operand lies along the columns."""

    def groups(self, space: Space) -> Mapping[str, tuple[LoopAxis, ...]]:
        """The loop axes of each variable of a product's kernel: `o` runs over the batch, `m` and
        `n` over rows and columns, `ka` and `kb` over what is summed, along a tile and down it."""
        axes = {axis.name: axis for axis in space.axes}
        names = {"o": self.batch, "m": self.rows, "n": self.columns}
        names |= {"ka": self.inner, "kb": self.inner}
        return {name: tuple(axes[axis] for axis in of) for name, of in names.items()}

    def operands(self, op: Op) -> tuple[Argument, Argument]:
        """A product's operands, the one along the rows first."""
        first, second = factors_of(op)
        return (second, first) if op.name in self.turned else (first, second)


def factors_of(op: Op) -> tuple[Argument, Argument]:
    """The operands that a product multiplies."""
    return argument_of(op, 0), argument_of(op, 1)


def read_where(
    graph: Graph, operand: Argument, index: Index, space: Space
) -> tuple[Argument, Index]:
    """An operand that is read at `index`, and the same where a copy of it was made from."""
    sizes = {axis.name: axis.size for axis in space.axes}
    while operand.value in space.index and graph.by_name[operand.value].kind == "copy":
        index = through(operand.map, index, sizes)
        operand = argument_of(graph.by_name[operand.value], 0)
    return operand, index


def roles_of(graph: Graph, ops: Sequence[Op], stored: Collection[str], space: Space) -> Roles:
    """The roles of the space's axes; raises `NoSpace`."""
    products = [op for op in ops if is_contraction(op)]
    parallel = {axis.name for axis in space.parallel}
    folds = result_folds(ops, space) - feeding(ops)
    for op in ops:
        if op.reduced and op not in products and op.name not in folds:
            raise NoSpace(Reason.OTHER_REDUCTION, f"{op.name} beside {products[0].name}")
        if op.name in stored and any(
            a.axes - parallel for a in result_index(op, space.index[op.name])
        ):
            raise NoSpace(Reason.OUTPUT_NOT_COVERED, f"{op.name} is an operand of a product")
    sides = {op.name: _sides(op, space, parallel) for op in products}
    left, right = sides[products[0].name]
    both = left & right
    rows, columns = left - both, right - both
    folded = {folded_axes(op, space.index[op.name]) for op in ops if op.name in folds}
    if len(folded) > 1 or folded - {rows, columns}:
        raise NoSpace(Reason.OTHER_REDUCTION, "what is folded is no row of a product")
    fast = _fast_axis(graph, ops, stored, space)
    if rows in folded if folded else fast in rows:
        rows, columns = columns, rows
    turned: set[str] = set()
    for name, (left, right) in sides.items():
        if left & right != both:
            raise NoSpace(Reason.OTHER_PRODUCT, f"{name} has another batch")
        if (left - both, right - both) == (columns, rows) and rows != columns:
            turned.add(name)
        elif (left - both, right - both) != (rows, columns):
            raise NoSpace(Reason.OTHER_PRODUCT, f"{name} has other rows or columns")
    ordered = [axis.name for axis in space.axes]
    batch = [name for name in ordered if name in parallel and name not in rows | columns]
    return Roles(
        tuple(batch),
        tuple(name for name in ordered if name in rows),
        tuple(name for name in ordered if name in columns),
        tuple(axis.name for axis in space.reduced),
        frozenset(turned),
    )


def least_sides(roles: Roles, space: Space) -> tuple[int, int]:
    """Rows and columns of the least tile that holds both halves of what is read in halves; raises
    `NoSpace` where they do not lie within tiles."""
    sizes = {axis.name: axis.size for axis in space.axes}
    least = [1, 1]
    for name in space.halved:
        side = next((k for k, axes in enumerate((roles.rows, roles.columns)) if name in axes), None)
        if side is None:
            raise NoSpace(Reason.OTHER_SPACE, f"{name} runs over batches")
        axes = (roles.rows, roles.columns)[side]
        span = product(sizes[axis] for axis in axes[axes.index(name) :])
        if not isinstance(span, int) or span & (span - 1):
            raise NoSpace(Reason.OTHER_SPACE, f"{span} elements fill no tile")
        least[side] = max(least[side], span)
    return least[0], least[1]


def _sides(
    op: Op, space: Space, parallel: Collection[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """The axes, but those that are summed over, on which each operand of a product depends."""
    sizes: Mapping[str, Dim] = {axis.name: axis.size for axis in space.axes}
    index = space.index[op.name]
    found = []
    for operand in factors_of(op):
        if operand.value in space.index:
            read = through(operand.map, index, sizes)
        else:
            read = (operand_offset(operand, index, sizes),)
        found.append(frozenset(axis for affine in read for axis in affine.axes if axis in parallel))
    return found[0], found[1]


def _fast_axis(
    graph: Graph, ops: Sequence[Op], stored: Collection[str], space: Space
) -> str | None:
    """The axis along which the largest result has its neighbours: lanes should follow it."""
    results = [op for op in ops if op.name in stored]
    largest = max(results, key=lambda op: graph.bytes_of[op.name], default=None)
    if largest is None:
        return None
    index = result_index(largest, space.index[largest.name])
    place = memory_offset(index, largest.type.stride)
    steps = {axis: abs(evaluate(step, graph.hints)) for axis, step in place.terms}
    return min(steps, key=steps.__getitem__, default=None)


def feeding(ops: Sequence[Op]) -> frozenset[str]:
    """The ops that are computed on the way to an operand of a product, inside its loop."""
    by_name = {op.name: op for op in ops}
    waiting = [operand.value for op in ops if is_contraction(op) for operand in factors_of(op)]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in found:
            found.add(name)
            waiting.extend(by_name[name].reads)
    return frozenset(found)


def is_of_one_row(ops: Sequence[Op]) -> bool:
    """Whether every product has one row or one column: then each element of the other operand is
    used once, and rows are summed as by any reduction."""
    products = [op for op in ops if is_contraction(op)]
    return all(1 in op.domain[-3:-1] for op in products)
