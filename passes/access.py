"""How a region walks memory: where each operand is read, and which axis neighbours should walk.

In: a graph, ops in program order, and their iteration space. Out: linear memory offsets over the
space's axes. The largest tensor that is touched decides the order of the axes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fuser.ir.dim import Dim, evaluate
from fuser.ir.graph import Argument, Graph, Op
from fuser.ir.space import Affine, Index, LoopAxis, Space, memory_offset, through
from fuser.passes.unify import is_gather, result_index


@dataclass(frozen=True, slots=True)
class Access:
    """One operand that is loaded, or one result that is stored.

    `steps` has the elements between neighbours along each loop axis that the access depends on,
    `numel` the elements of the whole tensor. A gather's own operand is `is_scattered`: its
    positions are known only when it runs.
    """

    op: str
    value: str
    width: int
    numel: int
    steps: Mapping[str, int]
    offset: int = 0
    is_store: bool = False
    is_scattered: bool = False


def operand_offset(operand: Argument, index: Index, sizes: Mapping[str, Dim]) -> Affine:
    """Where in the value's memory an op with this index reads: linear, whatever the view."""
    seen = through(operand.window, index, sizes)
    return memory_offset(seen, operand.type.stride).scaled(1, operand.storage_offset)


def accesses(
    graph: Graph, ops: Sequence[Op], stored: Collection[str], space: Space
) -> tuple[Access, ...]:
    """Everything that the ops load from outside and store."""
    sizes: Mapping[str, Dim] = {axis.name: axis.size for axis in space.axes}
    hints = graph.hints
    found: list[Access] = []

    def add(op: Op, value: str, place: Affine, **how: bool) -> None:
        kind = graph.values[value].type
        steps = {axis: abs(evaluate(step, hints)) for axis, step in place.terms}
        numel, offset = graph.numel_of[value], evaluate(place.offset, hints)
        found.append(Access(op.name, value, kind.dtype.bytes, numel, steps, offset, **how))

    for op in ops:
        index = space.index[op.name]
        for position, operand in enumerate(op.operands):
            if not isinstance(operand, Argument) or operand.value in space.index:
                continue
            if position == 0 and is_gather(op):
                every = {axis: 1 for affine in index for axis in affine.axes}
                add(op, operand.value, Affine(tuple(every.items())), is_scattered=True)
            else:
                add(op, operand.value, operand_offset(operand, index, sizes))
        if op.name in stored:
            offset = memory_offset(result_index(op, index), op.type.stride)
            add(op, op.name, offset, is_store=True)
    return tuple(found)


def primary_access(found: Sequence[Access]) -> Access | None:
    """The access to the largest tensor; a read wins a tie. It decides the order of the axes."""
    candidates = [access for access in found if not access.is_scattered]
    return max(candidates, key=lambda a: (a.numel, not a.is_store), default=None)


def order_axes(axes: Sequence[LoopAxis], primary: Access | None) -> tuple[LoopAxis, ...]:
    """The axes by falling stride in the primary access, so that neighbours touch neighbours."""
    if primary is None or not all(axis.name in primary.steps for axis in axes):
        return tuple(axes)
    return tuple(sorted(axes, key=lambda axis: -primary.steps[axis.name]))


def is_column(primary: Access | None, space: Space) -> bool:
    """Whether neighbours in memory belong to different rows, so that rows are the fast axis."""
    if primary is None:
        return False
    steps = primary.steps
    reduced = [steps[axis.name] for axis in space.reduced if axis.name in steps]
    parallel = [steps[axis.name] for axis in space.parallel if axis.name in steps]
    return bool(parallel) and (not reduced or min(parallel) < min(reduced))


LINE = 128
"""Bytes of a line of memory."""


def rows_together(primary: Access | None, space: Space, sizes: Mapping[str, int]) -> int:
    """How many rows have elements in one line of memory, where a row has short runs: 1 where a run
    fills a line, and where other rows do not follow it."""
    if primary is None:
        return 1
    run = 1
    reduced = {axis.name for axis in space.reduced}
    by_step = sorted((step, axis) for axis, step in primary.steps.items() if sizes[axis] > 1)
    for step, axis in by_step:
        if step != run:
            break
        if axis not in reduced:
            together = max(1, LINE // (run * primary.width))
            return min(1 << together.bit_length() - 1, sizes[axis]) if run > 1 else 1
        run *= sizes[axis]
    return 1
