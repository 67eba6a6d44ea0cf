"""Move the boundary between two kernels to where it costs least.

In: a clustering, and the most memory that it may hold. Out: one that is predicted to be faster, and
where boundaries were moved to. Merging by gain can leave an op on the wrong side, and what was cut
for memory can be cut better once both sides are known: two clusters of which one reads the other
are taken together, and cut where the two kernels are fastest, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fuser.ir.graph import Graph
from fuser.ir.region import Reason
from fuser.passes.candidate import Refused
from fuser.passes.clusters import Cluster, Clustering, leaving
from fuser.passes.groups import Tree
from fuser.passes.split import Apart, Cut, Judge, cuts

MOST_TIMED = 6
"""Places for a boundary whose kernels are worked out, of those that the fewest bytes cross."""

NO_SLOWER = 1.005
"""Times that differ by less are the same to the model."""

Sides = tuple[frozenset[str], frozenset[str]]


def move_boundaries(
    clustering: Clustering, judge: Judge, most_bytes: int, allowed: Callable[[Cut], bool]
) -> tuple[Clustering, tuple[Apart, ...]]:
    """Until no move saves time. Made for clusters without copies; the last moves come first."""
    most_bytes = max(most_bytes, clustering.peak)
    tried: set[Sides] = set()
    moved: list[Apart] = []
    while True:
        for left, right in _neighbours(clustering, tried):
            apart = _best(clustering.program, left, right, judge, allowed)
            if apart is None:
                continue
            changed = _with(clustering, {left, right}, apart)
            # Two clusters that a third one stands between cannot be taken together.
            is_possible = len(changed.order) == len(changed.clusters)
            if is_possible and changed.peak <= most_bytes:
                clustering = changed
                if isinstance(apart, Apart):
                    moved.insert(0, apart)
                break
        else:
            return clustering, tuple(moved)


def _neighbours(clustering: Clustering, tried: set[Sides]) -> Iterator[Sides]:
    """The ops of generated clusters of which the second reads the first, each pair once."""
    by_name = clustering.program.by_name
    for number, cluster in enumerate(clustering.clusters):
        for other in sorted(clustering.before[number], key=clustering.starts.__getitem__):
            sides = (clustering.clusters[other].owned, cluster.owned)
            if sides in tried:
                continue
            tried.add(sides)
            if not any(by_name[next(iter(side))].is_opaque for side in sides):
                yield sides


def _best(
    graph: Graph,
    left: frozenset[str],
    right: frozenset[str],
    judge: Judge,
    allowed: Callable[[Cut], bool],
) -> Apart | frozenset[str] | None:
    """The fastest way to run two sides: as one kernel, with another boundary, or as they are.

    A boundary that fewer bytes cross is better also where it saves no time: less is held.
    """
    both = left | right
    stored = leaving(graph, both)
    try:
        now = _time(graph, left, judge) + _time(graph, right, judge)
    except Refused:
        return None  # one of them passes a limit as it is
    reason, detail = Reason.NO_GAIN, ""
    try:
        if judge(both, stored).cost.time_us < now:
            return both
    except Refused as refused:
        reason, detail = refused.reason, refused.detail
    crossing = sum(graph.bytes_of[name] for name in leaving(graph, left) - stored)
    fewer = [cut for cut in cuts(graph, both, stored) if cut.crossing < crossing and allowed(cut)]
    fewer.sort(key=lambda cut: (cut.crossing, abs(len(cut.left) - len(cut.right))))
    timed = _timed(graph, fewer[:MOST_TIMED], judge)
    time, best = min(timed, key=lambda item: item[0], default=(now, None))
    return Apart(best, reason, detail) if best is not None and time <= NO_SLOWER * now else None


def _timed(graph: Graph, found: list[Cut], judge: Judge) -> Iterator[tuple[float, Cut]]:
    """The cuts of which both sides can be kernels, with their time."""
    for cut in found:
        try:
            yield _time(graph, cut.left, judge) + _time(graph, cut.right, judge), cut
        except Refused:
            continue


def _time(graph: Graph, names: frozenset[str], judge: Judge) -> float:
    return judge(names, leaving(graph, names)).cost.time_us


def _with(
    clustering: Clustering, gone: set[frozenset[str]], apart: Apart | frozenset[str]
) -> Clustering:
    new = (apart.cut.left, apart.cut.right) if isinstance(apart, Apart) else (apart,)
    kept = [cluster for cluster in clustering.clusters if cluster.owned not in gone]
    return clustering.with_clusters([*kept, *(Cluster(Tree(names)) for names in new)])
