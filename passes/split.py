"""Where to cut a cluster in two.

In: a clustering and the number of one of its clusters. Out: a `Cut`. Cuts go along the program's
order: what comes before a point is one side, the rest the other, which can close no cycle. The best
one makes the two kernels that are predicted to be fastest together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fuser.ir.dim import evaluate
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


def cuts(clustering: Clustering, number: int) -> Iterator[Cut]:
    """Every cut of a cluster without copies, from the first op on."""
    graph = clustering.program
    cluster = clustering.clusters[number]
    stored = clustering.stored(number)
    names = sorted(cluster.owned, key=graph.position.__getitem__)
    size = {name: evaluate(graph.by_name[name].type.bytes, graph.hints) for name in names}
    last = {
        name: max(
            (graph.position[r.name] for r in graph.readers[name] if r.name in cluster.owned),
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
    clustering: Clustering, number: int, judge: Judge, allowed: Callable[[Cut], bool]
) -> Cut | None:
    """The allowed cut whose kernels are predicted to be fastest, None where there is none."""
    graph = clustering.program
    found = [cut for cut in cuts(clustering, number) if allowed(cut)]
    found.sort(key=lambda cut: (cut.crossing, abs(len(cut.left) - len(cut.right))))
    whole = judge(clustering.clusters[number].owned, clustering.stored(number)).cost.time_us
    best: Cut | None = None
    for cut in found[:MOST_JUDGED]:
        try:
            left = judge(cut.left, leaving(graph, cut.left)).cost.time_us
            right = judge(cut.right, leaving(graph, cut.right)).cost.time_us
        except Refused:
            continue
        cost = left + right - whole
        if best is None or cost < best.cost_us:
            best = Cut(cut.left, cut.right, cut.crossing, cut.held_left, cut.held_right, cost)
    return best


def apart(clustering: Clustering, made: dict[int, Cut]) -> Clustering:
    """The clustering with clusters cut in two."""
    clusters: list[Cluster] = []
    for number, cluster in enumerate(clustering.clusters):
        if number in made:
            clusters += [Cluster(Tree(made[number].left)), Cluster(Tree(made[number].right))]
        else:
            clusters.append(cluster)
    return clustering.with_clusters(clusters)
