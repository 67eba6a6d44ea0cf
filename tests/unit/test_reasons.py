"""Every reason that an edge can have, provoked by a small program.

A refusal stands beside the same program without its cause, in which the edge is fused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser import driver
from fuser.dump.recording import record_of
from fuser.ir.kernel import KernelSpec, Resources
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Reason, Verdict
from fuser.ir.rules import no_fuse
from fuser.passes.base import Limits
from fuser.passes.pipeline import plan_graph
from support.graphs import assert_plan_holds, graph_of, op_of, partitioned

Program = Callable[..., Any]
Plan = Callable[[], FusionPlan]
Edge = tuple[str, str]
"""The kinds of a producer and its consumer."""

ROOT = Path(__file__).parents[2]
X = torch.randn(4, 6)
BATCH = torch.randn(30, 40, 60)
SQUARE = torch.empty(64, 64)


@dataclass(frozen=True)
class Case:
    """A plan in which an edge has a reason, and one in which the edge is fused."""

    plan: Plan
    edge: Edge
    cured: Plan | None = None
    cured_edge: Edge | None = None


def of(program: Program, *args: Tensor, **options: Any) -> Plan:
    return lambda: plan_graph(graph_of(program, *(args or (X,))), "sm_90", **options)


def under(limits: Limits, program: Program, *args: Tensor) -> Plan:
    return lambda: partitioned(graph_of(program, *args), limits)


def kept(reader: Program) -> Program:
    """The value is an output, and read."""

    def run(x: Tensor) -> Any:
        y = x.exp()
        return y, reader(y)

    return run


def total(*values: Tensor) -> Tensor:
    return reduce(torch.add, values).exp()


def many(count: int, *shape: int) -> list[Tensor]:
    return [torch.empty(shape) for _ in range(count)]


def waves(count: int) -> Program:
    return lambda x: reduce(lambda y, _: y.sin(), range(count), x).exp()


def scaled_by_all(*values: Tensor) -> Any:
    """Every row is kept until the sum over all of them is known."""
    scale = reduce(torch.add, [value.sum(1, keepdim=True) for value in values])
    return [value * scale for value in values]


def early(x: Tensor) -> Any:
    """`b * 2` with b would be kept while the first scan runs."""
    b = x.sin().exp()
    first = b.cumsum(0).sum()
    d = b * 2
    return first, d.cumsum(0).sum()


def two_products(x: Tensor, w: Tensor, v: Tensor) -> Any:
    y = x.exp()
    one, other = (y @ v).sin(), (y @ w).sin()
    return one, one + other


def moved(device: str) -> Plan:
    """The second op is on another device; written by hand, because there is one here."""

    def plan() -> FusionPlan:
        graph = graph_of(lambda x: x.exp().sin(), X)
        op = op_of(graph, "sin")
        (result,) = op.results
        there = replace(result, type=replace(result.type, device=device))
        ops = tuple(replace(o, results=(there,)) if o is op else o for o in graph.ops)
        return partitioned(replace(graph, ops=ops))

    return plan


def compiled(answer: Callable[[KernelSpec], Resources]) -> Plan:
    """A plan after the compiler's answer, which is planted: which kernels really spill changes
    with its version, and with the cost model that avoids them."""

    def plan() -> FusionPlan:
        def compile_many(specs: Sequence[KernelSpec], *_: Any, **__: Any) -> list[Resources]:
            return [answer(spec) for spec in specs]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "compile_many", compile_many)
            return driver.fit_plan(of(lambda x: x.exp().sin())(), driver.options_from({})).plan

    return plan


def with_spills(spec: KernelSpec) -> Resources:
    both = "fn.exp(" in spec.source and "fn.sin(" in spec.source
    return Resources(255 if both else 32, 8 if both else 0, 0)


def free_launches(program: Program, launch_us: float) -> Plan:
    """Where launches are free and arithmetic is all there is, two kernels are as good as one."""
    return lambda: partitioned(graph_of(program, X), target="cpu", launch_us=launch_us)


FUSES = of(lambda x: x.exp() * 2)

CASES: dict[Reason, Case] = {
    Reason.FUSED: Case(FUSES, ("exp", "mul")),
    Reason.FUSED_AND_STORED: Case(of(kept(lambda y: y * 2)), ("exp", "mul")),
    Reason.RECOMPUTED: Case(
        of(lambda x: (lambda y: (y.sum(0), y.amax()))(x.sin()), torch.empty(4096, 4096)),
        ("sin", "sum"),
    ),
    Reason.OPAQUE_PRODUCER: Case(
        of(lambda x: x.cumsum(0) * 2), ("opaque", "mul"), FUSES, ("exp", "mul")
    ),
    Reason.OPAQUE_READER: Case(
        of(lambda x: x.exp().cumsum(0)), ("exp", "opaque"), FUSES, ("exp", "mul")
    ),
    Reason.CYCLE: Case(
        of(lambda x: (lambda y: y + y.cumsum(0))(x.exp())), ("exp", "add"),
        of(lambda x: (lambda y: y + y.sin())(x.exp())),
    ),
    Reason.OTHER_SPACE: Case(
        of(lambda x: x.softmax(1).flip(0)), ("divide", "copy"),
        of(lambda x: x.exp().div(x).flip(0)),
    ),
    Reason.OTHER_REDUCTION: Case(
        of(lambda x: x.sum(0).amax(0)), ("sum", "amax"),
        of(lambda x: x.sum(0).exp()), ("sum", "exp"),
    ),
    Reason.OTHER_PRODUCT: Case(
        # One multiplies all rows of the batch by a matrix, the other each by its own.
        of(two_products, BATCH, torch.randn(60, 50), torch.randn(30, 60, 50)), ("sin", "add"),
        of(two_products, BATCH, *torch.randn(2, 30, 60, 50)),
    ),
    Reason.NOT_LINEAR: Case(
        of(lambda x: x.exp().view(6, 4).t() + x.sin()), ("exp", "add"),
        of(lambda x: x.exp().view(2, 2, 6) + x.sin().view(2, 2, 6)),
    ),
    Reason.DATA_DEPENDENT_READ: Case(
        of(lambda x: x.exp()[[1, 0]]), ("exp", "index"),
        of(lambda x: x[[1, 0]].exp()), ("index", "exp"),
    ),
    Reason.OUTPUT_NOT_COVERED: Case(
        of(kept(lambda y: y[:2] * 2)), ("exp", "mul"), of(lambda x: x.exp()[:2] * 2)
    ),
    Reason.FORBIDDEN: Case(
        of(lambda x: x.exp() * 2, X, rules=[no_fuse("exp", "mul")]), ("exp", "mul"), FUSES
    ),
    Reason.DEVICE: Case(moved("cuda:1"), ("exp", "sin"), moved("cpu")),
    Reason.TOO_MANY_ARGUMENTS: Case(
        of(total, *many(Limits().arguments + 8, 64, 64)), ("add", "add"),
        of(total, *many(Limits().arguments - 8, 64, 64)),
    ),
    Reason.TOO_MANY_OPS: Case(
        of(waves(Limits().ops), SQUARE), ("sin", "sin"), of(waves(Limits().ops - 1), SQUARE)
    ),
    Reason.TOO_MANY_REGISTERS: Case(
        of(scaled_by_all, *many(16, 1024, 32768)), ("add", "mul"),
        of(scaled_by_all, *many(16, 1024, 1024)),
    ),
    # No kernel of today comes near what a block has; the limit is lowered.
    Reason.TOO_MUCH_SHARED_MEMORY: Case(
        under(Limits(shared_bytes=0), lambda x: F.softmax(x, 1), torch.empty(64, 4096)),
        ("sum", "divide"),
        of(lambda x: F.softmax(x, 1), torch.empty(64, 4096)),
    ),
    Reason.LOW_OCCUPANCY: Case(
        of(scaled_by_all, *many(4, 1024, 32768)), ("add", "mul"),
        of(scaled_by_all, *many(4, 1024, 1024)),
    ),
    Reason.SPILLS: Case(
        compiled(with_spills), ("exp", "sin"), compiled(lambda _: Resources(32, 0, 0))
    ),
    Reason.PEAK_MEMORY: Case(
        of(early, torch.empty(256, 256)), ("exp", "mul"),
        of(lambda x: (lambda b: b.cumsum(0) + (b * 2).cumsum(0))(x.exp()), torch.empty(256, 256)),
    ),
    Reason.NO_GAIN: Case(
        free_launches(lambda x: x.exp().sin(), 0.0), ("exp", "sin"),
        free_launches(lambda x: x.exp().sin(), 3.0),
    ),
}  # fmt: skip


def between(plan: FusionPlan, edge: Edge) -> list[Verdict]:
    """The verdicts on all edges of these kinds."""
    kinds = {op.name: op.kind for op in plan.graph.ops}
    return [v for v in plan.verdicts if (kinds[v.producer], kinds[v.consumer]) == edge]


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_a_program_provokes_every_reason(reason: Reason) -> None:
    """A member of `Reason` without a program here fails: it may be that nothing can give it."""
    assert reason in CASES
    case = CASES[reason]
    plan = case.plan()
    if reason is not Reason.DEVICE:  # of which there is one here
        assert_plan_holds(plan)
    found = [verdict for verdict in between(plan, case.edge) if verdict.reason is reason]
    assert found, {verdict.text for verdict in between(plan, case.edge)}
    for verdict in found:
        assert verdict.fused == (case.cured is None)
        assert verdict.text.startswith(reason.value)
        owner = plan.region_of.get(verdict.consumer)
        assert verdict.fused == (owner is not None and verdict.producer in owner.all_ops)
        edges = record_of(plan).edges
        (edge,) = [
            e for e in edges if (e.producer, e.consumer) == (verdict.producer, verdict.consumer)
        ]
        assert (edge.code, edge.fused) == (reason.name.lower(), verdict.fused)


@pytest.mark.parametrize(
    "reason", [r for r in Reason if CASES[r].cured], ids=lambda reason: reason.name
)
def test_without_its_cause_an_edge_is_fused(reason: Reason) -> None:
    case = CASES[reason]
    assert case.cured is not None
    plan = case.cured()
    found = between(plan, case.cured_edge or case.edge)
    assert found
    assert all(verdict.fused for verdict in found), {verdict.text for verdict in found}


@pytest.mark.parametrize(
    ("limits", "reason", "detail"),
    [
        (Limits(ops=2), Reason.TOO_MANY_OPS, "3 > 2"),
        (Limits(arguments=4), Reason.TOO_MANY_ARGUMENTS, "5 > 4"),
        (Limits(registers=12), Reason.TOO_MANY_REGISTERS, "> 12"),
        (Limits(occupancy=1.01), Reason.LOW_OCCUPANCY, "< 1.01"),
    ],
)
def test_a_limit_is_told_with_what_it_would_take(
    limits: Limits, reason: Reason, detail: str
) -> None:
    graph = graph_of(lambda a, b, c, d: (a + b) * (c - d), X, X + 1, X + 2, X + 3)
    plan = partitioned(graph, limits)
    assert_plan_holds(plan)
    refused = [verdict for verdict in plan.verdicts if verdict.reason is reason]
    assert refused
    assert detail in refused[0].detail
    assert len(plan.regions) > 1


@pytest.mark.parametrize(
    ("reason", "detail"),
    [
        (Reason.DEVICE, "cpu, cuda:1"),
        (Reason.NO_GAIN, "0.0 us"),
        (Reason.CYCLE, "through cumsum"),
        (Reason.TOO_MANY_OPS, "97 > 96"),
    ],
)
def test_a_detail_is_told(reason: Reason, detail: str) -> None:
    case = CASES[reason]
    plan = case.plan()
    assert any(v.detail == detail for v in between(plan, case.edge) if v.reason is reason)


def test_every_reason_is_explained() -> None:
    text = (ROOT / "docs" / "plans.md").read_text(encoding="utf-8")
    section = text.split("## Reasons")[1].split("\n## ")[0]
    assert set(re.findall(r"`([A-Z_]+)`", section)) == {reason.name for reason in Reason}
    assert len({reason.value for reason in Reason}) == len(Reason)
