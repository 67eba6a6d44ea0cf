"""A plan as a networkx graph, for questions that have an algorithm there.

Nodes are the ops and the tensors that the graph is given; an edge is one operand of one op, so two
ops may have several between them. Every attribute is a text, a number or a bool.
"""

from __future__ import annotations

from typing import Any

import networkx

from fuser.dump.facts import edges, operation, value_bytes
from fuser.ir.graph import Argument, Graph, Op
from fuser.ir.plan import FusionPlan


def to_networkx(plan: FusionPlan) -> networkx.MultiDiGraph:
    """The plan's ops and the values that flow between them.

    Node attributes: `op` (row of the op table, or the torch call), `kind` (that of its region, or
    `opaque`, `input`, `constant`), `type`, `source`, `region`, `opaque`, `reason`, `is_output`.
    Edge attributes: `value`, `view` (the index map, empty when read as it is), `fused`, `code` and
    `reason` (empty from an input), `bytes` (of the whole value).
    """
    graph = plan.graph
    result = networkx.MultiDiGraph(name=graph.name, target=plan.target, phase=plan.phase)
    for item in graph.inputs:
        if item.value is not None:
            result.add_node(item.value.name, **_given(graph, item.value.name, "input"))
    for value in graph.constants:
        result.add_node(value.name, **_given(graph, value.name, "constant"))
    for op in graph.ops:
        result.add_node(op.name, **_node(plan, op))
    verdicts = {(verdict.producer, verdict.consumer): verdict for verdict in edges(plan)}
    for op in graph.ops:
        for argument in reads(op):
            producer = graph.producers.get(argument.value)
            source = argument.value if producer is None else producer.name
            verdict = verdicts.get((source, op.name))
            result.add_edge(
                source,
                op.name,
                value=argument.value,
                view=str(argument.map),
                fused=verdict is not None and verdict.fused,
                code="" if verdict is None else verdict.reason.name.lower(),
                reason="" if verdict is None else verdict.text,
                bytes=value_bytes(graph, argument.value),
            )
    return result


def reads(op: Op) -> tuple[Argument, ...]:
    """The tensors an op reads when it runs as planned: as a generated op, or as its call."""
    if op.is_opaque:
        return op.arguments
    return tuple(operand for operand in op.operands if isinstance(operand, Argument))


def _given(graph: Graph, name: str, kind: str) -> dict[str, Any]:
    return {
        "op": "",
        "kind": kind,
        "type": str(graph.values[name].type),
        "source": "",
        "region": "",
        "opaque": False,
        "reason": "",
        "is_output": name in graph.output_values,
    }


def _node(plan: FusionPlan, op: Op) -> dict[str, Any]:
    region = plan.region_of.get(op.name)
    return {
        "op": operation(op),
        "kind": op.kind if region is None else region.kind.value,
        "type": ", ".join(str(value.type) for value in op.results),
        "source": str(op.source),
        "region": "" if region is None else region.name,
        "opaque": op.is_opaque,
        "reason": op.reason,
        "is_output": any(value.name in plan.graph.output_values for value in op.results),
    }
