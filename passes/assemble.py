"""Regions, running order and verdicts from what the planner settled on.

In: a clustering, the partition that it came from, and what was taken apart afterwards. Out: the
parts of a `FusionPlan`. Names and running order follow the program; the decisions do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fuser.ir.graph import Graph, Op
from fuser.ir.ops import is_contraction
from fuser.ir.region import Cost, Reason, Region, RegionKind, Verdict
from fuser.passes.candidate import Refused, outside_values
from fuser.passes.clusters import Clustering, leaving
from fuser.passes.partition import Partition, Proposal
from fuser.passes.split import Apart
from fuser.passes.unify import argument_of, is_gather


def regions_of(clustering: Clustering, partition: Partition) -> dict[int, Region]:
    """Cluster number to its region, in the order of the program; opaque calls have none."""
    owned = [cluster.owned for cluster in clustering.clusters]
    fusible = [number for number, names in enumerate(owned) if not names & partition.opaque]
    place = partition.graph.position
    constants: dict[str, int] = {}
    for number in sorted(fusible, key=lambda number: min(map(place.__getitem__, owned[number]))):
        # The first region that needs a constant owns it, whatever the order of the program.
        for op in clustering.ops(number):
            if op.name in clustering.free:
                constants.setdefault(op.name, number)
    found: dict[int, Region] = {}
    for position, number in enumerate(sorted(fusible, key=clustering.starts.__getitem__)):
        ops = clustering.ops(number)
        mine = owned[number] | {op.name for op in ops if constants.get(op.name) == number}
        found[number] = _region(f"region_{position}", clustering, partition, number, ops, mine)
    return found


def _region(
    name: str,
    clustering: Clustering,
    partition: Partition,
    number: int,
    ops: Sequence[Op],
    mine: frozenset[str],
) -> Region:
    stored = clustering.stored(number)
    candidate = partition.kernel(clustering.clusters[number].computed, stored)
    kind = RegionKind.REDUCTION if any(op.reduced for op in ops) else RegionKind.POINTWISE
    if any(map(is_contraction, ops)):
        kind = RegionKind.CONTRACTION
    return Region(
        name=name,
        kind=kind,
        schedule=candidate.schedule,
        ops=tuple(op.name for op in ops if op.name in mine),
        inputs=outside_values(ops),
        outputs=tuple(op.name for op in ops if op.name in stored),
        space=candidate.space,
        recomputed=tuple(op.name for op in ops if op.name not in mine),
        cost=_with_unfused(candidate.cost, partition, clustering.clusters[number].owned),
    )


def _with_unfused(cost: Cost, partition: Partition, mine: frozenset[str]) -> Cost:
    """The cost with that of the calls which eager runs for the region's own ops, one by one."""
    calls: dict[str, set[str]] = {}
    for name in sorted(mine, key=partition.graph.position.__getitem__):
        call = partition.graph.by_name[name].origin or f"op:{name}"
        calls.setdefault(call, set()).add(name)
    alone = [cost for names in calls.values() for cost in partition.call_costs(frozenset(names))]
    return replace(
        cost,
        unfused_bytes=sum(each.bytes for each in alone),
        unfused_us=sum(each.time_us for each in alone),
    )


def running_order(clustering: Clustering, regions: Mapping[int, Region]) -> tuple[str, ...]:
    """Region names and opaque ops in the order in which they run."""
    return tuple(
        regions[number].name if number in regions else next(iter(clustering.clusters[number].owned))
        for number in clustering.order
    )


@dataclass(frozen=True)
class Verdicts:
    """Says of each edge whether it was fused, and why."""

    clustering: Clustering
    partition: Partition
    regions: Mapping[int, Region]
    taken_apart: Sequence[Apart]
    """What the partition had merged, the last word first."""

    @property
    def graph(self) -> Graph:
        return self.clustering.program

    def all(self) -> tuple[Verdict, ...]:
        return tuple(
            self.one(self.graph.producers[value], consumer)
            for consumer in self.graph.ops
            for value in consumer.reads
            if value in self.graph.producers
        )

    def one(self, producer: Op, consumer: Op) -> Verdict:
        edge = (producer.name, consumer.name)
        if producer.is_opaque:
            return Verdict(*edge, False, Reason.OPAQUE_PRODUCER, producer.reason)
        if consumer.is_opaque:
            return Verdict(*edge, False, Reason.OPAQUE_READER, consumer.reason)
        where = self.region_of(consumer)
        if producer.name in where.ops:
            is_stored = producer.name in where.outputs
            return Verdict(*edge, True, Reason.FUSED_AND_STORED if is_stored else Reason.FUSED)
        if producer.name in where.recomputed:
            return Verdict(*edge, True, Reason.RECOMPUTED)
        return self.refused(producer, consumer)

    def region_of(self, op: Op) -> Region:
        """The region that owns an op; of a constant, the first that needs it."""
        number = self.clustering.owner.get(op.name)
        return self.regions[number] if number is not None else self.constants[op.name]

    @cached_property
    def constants(self) -> Mapping[str, Region]:
        """Constant to the region that owns it."""
        free = self.clustering.free
        return {op: region for region in self.regions.values() for op in region.ops if op in free}

    def refused(self, producer: Op, consumer: Op) -> Verdict:
        edge = (producer.name, consumer.name)
        requests = self.partition.requests
        proposal = self.proposal(*edge)
        gain = max(proposal.gain, 0.0) if proposal else 0.0
        if edge in requests.forbidden or not requests.alone.isdisjoint(edge):
            return Verdict(*edge, False, Reason.FORBIDDEN, "", gain)
        if edge in self.partition.cuts:
            # Asked for as well; what else is against it now may only follow from being apart.
            return Verdict(*edge, False, self.partition.cuts[edge], "", gain)
        if is_gather(consumer) and argument_of(consumer, 0).value == producer.name:
            return Verdict(*edge, False, Reason.DATA_DEPENDENT_READ, "", gain)
        for apart in self.taken_apart:
            if producer.name in apart.cut.left and consumer.name in apart.cut.right:
                reason, detail = self.against(producer, consumer) or (apart.reason, apart.detail)
                return Verdict(*edge, False, reason, detail, max(apart.cut.cost_us, 0.0))
        if proposal is None or proposal.refusal is None:
            return Verdict(*edge, False, Reason.NO_GAIN, f"{gain:.1f} us", gain)
        if proposal.refusal.reason is Reason.CYCLE:
            # Nothing could have been gained by what cannot be.
            return Verdict(*edge, False, Reason.CYCLE, self.between(*edge))
        return Verdict(*edge, False, proposal.refusal.reason, proposal.refusal.detail, gain)

    def against(self, producer: Op, consumer: Op) -> tuple[Reason, str] | None:
        """Why the regions of two ops could not be one kernel as they are now, memory aside: each
        may have got other ops since it was cut."""
        owner, clusters = self.clustering.owner, self.clustering.clusters
        names = clusters[owner[producer.name]].owned | clusters[owner[consumer.name]].owned
        try:
            self.partition.kernel(names, leaving(self.graph, names), self.partition.limits)
        except Refused as refused:
            return refused.reason, refused.detail
        return None

    def between(self, producer: str, consumer: str) -> str:
        """What stands between the groups of two ops: an original call if there is one."""
        groups = self.partition.groups
        keys = groups.between(groups.owner[producer], groups.owner[consumer])
        names = [name for key in keys for name in groups.groups[key].ops]
        names.sort(key=lambda name: (name not in self.partition.opaque, self.graph.position[name]))
        return f"through {names[0]}" if names else ""

    def proposal(self, producer: str, consumer: str) -> Proposal | None:
        owner = self.partition.groups.owner
        pair = owner.get(producer), owner.get(consumer)
        if pair[0] is None or pair[1] is None:
            return None
        return self.partition.proposals.get(pair[0], {}).get(pair[1])
