"""Why kernels that read the same value, and of which neither reads the other, are not one.

In: the verdicts on edges, with the partition behind them. Out: a `SiblingVerdict` for each pair of
groups that were thought of as one kernel and refused, and for each kernel of siblings that was cut
to hold no more memory. No more pairs than the partition proposed, which is a few for each reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from fuser.ir.region import Reason, SiblingVerdict
from fuser.passes.assemble import Verdicts
from fuser.passes.partition import Refusal


def refused_siblings(verdicts: Verdicts) -> tuple[SiblingVerdict, ...]:
    """Those that would have saved most first, else in canonical order."""
    place = verdicts.partition.graph.position
    found = {(each.first, each.second): each for each in (*_cut(verdicts), *_proposed(verdicts))}
    return tuple(
        sorted(found.values(), key=lambda s: (-s.gain_us, place[s.first], place[s.second]))
    )


def _proposed(verdicts: Verdicts) -> Iterator[SiblingVerdict]:
    partition = verdicts.partition
    for key, proposals in partition.proposals.items():
        group = partition.groups.groups[key]
        for other, proposal in proposals.items():
            if key < other and other not in group.before | group.after and proposal.refusal:
                names = group.ops, partition.groups.groups[other].ops
                found = _verdict(verdicts, *names, proposal.refusal, proposal.gain)
                if found is not None:
                    yield found


def _cut(verdicts: Verdicts) -> Iterator[SiblingVerdict]:
    readers = verdicts.graph.readers
    for apart in verdicts.taken_apart:
        cut = apart.cut
        if not any(r.name in cut.right for name in cut.left for r in readers[name]):
            refusal = Refusal(apart.reason, apart.detail)
            found = _verdict(verdicts, cut.left, cut.right, refusal, cut.cost_us)
            if found is not None:
                yield found


def _verdict(
    verdicts: Verdicts, left: Set[str], right: Set[str], refusal: Refusal, gain: float
) -> SiblingVerdict | None:
    """On the first op of either side that reads the first value which both read; None where they
    came to be one kernel after all."""
    # The same two ops, whatever the order of the program.
    graph, place = verdicts.graph, verdicts.partition.graph.position.__getitem__
    reads = [{v for name in side for v in graph.by_name[name].reads} for side in (left, right)]
    shared = reads[0] & reads[1] - verdicts.clustering.free
    for name in sorted(left | right, key=place):
        value = next((value for value in graph.by_name[name].reads if value in shared), None)
        if value is None:
            continue
        other_side = right if name in left else left
        other = min((r.name for r in graph.readers[value] if r.name in other_side), key=place)
        if verdicts.region_of(graph.by_name[name]) is verdicts.region_of(graph.by_name[other]):
            return None
        if refusal.reason is Reason.CYCLE:
            # Nothing could have been gained by what cannot be.
            detail, gain = verdicts.between(name, other), 0.0
        else:
            detail = refusal.detail
        return SiblingVerdict(value, name, other, refusal.reason, detail, max(gain, 0.0))
    return None
