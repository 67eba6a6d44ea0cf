"""Keep the most memory that a plan holds at once at or below eager's.

In: a clustering and the peak it must keep. Out: one that keeps it, and the cuts that were made.
Where the peak is passed, the cluster that runs there is cut in two, or one that runs later and
keeps values alive for it.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.passes.analysis import held_bytes
from fuser.passes.clusters import Clustering
from fuser.passes.groups import Tree
from fuser.passes.split import Cut, Judge, apart, cheapest_cut


def within_peak(
    clustering: Clustering,
    limit: int,
    judge: Judge,
    on_asked: Callable[[Tree], None] | None = None,
) -> tuple[Clustering, tuple[Cut, ...]]:
    """Cut clusters until the peak is at most `limit` bytes.

    With `on_asked` the limit is known to be within reach of the ops one by one, so cuts go on until
    it is kept; it is called with a merge that the user asked for and that stands against it.
    Without, only cuts that lower the peak where it is passed are made.
    """
    made: list[Cut] = []
    while True:
        held = held_bytes(clustering.program, clustering.steps)
        over = [step for step, size in enumerate(held) if size > limit]
        if not over:
            return clustering, tuple(made)
        found: dict[int, Cut] = {}
        for step in sorted(over, key=lambda step: (-held[step], step)):
            chosen = _cut_at(
                clustering, step, held[step], limit, judge, found, on_asked is not None
            )
            if chosen is not None:
                found[chosen[0]] = chosen[1]
        if not found:
            final = next((c.tree for c in clustering.clusters if c.tree.is_final), None)
            if final is not None and on_asked is not None:
                on_asked(final)
            return clustering, tuple(made)
        made += found.values()
        clustering = apart(clustering, found)


def _cut_at(
    clustering: Clustering,
    step: int,
    held: int,
    limit: int,
    judge: Judge,
    found: dict[int, Cut],
    is_thorough: bool,
) -> tuple[int, Cut] | None:
    """A cluster to cut, and where, so that less is held at a step."""
    number = clustering.order[step]
    stored = sum(clustering.size_of(name) for name in clustering.steps[step].made)
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

    place = clustering.place(number)[-1]
    spanning = [
        other
        for other in clustering.order[step + 1 :]
        if clustering.place(other)[0] < place and _can_cut(clustering, other)
    ]
    if any(other in found for other in (number, *spanning)):
        return None  # wait for what that changes
    if _can_cut(clustering, number):
        for allowed in (fits, is_less):
            cut = _cheapest(clustering, number, judge, allowed)
            if cut is not None:
                return number, cut
    position = clustering.program.position
    for other in spanning:
        cut = _cheapest(
            clustering,
            other,
            judge,
            lambda cut: (
                all(position[name] < place for name in cut.left)
                and all(position[name] > place for name in cut.right)
            ),
        )
        if cut is not None:
            return other, cut
    return _any_cut(clustering, number, judge, found) if is_thorough else None


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
            found.append((clustering.size_of(value), owned.intersection(readers)))
    return found


def _any_cut(
    clustering: Clustering, number: int, judge: Judge, found: dict[int, Cut]
) -> tuple[int, Cut] | None:
    """The last resort: the cluster itself, else the nearest one that can be cut."""
    for other in (number, *clustering.order):
        if other not in found and _can_cut(clustering, other):
            cut = _cheapest(clustering, other, judge, lambda _: True)
            if cut is not None:
                return other, cut
    return None


def _cheapest(
    clustering: Clustering, number: int, judge: Judge, allowed: Callable[[Cut], bool]
) -> Cut | None:
    ops = clustering.clusters[number].owned
    return cheapest_cut(clustering.program, ops, clustering.stored(number), judge, allowed)


def _can_cut(clustering: Clustering, number: int) -> bool:
    tree = clustering.clusters[number].tree
    return len(tree.ops) > 1 and not tree.is_final
