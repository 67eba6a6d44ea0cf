"""Compute cheap values again in their readers rather than store and load them.

In: a clustering. Out: one in which values that only generated kernels read, and that the model
predicts to be cheaper to repeat than to load, are computed by every reader instead. A cluster that
has nothing else to store is gone, and its ops belong to its readers. Only pointwise work is
repeated: a reduction's operand would have to be read again whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fuser.ir.graph import Graph
from fuser.passes.analysis import held_bytes, lifetimes
from fuser.passes.candidate import Candidate, Refused, outside_values
from fuser.passes.clusters import Cluster, Clustering
from fuser.passes.groups import Tree

MAX_READERS = 16
"""Clusters that compute a value again; with more of them one store is nearly always cheaper."""

MAX_OPS = 16
"""Ops that are repeated."""

Judge = Callable[[frozenset[str], frozenset[str]], Candidate]
"""The kernel of the named ops that stores the named values; raises `Refused`."""

Readers = Mapping[int, frozenset[str]]
"""Clusters, by number, and what each of them would compute again."""


@dataclass(frozen=True, slots=True)
class _Repeat:
    """Ops of a cluster that its readers could compute again, and what that saves."""

    number: int
    readers: Readers
    saved: float
    freed: frozenset[str]
    """What need not be stored any more."""
    is_whole: bool
    """Whether nothing is left of the cluster."""

    @property
    def ops(self) -> frozenset[str]:
        return frozenset().union(*self.readers.values())


def recompute_cheap(
    clustering: Clustering, judge: Judge, most_bytes: int, place: Mapping[str, int]
) -> Clustering:
    """Repeat what is cheap in its readers, where it saves most first, while memory allows.

    `place` is where the canonical order has each op.
    """
    too_large: set[frozenset[str]] = set()
    while True:
        touched: set[int] = set()
        chosen: list[_Repeat] = []
        for repeat in _Chances(clustering, judge, place).best_first():
            involved = {repeat.number, *repeat.readers}
            if repeat.ops not in too_large and touched.isdisjoint(involved):
                chosen.append(repeat)
                touched |= involved
        if not chosen:
            return clustering
        fitting = _fitting(clustering, chosen, most_bytes)
        too_large |= {repeat.ops for repeat in chosen if repeat not in fitting}
        clustering = _repeated(clustering, fitting)


def _fitting(clustering: Clustering, chosen: Sequence[_Repeat], most_bytes: int) -> list[_Repeat]:
    """As many as memory allows, the first ones first.

    What readers compute again needs its own sources until then, and is not held itself.
    """
    graph, steps = clustering.program, clustering.steps
    held, lives = held_bytes(graph, steps), lifetimes(graph, steps)
    step_of = {number: step for step, number in enumerate(clustering.order)}
    fitting: list[_Repeat] = []
    for repeat in chosen:
        last = max(step_of[reader] for reader in repeat.readers)
        now = list(held)
        for value in repeat.freed:
            for step in range(lives[value][0], lives[value][1] + 1):
                now[step] -= graph.bytes_of[value]
        sources = outside_values([graph.by_name[name] for name in repeat.ops])
        longer = [v for v in sources if v in graph.producers and v not in clustering.free]
        for value in longer:
            for step in range(lives[value][1] + 1, last + 1):
                now[step] += graph.bytes_of[value]
        if all(after <= max(most_bytes, before) for before, after in zip(held, now, strict=True)):
            held = now
            lives |= {value: (lives[value][0], max(lives[value][1], last)) for value in longer}
            fitting.append(repeat)
    # Others may run in another order then, which the steps do not know.
    while fitting and _repeated(clustering, fitting).peak > most_bytes:
        fitting = fitting[: len(fitting) // 2]
    return fitting


@dataclass(frozen=True)
class _Chances:
    """What could be repeated, and saves time."""

    clustering: Clustering
    judge: Judge
    place: Mapping[str, int]

    @cached_property
    def first(self) -> Sequence[int]:
        """Where each cluster begins, whatever the order of the program."""
        place = self.place.__getitem__
        return [min(map(place, cluster.owned)) for cluster in self.clustering.clusters]

    def best_first(self) -> list[_Repeat]:
        found = [repeat for k in range(len(self.clustering.clusters)) for repeat in self.of(k)]
        return sorted(found, key=lambda repeat: (-repeat.saved, self.first[repeat.number]))

    def of(self, number: int) -> Iterator[_Repeat]:
        """The whole cluster, or what one of the values that it stores is made of."""
        clustering, graph = self.clustering, self.clustering.program
        cluster, stored = clustering.clusters[number], clustering.stored(number)
        if any(graph.by_name[name].is_opaque for name in cluster.owned):
            return
        chances = [] if cluster.copies else [(cluster.owned, stored, True)]
        if len(stored) > 1:
            for value in sorted(stored, key=self.place.__getitem__):
                again = needed(graph, cluster.computed, [value]) | {value}
                chances.append((again, frozenset({value}), False))
        for again, values, is_whole in chances:
            if len(again) > MAX_OPS or any(graph.by_name[name].reduced for name in again):
                continue
            readers = self.readers(again, values)
            if is_whole and again != frozenset().union(*readers.values()):
                continue  # an op that nothing needs would be lost
            # What has one reader and leaves nothing behind is a merge, which was thought of.
            if len(readers) > is_whole and self.is_possible(number, readers):
                kept = self.still_stored(stored, readers)
                saved = self.saving(number, readers, kept, is_whole)
                if saved > 0:
                    yield _Repeat(number, readers, saved, stored - kept, is_whole)

    def readers(self, again: frozenset[str], values: frozenset[str]) -> Readers:
        """The clusters that read the values, none where one of them has to find them stored."""
        clustering, graph = self.clustering, self.clustering.program
        found: set[int] = set()
        for value in values:
            if value in graph.output_values or any(r.is_opaque for r in graph.readers[value]):
                return {}
            numbers = {k for r in graph.readers[value] for k in clustering.computing[r.name]}
            # Those that compute the value already have no need of it.
            found |= {k for k in numbers if value not in clustering.clusters[k].computed}
        return {
            k: needed(graph, again, clustering.clusters[k].computed)
            for k in sorted(found, key=self.first.__getitem__)
        }

    def is_possible(self, number: int, readers: Readers) -> bool:
        """Whether the readers are few, and what the ops read is there still when they run."""
        era = self.clustering.era
        return len(readers) <= MAX_READERS and all(era(k) == era(number) for k in readers)

    def saving(self, number: int, readers: Readers, kept: frozenset[str], is_whole: bool) -> float:
        """Predicted microseconds; 0 where a kernel cannot be."""
        clustering, judge = self.clustering, self.judge
        computed, stored = clustering.clusters[number].computed, clustering.stored(number)
        if not is_whole and (not kept or not self.saves_bytes(stored - kept, readers)):
            return 0.0
        try:
            saved = judge(computed, stored).cost.time_us
            if not is_whole:
                saved -= judge(computed, kept).cost.time_us
            for reader, again in readers.items():
                computed, stored = clustering.clusters[reader].computed, clustering.stored(reader)
                saved += judge(computed, stored).cost.time_us
                saved -= judge(computed | again, stored).cost.time_us
        except Refused:
            return 0.0
        return saved

    def still_stored(self, stored: frozenset[str], readers: Readers) -> frozenset[str]:
        """The stored values that something reads which will not compute them itself."""
        clustering, graph = self.clustering, self.clustering.program
        nothing: frozenset[str] = frozenset()
        return frozenset(
            value
            for value in stored
            if value in graph.output_values
            or any(
                value not in clustering.clusters[k].computed | readers.get(k, nothing)
                for reader in graph.readers[value]
                for k in clustering.computing[reader.name]
            )
        )

    def saves_bytes(self, values: Iterable[str], readers: Readers) -> bool:
        """A first look: the values are stored once and loaded by each reader, which would load
        what they are made of instead."""
        clustering, graph = self.clustering, self.clustering.program
        more = 0
        for reader, again in readers.items():
            there = {
                v for n in clustering.clusters[reader].computed for v in graph.by_name[n].reads
            }
            sources = outside_values([graph.by_name[name] for name in again])
            loaded = set(sources) - there - clustering.free
            more += sum(map(graph.bytes_of.__getitem__, loaded))
        return more < (1 + len(readers)) * sum(map(graph.bytes_of.__getitem__, values))


def needed(graph: Graph, again: frozenset[str], reading: Iterable[str]) -> frozenset[str]:
    """The ops of `again` that others read, or that those need."""
    found: set[str] = set()
    waiting = list(reading)
    while waiting:
        more = again.intersection(graph.by_name[waiting.pop()].reads) - found
        found |= more
        waiting += more
    return frozenset(found)


def _repeated(clustering: Clustering, repeats: Sequence[_Repeat]) -> Clustering:
    """Each reader has copies; what nothing is left of belongs to the first that needs it."""
    clusters = dict(enumerate(clustering.clusters))
    for repeat in repeats:
        gone = clusters.pop(repeat.number).tree if repeat.is_whole else None
        left = gone.ops if gone is not None else frozenset()
        for number, again in repeat.readers.items():
            tree, copies = clusters[number].tree, clusters[number].copies
            mine = again & left
            left -= mine
            if mine and gone is not None:
                tree = Tree(tree.ops | mine, (gone, tree), repeat.saved)
            clusters[number] = Cluster(tree, (copies | again) - tree.ops)
    return clustering.with_clusters(tuple(clusters.values()))
