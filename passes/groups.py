"""Groups of ops while the planner merges them, and the graph between the groups.

A group is a set of ops that will become one kernel. `Groups` keeps which group owns each op, the
dependencies between groups and what each group reads and stores, and answers whether a merge would
close a cycle. Keys are positions in the graph, so its order has to be the canonical one.

Groups have ranks, which rise along every dependency, so that a search for a path looks only at what
ranks between its ends. A merge gives new ranks to just the groups that are there and on such a path
(Pearce and Kelly's algorithm for a topological order that changes).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field

from fuser.ir.graph import Graph, Op
from fuser.ir.ops import BY_KIND, Group
from fuser.passes.traffic import Traffic
from fuser.passes.unify import argument_of, is_gather


@dataclass(frozen=True, slots=True)
class Tree:
    """How a group came to be: its ops, and the two groups whose merge it is."""

    ops: frozenset[str]
    parts: tuple[Tree, Tree] | None = None
    gain_us: float = 0.0
    """What the merge was predicted to save."""
    is_final: bool = False
    """Whether it may not be taken back: the user asked for it, or others build on it."""


@dataclass(slots=True)
class OpGroup:
    """Ops that run together; mutable only inside the planner.

    `readers` counts, for each value read from outside, the ops that read it; `stored` counts, for
    each value that something outside reads, how many do. An output of the graph has one reader more
    than there are ops.
    """

    key: int
    ops: set[str]
    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)
    rank: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    readers: dict[str, int] = field(default_factory=dict)
    stored: dict[str, int] = field(default_factory=dict)


class Groups:
    """The merge state: starts with one group for each op that is not free."""

    def __init__(
        self, graph: Graph, dependencies: Mapping[str, tuple[str, ...]], free: frozenset[str]
    ) -> None:
        self.graph = graph
        self.free = free
        self.groups: dict[int, OpGroup] = {}
        self.owner: dict[str, int] = {}
        self.reading: dict[str, list[int]] = {}
        """Value to the groups that read it from outside, in canonical order."""
        for position, op in enumerate(graph.ops):
            if op.name in free:
                continue
            group = self.groups[position] = self.single(position, op)
            self.owner[op.name] = position
            for value in group.readers:
                self.reading.setdefault(value, []).append(position)
        for name, earlier in dependencies.items():
            for before in earlier:
                if name in self.owner and before in self.owner:
                    self.groups[self.owner[name]].before.add(self.owner[before])
                    self.groups[self.owner[before]].after.add(self.owner[name])

    def single(self, position: int, op: Op) -> OpGroup:
        group = OpGroup(position, {op.name}, rank=position)
        for value in op.results:
            outside = len(self.graph.readers[value.name])
            outside += value.name in self.graph.output_values
            if outside:
                group.stored[value.name] = outside
        if not op.is_opaque:
            free = [self.graph.by_name[value] for value in op.reads if value in self.free]
            group.traffic = Traffic.of(self.graph, op, free)
            group.readers = {value: 1 for value in op.reads if value not in self.free}
        return group

    def with_constants(self, names: Iterable[str]) -> list[Op]:
        """The named ops and the free ones that they read, in the graph's order."""
        by_name = self.graph.by_name
        found = set(names)
        for name in tuple(found):
            found.update(value for value in by_name[name].reads if value in self.free)
        return self.graph.in_order(found)

    def stored(self, keys: Collection[int]) -> frozenset[str]:
        """The values of the groups that something outside them reads."""
        left: dict[str, int] = {}
        """Of each value, the readers that are not among these groups."""
        for key in keys:
            left |= self.groups[key].stored
        for key in keys:
            for value, readers in self.groups[key].readers.items():
                if value in left:
                    left[value] -= readers
        return frozenset(value for value, readers in left.items() if readers)

    def siblings(self, key: int, most: int) -> set[int]:
        """Groups that read what this one reads: for each value the nearest ones in order."""
        found: set[int] = set()
        for value in self.groups[key].readers:
            keys = self.reading[value]
            place = bisect_left(keys, key)
            found.update(keys[max(0, place - most) : place + most + 1])
        return found - {key}

    def would_cycle(self, producer: int, consumer: int) -> bool:
        """Whether a third group stands between the two."""
        left, right = self.groups[producer], self.groups[consumer]
        if len(left.after) <= len(right.before):
            return consumer in self._after(left, right, short=False)
        return producer in self._before(left, right, short=False)

    def between(self, producer: int, consumer: int) -> set[int]:
        """The groups that wait for the one and that the other waits for."""
        left, right = self.groups[producer], self.groups[consumer]
        return self._after(left, right) & self._before(left, right)

    def _after(self, start: OpGroup, end: OpGroup, short: bool = True) -> set[int]:
        """What waits for `start` and ranks below `end`. Unless `short`, `end` too where something
        else leads to it."""
        groups, seen = self.groups, set[int]()
        waiting = [key for key in start.after if key != end.key]
        while waiting:
            key = waiting.pop()
            if key not in seen and groups[key].rank < end.rank:
                seen.add(key)
                waiting.extend(groups[key].after)
            elif key == end.key and not short:
                return {key}
        return seen

    def _before(self, start: OpGroup, end: OpGroup, short: bool = True) -> set[int]:
        """What `end` waits for and ranks above `start`, likewise."""
        groups, seen = self.groups, set[int]()
        waiting = [key for key in end.before if key != start.key]
        while waiting:
            key = waiting.pop()
            if key not in seen and groups[key].rank > start.rank:
                seen.add(key)
                waiting.extend(groups[key].before)
            elif key == start.key and not short:
                return {key}
        return seen

    def _rank_together(self, left: OpGroup, right: OpGroup) -> int:
        """A rank for both as one group; makes room for it among the groups between them."""
        groups = self.groups
        later = sorted(self._after(left, right), key=lambda key: groups[key].rank)
        earlier = sorted(self._before(left, right), key=lambda key: groups[key].rank)
        ranks = sorted([left.rank, right.rank, *(groups[k].rank for k in [*later, *earlier])])
        for key, rank in zip(earlier, ranks, strict=False):
            groups[key].rank = rank
        for key, rank in zip(reversed(later), reversed(ranks), strict=False):
            groups[key].rank = rank
        return ranks[len(earlier)]

    def passed(self, one: int, other: int) -> list[tuple[str, OpGroup, OpGroup]]:
        """The values that one of the two stores and the other reads, with these two in turn."""
        left, right = self.groups[one], self.groups[other]
        return [
            (value, maker, reader)
            for maker, reader in ((left, right), (right, left))
            for value in maker.stored.keys() & reader.readers.keys()
        ]

    def shared(self, one: int, other: int) -> Set[str]:
        """The values that both of the two read and neither of them makes."""
        return self.groups[one].readers.keys() & self.groups[other].readers.keys()

    def outside(self, producer: int, consumer: int) -> tuple[dict[str, int], dict[str, int]]:
        """What the two together would read and store, as `OpGroup` counts it."""
        left, right = self.groups[producer], self.groups[consumer]
        readers = left.readers | right.readers
        stored = left.stored | right.stored
        for value, _, reader in self.passed(producer, consumer):
            del readers[value]
            stored[value] -= reader.readers[value]
            if not stored[value]:
                del stored[value]
        for value in self.shared(producer, consumer):
            readers[value] = left.readers[value] + right.readers[value]
        return readers, stored

    def merge(self, producer: int, consumer: int) -> int:
        """Make one group of two that no third one stands between; the earlier key stays."""
        key, gone = min(producer, consumer), max(producer, consumer)
        readers, stored = self.outside(producer, consumer)
        rank = self._rank_together(self.groups[producer], self.groups[consumer])
        kept, lost = self.groups[key], self.groups.pop(gone)
        for value in kept.readers.keys() | lost.readers.keys():
            keys = self.reading[value]
            if value in lost.readers:
                del keys[bisect_left(keys, gone)]
            is_there = value in kept.readers
            if is_there and value not in readers:
                del keys[bisect_left(keys, key)]
            elif value in readers and not is_there:
                insort(keys, key)
        for name in lost.ops:
            self.owner[name] = key
        kept.ops |= lost.ops
        kept.readers, kept.stored = readers, stored
        kept.traffic = kept.traffic.plus(lost.traffic, readers)
        kept.before = (kept.before | lost.before) - {key, gone}
        kept.after = (kept.after | lost.after) - {key, gone}
        kept.rank = rank
        for other in lost.before - {key}:
            self.groups[other].after.discard(gone)
            self.groups[other].after.add(key)
        for other in lost.after - {key}:
            self.groups[other].before.discard(gone)
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
        and not any(_needs_memory(reader, op.name) for reader in graph.readers[op.name])
    )


def _needs_memory(reader: Op, value: str) -> bool:
    """Whether the reader can only read the value where it is stored."""
    return reader.is_opaque or (is_gather(reader) and argument_of(reader, 0).value == value)
