"""Rules that every graph and plan keeps, run between passes under FUSER_CHECK.

Each raises `InvariantError` with the op or region that breaks the rule and its neighbourhood in the
printed form, so that the pass that broke it is named and the place can be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuser.errors import InvariantError
from fuser.ir.graph import Argument, Graph, Op
from fuser.ir.index_map import Strided
from fuser.ir.ops import BY_KIND
from fuser.ir.plan import FusionPlan

CONTEXT_LINES = 3


def check_graph(graph: Graph, stage: str) -> None:
    """Values are made once and before they are read; generated ops follow the op table."""
    known = {item.value.name for item in graph.inputs if item.value is not None}
    known |= {value.name for value in graph.constants}
    for position, op in enumerate(graph.ops):
        for name in op.reads:
            if name not in known:
                _broken("a value is made before it is read", f"%{name}", graph, position, stage)
        for value in op.results:
            if value.name in known:
                _broken("a value is made once", f"%{value.name}", graph, position, stage)
            known.add(value.name)
        if not op.is_opaque:
            _check_generated(graph, op, position, stage)
    for output in graph.outputs:
        if output.argument is not None and output.argument.value not in known:
            end = len(graph.ops)
            _broken("an output is a known value", f"%{output.argument.value}", graph, end, stage)


def _check_generated(graph: Graph, op: Op, position: int, stage: str) -> None:
    if op.kind not in BY_KIND:
        _broken("a generated op has a row in the op table", op.kind, graph, position, stage)
    if len(op.results) != 1 or op.results[0].name != op.name:
        _broken("a generated op makes one value of its name", op.name, graph, position, stage)
    rank = len(op.domain)
    kept = rank if op.keepdim else rank - len(op.reduced)
    if len(op.type.shape) != kept:
        _broken("a result has the rank of what is not reduced", op.name, graph, position, stage)
    for operand in op.operands:
        if isinstance(operand, Argument) and not _is_connected(operand):
            _broken("an index map's steps fit each other", str(operand), graph, position, stage)


def _is_connected(operand: Argument) -> bool:
    """Each step reads a tensor of the rank that the next step's reader has."""
    ranks = [len(step.reader_shape) for step in operand.map.steps]
    made = [
        len(step.axes) if isinstance(step, Strided) else len(step.producer_shape)
        for step in operand.map.steps
    ]
    return all(a == b for a, b in zip(made, ranks[1:], strict=False))


def check_plan(plan: FusionPlan, stage: str) -> None:
    """Every op in one region or opaque call, an order that respects reads, a verdict for each edge
    and for the launch of each region."""
    graph = plan.graph
    owners = [op for region in plan.regions for op in region.ops]
    owners += plan.opaque
    if sorted(owners) != sorted(op.name for op in graph.ops):
        twice = {name for name in owners if owners.count(name) > 1}
        missing = {op.name for op in graph.ops} - set(owners)
        _broken_plan("each op is in one region or opaque call", twice | missing, plan, stage)
    if sorted(plan.order) != sorted([*plan.by_name, *plan.opaque]):
        _broken_plan("the order names every step once", plan.order, plan, stage)
    ready = {item.value.name for item in graph.inputs if item.value is not None}
    ready |= {value.name for value in graph.constants}
    if tuple(name for step in plan.steps for name in step) != plan.order:
        _broken_plan("regions of a launch follow each other", plan.launch_of, plan, stage)
    for step in plan.steps:
        made: set[str] = set()
        for name in step:
            region = plan.by_name.get(name)
            reads = region.inputs if region else graph.by_name[name].reads
            late = [value for value in reads if value not in ready]
            if late:
                _broken_plan(f"{name} runs after what it reads", late, plan, stage)
            results = region.outputs if region else [v.name for v in graph.by_name[name].results]
            made.update(results)
        ready |= made
    edges = {
        (graph.producers[name].name, op.name)
        for op in graph.ops
        for name in op.reads
        if name in graph.producers
    }
    judged = {(verdict.producer, verdict.consumer) for verdict in plan.verdicts}
    if edges != judged:
        _broken_plan("each edge has a verdict", map(str, edges ^ judged), plan, stage)
    told = {verdict.region for verdict in plan.launch_verdicts}
    if told != set(plan.by_name):
        _broken_plan(
            "each region has a verdict on its launch", told ^ set(plan.by_name), plan, stage
        )


def _broken(rule: str, subject: str, graph: Graph, position: int, stage: str) -> None:
    first = max(0, position - CONTEXT_LINES)
    lines = tuple(str(op) for op in graph.ops[first : position + CONTEXT_LINES + 1])
    raise InvariantError(rule=rule, subject=subject, neighbourhood=lines, stage=stage)


def _broken_plan(rule: str, names: Iterable[str], plan: FusionPlan, stage: str) -> None:
    subject = ", ".join(sorted(names))
    lines: Sequence[str] = [f"{r.name}: {' '.join(r.ops)}" for r in plan.regions]
    raise InvariantError(rule=rule, subject=subject, neighbourhood=tuple(lines), stage=stage)


__all__ = ["check_graph", "check_plan"]
