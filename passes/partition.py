"""Which ops run together: the producer-consumer merge with the largest predicted saving first.

What the user's rules ask for is tried before that, and none of it passes a hard limit. Every merge
that is considered leaves a verdict on its edges. All decisions are made on the graph in canonical
order, and ties between equal savings are broken by it, so that a plan does not depend on the order
of independent statements; only the names and the running order of the regions follow the program.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fuser.device import DeviceSpec
from fuser.errors import MustFuseError
from fuser.ir.graph import Graph, Op
from fuser.ir.ops import BY_KIND, Group
from fuser.ir.region import Cost, Reason, Region, RegionKind, Strategy, Verdict
from fuser.ir.rules import FusionRule, Requests
from fuser.passes.base import Limits, dependencies, in_canonical_order
from fuser.passes.cost import Predictor, group_cost
from fuser.passes.groups import Groups, free_ops
from fuser.passes.strategy import strategy_for
from fuser.passes.unify import NoSpace, argument_of, is_gather, unify

Refusal = tuple[Reason, str]


@dataclass
class Partitioner:
    """Merges groups until no merge saves time; `run` returns the regions and every verdict."""

    program: Graph
    device: DeviceSpec
    limits: Limits = Limits()
    requests: Requests = field(default_factory=Requests)
    refusals: dict[int, dict[int, Refusal]] = field(default_factory=dict)
    """Producer group to consumer group to why the two are not one."""

    def __post_init__(self) -> None:
        self.graph = in_canonical_order(self.program)
        self.apart: dict[str, set[str]] = {}
        for producer, consumer in self.requests.forbidden:
            self.apart.setdefault(producer, set()).add(consumer)
            self.apart.setdefault(consumer, set()).add(producer)
        # A constant that has to stay apart from a reader is stored for all of them.
        kept = self.requests.alone | {producer for producer, _ in self.requests.forbidden}
        free = free_ops(self.graph) - kept
        self.groups = Groups(self.graph, dependencies(self.graph), free)
        self.opaque = {op.name for op in self.graph.ops if op.is_opaque}
        self.predictor = Predictor(self.graph, self.device)
        self.times: dict[int, float] = {}
        self.queue: list[tuple[float, int, int]] = []
        self.gains: dict[int, dict[int, float]] = {}

    def run(self) -> tuple[tuple[Region, ...], tuple[str, ...], tuple[Verdict, ...]]:
        self.fuse_pairs()
        for key in list(self.groups.groups):
            self.consider_neighbours(key)
        self.fuse_by_gain()
        self.fuse_accompanied()
        regions = self.regions()
        return regions, self.order(regions), self.verdicts(regions)

    def fuse_by_gain(self) -> None:
        while self.queue:
            gain, producer, consumer = heapq.heappop(self.queue)
            if self.gains.get(producer, {}).get(consumer) != -gain:
                continue  # one of the two has changed since
            refusal = self.refusal((producer, consumer))
            if refusal is None:
                self.consider_neighbours(self.merge(producer, consumer))
            else:
                self.refusals.setdefault(producer, {})[consumer] = refusal

    # Candidates ---------------------------------------------------------------------------------

    def is_fusible(self, key: int) -> bool:
        return not self.groups.groups[key].ops & self.opaque

    def neighbours(self, key: int) -> list[tuple[int, int]]:
        """The fusible groups before and after this one, as producer and consumer."""
        if not self.is_fusible(key):
            return []
        group = self.groups.groups[key]
        pairs = [(before, key) for before in sorted(group.before) if self.is_fusible(before)]
        return pairs + [(key, after) for after in sorted(group.after) if self.is_fusible(after)]

    def consider_neighbours(self, key: int) -> None:
        for producer, consumer in self.neighbours(key):
            gain = self.gain(producer, consumer)
            self.gains.setdefault(producer, {})[consumer] = gain
            if gain > 0:
                heapq.heappush(self.queue, (-gain, producer, consumer))

    def time_of(self, key: int) -> float:
        if key not in self.times:
            group = self.groups.groups[key]
            self.times[key] = self.predictor.time_us(group.traffic, group.stored)
        return self.times[key]

    def gain(self, producer: int, consumer: int) -> float:
        """Predicted microseconds saved by one kernel in place of two."""
        readers, stored = self.groups.outside(producer, consumer)
        left, right = self.groups.groups[producer], self.groups.groups[consumer]
        together = self.predictor.time_us(left.traffic.plus(right.traffic, readers), stored)
        return self.time_of(producer) + self.time_of(consumer) - together

    # Merging ------------------------------------------------------------------------------------

    def merge(self, producer: int, consumer: int) -> int:
        """One group of two; what was said about either is forgotten."""
        for key in (producer, consumer):
            self.times.pop(key, None)
            for table in (self.gains, self.refusals):
                table.pop(key, None)
                for before in self.groups.groups[key].before:
                    if before in table:
                        table[before].pop(key, None)
        return self.groups.merge(producer, consumer)

    def refusal(self, keys: Sequence[int]) -> Refusal | None:
        """The first hard limit that one kernel of these groups, in order, would break."""
        rule = self.forbidden(keys)
        if rule is not None:
            return Reason.FORBIDDEN, rule
        if len(keys) == 2 and self.groups.would_cycle(*keys):
            return Reason.CYCLE, ""
        ops = self.groups.ops_of(keys)
        stored = self.groups.stored(keys)
        devices = {op.type.device for op in ops}
        if len(devices) > 1:
            return Reason.DEVICE, ", ".join(sorted(devices))
        if len(ops) > self.limits.ops:
            return Reason.TOO_MANY_OPS, f"{len(ops)} > {self.limits.ops}"
        arguments = len(_outside_values(ops)) + len(stored)
        if arguments > self.limits.arguments:
            return Reason.TOO_MANY_ARGUMENTS, f"{arguments} > {self.limits.arguments}"
        live = live_values(self.graph, ops, stored)
        if live > self.limits.live_values:
            return Reason.TOO_MANY_LIVE_VALUES, f"{live} > {self.limits.live_values}"
        try:
            unify(self.graph, ops, stored, self.limits.ops)
        except NoSpace as failure:
            return failure.reason, failure.detail
        return None

    def forbidden(self, keys: Sequence[int]) -> str | None:
        """The two ops, or the one, that the user wants apart from others in these groups."""
        if not self.apart and not self.requests.alone:
            return None
        groups = [self.groups.groups[key].ops for key in keys]
        names = set().union(*groups)
        lonely = sorted(names & self.requests.alone, key=self.graph.position.__getitem__)
        if lonely:
            return lonely[0]
        for name in sorted(names & self.apart.keys(), key=self.graph.position.__getitem__):
            found = sorted(self.apart[name] & names, key=self.graph.position.__getitem__)
            if found:
                return f"{name}, {found[0]}"
        return None

    # What the user asked for ---------------------------------------------------------------------

    def fuse_pairs(self) -> None:
        """Every edge of a `must_fuse` rule, each again as long as another one changes something."""
        place = self.graph.position
        waiting = sorted(
            self.requests.pairs, key=lambda item: (place[item[1][1]], place[item[1][0]])
        )
        while waiting:
            refused = [
                (rule, edge, refusal)
                for rule, edge in waiting
                if (refusal := self.force(*edge)) is not None
            ]
            if len(refused) == len(waiting):
                rule, edge, refusal = refused[0]
                raise _must_fuse(rule, *edge, refusal)
            waiting = [(rule, edge) for rule, edge, _ in refused]

    def force(self, producer: str, consumer: str) -> Refusal | None:
        """Fuse two ops and whatever stands between them, or say which limit is against it."""
        for name, reason in (producer, Reason.OPAQUE_PRODUCER), (consumer, Reason.OPAQUE_READER):
            if name in self.opaque:
                return reason, self.graph.by_name[name].reason
        owner = self.groups.owner
        if producer in self.groups.free or owner[producer] == owner[consumer]:
            return None
        return self.force_groups(owner[producer], owner[consumer])

    def force_groups(self, producer: int, consumer: int) -> Refusal | None:
        between = self.groups.between(producer, consumer)
        keys = [producer, *sorted(between), consumer]
        stranger = next((key for key in keys if not self.is_fusible(key)), None)
        if stranger is not None:
            return Reason.CYCLE, f"through {next(iter(self.groups.groups[stranger].ops))}"
        refusal = self.refusal(keys)
        if refusal is None:
            kept = producer
            while between:
                # The next in line, so that nothing stands between the two.
                following = min(between, key=lambda key: self.groups.groups[key].rank)
                between.remove(following)
                kept = self.merge(kept, following)
            self.merge(kept, consumer)
        return refusal

    def fuse_accompanied(self) -> None:
        """Every op that a `must_fuse` rule names by itself gets one neighbour at least.

        That comes last: the plan without rules has fused most of them already.
        """
        asked = self.requests.accompanied
        for rule, name in sorted(asked, key=lambda item: self.graph.position[item[1]]):
            if name in self.groups.free:
                continue
            if name in self.opaque:
                raise _must_fuse(rule, name, "", ("opaque", self.graph.by_name[name].reason))
            key = self.groups.owner[name]
            if len(self.groups.groups[key].ops) > 1:
                continue
            pairs = sorted(self.neighbours(key), key=lambda pair: (-self.gain(*pair), pair))
            refusals: list[Refusal] = []
            for pair in pairs:
                refusal = self.force_groups(*pair)
                if refusal is None:
                    break
                refusals.append(refusal)
            if not pairs:
                raise _must_fuse(rule, name, "", ("no_neighbour", ""))
            if len(refusals) == len(pairs):
                raise _must_fuse(rule, *self.edge_between(name, pairs[0]), refusals[0])
            self.consider_neighbours(self.groups.owner[name])
            self.fuse_by_gain()

    def edge_between(self, name: str, pair: tuple[int, int]) -> tuple[str, str]:
        """The edge from the one group to the other that starts or ends at the op of that name."""
        producer, consumer = (self.groups.groups[key].ops for key in pair)
        if name in consumer:
            makers = map(self.graph.producers.get, self.graph.by_name[name].reads)
            return next((op.name for op in makers if op and op.name in producer), name), name
        readers = self.graph.readers[name]
        return name, next((op.name for op in readers if op.name in consumer), "")

    # Results ------------------------------------------------------------------------------------

    def place(self, key: int) -> list[int]:
        """Where the program has the ops of a group."""
        return sorted(self.program.position[name] for name in self.groups.groups[key].ops)

    def regions(self) -> tuple[Region, ...]:
        mine: dict[int, set[str]] = {}
        owned: set[str] = set()
        for key in sorted(self.groups.groups):
            if self.is_fusible(key):
                mine[key] = {op.name for op in self.groups.ops_of((key,))} - owned
                owned |= mine[key]
        in_order = sorted(mine, key=self.place)
        return tuple(
            self.region(f"region_{number}", key, mine[key]) for number, key in enumerate(in_order)
        )

    def region(self, name: str, key: int, mine: set[str]) -> Region:
        decided = self.groups.ops_of((key,))
        stored = self.groups.stored((key,))
        space = unify(self.graph, decided, stored)
        ops = sorted(decided, key=lambda op: self.program.position[op.name])
        kind = RegionKind.REDUCTION if any(op.reduced for op in ops) else RegionKind.POINTWISE
        return Region(
            name=name,
            kind=kind,
            strategy=strategy_for(self.graph, decided, stored, space) if space.reduced or kind
            is RegionKind.REDUCTION else Strategy.FLAT,
            ops=tuple(op.name for op in ops if op.name in mine),
            inputs=_outside_values(ops),
            outputs=tuple(op.name for op in ops if op.name in stored),
            space=space,
            recomputed=tuple(op.name for op in ops if op.name not in mine),
            cost=self.cost(decided, stored),
        )  # fmt: skip

    def cost(self, ops: list[Op], stored: frozenset[str]) -> Cost:
        return group_cost(self.graph, ops, stored, self.device)

    def order(self, regions: tuple[Region, ...]) -> tuple[str, ...]:
        """Groups in an order that respects every dependency, as near to the program's as it can."""
        names = {self.groups.owner[r.ops[-1]]: r.name for r in regions}
        groups = self.groups.groups
        last = {key: self.place(key)[-1] for key in groups}
        waiting = {key: len(group.before) for key, group in groups.items()}
        ready = [(last[key], key) for key, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        order: list[str] = []
        while ready:
            _, key = heapq.heappop(ready)
            order.append(names.get(key) or next(iter(groups[key].ops)))
            for after in groups[key].after:
                waiting[after] -= 1
                if waiting[after] == 0:
                    heapq.heappush(ready, (last[after], after))
        return tuple(order)

    def verdicts(self, regions: tuple[Region, ...]) -> tuple[Verdict, ...]:
        found: list[Verdict] = []
        outputs = {name for region in regions for name in region.outputs}
        owners = {op: region.name for region in regions for op in region.ops}
        for consumer in self.program.ops:
            for value in consumer.reads:
                producer = self.graph.producers.get(value)
                if producer is not None:
                    found.append(self.verdict(producer, consumer, owners, value in outputs))
        return tuple(found)

    def verdict(
        self, producer: Op, consumer: Op, owners: Mapping[str, str], is_stored: bool
    ) -> Verdict:
        edge = (producer.name, consumer.name)
        if producer.is_opaque:
            return Verdict(*edge, False, Reason.OPAQUE_PRODUCER, producer.reason)
        if consumer.is_opaque:
            return Verdict(*edge, False, Reason.OPAQUE_READER, consumer.reason)
        if producer.name in self.groups.free:
            is_own = owners.get(producer.name) == owners.get(consumer.name)
            return Verdict(*edge, True, Reason.FUSED if is_own else Reason.RECOMPUTED)
        pair = (self.groups.owner[producer.name], self.groups.owner[consumer.name])
        if pair[0] == pair[1]:
            return Verdict(*edge, True, Reason.FUSED_AND_STORED if is_stored else Reason.FUSED)
        gain = self.gains.get(pair[0], {}).get(pair[1], 0.0)
        reason, detail = self.refusals.get(pair[0], {}).get(pair[1]) or (
            Reason.NO_GAIN,
            f"{gain:.1f} us",
        )
        is_alone = not self.requests.alone.isdisjoint(edge)
        is_asked = edge in self.requests.forbidden or is_alone
        if is_asked:
            reason, detail = Reason.FORBIDDEN, ""
        elif is_gather(consumer) and argument_of(consumer, 0).value == producer.name:
            reason, detail = Reason.DATA_DEPENDENT_READ, ""
        return Verdict(*edge, False, reason, detail, max(gain, 0.0))


_OF_ONE_OP = {
    "opaque": "it runs as its original call",
    "no_neighbour": "nothing that could be fused with it reads it or is read by it",
}


def _must_fuse(
    rule: FusionRule, producer: str, consumer: str, refusal: tuple[Reason | str, str]
) -> MustFuseError:
    reason, detail = refusal
    if isinstance(reason, Reason):
        name, limit = reason.name.lower(), reason.value
    else:
        name, limit = reason, _OF_ONE_OP[reason]
    return MustFuseError(
        rule=str(rule),
        producer=producer,
        consumer=consumer,
        limit_name=name,
        limit=limit,
        detail=detail,
    )


def _outside_values(ops: list[Op]) -> tuple[str, ...]:
    inside = {op.name for op in ops}
    return tuple(dict.fromkeys(v for op in ops for v in op.reads if v not in inside))


def live_values(graph: Graph, ops: list[Op], stored: frozenset[str]) -> int:
    """The most tile values held at once when the ops run in program order.

    Constants cost nothing; a value lives from its op to its last reader in the group.
    """
    last: dict[str, int] = {}
    for position, op in enumerate(ops):
        for value in op.reads:
            last[value] = position
    live: set[str] = set()
    most = 0
    for position, op in enumerate(ops):
        if BY_KIND[op.kind].group is not Group.CREATION:
            live |= {op.name, *op.reads}
        most = max(most, len(live))
        live = {value for value in live if last.get(value, -1) > position}
    return most


__all__ = ["Partitioner", "live_values"]
