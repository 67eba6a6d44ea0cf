"""A quick estimate of the time of a group of ops: what orders the merges to try.

Bytes count each outside value once for reading and each stored value once for writing. `Traffic`
and `Predictor` give the time of two groups together from what has to do with both, without going
through their ops or all that they move: the planner asks that for every pair of neighbours, after
every merge. What is decided in the end is decided by `cost`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fuser.device import DeviceSpec
from fuser.ir.dim import Dim, evaluate, product
from fuser.ir.graph import Argument, Graph, Op
from fuser.ir.index_map import Strided
from fuser.passes.cost import op_work


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the ops of a group touch and compute: all that its time needs besides what it stores.

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
            value: _touched_by(graph, [op], value, graph.numel_of[value])
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

    def work_with(self, other: Traffic) -> int:
        """The work of both together."""
        return self.work + other.work + sum({**self.free, **other.free}.values())


NO_TRAFFIC = Traffic()


class Predictor:
    """Times of groups on one device, with the sizes of the graph's values looked up once."""

    def __init__(self, graph: Graph, device: DeviceSpec) -> None:
        self.device = device
        self.numel = graph.numel_of
        self.width = {name: value.type.dtype.bytes for name, value in graph.values.items()}

    def loaded(self, value: str, touched: int) -> int:
        """Bytes of a value that are read by ops that touch so many elements of it."""
        return min(touched, self.numel[value]) * self.width[value]

    def stored(self, value: str) -> int:
        return self.numel[value] * self.width[value]

    def moved(self, traffic: Traffic, stored: Iterable[str]) -> int:
        """Bytes that a group reads and stores."""
        loads = sum(self.loaded(value, touched) for value, touched in traffic.touched.items())
        return loads + sum(map(self.stored, stored))

    def time_us(self, moved: int, work: int) -> float:
        """A launch plus the longer of memory and arithmetic time."""
        slower = max(moved / self.device.copy_rate, work / self.device.vector_rate)
        return self.device.launch_us + 1e6 * slower


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
            return min(whole, graph.points_of[op.name])
        used = {axis.reader_axis for axis in step.axes}
        sizes = [size if k in used else 1 for k, size in enumerate(sizes)]
        break
    return evaluate(product(sizes), graph.hints)
