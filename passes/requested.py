"""Merges that the user's rules ask for, before and after the planner's own.

In: a `Partition`. Out: the same with more merged. None of it passes a hard limit: `MustFuseError`
says which one stands against a rule. `Together` is for those who take kernels apart afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

from fuser.errors import MustFuseError
from fuser.ir.graph import Graph
from fuser.ir.region import Reason
from fuser.ir.rules import FusionRule, Requests
from fuser.passes.candidate import Refused
from fuser.passes.groups import free_ops
from fuser.passes.partition import Partition, Refusal
from fuser.passes.split import Cut

_OF_ONE_OP = {
    "opaque": "it runs as its original call",
    "no_neighbour": "nothing that could be fused with it reads it or is read by it",
}


def fuse_pairs(partition: Partition) -> None:
    """Every edge of a `must_fuse` rule, each again as long as another one changes something."""
    place = partition.graph.position
    waiting = sorted(
        partition.requests.pairs, key=lambda item: (place[item[1][1]], place[item[1][0]])
    )
    while waiting:
        refused = [
            (rule, edge, refusal)
            for rule, edge in waiting
            if (refusal := _force(partition, *edge)) is not None
        ]
        if len(refused) == len(waiting):
            rule, edge, refusal = refused[0]
            raise must_fuse_error(rule, *edge, refusal.reason, refusal.detail)
        waiting = [(rule, edge) for rule, edge, _ in refused]


def fuse_accompanied(partition: Partition) -> None:
    """Every op that a `must_fuse` rule names by itself gets one neighbour at least.

    That comes last: the plan without rules has fused most of them already.
    """
    groups = partition.groups
    place = partition.graph.position
    for rule, name in sorted(partition.requests.accompanied, key=lambda item: place[item[1]]):
        if name in groups.free:
            continue
        if name in partition.opaque:
            reason = partition.graph.by_name[name].reason
            raise must_fuse_error(rule, name, "", "opaque", reason)
        key = groups.owner[name]
        company = company_of(partition.graph, name)
        if company & groups.groups[key].ops:
            continue
        others = sorted(
            filter(partition.is_fusible, {groups.owner[other] for other in company - groups.free}),
            key=lambda other: (-partition.quick_gain(key, other), other),
        )
        refusals: list[Refusal] = []
        for other in others:
            refusal = _force_groups(partition, *partition.in_rank_order((key, other)))
            if refusal is None:
                break
            refusals.append(refusal)
        if not others:
            raise must_fuse_error(rule, name, "", "no_neighbour")
        if len(refusals) == len(others):
            edge = _edge_between(partition, name, others[0])
            raise must_fuse_error(rule, *edge, refusals[0].reason, refusals[0].detail)
        partition.consider(groups.owner[name])
        partition.fuse_by_gain()


def company_of(graph: Graph, name: str) -> frozenset[str]:
    """The ops that an op reads, and those that read it."""
    before = {graph.producers[v].name for v in graph.by_name[name].reads if v in graph.producers}
    values = (value.name for value in graph.by_name[name].results)
    return frozenset(before | {reader.name for value in values for reader in graph.readers[value]})


class Together:
    """What the user's rules want in one kernel, for those who take kernels apart."""

    def __init__(self, graph: Graph, requests: Requests) -> None:
        constants = free_ops(graph)
        self.requests = requests
        self.partners: dict[str, set[str]] = {}
        for _, (producer, consumer) in requests.pairs:
            self.partners.setdefault(producer, set()).add(consumer)
            self.partners.setdefault(consumer, set()).add(producer)
        self.company = {
            name: company_of(graph, name) - constants for _, name in requests.accompanied
        }

    def allows(self, cut: Cut) -> bool:
        """Whether no rule is broken by a cut."""
        for here, there in ((cut.left, cut.right), (cut.right, cut.left)):
            for name in here & self.partners.keys():
                if not self.partners[name].isdisjoint(there):
                    return False
            for name in here & self.company.keys():
                company = self.company[name]
                if company.isdisjoint(here) and not company.isdisjoint(there):
                    return False
        return True

    def within(self, names: frozenset[str]) -> Iterator[tuple[FusionRule, str, str]]:
        """The rules, and what they are about, that hold for these ops as one kernel."""
        for rule, (producer, consumer) in self.requests.pairs:
            if {producer, consumer} <= names:
                yield rule, producer, consumer
        for rule, name in self.requests.accompanied:
            if name in names and not self.company[name].isdisjoint(names):
                yield rule, name, ""


def must_fuse_error(
    rule: FusionRule | str, producer: str, consumer: str, reason: Reason | str, detail: str = ""
) -> MustFuseError:
    """The error for a rule that a limit, or a fault of the one op it names, stands against."""
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


def _force(partition: Partition, producer: str, consumer: str) -> Refusal | None:
    """Fuse two ops and whatever stands between them, or say which limit is against it."""
    for name, reason in (producer, Reason.OPAQUE_PRODUCER), (consumer, Reason.OPAQUE_READER):
        if name in partition.opaque:
            return Refusal(reason, partition.graph.by_name[name].reason)
    owner = partition.groups.owner
    if producer in partition.groups.free or owner[producer] == owner[consumer]:
        return None
    return _force_groups(partition, owner[producer], owner[consumer])


def _force_groups(partition: Partition, producer: int, consumer: int) -> Refusal | None:
    groups = partition.groups
    between = groups.between(producer, consumer)
    keys = [producer, *sorted(between), consumer]
    stranger = next((key for key in keys if not partition.is_fusible(key)), None)
    if stranger is not None:
        return Refusal(Reason.CYCLE, f"through {next(iter(groups.groups[stranger].ops))}")
    try:
        if len(keys) == 2 and groups.would_cycle(producer, consumer):
            return Refusal(Reason.CYCLE)
        partition.group_kernel(keys, partition.limits)
    except Refused as refused:
        return Refusal(refused.reason, refused.detail)
    kept = producer
    while between:
        # The next in line, so that nothing stands between the two.
        following = min(between, key=lambda key: groups.groups[key].rank)
        between.remove(following)
        kept = _merge(partition, kept, following)
    _merge(partition, kept, consumer)
    return None


def _merge(partition: Partition, left: int, right: int) -> int:
    pair = (min(left, right), max(left, right))
    return partition.merge(pair, partition.quick_gain(*pair), is_final=True)


def _edge_between(partition: Partition, name: str, other: int) -> tuple[str, str]:
    """The edge between an op and the group `other`."""
    graph, ops = partition.graph, partition.groups.groups[other].ops
    makers = [graph.producers.get(value) for value in graph.by_name[name].reads]
    before = next((op.name for op in makers if op is not None and op.name in ops), None)
    if before is not None:
        return before, name
    return name, next((op.name for op in graph.readers[name] if op.name in ops), "")
