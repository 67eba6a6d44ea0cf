"""Which ops run together: the producer-consumer merge with the largest predicted saving first.

Every merge that is considered leaves a verdict on its edges. Ties are broken by the ops' positions
in the graph, so that the same graph always gets the same plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from fuser.device import DeviceSpec
from fuser.ir.graph import Graph, Op
from fuser.ir.ops import BY_KIND, Group
from fuser.ir.region import Cost, Reason, Region, RegionKind, Strategy, Verdict
from fuser.ir.space import Space
from fuser.passes.base import Limits, dependencies
from fuser.passes.cost import group_cost
from fuser.passes.groups import Groups, free_ops
from fuser.passes.strategy import strategy_for
from fuser.passes.unify import NoSpace, argument_of, is_gather, unify

Refusal = tuple[Reason, str]


@dataclass
class Partitioner:
    """Merges groups until no merge saves time; `run` returns the regions and every verdict."""

    graph: Graph
    device: DeviceSpec
    limits: Limits = Limits()
    refusals: dict[tuple[int, int], Refusal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.groups = Groups(self.graph, dependencies(self.graph), free_ops(self.graph))
        self.opaque = {op.name for op in self.graph.ops if op.is_opaque}
        self.costs: dict[int, Cost] = {}
        self.queue: list[tuple[float, int, int]] = []
        self.edges: dict[tuple[int, int], Refusal | None] = {}

    def run(self) -> tuple[tuple[Region, ...], tuple[str, ...], tuple[Verdict, ...]]:
        for key in list(self.groups.groups):
            self.consider_neighbours(key)
        while self.queue:
            _, producer, consumer = heapq.heappop(self.queue)
            if self.is_current(producer, consumer):
                self.try_merge(producer, consumer)
        regions = self.regions()
        return regions, self.order(regions), self.verdicts(regions)

    # Candidates ---------------------------------------------------------------------------------

    def is_fusible(self, key: int) -> bool:
        return not self.groups.groups[key].ops & self.opaque

    def consider_neighbours(self, key: int) -> None:
        if not self.is_fusible(key):
            return
        group = self.groups.groups[key]
        for before in sorted(group.before):
            if self.is_fusible(before):
                self.consider(before, key)
        for after in sorted(group.after):
            if self.is_fusible(after):
                self.consider(key, after)

    def consider(self, producer: int, consumer: int) -> None:
        gain = self.gain(producer, consumer)
        if gain <= 0:
            self.refusals[producer, consumer] = (Reason.NO_GAIN, f"{gain:.1f} us")
            return
        self.edges[producer, consumer] = None
        heapq.heappush(self.queue, (-gain, producer, consumer))

    def is_current(self, producer: int, consumer: int) -> bool:
        groups = self.groups.groups
        return (
            producer in groups
            and consumer in groups
            and consumer in groups[producer].after
            and self.edges.pop((producer, consumer), False) is None
        )

    def cost(self, keys: tuple[int, ...]) -> Cost:
        ops = self.groups.ops_of(keys)
        return group_cost(self.graph, ops, self.groups.stored(keys), self.device)

    def cost_of(self, key: int) -> Cost:
        if key not in self.costs:
            self.costs[key] = self.cost((key,))
        return self.costs[key]

    def gain(self, producer: int, consumer: int) -> float:
        """Predicted microseconds saved by one kernel in place of two."""
        apart = self.cost_of(producer).time_us + self.cost_of(consumer).time_us
        return apart - self.cost((producer, consumer)).time_us

    # Merging ------------------------------------------------------------------------------------

    def try_merge(self, producer: int, consumer: int) -> None:
        refusal = self.refusal(producer, consumer)
        if refusal is not None:
            self.refusals[producer, consumer] = refusal
            return
        kept = self.groups.merge(producer, consumer)
        for key in (producer, consumer):
            self.costs.pop(key, None)
        gone = max(producer, consumer)
        self.refusals = {
            pair: why
            for pair, why in self.refusals.items()
            if gone not in pair and kept not in pair
        }
        self.consider_neighbours(kept)

    def refusal(self, producer: int, consumer: int) -> Refusal | None:
        """The first hard limit that the merge would break."""
        if self.groups.would_cycle(producer, consumer):
            return Reason.CYCLE, ""
        keys = (producer, consumer)
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

    # Results ------------------------------------------------------------------------------------

    def regions(self) -> tuple[Region, ...]:
        found: list[Region] = []
        owned: set[str] = set()
        for key in sorted(self.groups.groups):
            if not self.is_fusible(key):
                continue
            ops = self.groups.ops_of((key,))
            mine = [op for op in ops if op.name not in owned]
            owned |= {op.name for op in mine}
            found.append(self.region(f"region_{len(found)}", key, ops, mine))
        return tuple(found)

    def region(self, name: str, key: int, ops: list[Op], mine: list[Op]) -> Region:
        stored = self.groups.stored((key,))
        space = unify(self.graph, ops, stored)
        kind = RegionKind.REDUCTION if any(op.reduced for op in ops) else RegionKind.POINTWISE
        names = tuple(op.name for op in mine)
        return Region(
            name=name,
            kind=kind,
            strategy=strategy_for(self.graph, ops, stored, space) if space.reduced or kind
            is RegionKind.REDUCTION else Strategy.FLAT,
            ops=names,
            inputs=_outside_values(ops),
            outputs=tuple(op.name for op in ops if op.name in stored),
            space=space,
            recomputed=tuple(op.name for op in ops if op.name not in names),
            cost=self.cost_of(key),
        )  # fmt: skip

    def order(self, regions: tuple[Region, ...]) -> tuple[str, ...]:
        """Groups in an order that respects every dependency, as near to the program's as it can."""
        names = {self.groups.owner[r.ops[-1]]: r.name for r in regions}
        groups = self.groups.groups
        waiting = {key: len(group.before) for key, group in groups.items()}
        ready = [(groups[key].last, key) for key, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        order: list[str] = []
        while ready:
            _, key = heapq.heappop(ready)
            order.append(names.get(key) or next(iter(groups[key].ops)))
            for after in groups[key].after:
                waiting[after] -= 1
                if waiting[after] == 0:
                    heapq.heappush(ready, (groups[after].last, after))
        return tuple(order)

    def verdicts(self, regions: tuple[Region, ...]) -> tuple[Verdict, ...]:
        found: list[Verdict] = []
        outputs = {name for region in regions for name in region.outputs}
        owners = {op: region.name for region in regions for op in region.ops}
        for consumer in self.graph.ops:
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
        if is_gather(consumer) and argument_of(consumer, 0).value == producer.name:
            return Verdict(*edge, False, Reason.DATA_DEPENDENT_READ)
        reason, detail = self.refusals.get(pair) or (Reason.NO_GAIN, "")
        return Verdict(*edge, False, reason, detail)


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


__all__ = ["Partitioner", "Space", "live_values"]
