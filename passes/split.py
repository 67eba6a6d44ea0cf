"""Where to cut the ops of one kernel in two.

In: a graph, the names of the ops, and which of their values are stored. Out: a `Cut`. Cuts go along
the program's order: what comes before a point is one side, the rest the other, which can close no
cycle. The best one makes the two kernels that are predicted to be fastest together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from fuser.ir.graph import Graph
from fuser.ir.region import Reason
from fuser.passes.candidate import Candidate, Refused
from fuser.passes.clusters import Cluster, Clustering, leaving
from fuser.passes.groups import Tree

MOST_JUDGED = 6
"""Cuts whose kernels are worked out, of those that move the fewest bytes between the sides."""

Judge = Callable[[frozenset[str], frozenset[str]], Candidate]
"""The kernel of the named ops that stores the named values; raises `Refused`."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The two sides of a cut, the bytes that cross it, and what it costs."""

    left: frozenset[str]
    right: frozenset[str]
    crossing: int
    """Bytes that the left side stores for the right one, and that nothing else asks for."""
    held_left: int
    """Bytes that the left side allocates."""
    held_right: int
    """Bytes that are allocated once the right side runs."""
    cost_us: float = 0.0
    """Predicted microseconds of the two kernels less those of the one."""

    def is_between(self, pair: tuple[str, str]) -> bool:
        """Whether two ops are on different sides."""
        return any(one in self.left and other in self.right for one, other in (pair, pair[::-1]))


@dataclass(frozen=True, slots=True)
class Apart:
    """Two sides that are not one kernel, and why."""

    cut: Cut
    reason: Reason
    detail: str = ""


def cuts(graph: Graph, ops: Collection[str], stored: Collection[str]) -> Iterator[Cut]:
    """Every cut, from the first op on."""
    names = sorted(ops, key=graph.position.__getitem__)
    size = graph.bytes_of
    last = {
        name: max(
            (graph.position[r.name] for r in graph.readers[name] if r.name in ops),
            default=-1,
        )
        for name in names
    }
    outside = sum(size[name] for name in stored)
    kept = crossing = 0
    leaving: dict[int, int] = {}
    for position, name in enumerate(names[:-1]):
        if name in stored:
            kept += size[name]
        elif last[name] >= 0:
            crossing += size[name]
            leaving[last[name]] = leaving.get(last[name], 0) + size[name]
        crossing -= leaving.pop(graph.position[name], 0)
        yield Cut(
            frozenset(names[: position + 1]),
            frozenset(names[position + 1 :]),
            crossing,
            kept + crossing,
            outside + crossing,
        )


def cheapest_cut(
    graph: Graph,
    ops: frozenset[str],
    stored: frozenset[str],
    judge: Judge,
    allowed: Callable[[Cut], bool] = lambda _: True,
) -> Cut | None:
    """The allowed cut whose kernels are predicted to be fastest, None where there is none."""
    found = [cut for cut in cuts(graph, ops, stored) if allowed(cut)]
    found.sort(key=lambda cut: (cut.crossing, abs(len(cut.left) - len(cut.right))))
    whole = judge(ops, stored).cost.time_us
    judged: list[Cut] = []
    for cut in found:
        try:
            left = judge(cut.left, leaving(graph, cut.left)).cost.time_us
            right = judge(cut.right, leaving(graph, cut.right)).cost.time_us
        except Refused:
            continue  # of two such sides one has no common space without what joined it
        judged.append(replace(cut, cost_us=left + right - whole))
        if len(judged) == MOST_JUDGED:
            break
    return min(judged, key=lambda cut: cut.cost_us, default=None)


def crossing_pairs(graph: Graph, cut: Cut) -> list[tuple[str, str]]:
    """Pairs of ops that keep the two sides apart: every edge between them, or any two ops."""
    pairs = [
        (name, reader.name)
        for name in cut.left
        for reader in graph.readers[name]
        if reader.name in cut.right
    ]
    place = graph.position.__getitem__
    return sorted(pairs) or [(min(cut.left, key=place), min(cut.right, key=place))]


def apart(clustering: Clustering, made: dict[int, Cut]) -> Clustering:
    """The clustering with clusters cut in two."""
    clusters: list[Cluster] = []
    for number, cluster in enumerate(clustering.clusters):
        if number in made:
            clusters += [Cluster(Tree(made[number].left)), Cluster(Tree(made[number].right))]
        else:
            clusters.append(cluster)
    return clustering.with_clusters(clusters)
