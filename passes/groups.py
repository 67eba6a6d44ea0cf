"""Groups of ops while the planner merges them, and the graph between the groups.

A group is a set of ops that will become one kernel. `Groups` keeps which group owns each op and the
dependencies between groups, and answers whether a merge would close a cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fuser.ir.graph import Graph, Op
from fuser.ir.ops import BY_KIND, Group


@dataclass(slots=True)
class OpGroup:
    """Ops that run together; mutable only inside the planner."""

    key: int
    ops: set[str]
    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)
    first: int = 0
    last: int = 0


class Groups:
    """The merge state: starts with one group for each op that is not free."""

    def __init__(
        self, graph: Graph, dependencies: Mapping[str, tuple[str, ...]], free: frozenset[str]
    ) -> None:
        self.graph = graph
        self.free = free
        self.groups: dict[int, OpGroup] = {}
        self.owner: dict[str, int] = {}
        for position, op in enumerate(graph.ops):
            if op.name in free:
                continue
            self.groups[position] = OpGroup(position, {op.name}, first=position, last=position)
            self.owner[op.name] = position
        for name, earlier in dependencies.items():
            for before in earlier:
                if name in self.owner and before in self.owner:
                    self.groups[self.owner[name]].before.add(self.owner[before])
                    self.groups[self.owner[before]].after.add(self.owner[name])

    def ops_of(self, keys: Iterable[int]) -> list[Op]:
        """The ops of the groups and the free ops that they read, in program order."""
        names = {name for key in keys for name in self.groups[key].ops}
        waiting = list(names)
        while waiting:
            for value in self.graph.by_name[waiting.pop()].reads:
                if value in self.free and value not in names:
                    names.add(value)
                    waiting.append(value)
        return sorted((self.graph.by_name[n] for n in names), key=self.position)

    def position(self, op: Op) -> int:
        return self.graph.position[op.name]

    def stored(self, keys: Iterable[int]) -> frozenset[str]:
        """The values of the groups that something outside them reads."""
        inside = {name for key in keys for name in self.groups[key].ops}
        return frozenset(
            name
            for name in inside
            if name in self.graph.output_values
            or any(reader.name not in inside for reader in self.graph.readers[name])
        )

    def would_cycle(self, producer: int, consumer: int) -> bool:
        """Whether a third group stands between the two."""
        end = self.groups[consumer]
        waiting = [key for key in self.groups[producer].after if key != consumer]
        seen: set[int] = set()
        while waiting:
            key = waiting.pop()
            if key in seen:
                continue
            seen.add(key)
            if key == consumer:
                return True
            # A group whose first op comes after the last op of the target cannot lead to it.
            if self.groups[key].first < end.last:
                waiting.extend(self.groups[key].after)
        return False

    def merge(self, left: int, right: int) -> int:
        """Make one group of two; the earlier key stays."""
        key, gone = min(left, right), max(left, right)
        kept, lost = self.groups[key], self.groups.pop(gone)
        for name in lost.ops:
            self.owner[name] = key
        kept.ops |= lost.ops
        kept.before = (kept.before | lost.before) - {key, gone}
        kept.after = (kept.after | lost.after) - {key, gone}
        kept.first, kept.last = min(kept.first, lost.first), max(kept.last, lost.last)
        for other in lost.before:
            self.groups[other].after.discard(gone)
        for other in lost.after:
            self.groups[other].before.discard(gone)
        for other in kept.before:
            self.groups[other].after.add(key)
        for other in kept.after:
            self.groups[other].before.add(key)
        return key


def free_ops(graph: Graph) -> frozenset[str]:
    """Constants and index ramps that only generated ops read: each reader computes its own."""
    return frozenset(
        op.name
        for op in graph.ops
        if not op.is_opaque
        and BY_KIND[op.kind].group is Group.CREATION
        and op.name not in graph.output_values
        and graph.readers[op.name]
        and not any(reader.is_opaque for reader in graph.readers[op.name])
    )
