"""Which ops run together: the merge with the largest predicted saving first.

In: a graph, a device, the limits and what the user asked for. Out: a `Partition`, which says who
runs with whom and why others do not. Candidates are producers with their consumers and siblings,
which read the same value. A quick estimate orders them; whether a merge happens is decided by the
whole cost model on the kernel that it would make. All decisions are made on the graph in canonical
order, and ties between equal savings are broken by it, so that a plan does not depend on the order
of independent statements.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from fuser.device import DeviceSpec
from fuser.ir.graph import Graph
from fuser.ir.region import Cost, Reason
from fuser.ir.rules import Requests
from fuser.passes.base import NO_LIMITS, Cuts, Limits, dependencies, in_canonical_order
from fuser.passes.candidate import Candidate, Refused
from fuser.passes.clusters import Cluster, Clustering, leaving
from fuser.passes.forms import Forms
from fuser.passes.groups import Groups, Tree, free_ops
from fuser.passes.traffic import NO_TRAFFIC, Predictor

SIBLINGS = 4
"""Readers of one value that are tried as siblings of a reader, on either side of it."""

Pair = tuple[int, int]
"""Two groups, the smaller key first."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why two groups are not one."""

    reason: Reason
    detail: str = ""


@dataclass(slots=True)
class Proposal:
    """A merge under consideration: what it is expected to save, and what is against it."""

    gain: float
    is_exact: bool = False
    """Whether the whole model gave the gain, or the quick estimate."""
    refusal: Refusal | None = None


@dataclass
class Partition:
    """Merges groups until no merge saves time."""

    program: Graph
    device: DeviceSpec
    limits: Limits = Limits()
    requests: Requests = field(default_factory=Requests)
    cuts: Cuts = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph = in_canonical_order(self.program)
        self.apart: dict[str, dict[str, Reason]] = {}
        for (left, right), reason in self.forbidden_pairs():
            self.apart.setdefault(left, {})[right] = reason
            self.apart.setdefault(right, {})[left] = reason
        # A constant that has to stay apart from a reader is stored for all of them.
        kept = self.requests.alone | {producer for producer, _ in self.requests.forbidden}
        self.needs = dependencies(self.graph)
        self.groups = Groups(self.graph, self.needs, free_ops(self.graph) - kept)
        self.opaque = {op.name for op in self.graph.ops if op.is_opaque}
        self.predictor = Predictor(self.graph, self.device)
        self.forms = Forms(self.graph, self.device)
        self.moved: dict[int, int] = {}
        self.times: dict[int, float] = {}
        self.kernels: dict[tuple[frozenset[str], frozenset[str]], Candidate] = {}
        """What is computed and what of it is stored, to the kernel."""
        self.queue: list[tuple[float, int, Pair]] = []
        """What a merge saves, negative, the ops that it would have, and the two groups."""
        self.proposals: dict[int, dict[int, Proposal]] = {}
        """Group to other group to what is proposed for the two, under either of them."""
        self.trees: dict[int, Tree] = {
            key: Tree(frozenset(group.ops)) for key, group in self.groups.groups.items()
        }

    def forbidden_pairs(self) -> Iterator[tuple[tuple[str, str], Reason]]:
        yield from self.cuts.items()
        for pair in self.requests.forbidden:
            yield pair, Reason.FORBIDDEN

    def run(self) -> None:
        for key in list(self.groups.groups):
            self.consider(key)
        self.fuse_by_gain()

    def clustering(self) -> Clustering:
        """What the merges so far make of the program."""
        clusters = tuple(Cluster(self.trees[key]) for key in sorted(self.trees))
        return Clustering(self.graph, self.needs, self.groups.free, clusters)

    def fuse_by_gain(self) -> None:
        while self.queue:
            gain, _, pair = heapq.heappop(self.queue)
            proposal = self.proposals.get(pair[0], {}).get(pair[1])
            if proposal is None or proposal.refusal or proposal.gain != -gain:
                continue  # one of the two has changed since
            if self.groups.would_cycle(*self.in_rank_order(pair)):
                # Also for what was looked at before: other merges may stand between the two now.
                proposal.refusal = Refusal(Reason.CYCLE)
            elif proposal.is_exact:
                self.consider(self.merge(pair, proposal.gain))
            else:
                self.examine(pair, proposal)

    def examine(self, pair: Pair, proposal: Proposal) -> None:
        """Work out what a merge saves, and propose it again with that."""
        try:
            proposal.gain, proposal.is_exact = self.saving(pair), True
        except Refused as refused:
            proposal.refusal = Refusal(refused.reason, refused.detail)
            return
        if proposal.gain > 0:
            # Another merge may save more than this one turned out to.
            self.push(pair, proposal.gain)
        else:
            proposal.refusal = Refusal(Reason.NO_GAIN, f"{proposal.gain:.1f} us")

    # Candidates ---------------------------------------------------------------------------------

    def is_fusible(self, key: int) -> bool:
        return not self.groups.groups[key].ops & self.opaque

    def connected(self, key: int) -> set[int]:
        """The fusible groups before and after this one."""
        if not self.is_fusible(key):
            return set()
        group = self.groups.groups[key]
        return {other for other in (*group.before, *group.after) if self.is_fusible(other)}

    def neighbours(self, key: int) -> list[int]:
        """Those, and the fusible groups that read what this one reads."""
        if not self.is_fusible(key):
            return []
        siblings = filter(self.is_fusible, self.groups.siblings(key, SIBLINGS))
        return sorted({*self.connected(key), *siblings})

    def consider(self, key: int) -> None:
        for other in self.neighbours(key):
            self.propose((min(key, other), max(key, other)))

    def propose(self, pair: Pair) -> None:
        proposal = Proposal(self.quick_gain(*pair))
        for one, other in (pair, pair[::-1]):
            self.proposals.setdefault(one, {})[other] = proposal
        if proposal.gain > 0:
            self.push(pair, proposal.gain)

    def push(self, pair: Pair, gain: float) -> None:
        # Of equal savings the smallest merge goes first: groups grow evenly, and every op is
        # looked at in few of them.
        size = sum(len(self.groups.groups[key].ops) for key in pair)
        heapq.heappush(self.queue, (-gain, size, pair))

    def quick_moved(self, key: int) -> int:
        """Bytes that a group reads and stores."""
        if key not in self.moved:
            group = self.groups.groups[key]
            self.moved[key] = self.predictor.moved(group.traffic, group.stored)
        return self.moved[key]

    def quick_time(self, key: int) -> float:
        work = self.groups.groups[key].traffic.work_with(NO_TRAFFIC)
        return self.predictor.time_us(self.quick_moved(key), work)

    def quick_gain(self, left: int, right: int) -> float:
        """An estimate of the microseconds saved by one kernel in place of two."""
        one, other = (self.groups.groups[key].traffic for key in (left, right))
        loaded = self.predictor.loaded
        moved = self.quick_moved(left) + self.quick_moved(right)
        for value, maker, reader in self.groups.passed(left, right):
            moved -= loaded(value, reader.traffic.touched[value])
            if maker.stored[value] == reader.readers[value]:
                moved -= self.predictor.stored(value)
        for value in self.groups.shared(left, right):
            each = one.touched[value], other.touched[value]
            moved += loaded(value, sum(each)) - sum(loaded(value, touched) for touched in each)
        together = self.predictor.time_us(moved, one.work_with(other))
        return self.quick_time(left) + self.quick_time(right) - together

    # Decisions ----------------------------------------------------------------------------------

    def kernel(
        self, names: frozenset[str], stored: frozenset[str], limits: Limits = NO_LIMITS
    ) -> Candidate:
        """The kernel of ops and of the constants that they read. Raises `Refused`, but not for
        what is there already: it passed every limit, or is one op."""
        found = self.kernels.get((names, stored))
        if found is None:
            refusal = self.forbidden(names) if limits is not NO_LIMITS else None
            if refusal is not None:
                raise Refused(refusal.reason, refusal.detail)
            ops = self.groups.with_constants(names)
            found = self.forms.candidate(ops, stored, limits)
            self.kernels[names, stored] = found
        return found

    def group_kernel(self, keys: Sequence[int], limits: Limits = NO_LIMITS) -> Candidate:
        """The kernel of one or several groups; raises `Refused`."""
        names = frozenset().union(*(self.groups.groups[key].ops for key in keys))
        return self.kernel(names, self.groups.stored(keys), limits)

    def call_costs(self, names: frozenset[str]) -> list[Cost]:
        """The cost of the ops of one of eager's calls: one kernel where that is possible."""
        try:
            return [self.kernel(names, leaving(self.graph, names)).cost]
        except Refused:
            place = self.graph.position.__getitem__
            parts = [frozenset({name}) for name in sorted(names, key=place)]
            return [self.kernel(part, leaving(self.graph, part)).cost for part in parts]

    def saving(self, pair: Pair) -> float:
        """The predicted microseconds that one kernel saves; raises `Refused`."""
        together = self.group_kernel(pair, self.limits).cost.time_us
        return sum(map(self.time, pair)) - together

    def time(self, key: int) -> float:
        """The predicted microseconds of a group's kernel."""
        if key not in self.times:
            self.times[key] = self.group_kernel((key,)).cost.time_us
        return self.times[key]

    def in_rank_order(self, keys: Sequence[int]) -> list[int]:
        return sorted(keys, key=lambda key: self.groups.groups[key].rank)

    def forbidden(self, names: Collection[str]) -> Refusal | None:
        """The two ops, or the one, that have to be apart from others among these."""
        if not self.apart and not self.requests.alone:
            return None
        place = self.graph.position.__getitem__
        lonely = sorted(self.requests.alone.intersection(names), key=place)
        if lonely:
            return Refusal(Reason.FORBIDDEN, lonely[0])
        for name in sorted(self.apart.keys() & set(names), key=place):
            found = sorted(self.apart[name].keys() & set(names), key=place)
            if found:
                return Refusal(self.apart[name][found[0]], f"{name}, {found[0]}")
        return None

    def merge(self, pair: Pair, gain: float, is_final: bool = False) -> int:
        """One group of two; what was said about either is forgotten. Returns its key."""
        for key in pair:
            self.moved.pop(key, None)
            self.times.pop(key, None)
            for other in self.proposals.pop(key, {}):
                self.proposals.get(other, {}).pop(key, None)
        left, right = (self.trees.pop(key) for key in pair)
        kept = self.groups.merge(*self.in_rank_order(pair))
        self.trees[kept] = Tree(left.ops | right.ops, (left, right), gain, is_final)
        return kept


__all__ = ["Partition", "Refusal"]
