"""Predicted bytes, operations and time of a group of ops.

Bytes count each outside value once for reading and each stored value once for writing, with size
hints in place of unknown sizes. Time is a launch plus the longer of memory and arithmetic time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuser.device import DeviceSpec
from fuser.ir.dim import Dim, evaluate, product
from fuser.ir.dtype import DType
from fuser.ir.graph import Argument, Graph, Op
from fuser.ir.index_map import Strided
from fuser.ir.ops import BY_KIND
from fuser.ir.region import Cost


def group_cost(graph: Graph, ops: Sequence[Op], stored: Iterable[str], device: DeviceSpec) -> Cost:
    """The cost of `ops` as one kernel and, for comparison, as one kernel each."""
    inside = {op.name for op in ops}
    together = sum(_stored_bytes(graph, name) for name in stored)
    together += sum(
        _read_bytes(graph, [op for op in ops if value in op.reads], value)
        for value in dict.fromkeys(v for op in ops for v in op.reads)
        if value not in inside
    )
    work = sum(op_work(graph, op) for op in ops)
    apart = 0
    apart_us = 0.0
    for op in ops:
        moved = _stored_bytes(graph, op.name)
        moved += sum(_read_bytes(graph, [op], value) for value in op.reads)
        apart += moved
        apart_us += _time(moved, op_work(graph, op), device)
    memory = together / device.copy_rate * 1e6
    arithmetic = work / device.vector_rate * 1e6
    bound = "compute" if arithmetic > memory else "memory"
    if max(memory, arithmetic) < device.launch_us:
        bound = "launch"
    return Cost(together, apart, work, _time(together, work, device), apart_us, bound)


def op_work(graph: Graph, op: Op) -> int:
    """Arithmetic operations of one op over its domain."""
    return BY_KIND[op.kind].weight * evaluate(product(op.domain), graph.hints)


def _time(moved: int, work: int, device: DeviceSpec) -> float:
    return device.launch_us + 1e6 * max(moved / device.copy_rate, work / device.vector_rate)


def _stored_bytes(graph: Graph, value: str) -> int:
    kind = graph.values[value].type
    return evaluate(kind.numel, graph.hints) * kind.dtype.bytes


def _read_bytes(graph: Graph, readers: Sequence[Op], value: str) -> int:
    """Bytes of `value` that the readers touch: at most all of it, less where they slice it."""
    kind = graph.values[value].type
    whole = evaluate(kind.numel, graph.hints)
    touched = 0
    for op in readers:
        for operand in op.operands:
            if isinstance(operand, Argument) and operand.value == value:
                touched += _touched(graph, op, operand, whole)
    return min(touched, whole) * kind.dtype.bytes


def _touched(graph: Graph, op: Op, operand: Argument, whole: int) -> int:
    """Distinct elements that one operand reads: the domain less its broadcast dimensions."""
    sizes: list[Dim] = list(op.domain)
    for step in operand.map.steps:
        if not isinstance(step, Strided):
            return min(whole, evaluate(product(op.domain), graph.hints))
        used = {axis.reader_axis for axis in step.axes}
        sizes = [size if k in used else 1 for k, size in enumerate(sizes)]
        break
    return evaluate(product(sizes), graph.hints)


def is_wide(dtype: DType) -> bool:
    """Whether a value takes two registers a tile element."""
    return dtype.compute.bytes == 8
