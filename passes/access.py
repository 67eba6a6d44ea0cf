"""How a region walks memory: where each operand is read, and which axis neighbours should walk.

In: a graph, ops in program order, and their iteration space. Out: linear memory offsets over the
space's axes. The largest tensor that is touched decides the order of the axes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fuser.ir.dim import Dim, evaluate
from fuser.ir.graph import Argument, Graph, Op
from fuser.ir.space import Affine, Index, Space, memory_offset, through
from fuser.passes.unify import is_gather


def operand_offset(operand: Argument, index: Index, sizes: Mapping[str, Dim]) -> Affine:
    """Where in the value's memory an op with this index reads: linear, whatever the view."""
    seen = through(operand.window, index, sizes)
    return memory_offset(seen, operand.type.stride).scaled(1, operand.storage_offset)


def primary_access(
    graph: Graph, ops: Sequence[Op], stored: Collection[str], space: Space
) -> Affine | None:
    """The offsets in the largest tensor that the ops read or store; a read wins a tie."""
    sizes: Mapping[str, Dim] = {axis.name: axis.size for axis in space.axes}
    best: tuple[int, Affine] | None = None
    for op in ops:
        found: list[tuple[int, Affine]] = []
        for operand in op.operands:
            if not isinstance(operand, Argument) or operand.value in space.index:
                continue
            if is_gather(op) and operand is op.operands[0]:
                continue
            offset = operand_offset(operand, space.index[op.name], sizes)
            size = evaluate(graph.values[operand.value].type.numel, graph.hints)
            found.append((size, offset))
        if op.name in stored and not op.reduced:
            offset = memory_offset(space.index[op.name], op.type.stride)
            found.append((evaluate(op.type.numel, graph.hints), offset))
        for weight, offset in found:
            if best is None or weight > best[0]:
                best = (weight, offset)
    return best[1] if best else None


def is_column(primary: Affine | None, space: Space, hints: Mapping[str, int]) -> bool:
    """Whether neighbours in memory belong to different rows, so that rows are the fast axis."""
    if primary is None:
        return False
    strides = {axis: abs(evaluate(step, hints)) for axis, step in primary.terms}
    reduced = [strides[axis.name] for axis in space.reduced if axis.name in strides]
    parallel = [strides[axis.name] for axis in space.parallel if axis.name in strides]
    return bool(parallel) and (not reduced or min(parallel) < min(reduced))
