"""Compute cheap values again in each of their readers rather than store and load them.

In: a clustering. Out: one in which clusters whose results only generated kernels read, and which
the model predicts to be cheaper to repeat than to store, are part of every reader instead. Only
pointwise work is repeated: a reduction's operand would have to be read again whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuser.passes.candidate import Candidate, Refused
from fuser.passes.clusters import Cluster, Clustering
from fuser.passes.groups import Tree

MAX_READERS = 16
"""Clusters that compute a value again; with more of them one store is nearly always cheaper."""

MAX_OPS = 16
"""Ops of a cluster that is repeated."""

Judge = Callable[[frozenset[str], frozenset[str]], Candidate]
"""The kernel of the named ops that stores the named values; raises `Refused`."""


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A cluster that could be part of its readers: their numbers, and what that saves."""

    number: int
    readers: tuple[int, ...]
    saved: float


def recompute_cheap(clustering: Clustering, judge: Judge, most_bytes: int) -> Clustering:
    """Dissolve clusters into their readers, the one that saves most first, while memory allows."""
    while True:
        found = [
            repeat
            for number in range(len(clustering.clusters))
            if (repeat := _considered(clustering, number, judge)) is not None and repeat.saved > 0
        ]
        found.sort(key=lambda repeat: (-repeat.saved, clustering.place(repeat.number)))
        touched: set[int] = set()
        chosen: list[_Repeat] = []
        for repeat in found:
            involved = {repeat.number, *repeat.readers}
            if touched.isdisjoint(involved):
                trial = _dissolve(clustering, [*chosen, repeat])
                if trial.peak <= most_bytes:
                    chosen.append(repeat)
                    touched |= involved
        if not chosen:
            return clustering
        clustering = _dissolve(clustering, chosen)


def _considered(clustering: Clustering, number: int, judge: Judge) -> _Repeat | None:
    readers = _readers(clustering, number)
    if not readers:
        return None
    again = clustering.clusters[number].owned
    apart = together = 0.0
    try:
        apart += judge(again, clustering.stored(number)).cost.time_us
        for reader in readers:
            computed, stored = clustering.clusters[reader].computed, clustering.stored(reader)
            apart += judge(computed, stored).cost.time_us
            together += judge(computed | again, stored).cost.time_us
    except Refused:
        return None
    return _Repeat(number, tuple(readers), apart - together)


def _readers(clustering: Clustering, number: int) -> Sequence[int]:
    """The clusters that read this one's results, where all of them could compute them again."""
    graph = clustering.program
    cluster = clustering.clusters[number]
    if cluster.copies or len(cluster.owned) > MAX_OPS:
        return ()
    found: set[int] = set()
    for name in cluster.owned:
        op = graph.by_name[name]
        if op.is_opaque or op.reduced or name in graph.output_values:
            return ()
        for reader in graph.readers[name]:
            if reader.is_opaque:
                return ()
            found.update(clustering.computing[reader.name])
    found.discard(number)
    if not 1 < len(found) <= MAX_READERS:
        return ()
    return sorted(found, key=clustering.place)


def _dissolve(clustering: Clustering, repeats: Sequence[_Repeat]) -> Clustering:
    """The first reader of each cluster owns its ops from now on, the others have copies."""
    clusters = dict(enumerate(clustering.clusters))
    for repeat in repeats:
        gone = clusters.pop(repeat.number)
        first, *others = repeat.readers
        owner = clusters[first]
        tree = Tree(owner.owned | gone.owned, (gone.tree, owner.tree), repeat.saved, is_final=True)
        clusters[first] = Cluster(tree, owner.copies)
        for other in others:
            clusters[other] = Cluster(clusters[other].tree, clusters[other].copies | gone.owned)
    return clustering.with_clusters(tuple(clusters.values()))
