"""All decisions about one graph: merge, repeat what is cheap, stay within eager's memory.

In: a graph, a device, the limits and what the user asked for. Out: regions in running order and a
verdict for every edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from fuser.device import DeviceSpec, device_spec
from fuser.ir.graph import Graph
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Reason, Region, Verdict
from fuser.ir.rules import Requests
from fuser.passes.analysis import eager_peak_bytes, op_by_op_peak_bytes
from fuser.passes.assemble import Verdicts, regions_of, running_order
from fuser.passes.base import NO_CUTS, NO_LIMITS, Cuts, Limits
from fuser.passes.candidate import Candidate, candidate_for
from fuser.passes.groups import Tree, free_ops
from fuser.passes.memory import within_peak
from fuser.passes.partition import Partition
from fuser.passes.recompute import recompute_cheap
from fuser.passes.requested import fuse_accompanied, fuse_pairs, must_fuse_error
from fuser.passes.split import cheapest_cut, crossing_pairs

NO_REQUESTS = Requests()


@dataclass(frozen=True, slots=True)
class Decisions:
    """What becomes one kernel, in which order they run, and why."""

    regions: tuple[Region, ...]
    order: tuple[str, ...]
    verdicts: tuple[Verdict, ...]


def decide(
    graph: Graph,
    device: DeviceSpec,
    limits: Limits = Limits(),
    requests: Requests = NO_REQUESTS,
    cuts: Cuts = NO_CUTS,
) -> Decisions:
    """Partition a graph; raises `MustFuseError` where a rule passes a limit."""
    partition = Partition(graph, device, limits, requests, cuts)
    fuse_pairs(partition)
    partition.run()
    fuse_accompanied(partition)
    # Eager's calls hold nothing of what goes on inside them. Where a decomposed call cannot be kept
    # together, its ops one by one are the bound that is always within reach.
    eager, each = eager_peak_bytes(graph), op_by_op_peak_bytes(graph)
    clustering, made = within_peak(partition.clustering(), eager, partition.kernel)
    on_asked = partial(_refuse_memory, requests)
    clustering, more = within_peak(clustering, max(eager, each), partition.kernel, on_asked)
    judge = partial(partition.kernel, limits=limits)
    clustering = recompute_cheap(clustering, judge, max(clustering.peak, eager))
    regions = regions_of(clustering, partition)
    order = running_order(clustering, regions)
    verdicts = Verdicts(clustering, partition, regions, (*made, *more)).all()
    return Decisions(tuple(regions.values()), order, verdicts)


def _refuse_memory(requests: Requests, tree: Tree) -> None:
    """The user asked for a merge that would hold more memory than eager."""
    for rule, (producer, consumer) in requests.pairs:
        if {producer, consumer} <= tree.ops:
            raise must_fuse_error(rule, producer, consumer, Reason.PEAK_MEMORY)
    for rule, name in requests.accompanied:
        if name in tree.ops:
            raise must_fuse_error(rule, name, "", Reason.PEAK_MEMORY)


def cut_region(plan: FusionPlan, region: Region) -> list[tuple[str, str]]:
    """Pairs of ops that have to be apart for the region to become two, cut where it costs least.

    None where no cut gives two kernels.
    """
    graph, device = plan.graph, device_spec(plan.target)
    place = graph.position.__getitem__
    constants = free_ops(graph)

    def judge(names: frozenset[str], stored: frozenset[str]) -> Candidate:
        needed = {v for name in names for v in graph.by_name[name].reads if v in constants}
        ops = [graph.by_name[name] for name in sorted(names | needed, key=place)]
        return candidate_for(graph, ops, stored, device, NO_LIMITS)

    mine = frozenset(region.all_ops) - constants
    cut = cheapest_cut(graph, mine, frozenset(region.outputs), judge)
    return crossing_pairs(graph, cut) if cut is not None else []
