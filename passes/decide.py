"""All decisions about one graph: merge, repeat what is cheap, stay within eager's memory.

In: a graph, a device, the limits and what the user asked for. Out: regions in running order and a
verdict for every edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from fuser.device import DeviceSpec
from fuser.ir.graph import Graph
from fuser.ir.region import Reason, Region, Verdict
from fuser.ir.rules import Requests
from fuser.passes.analysis import eager_peak_bytes
from fuser.passes.assemble import Verdicts, regions_of, running_order
from fuser.passes.base import NO_CUTS, Cuts, Limits
from fuser.passes.groups import Tree
from fuser.passes.memory import within_peak
from fuser.passes.partition import Partition
from fuser.passes.recompute import recompute_cheap
from fuser.passes.requested import fuse_accompanied, fuse_pairs, must_fuse_error

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
    eager_peak = eager_peak_bytes(graph)
    clustering, cuts_made = within_peak(
        partition.clustering(), eager_peak, partition.kernel, partial(_refuse_memory, requests)
    )
    judge = partial(partition.kernel, limits=limits)
    clustering = recompute_cheap(clustering, judge, eager_peak)
    regions = regions_of(clustering, partition)
    order = running_order(clustering, regions)
    verdicts = Verdicts(clustering, partition, regions, cuts_made).all()
    return Decisions(tuple(regions.values()), order, verdicts)


def _refuse_memory(requests: Requests, tree: Tree) -> None:
    """The user asked for a merge that would hold more memory than eager."""
    for rule, (producer, consumer) in requests.pairs:
        if {producer, consumer} <= tree.ops:
            raise must_fuse_error(rule, producer, consumer, Reason.PEAK_MEMORY)
    for rule, name in requests.accompanied:
        if name in tree.ops:
            raise must_fuse_error(rule, name, "", Reason.PEAK_MEMORY)
