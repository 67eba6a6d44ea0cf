"""Clusters: the groups that the planner settled on, in the order in which they run.

In: a graph and sets of its ops. Out: what each set stores, reads and allocates. A cluster computes
its own ops and copies of others that are cheaper to compute again than to load. Opaque ops are
clusters of one.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from fuser.ir.graph import Effect, Graph, Op
from fuser.passes.analysis import Step, peak_of
from fuser.passes.groups import Tree


@dataclass(frozen=True)
class Cluster:
    """Ops that run together; `tree` has those it owns."""

    tree: Tree
    copies: frozenset[str] = frozenset()

    @property
    def owned(self) -> frozenset[str]:
        return self.tree.ops

    @cached_property
    def computed(self) -> frozenset[str]:
        return self.tree.ops | self.copies


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What a cluster has to do with others, whatever these are."""

    leaving: frozenset[str]
    """The values of its own ops that others read."""
    needed: frozenset[str]
    """The ops that must run before it."""
    reads: tuple[str, ...]
    """The values that it reads and does not compute."""


@dataclass(frozen=True)
class Clustering:
    """All clusters of a graph. `free` are the constants that every reader computes for itself.

    `program` is the graph in the program's order, `needs` what must run before each op.
    """

    program: Graph
    needs: Mapping[str, tuple[str, ...]]
    free: frozenset[str]
    clusters: tuple[Cluster, ...]
    known: dict[tuple[frozenset[str], frozenset[str]], _Surroundings] = field(
        default_factory=dict, repr=False, compare=False
    )
    """By own ops and copies, of clusters that were looked at, also in other clusterings."""

    @cached_property
    def owner(self) -> Mapping[str, int]:
        return {
            name: number for number, cluster in enumerate(self.clusters) for name in cluster.owned
        }

    @cached_property
    def computing(self) -> Mapping[str, tuple[int, ...]]:
        """Op to the clusters that compute it."""
        found: dict[str, list[int]] = {}
        for number, cluster in enumerate(self.clusters):
            for name in cluster.computed:
                found.setdefault(name, []).append(number)
        return {name: tuple(numbers) for name, numbers in found.items()}

    def ops(self, number: int) -> list[Op]:
        """What a cluster computes, constants included, in the program's order."""
        graph, names = self.program, set(self.clusters[number].computed)
        for name in tuple(names):
            names.update(value for value in graph.by_name[name].reads if value in self.free)
        return graph.in_order(names)

    def stored(self, number: int) -> frozenset[str]:
        """The values of a cluster that something reads and does not compute itself."""
        graph = self.program
        return frozenset(
            value
            for value in self.around(self.clusters[number]).leaving
            if value not in self.copied
            or value in graph.output_values
            or any(
                value not in self.clusters[other].computed
                for reader in graph.readers[value]
                for other in self.computing[reader.name]
            )
        )

    @cached_property
    def copied(self) -> frozenset[str]:
        """The ops that others compute beside their owner."""
        return frozenset().union(*(cluster.copies for cluster in self.clusters))

    def around(self, cluster: Cluster) -> _Surroundings:
        key = (cluster.owned, cluster.copies)
        found = self.known.get(key)
        if found is None:
            graph, computed = self.program, cluster.computed
            ops = [graph.by_name[name] for name in computed]
            reads = {value for op in ops for value in op.reads if value not in computed}
            needs = {need for name in computed for need in self.needs[name]}
            found = self.known[key] = _Surroundings(
                leaving(graph, cluster.owned),
                frozenset(needs - computed - self.free),
                tuple(sorted(reads - self.free)),
            )
        return found

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where in the program the first op is that each cluster owns."""
        place = self.program.position.__getitem__
        return tuple(min(map(place, cluster.owned)) for cluster in self.clusters)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Where the last one is."""
        place = self.program.position.__getitem__
        return tuple(max(map(place, cluster.owned)) for cluster in self.clusters)

    @cached_property
    def kernels(self) -> frozenset[frozenset[str]]:
        """The ops that each cluster computes."""
        return frozenset(cluster.computed for cluster in self.clusters)

    @cached_property
    def barriers(self) -> tuple[int, ...]:
        """The places of the calls that write to memory which others read."""
        ops = enumerate(self.program.ops)
        return tuple(place for place, op in ops if op.effect is Effect.BARRIER)

    def era(self, number: int) -> int:
        """How many such calls come before a cluster's ops; none stands between two of them."""
        return bisect(self.barriers, self.starts[number])

    @cached_property
    def before(self) -> tuple[frozenset[int], ...]:
        """For each cluster, the clusters that must run before it."""
        return tuple(
            frozenset(self.owner[name] for name in self.around(cluster).needed)
            for cluster in self.clusters
        )

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Clusters in an order that respects every need, as near to the program's as it can."""
        after: dict[int, list[int]] = {}
        for number, earlier in enumerate(self.before):
            for other in earlier:
                after.setdefault(other, []).append(number)
        last = self.ends
        waiting = [len(earlier) for earlier in self.before]
        ready = [(last[number], number) for number, count in enumerate(waiting) if not count]
        heapq.heapify(ready)
        found: list[int] = []
        while ready:
            _, number = heapq.heappop(ready)
            found.append(number)
            for other in after.get(number, ()):
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, (last[other], other))
        return tuple(found)

    @cached_property
    def when(self) -> Mapping[str, int]:
        """Op to the step in which its owner runs."""
        return {
            name: step
            for step, number in enumerate(self.order)
            for name in self.clusters[number].owned
        }

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """What each cluster allocates and reads, in running order."""
        found: list[Step] = []
        for number in self.order:
            cluster = self.clusters[number]
            first = self.program.by_name[next(iter(cluster.computed))]
            made = tuple(sorted(self.stored(number)))
            if first.is_opaque:
                made = tuple(value.name for value in first.results)
            found.append(Step(made, self.around(cluster).reads))
        return tuple(found)

    @cached_property
    def peak(self) -> int:
        """The most bytes held at once."""
        return peak_of(self.program, self.steps)

    def with_clusters(self, clusters: Sequence[Cluster]) -> Clustering:
        return replace(self, clusters=tuple(clusters))


def leaving(graph: Graph, names: frozenset[str]) -> frozenset[str]:
    """The results of ops that are outputs of the graph or that other ops read."""
    return frozenset(
        value.name
        for name in names
        for value in graph.by_name[name].results
        if value.name in graph.output_values
        or any(reader.name not in names for reader in graph.readers[value.name])
    )
