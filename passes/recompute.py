"""Compute cheap values again in their readers rather than store and load them.

In: a clustering. Out: one in which values that only generated kernels read, and that the model
predicts to be cheaper to repeat than to load, are computed by every reader instead. What a cluster
then computes in vain belongs to the readers, and a cluster that has nothing else to store is gone.
Only pointwise work is repeated: a reduction's operand would have to be read again whole.
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
    refused: set[frozenset[str]] = set()
    while True:
        touched: set[int] = set()
        chosen: list[_Repeat] = []
        chances = _Chances(clustering, judge, place)
        for repeat in chances.best_first():
            involved = {repeat.number, *repeat.readers}
            if repeat.ops not in refused and touched.isdisjoint(involved):
                chosen.append(repeat)
                touched |= involved
        if not chosen:
            return clustering
        fitting = _fitting(chances, _possible(chances, [], chosen), most_bytes)
        refused |= {repeat.ops for repeat in chosen if repeat not in fitting}
        clustering = _repeated(chances, fitting)


def _possible(chances: _Chances, there: list[_Repeat], more: list[_Repeat]) -> list[_Repeat]:
    """Those that are there, and of the others as many as leave kernels that can be."""
    if chances.allow(_repeated(chances, [*there, *more])):
        return [*there, *more]
    if len(more) == 1:
        return there
    half = len(more) // 2
    there = _possible(chances, there, more[:half])
    return _possible(chances, there, more[half:])


def _fitting(chances: _Chances, chosen: Sequence[_Repeat], most_bytes: int) -> list[_Repeat]:
    """As many as memory allows, the first ones first.

    What readers compute again needs its own sources until then, and is not held itself.
    """
    clustering = chances.clustering
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
    while fitting:
        after = _repeated(chances, fitting)
        if after.peak <= most_bytes and chances.allow(after):
            break
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

    @cached_property
    def kernels(self) -> frozenset[tuple[frozenset[str], frozenset[str]]]:
        return _kernels(self.clustering)

    def best_first(self) -> list[_Repeat]:
        found = [repeat for k in range(len(self.clustering.clusters)) for repeat in self.of(k)]
        return sorted(found, key=lambda repeat: (-repeat.saved, self.first[repeat.number]))

    def of(self, number: int) -> Iterator[_Repeat]:
        """The whole cluster, or what one of the values that it stores is made of."""
        clustering, graph = self.clustering, self.clustering.program
        cluster, stored = clustering.clusters[number], clustering.stored(number)
        if _is_call(graph, cluster.owned):
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
                continue  # an op that nothing needs has to stay somewhere
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
                left = needed(clustering.program, computed, kept) | kept
                saved -= judge(left, kept).cost.time_us
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

    def allow(self, after: Clustering) -> bool:
        """Whether all that became of the clusters can be kernels, those too that others have
        taken work from."""
        try:
            for kernel in _kernels(after) - self.kernels:
                self.judge(*kernel)
        except Refused:
            return False
        return True


def needed(graph: Graph, again: frozenset[str], reading: Iterable[str]) -> frozenset[str]:
    """The ops of `again` that others read, or that those need."""
    found: set[str] = set()
    waiting = list(reading)
    while waiting:
        more = again.intersection(graph.by_name[waiting.pop()].reads) - found
        found |= more
        waiting += more
    return frozenset(found)


def _is_call(graph: Graph, names: Iterable[str]) -> bool:
    return any(graph.by_name[name].is_opaque for name in names)


def _kernels(clustering: Clustering) -> frozenset[tuple[frozenset[str], frozenset[str]]]:
    """What each kernel computes and what of it is stored."""
    return frozenset(
        (cluster.computed, clustering.stored(number))
        for number, cluster in enumerate(clustering.clusters)
        if not _is_call(clustering.program, cluster.owned)
    )


def _repeated(chances: _Chances, repeats: Sequence[_Repeat]) -> Clustering:
    """Each reader has copies, and nothing is computed in vain."""
    settling = _Settling.of(chances)
    for repeat in repeats:
        for number, again in repeat.readers.items():
            settling.copy(number, again)
    settling.settle()
    return settling.clustering()


@dataclass
class _Settling:
    """Clusters while ops change hands: an op that its owner does not need, because all who read
    the value compute it themselves, belongs to the first of them."""

    start: Clustering
    first: Sequence[int]
    owned: list[set[str]]
    computed: list[set[str]]
    owner: dict[str, int]
    computing: dict[str, set[int]]
    waiting: set[int]
    """Clusters that may compute something in vain."""

    @classmethod
    def of(cls, chances: _Chances) -> _Settling:
        start = chances.clustering
        return cls(
            start,
            chances.first,
            [set(cluster.owned) for cluster in start.clusters],
            [set(cluster.computed) for cluster in start.clusters],
            dict(start.owner),
            {name: set(numbers) for name, numbers in start.computing.items()},
            set(),
        )

    def copy(self, number: int, names: Iterable[str]) -> None:
        for name in names:
            self.computed[number].add(name)
            self.computing[name].add(number)
            self.waiting.add(self.owner[name])

    def settle(self) -> None:
        while self.waiting:
            number = min(self.waiting, key=self.first.__getitem__)
            self.waiting.remove(number)
            if _is_call(self.start.program, self.owned[number]):
                continue
            for name in self.in_vain(number):
                self.drop(number, name)

    def in_vain(self, number: int) -> set[str]:
        """The ops of a cluster that nothing it stores needs, and that others compute as well."""
        graph, computed = self.start.program, self.computed[number]
        stored = frozenset(filter(self.is_stored, self.owned[number]))
        used = needed(graph, frozenset(computed), stored) | stored
        return {name for name in computed - used if len(self.computing[name]) > 1}

    def is_stored(self, name: str) -> bool:
        """Whether something reads the value and does not compute it."""
        graph, there = self.start.program, self.computing[name]
        return name in graph.output_values or any(
            not there.issuperset(self.computing[reader.name]) for reader in graph.readers[name]
        )

    def drop(self, number: int, name: str) -> None:
        self.computed[number].remove(name)
        self.computing[name].remove(number)
        if name in self.owned[number]:
            heir = min(self.computing[name], key=self.first.__getitem__)
            self.owned[number].remove(name)
            self.owned[heir].add(name)
            self.owner[name] = heir
            self.waiting.add(heir)
        # What it read may have no other reader that does not compute it.
        reads = self.start.program.by_name[name].reads
        self.waiting |= {self.owner[value] for value in reads if value in self.owner}

    def clustering(self) -> Clustering:
        found: list[Cluster] = []
        for before, owned, computed in zip(
            self.start.clusters, self.owned, self.computed, strict=True
        ):
            if owned:
                tree = before.tree if owned == before.owned else Tree(frozenset(owned))
                found.append(Cluster(tree, frozenset(computed - owned)))
        return self.start.with_clusters(found)
