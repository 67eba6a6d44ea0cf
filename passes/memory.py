"""Keep the most memory that a plan holds at once at or below eager's.

In: a clustering and the peak it must keep. Out: one that keeps it, and the cuts that were made.
Where the peak is passed, the cluster that runs there is cut in two, or one that runs later and
keeps values alive for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fuser.ir.graph import Graph
from fuser.passes.analysis import held_bytes
from fuser.passes.clusters import Cluster, Clustering
from fuser.passes.groups import Tree
from fuser.passes.split import Cut, apart

Allowed = Callable[[Cut], bool]

Cheapest = Callable[[frozenset[str], frozenset[str], Allowed, Graph | None], Cut | None]
"""The best of the allowed cuts of a kernel: its ops, and those of them that are stored. Cuts go
along the order of a graph, the canonical one where none is given."""


def within_peak(
    clustering: Clustering,
    limit: int,
    cheapest: Cheapest,
    on_failure: Callable[[frozenset[str]], None] | None = None,
) -> tuple[Clustering, tuple[Cut, ...]]:
    """Cut clusters until the peak is at most `limit` bytes.

    With `on_failure` the limit is known to be within reach of the ops one by one, so cuts go on
    until it is kept. Where no more cuts are to be had before, it is called with the ops of each
    cluster that is left, those first without which the peak would be lowest.
    Without, only cuts that lower the peak where it is passed are made.
    """
    made: list[Cut] = []
    while True:
        held = held_bytes(clustering.program, clustering.steps)
        over = [step for step, size in enumerate(held) if size > limit]
        if not over:
            return clustering, tuple(made)
        found: dict[int, Cut] = {}
        is_thorough = on_failure is not None
        for step in sorted(over, key=lambda step: (-held[step], step)):
            found |= _cuts_at(clustering, step, held[step], limit, cheapest, found, is_thorough)
        if not found:
            if on_failure is not None:
                for number in heaviest_first(clustering):
                    on_failure(clustering.clusters[number].owned)
            return clustering, tuple(made)
        made += found.values()
        clustering = apart(clustering, found)


def heaviest_first(clustering: Clustering) -> list[int]:
    """Clusters of several ops, by what the peak would be if these ran one by one."""
    several = [number for number in clustering.order if _can_cut(clustering, number)]
    return sorted(several, key=lambda number: _in_pieces(clustering, number).peak)


def _in_pieces(clustering: Clustering, number: int) -> Clustering:
    clusters = list(clustering.clusters)
    pieces = sorted(clusters.pop(number).owned)
    return clustering.with_clusters([*clusters, *(Cluster(Tree(frozenset({p}))) for p in pieces)])


def _cuts_at(
    clustering: Clustering,
    step: int,
    held: int,
    limit: int,
    cheapest: Cheapest,
    found: Mapping[int, Cut],
    is_thorough: bool,
) -> dict[int, Cut]:
    """Clusters to cut, and where, so that less is held at a step.

    The cluster that runs there; or those with ops on both sides of it in the program's order, after
    which only what eager holds at this point is left beside it.
    """
    number = clustering.order[step]
    stored = sum(clustering.program.bytes_of[name] for name in clustering.steps[step].made)
    around = held - stored
    dying = _dying(clustering, step)

    def most(cut: Cut) -> int:
        """Bytes held while the two sides run, one after the other."""
        freed = sum(size for size, readers in dying if cut.right.isdisjoint(readers))
        return around + max(cut.held_left, cut.held_right - freed)

    def fits(cut: Cut) -> bool:
        return most(cut) <= limit

    def is_less(cut: Cut) -> bool:
        return most(cut) < held

    place = clustering.ends[number]
    spanning = [
        other
        for other in (clustering.order if is_thorough else clustering.order[step + 1 :])
        if clustering.starts[other] < place < clustering.ends[other]
    ]
    if any(other in found for other in (number, *spanning)):
        return {}  # wait for what that changes

    def own(allowed: Allowed) -> dict[int, Cut]:
        if not _can_cut(clustering, number):
            return {}
        cut = _cheapest(clustering, number, cheapest, allowed)
        return {number: cut} if cut is not None else {}

    position = clustering.program.position

    def is_around(cut: Cut) -> bool:
        """Whether the cluster at this step can run between the two sides."""
        return all(position[name] < place for name in cut.left) and all(
            position[name] > place for name in cut.right
        )

    def others(most: int) -> dict[int, Cut]:
        """The nearest of those around, at most so many of them."""
        made: dict[int, Cut] = {}
        for other in spanning:
            cut = _cheapest(clustering, other, cheapest, is_around, clustering.program)
            if cut is not None:
                made[other] = cut
                if len(made) == most:
                    break
        return made

    if is_thorough:
        return (
            own(fits)
            or others(len(spanning))
            or own(is_less)
            or _any_cut(clustering, number, cheapest, found)
        )
    return own(fits) or own(is_less) or others(1)


def _dying(clustering: Clustering, step: int) -> list[tuple[int, frozenset[str]]]:
    """Values that nothing needs after a step: their bytes, and which ops of it read them."""
    graph = clustering.program
    owned = clustering.clusters[clustering.order[step]].owned
    when = clustering.when
    found: list[tuple[int, frozenset[str]]] = []
    for value in clustering.steps[step].read:
        readers = [reader.name for reader in graph.readers[value]]
        is_last = all(when[name] <= step for name in readers if name in when)
        if is_last and value in graph.producers and value not in graph.output_values:
            found.append((clustering.program.bytes_of[value], owned.intersection(readers)))
    return found


def _any_cut(
    clustering: Clustering, number: int, cheapest: Cheapest, found: Mapping[int, Cut]
) -> dict[int, Cut]:
    """The last resort: the cluster itself, else the nearest one that can be cut."""
    for other in (number, *clustering.order):
        if other not in found and _can_cut(clustering, other):
            cut = _cheapest(clustering, other, cheapest, lambda _: True)
            if cut is not None:
                return {other: cut}
    return {}


def _cheapest(
    clustering: Clustering,
    number: int,
    cheapest: Cheapest,
    allowed: Allowed,
    along: Graph | None = None,
) -> Cut | None:
    return cheapest(clustering.clusters[number].owned, clustering.stored(number), allowed, along)


def _can_cut(clustering: Clustering, number: int) -> bool:
    return len(clustering.clusters[number].owned) > 1
