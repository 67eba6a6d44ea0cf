"""Predicted bytes, operations and time of a group of ops.

Bytes count each outside value once for reading and each stored value once for writing, with size
hints in place of unknown sizes. Time is a launch plus the longer of memory and arithmetic time.
`Traffic` and `Predictor` give the same time for two groups together without going through their ops
again: the planner asks that for every pair of neighbours, after every merge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fuser.device import DeviceSpec
from fuser.ir.dim import Dim, evaluate, product
from fuser.ir.graph import Argument, Graph, Op
from fuser.ir.index_map import Strided
from fuser.ir.ops import BY_KIND
from fuser.ir.region import Cost


def group_cost(graph: Graph, ops: Sequence[Op], stored: Iterable[str], device: DeviceSpec) -> Cost:
    """The cost of `ops` as one kernel and, for comparison, as one kernel each."""
    inside = {op.name for op in ops}
    together = sum(_stored_bytes(graph, name) for name in stored)
    readers: dict[str, list[Op]] = {}
    for op in ops:
        for value in op.reads:
            readers.setdefault(value, []).append(op)
    together += sum(
        _read_bytes(graph, found, value) for value, found in readers.items() if value not in inside
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


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the ops of a group touch and compute: all that its cost needs besides what it stores.

    `touched` has elements a value, before they are limited to the value's own; `free` has the work
    of each constant that the ops compute for themselves, which two groups together do once.
    """

    touched: Mapping[str, int] = field(default_factory=dict)
    work: int = 0
    free: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(graph: Graph, op: Op, free: Iterable[Op]) -> Traffic:
        own = {constant.name: op_work(graph, constant) for constant in free}
        touched = {
            value: _touched_by(graph, [op], value, _numel(graph, value))
            for value in op.reads
            if value not in own
        }
        return Traffic(touched, op_work(graph, op), own)

    def plus(self, other: Traffic, outside: Iterable[str]) -> Traffic:
        """Both together, where only the values of `outside` are still read from memory."""
        touched = {
            value: self.touched.get(value, 0) + other.touched.get(value, 0) for value in outside
        }
        free = {**self.free, **other.free} if other.free else self.free
        return Traffic(touched, self.work + other.work, free)

    @property
    def all_work(self) -> int:
        return self.work + sum(self.free.values())


class Predictor:
    """Times of groups on one device, with the sizes of the graph's values looked up once."""

    def __init__(self, graph: Graph, device: DeviceSpec) -> None:
        self.device = device
        self.numel = {name: _numel(graph, name) for name in graph.values}
        self.width = {name: value.type.dtype.bytes for name, value in graph.values.items()}

    def time_us(self, traffic: Traffic, stored: Iterable[str]) -> float:
        """The `time_us` of `group_cost`."""
        numel, width = self.numel, self.width
        moved = sum(numel[name] * width[name] for name in stored)
        for name, touched in traffic.touched.items():
            moved += min(touched, numel[name]) * width[name]
        return _time(moved, traffic.all_work, self.device)


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
    whole = _numel(graph, value)
    touched = _touched_by(graph, readers, value, whole)
    return min(touched, whole) * graph.values[value].type.dtype.bytes


def _numel(graph: Graph, value: str) -> int:
    return evaluate(graph.values[value].type.numel, graph.hints)


def _touched_by(graph: Graph, readers: Sequence[Op], value: str, whole: int) -> int:
    """Elements of `value` that the readers touch, each counted as often as an operand does."""
    return sum(
        _touched(graph, op, operand, whole)
        for op in readers
        for operand in op.operands
        if isinstance(operand, Argument) and operand.value == value
    )


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
