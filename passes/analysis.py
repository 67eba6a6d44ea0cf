"""What people ask about a graph: who reads a value, what must run first, how long a value is kept.

In: a graph or a plan. Out: plain mappings and numbers; nothing is changed. Sizes known only at the
call count with the sizes seen while tracing. Memory is what running allocates: the caller's inputs
and the constants are left out, and so is scratch memory, which a plan does not know of yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, zip_longest
from types import MappingProxyType

from fuser.ir.graph import Graph, Op
from fuser.ir.plan import FusionPlan
from fuser.passes.base import dependencies

CHUNK = 4096
"""Ops whose bits share one integer of `Reachability`."""

BEFORE_ALL = -1
"""The first position of a value that is there before anything runs."""

Lifetime = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that runs: the values that it allocates and those that it reads."""

    made: tuple[str, ...]
    read: tuple[str, ...]


def fan_out(graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """Value name to the ops that read it when the graph runs as planned, in program order."""
    readers: dict[str, list[str]] = {name: [] for name in graph.values}
    for op in graph.ops:
        for value in op.reads:
            readers[value].append(op.name)
    return MappingProxyType({name: tuple(ops) for name, ops in readers.items()})


@dataclass(frozen=True, slots=True)
class Reachability:
    """For each op the set of ops that must run before it, as bits in chunks of the program order.

    Most of an op's chunks are the same objects as those of the ops that it reads, so that a deep
    graph costs little more than its last chunk per op.
    """

    position: Mapping[str, int]
    ancestors: Sequence[tuple[int, ...]] = field(repr=False)

    def reaches(self, earlier: str, later: str) -> bool:
        """Whether `later` must run after `earlier`; an op does not reach itself."""
        chunk, bit = divmod(self.position[earlier], CHUNK)
        chunks = self.ancestors[self.position[later]]
        return chunk < len(chunks) and bool(chunks[chunk] >> bit & 1)

    def before(self, name: str) -> tuple[str, ...]:
        """Everything that must run before an op, in program order."""
        return tuple(op for op in self.position if self.reaches(op, name))


def reachability(graph: Graph) -> Reachability:
    """The order that data and effects force on the ops."""
    needs = dependencies(graph)
    ancestors: list[tuple[int, ...]] = []
    for op in graph.ops:
        chunks: tuple[int, ...] = ()
        for name in needs[op.name]:
            chunks = _union(chunks, _with_itself(ancestors, graph.position[name]))
        ancestors.append(chunks)
    return Reachability(graph.position, ancestors)


def _with_itself(ancestors: Sequence[tuple[int, ...]], position: int) -> tuple[int, ...]:
    chunk, bit = divmod(position, CHUNK)
    chunks = ancestors[position]
    chunks += (0,) * (chunk + 1 - len(chunks))
    return (*chunks[:chunk], chunks[chunk] | 1 << bit)


def _union(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(_join(a, b) for a, b in zip_longest(left, right, fillvalue=0))


def _join(left: int, right: int) -> int:
    """The bits of both; an operand that holds them all is returned itself, to be shared."""
    if left is right:
        return left
    both = left | right
    return left if both == left else right if both == right else both


def peak_bytes(plan: FusionPlan) -> int:
    """The most memory that stored values need at once when the plan runs in its order.

    A region's results are allocated while its inputs are still there, those of a shared launch
    together. Values that stay inside a region need none.
    """
    graph = plan.graph
    steps: list[Step] = []
    for names in plan.steps:
        regions = [plan.by_name[name] for name in names if name in plan.by_name]
        if not regions:
            op = graph.by_name[names[0]]
            steps.append(_step(op, op.reads))
            continue
        made = tuple(value for region in regions for value in region.outputs)
        steps.append(Step(made, tuple(value for region in regions for value in region.inputs)))
    return peak_of(graph, steps)


def eager_calls(graph: Graph) -> tuple[tuple[Op, ...], ...]:
    """The ops in program order, grouped into the calls that eager runs: neighbours that one
    operation was decomposed into are one call."""
    return tuple(
        tuple(run) for _, run in groupby(graph.ops, key=lambda op: op.origin or f"op:{op.name}")
    )


def eager_peak_bytes(graph: Graph) -> int:
    """The most bytes held at once when eager runs the calls, each value freed after its last
    reader. What is inside a call counts as nothing.

    A lower bound on eager's: Python keeps a value as long as a variable holds it.
    """
    steps: list[Step] = []
    for ops in eager_calls(graph):
        inside = frozenset(op.name for op in ops)
        made = tuple(
            value.name
            for op in ops
            for value in op.results
            if op.is_opaque
            or value.name in graph.output_values
            or not inside.issuperset(r.name for r in graph.readers[value.name])
            or not graph.readers[value.name]
        )
        read = dict.fromkeys(a.value for op in ops for a in op.arguments)
        results = {value.name for op in ops for value in op.results}
        steps.append(Step(made, tuple(value for value in read if value not in results)))
    return peak_of(graph, steps)


def op_by_op_peak_bytes(graph: Graph) -> int:
    """The same with a call for every op, decomposed ones too."""
    return peak_of(graph, [_step(op, (a.value for a in op.arguments)) for op in graph.ops])


def one_by_one(graph: Graph, order: Iterable[str]) -> list[Step]:
    """A step for each of the named ops."""
    return [_step(graph.by_name[name], graph.by_name[name].reads) for name in order]


def _step(op: Op, read: Iterable[str]) -> Step:
    return Step(tuple(value.name for value in op.results), tuple(read))


def lifetimes(graph: Graph, steps: Sequence[Step]) -> dict[str, Lifetime]:
    """Value name to the positions in `steps` at which it is made and last read.

    Inputs and constants start at `BEFORE_ALL`, outputs of the graph last until `len(steps)`, after
    the last step; an unread value ends where it starts.
    """
    first: dict[str, int] = {
        name: BEFORE_ALL for name in graph.values if name not in graph.producers
    }
    for position, step in enumerate(steps):
        first.update(dict.fromkeys(step.made, position))
    last = dict(first)
    for position, step in enumerate(steps):
        last.update(dict.fromkeys(step.read, position))
    last.update(dict.fromkeys(graph.output_values, len(steps)))
    return {name: (position, last[name]) for name, position in first.items()}


def peak_of(graph: Graph, steps: Sequence[Step]) -> int:
    """The most bytes that steps in this order hold at once."""
    return max(held_bytes(graph, steps), default=0)


def held_bytes(graph: Graph, steps: Sequence[Step]) -> list[int]:
    """The bytes that are held while each step runs, and after the last one."""
    changes = [0] * (len(steps) + 2)
    for name, (first, last) in lifetimes(graph, steps).items():
        if first == BEFORE_ALL:
            continue
        size = graph.bytes_of[name]
        changes[first] += size
        changes[last + 1] -= size
    return list(accumulate(changes))[: len(steps)]
