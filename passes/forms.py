"""Kernels of one form: ops that differ in nothing but names have one kernel, worked out once.

In: a graph, ops in its order, which of their values are stored, and the limits. Out: a `Candidate`.
The layers of a model repeat, and so do the ops that kernels start from. A form has all that a
kernel depends on: what each op is, which operands are the same value, and what is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from fuser.device import DeviceSpec
from fuser.ir.graph import Argument, Graph, Op, Operand
from fuser.passes.base import Limits
from fuser.passes.candidate import Candidate, candidate_for
from fuser.passes.online import decisive

Form = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    """A kernel, and the places among its ops of those that its space has, in turn."""

    candidate: Candidate
    places: tuple[int, ...]

    def of(self, ops: Sequence[Op]) -> Candidate:
        """The same kernel of other ops."""
        space = self.candidate.space
        names = (ops[place].name for place in self.places)
        index = dict(zip(names, space.index.values(), strict=True))
        return replace(self.candidate, space=replace(space, index=index))


class Forms:
    """The kernels of one graph on one device that are known so far."""

    def __init__(self, graph: Graph, device: DeviceSpec) -> None:
        self.graph = graph
        self.device = device
        self.numbers: dict[object, int] = {}
        """A number for each different op and type."""
        self.types = {name: self.number(value.type) for name, value in graph.values.items()}
        self.ops = {op.name: self.number(_essence(op)) for op in graph.ops if not op.is_opaque}
        self.reads = {
            op.name: [o.value for o in op.operands if isinstance(o, Argument)] for op in graph.ops
        }
        self.known: dict[tuple[Limits, Form], _Known] = {}

    def number(self, what: object) -> int:
        return self.numbers.setdefault(what, len(self.numbers))

    def candidate(self, ops: Sequence[Op], stored: frozenset[str], limits: Limits) -> Candidate:
        """The kernel of these ops; raises `Refused`, which names the ops and so is not kept."""
        form = (limits, self.form(ops, stored))
        known = self.known.get(form)
        if known is not None:
            return known.of(ops)
        found = candidate_for(self.graph, ops, stored, self.device, limits)
        place = {op.name: k for k, op in enumerate(ops)}
        self.known[form] = _Known(found, tuple(map(place.__getitem__, found.space.index)))
        return found

    def form(self, ops: Sequence[Op], stored: Collection[str]) -> Form:
        """Equal for ops that differ in nothing but names.

        Of each op its number, the values that it reads, and whether it is stored. Values are
        places: first those of the ops, then of others as they are met, each followed by its type.
        """
        places = {op.name: k for k, op in enumerate(ops)}
        met = len(places)
        found: list[int] = []
        for op in ops:
            found.append(self.ops[op.name])
            for value in self.reads[op.name]:
                place = places.setdefault(value, len(places))
                found.append(place)
                if place == met:
                    found.append(self.types[value])
                    met += 1
            found.append(op.name in stored)
        return tuple(found)


def _essence(op: Op) -> tuple[object, ...]:
    """What an op does, whatever it and its operands are called."""
    return (
        op.kind,
        tuple(map(_operand, op.operands)),
        op.type,
        op.domain,
        op.reduced,
        op.keepdim,
        op.compute,
        repr(op.attributes),
    )


def _operand(operand: Operand) -> object:
    if isinstance(operand, Argument):
        return (operand.map, operand.type, operand.storage_offset, operand.window)
    return decisive(operand)
