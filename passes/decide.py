"""All decisions about one graph: merge, repeat what is cheap, stay within eager's memory.

In: a graph, a device, the limits and what the user asked for. Out: regions in running order and a
verdict for every edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from fuser.device import DeviceSpec, device_spec
from fuser.ir.graph import Graph
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Reason, Region, SiblingVerdict, Verdict
from fuser.ir.rules import Requests
from fuser.passes.analysis import eager_peak_bytes, op_by_op_peak_bytes
from fuser.passes.assemble import Verdicts, regions_of, running_order
from fuser.passes.base import (
    NO_CUTS,
    NO_LIMITS,
    OF_THIS_ORDER,
    Cuts,
    Limits,
    in_canonical_order,
)
from fuser.passes.boundaries import move_boundaries
from fuser.passes.candidate import Candidate, candidate_for
from fuser.passes.groups import free_ops
from fuser.passes.memory import Allowed, heaviest_first, within_peak
from fuser.passes.partition import Partition
from fuser.passes.recompute import recompute_cheap
from fuser.passes.requested import Together, fuse_accompanied, fuse_pairs, must_fuse_error
from fuser.passes.siblings import refused_siblings
from fuser.passes.split import Apart, Cut, cheapest_cut, crossing_pairs

NO_REQUESTS = Requests()


@dataclass(frozen=True, slots=True)
class Decisions:
    """What becomes one kernel, in which order they run, and why."""

    regions: tuple[Region, ...]
    order: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    siblings: tuple[SiblingVerdict, ...]
    peak: int
    """The most bytes held at once."""


def decide(
    graph: Graph,
    device: DeviceSpec,
    limits: Limits = Limits(),
    requests: Requests = NO_REQUESTS,
    cuts: Cuts = NO_CUTS,
) -> Decisions:
    """Partition a graph; raises `MustFuseError` where a rule passes a limit."""
    partition = Partition(graph, device, limits, requests, cuts)
    # Everything is decided in an order that does not depend on how the program was written.
    canonical = partition.graph
    fuse_pairs(partition)
    partition.run()
    fuse_accompanied(partition)
    together = Together(canonical, requests)

    def cheapest(
        ops: frozenset[str], stored: frozenset[str], allowed: Allowed, along: Graph | None = None
    ) -> Cut | None:
        return cheapest_cut(
            along or canonical,
            ops,
            stored,
            partition.kernel,
            lambda cut: together.allows(cut) and allowed(cut),
        )

    # Eager's calls hold nothing of what goes on inside them. Where a decomposed call cannot be kept
    # together, its ops one by one are the bound that is always within reach.
    eager, each = eager_peak_bytes(canonical), op_by_op_peak_bytes(canonical)
    clustering, made = within_peak(partition.clustering(), eager, cheapest)
    refuse = partial(_refuse_memory, together)
    clustering, more = within_peak(clustering, max(eager, each), cheapest, refuse)
    judge = partial(partition.kernel, limits=limits)
    clustering, moved = move_boundaries(clustering, judge, eager, together.allows)
    place = canonical.position
    wanted = recompute_cheap(clustering, judge, max(clustering.peak, eager), place)
    # What holds too much in the program's own order is cut before anything is repeated: a copy
    # keeps alive what it reads, wherever it is.
    bound = eager_peak_bytes(graph)
    most = max(bound, op_by_op_peak_bytes(graph))
    last: tuple[Cut, ...] = ()
    found = replace(wanted, program=graph)
    if found.peak > most:
        clustering, last = within_peak(replace(clustering, program=graph), most, cheapest, refuse)
        found = recompute_cheap(clustering, judge, max(clustering.peak, most), place)
    if found.peak > bound and (requests.pairs or requests.accompanied):
        free = replace(requests, pairs=(), accompanied=())
        if decide(graph, device, limits, free, cuts).peak <= bound:
            # What the user asked for is what holds more than eager.
            for number in heaviest_first(found):
                refuse(found.clusters[number].owned)
    regions = regions_of(found, partition)
    order = running_order(found, regions)
    early = [Apart(cut, Reason.PEAK_MEMORY) for cut in (*made, *more)]
    late = [Apart(cut, Reason.PEAK_MEMORY, OF_THIS_ORDER) for cut in last]
    verdicts = Verdicts(found, partition, regions, [*late, *moved, *early])
    every, siblings = verdicts.all(), refused_siblings(verdicts)
    in_force = {
        *((v.producer, v.consumer) for v in every if v.reason is Reason.PEAK_MEMORY),
        *((s.first, s.second) for s in siblings if s.reason is Reason.PEAK_MEMORY),
    }
    cuts_left = [apart for apart in (*early, *late) if any(map(apart.cut.is_between, in_force))]
    notes = _Notes(cuts_left, wanted.kernels - found.kernels)
    return Decisions(tuple(map(notes.on, regions.values())), order, every, siblings, found.peak)


@dataclass(frozen=True, slots=True)
class _Notes:
    """What was changed so that a plan holds no more memory than eager."""

    made: Sequence[Apart]
    lost: frozenset[frozenset[str]]
    """The ops of kernels that the plan would have in another order of the program."""

    def on(self, region: Region) -> Region:
        ops = set(region.ops)
        notes = [
            f"cut to hold no more memory than eager{f', {apart.detail}' if apart.detail else ''}"
            for apart in self.made
            if ops & (apart.cut.left | apart.cut.right)
        ]
        if not notes and any(ops & kernel for kernel in self.lost):
            notes = [f"repeats less to hold no more memory than eager, {OF_THIS_ORDER}"]
        return replace(region, notes=(*region.notes, *dict.fromkeys(notes))) if notes else region


def _refuse_memory(together: Together, names: frozenset[str]) -> None:
    """The user asked for a merge that would hold more memory than eager."""
    for rule, producer, consumer in together.within(names):
        raise must_fuse_error(rule, producer, consumer, Reason.PEAK_MEMORY)


def cut_region(
    plan: FusionPlan, region: Region, requests: Requests = NO_REQUESTS
) -> list[tuple[str, str]]:
    """Pairs of ops that have to be apart for the region to become two, cut where it costs least.

    None where no cut gives two kernels and leaves together what the user asked for.
    """
    # The same cut, whatever the order of the program.
    graph, device = in_canonical_order(plan.graph), device_spec(plan.target)
    constants = free_ops(graph)

    def judge(names: frozenset[str], stored: frozenset[str]) -> Candidate:
        needed = {v for name in names for v in graph.by_name[name].reads if v in constants}
        return candidate_for(graph, graph.in_order(names | needed), stored, device, NO_LIMITS)

    mine = frozenset(region.all_ops) - constants
    allows = Together(graph, requests).allows
    cut = cheapest_cut(graph, mine, frozenset(region.outputs), judge, allows)
    return crossing_pairs(graph, cut) if cut is not None else []
