"""What a plan runs, step by step, and what flows between the steps and within them.

In: a plan. Out: its regions and original calls in running order, and every read of one op's result
by another op. A region that computes a cheap op again has that op among its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from fuser.dump.facts import edges, operation, value_bytes
from fuser.dump.to_networkx import reads
from fuser.dump.words import byte_text, time_text
from fuser.ir.graph import Op
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Reason, Region, Verdict


class FlowKind(Enum):
    """What was decided for a value between two ops."""

    FUSED = "fused"
    REFUSED = "refused"
    CALL = "call"
    """Refused because one of the two runs as its original call."""
    LOADED = "loaded"
    """Read by an op that is computed again in a second region."""


@dataclass(frozen=True, slots=True)
class Step:
    """One region or one original call; `number` counts from 0 in running order."""

    number: int
    name: str
    ops: tuple[Op, ...]
    region: Region | None = None

    @property
    def bound(self) -> str:
        """What bounds it: `memory`, `compute`, `launch`; `call` where that is not predicted."""
        return "call" if self.region is None else self.region.cost.bound

    @property
    def title(self) -> str:
        if self.region is None:
            return operation(self.ops[0])
        return f"{self.region.kind.value}, {self.region.strategy.value.replace('_', ' ')}"


@dataclass(frozen=True, slots=True)
class Flow:
    """One op reads another's result; the steps are numbers, `verdict` is absent without one."""

    producer: str
    consumer: str
    source: int
    target: int
    kind: FlowKind
    value: str
    verdict: Verdict | None = None

    @property
    def is_inside(self) -> bool:
        return self.source == self.target

    @property
    def is_refused(self) -> bool:
        return self.kind in (FlowKind.REFUSED, FlowKind.CALL)

    @property
    def reason(self) -> str:
        if self.kind is FlowKind.LOADED or self.verdict is None:
            return f"loaded, because {self.consumer} is computed again here"
        return self.verdict.text


def steps_of(plan: FusionPlan) -> tuple[Step, ...]:
    """The steps in running order."""
    graph = plan.graph
    found = []
    for number, name in enumerate(plan.order):
        region = plan.by_name.get(name)
        ops = graph.in_order([name] if region is None else region.all_ops)
        found.append(Step(number, name, tuple(ops), region))
    return tuple(found)


def flows_of(plan: FusionPlan, steps: tuple[Step, ...]) -> tuple[Flow, ...]:
    """Every read of an op's result by an op, in running order; several by one op are one."""
    owner = {}
    for step in steps:
        again = () if step.region is None else step.region.recomputed
        owner.update({op.name: step.number for op in step.ops if op.name not in again})
    verdicts = {(verdict.producer, verdict.consumer): verdict for verdict in edges(plan)}
    return tuple(flow for step in steps for flow in _into(plan, step, owner, verdicts))


def _into(
    plan: FusionPlan,
    step: Step,
    owner: dict[str, int],
    verdicts: dict[tuple[str, str], Verdict],
) -> Iterator[Flow]:
    inside = {op.name for op in step.ops}
    for op in step.ops:
        seen = set()
        for argument in reads(op):
            producer = plan.graph.producers.get(argument.value)
            if producer is None or producer.name in seen:
                continue
            seen.add(producer.name)
            verdict = verdicts.get((producer.name, op.name))
            at = step.number if producer.name in inside else owner[producer.name]
            kind = _kind(verdict, at == step.number)
            yield Flow(producer.name, op.name, at, step.number, kind, argument.value, verdict)


def _kind(verdict: Verdict | None, is_inside: bool) -> FlowKind:
    if is_inside:
        return FlowKind.FUSED
    if verdict is None or verdict.fused:
        return FlowKind.LOADED
    if verdict.reason in (Reason.OPAQUE_PRODUCER, Reason.OPAQUE_READER):
        return FlowKind.CALL
    return FlowKind.REFUSED


def flow_lines(plan: FusionPlan, flow: Flow) -> list[str]:
    """What a person asks of one read: from where to where, how much, and why."""
    lines = [
        f"{flow.producer} → {flow.consumer}",
        f"{plan.graph.values[flow.value].type}, {byte_text(value_bytes(plan.graph, flow.value))}",
        f"not fused: {flow.reason}" if flow.is_refused else flow.reason,
    ]
    if flow.is_refused and flow.verdict is not None and flow.verdict.gain_us > 0:
        lines.append(f"fusing would have saved {time_text(flow.verdict.gain_us)}")
    return lines
