"""Why each value was fused with its reader or not, by line of the user's program.

In: a plan. Out: text, at most 100 columns wide. The lines whose edges left most predicted time come
first; edges of ops that run as their original calls are counted, since no rule and no change of
the planner's mind could fuse them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from fuser.dump.facts import edges, operation, predicted_us
from fuser.dump.launches import alone, launch_lines, launches_title
from fuser.dump.to_text import headline
from fuser.dump.words import WIDTH, byte_text, count_text, time_text
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Reason, SiblingVerdict, Verdict

OPAQUE = (Reason.OPAQUE_PRODUCER, Reason.OPAQUE_READER)

NO_GAIN_SHOWN = 0.05
"""Microseconds below which a gain is not worth its column."""

ADVICE: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.CYCLE: "fusing the op between them as well, or moving it, removes the wait",
        Reason.OTHER_SPACE: "they can share a kernel when both have the same shape and order",
        Reason.NOT_LINEAR: "a reshape that keeps whole dimensions together would fuse",
        Reason.DATA_DEPENDENT_READ: "what is computed after the lookup can be fused with it",
        Reason.OUTPUT_NOT_COVERED: "all of it is needed elsewhere too, as an output or by an op",
    }
)
"""What an author can do about a refusal, where there is something to say beyond the reason."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the program inside one module."""

    line: str
    module: str

    def __str__(self) -> str:
        where = self.line or "(no line of the program)"
        return f"{where}   in {self.module}" if self.module else where


@dataclass(frozen=True)
class Explanation:
    """Why a plan is as it is: `str` is the report, `edges` the same as data."""

    plan: FusionPlan
    notes: str = ""
    """What else was decided about calls, at the end of the report."""

    @cached_property
    def edges(self) -> tuple[Verdict, ...]:
        """Every edge once, the largest gain that was left first, else in program order."""
        return tuple(sorted(edges(self.plan), key=lambda verdict: -verdict.gain_us))

    @property
    def gain_left_us(self) -> float:
        """The gains of the refused merges, each pair of kernels counted once.

        More than could be had together: a kernel can be part of several of these merges.
        """
        owners = self.plan.region_of
        pairs: dict[tuple[str, str], float] = {}
        refused = [(v.producer, v.consumer, v.gain_us) for v in self.edges]
        refused += [(s.first, s.second, s.gain_us) for s in self.plan.siblings]
        for first, second, gain in refused:
            if first in owners and second in owners:
                pair = (owners[first].name, owners[second].name)
                pairs[pair] = max(pairs.get(pair, 0.0), gain)
        return sum(pairs.values())

    def __str__(self) -> str:
        text = to_explanation(self.plan)
        return f"{text}\n\n{self.notes}" if self.notes else text


def to_explanation(plan: FusionPlan) -> str:
    """The report as plain text without a final newline."""
    return "\n".join(map(_cut, _report(Explanation(plan))))


def _report(explanation: Explanation) -> Iterator[str]:
    yield from _totals(explanation)
    places: dict[Place, list[Verdict]] = {}
    for verdict in explanation.edges:
        if verdict.reason not in OPAQUE:
            places.setdefault(_place(explanation.plan, verdict), []).append(verdict)
    position = explanation.plan.graph.position
    for place, found in places.items():
        yield ""
        yield str(place)
        found.sort(key=lambda v: (-v.gain_us, position[v.consumer], position[v.producer]))
        for verdict in found:
            if not verdict.fused:
                yield from _refused(verdict)
        yield from _fused([verdict for verdict in found if verdict.fused])
    yield from _siblings(explanation.plan.siblings)
    yield from _launches(explanation.plan)
    yield from _original_calls(explanation)


def _totals(explanation: Explanation) -> Iterator[str]:
    plan = explanation.plan
    costs = [region.cost for region in plan.regions]
    yield f"{headline(plan)}, for {plan.target}"
    if costs:
        yield (
            f"  {byte_text(sum(cost.bytes for cost in costs))} moved in place of "
            f"{byte_text(sum(cost.unfused_bytes for cost in costs))}, "
            f"{time_text(predicted_us(plan))} predicted in place of "
            f"{time_text(sum(cost.unfused_us for cost in costs))}"
        )
    fused = sum(verdict.fused for verdict in explanation.edges)
    opaque = sum(verdict.reason in OPAQUE for verdict in explanation.edges)
    refused = len(explanation.edges) - fused - opaque
    yield (
        f"  {count_text(len(explanation.edges), 'value')} passed from op to op: {fused} fused, "
        f"{refused} not, {opaque} to or from an original call"
    )
    if refused:
        yield f"  up to {time_text(explanation.gain_left_us)} of predicted gain was left"


def _refused(verdict: Verdict) -> Iterator[str]:
    is_large = verdict.gain_us >= NO_GAIN_SHOWN
    gain = time_text(verdict.gain_us) if is_large else ""
    yield f"  {gain:>9}  {_arrow(verdict)}: not fused"
    yield from _wrapped(" " * 15, f"because {verdict.text}".split())
    # An advice is for those who would gain by taking it.
    if is_large and verdict.reason in ADVICE:
        yield from _wrapped(" " * 15, ADVICE[verdict.reason].split())


def _fused(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The edges of each reason together, because there is nothing to say about one of them."""
    for reason in dict.fromkeys(verdict.reason for verdict in verdicts):
        arrows = [_arrow(verdict) for verdict in verdicts if verdict.reason is reason]
        yield f"  {'':9}  {reason.value}"
        yield from _wrapped(" " * 15, [*(f"{arrow}," for arrow in arrows[:-1]), arrows[-1]])


def _siblings(verdicts: Sequence[SiblingVerdict]) -> Iterator[str]:
    """Those with something to gain each, of the others how many there are of each reason."""
    if not verdicts:
        return
    yield ""
    yield "kernels that read the same value and are not one"
    counts: Counter[Reason] = Counter()
    for verdict in verdicts:
        if verdict.gain_us >= NO_GAIN_SHOWN:
            ends = f"{verdict.first}, {verdict.second} read {verdict.value}: not fused"
            yield f"  {time_text(verdict.gain_us):>9}  {ends}"
            yield from _wrapped(" " * 15, f"because {verdict.text}".split())
        else:
            counts[verdict.reason] += 1
    for reason, count in counts.most_common():
        yield f"  {count:>6}   {'more' if len(verdicts) > count else 'pairs'}: {reason.value}"


def _launches(plan: FusionPlan) -> Iterator[str]:
    """Where launches are shared: which, and why other regions have launches of their own."""
    if not plan.launches:
        return
    yield ""
    yield launches_title(plan)
    for text in launch_lines(plan):
        yield f"  {'':6}   {text}"
    for reason, names in alone(plan):
        yield f"  {len(names):>6}   apart: {reason.value}"


def _arrow(verdict: Verdict) -> str:
    return f"{verdict.producer} -> {verdict.consumer}"


def _original_calls(explanation: Explanation) -> Iterator[str]:
    """How many edges each kind of original call stands at, and why it is one."""
    by_name = explanation.plan.graph.by_name
    counts: Counter[tuple[str, str]] = Counter()
    for verdict in explanation.edges:
        if verdict.reason in OPAQUE:
            is_producer = verdict.reason is Reason.OPAQUE_PRODUCER
            op = by_name[verdict.producer if is_producer else verdict.consumer]
            counts[operation(op), op.reason] += 1
    if not counts:
        return
    yield ""
    yield "values to or from ops that run as their original calls"
    for (name, reason), count in counts.most_common():
        yield f"  {count:>6}   {name}: {reason or 'no reason is known'}"


def _place(plan: FusionPlan, verdict: Verdict) -> Place:
    source = plan.graph.by_name[verdict.consumer].source
    return Place(str(source) if source.file else "", source.module)


def _wrapped(indent: str, words: Sequence[str]) -> Iterator[str]:
    line = indent
    for word in words:
        if len(line) > len(indent) and len(line) + len(word) > WIDTH:
            yield line.rstrip()
            line = indent
        line += f"{word} "
    yield line.rstrip()


def _cut(text: str) -> str:
    text = text.rstrip()
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."


__all__ = ["Explanation", "to_explanation"]
