"""A plan as data and as JSON text, for tools and for comparing two plans.

In: a plan, and the kernels of its regions once they are generated. Out: plain dicts and lists in a
fixed order; nothing in them varies from run to run except the passes' `ms`. Sizes known only at the
call are texts; byte counts and times use the sizes seen while tracing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fuser.ir.dim import Dim, evaluate, python_text
from fuser.ir.graph import Graph, Op
from fuser.ir.kernel import RegionKernels
from fuser.ir.plan import SCHEMA, FusionPlan
from fuser.ir.region import Region, Strategy, Verdict

Fields = dict[str, Any]


def to_json(plan: FusionPlan, kernels: Sequence[RegionKernels] = ()) -> str:
    """The plan as JSON text that ends with a newline."""
    return json.dumps(to_dict(plan, kernels), indent=2) + "\n"


def to_dict(plan: FusionPlan, kernels: Sequence[RegionKernels] = ()) -> Fields:
    """The plan as nested plain data; every op is in one region or in `opaque`."""
    graph = plan.graph
    names = kernel_names(kernels)
    return {
        "schema": SCHEMA,
        "target": plan.target,
        "phase": plan.phase,
        "graph": graph.name,
        "totals": totals(plan, kernels),
        "symbols": dict(graph.hints),
        "order": list(plan.order),
        "regions": [_region(graph, region, names.get(region.name, ())) for region in plan.regions],
        "opaque": [
            _op(graph.by_name[name]) | {"reason": graph.by_name[name].reason}
            for name in plan.opaque
        ],
        "edges": [_edge(verdict) for verdict in edges(plan)],
        "values": {name: _value(graph, name) for name in graph.values},
        "passes": [
            {
                "name": record.name,
                "ms": round(record.milliseconds, 3),
                "before": record.before,
                "after": record.after,
            }
            for record in plan.passes
        ],
    }


def totals(plan: FusionPlan, kernels: Sequence[RegionKernels] = ()) -> Fields:
    """Counts over the whole plan; bytes and times leave out the opaque calls."""
    costs = [region.cost for region in plan.regions]
    names = kernel_names(kernels)
    return {
        "ops": len(plan.graph.ops),
        "kernels": sum(_kernel_count(region, names.get(region.name)) for region in plan.regions),
        "opaque_calls": len(plan.opaque),
        "bytes": sum(cost.bytes for cost in costs),
        "unfused_bytes": sum(cost.unfused_bytes for cost in costs),
        "predicted_us": round(sum(cost.time_us for cost in costs), 3),
        "unfused_us": round(sum(cost.unfused_us for cost in costs), 3),
    }


def edges(plan: FusionPlan) -> tuple[Verdict, ...]:
    """The verdicts, each once: a reader of two results of one call has two equal ones."""
    return tuple(dict.fromkeys(plan.verdicts))


def kernel_names(kernels: Sequence[RegionKernels]) -> Mapping[str, tuple[str, ...]]:
    """Region name to the names of its kernels, in launch order."""
    return {item.region: tuple(spec.name for spec in item.kernels) for item in kernels}


def operation(op: Op) -> str:
    """The op's row in the op table, or the torch call that an opaque op makes."""
    return op.call.name if op.is_opaque else op.kind


def value_bytes(graph: Graph, name: str) -> int:
    """Bytes of the whole value, with size hints in place of unknown sizes."""
    return evaluate(graph.values[name].type.bytes, graph.hints)


def _kernel_count(region: Region, names: Sequence[str] | None) -> int:
    """The region's kernels, or how many it will become where they are not generated yet."""
    if names is not None:
        return len(names)
    return 2 if region.strategy is Strategy.SPLIT else 1


def _region(graph: Graph, region: Region, names: Sequence[str]) -> Fields:
    cost = region.cost
    return {
        "name": region.name,
        "kind": region.kind.value,
        "strategy": region.strategy.value,
        "axes": [
            {"name": axis.name, "size": _size(axis.size), "reduced": axis.is_reduced}
            for axis in region.space.axes
        ],
        "ops": [_op(graph.by_name[name]) for name in region.ops],
        "recomputed": list(region.recomputed),
        "inputs": list(region.inputs),
        "outputs": list(region.outputs),
        "bytes": cost.bytes,
        "unfused_bytes": cost.unfused_bytes,
        "flops": cost.flops,
        "predicted": {
            "time_us": round(cost.time_us, 3),
            "unfused_us": round(cost.unfused_us, 3),
            "bound": cost.bound,
        },
        "kernels": list(names),
    }


def _op(op: Op) -> Fields:
    return {
        "name": op.name,
        "op": operation(op),
        "source": str(op.source),
        "module": op.source.module,
    }


def _edge(verdict: Verdict) -> Fields:
    return {
        "producer": verdict.producer,
        "consumer": verdict.consumer,
        "fused": verdict.fused,
        "code": verdict.reason.name.lower(),
        "reason": verdict.text,
    }


def _value(graph: Graph, name: str) -> Fields:
    kind = graph.values[name].type
    return {
        "dtype": kind.dtype.value,
        "shape": [_size(size) for size in kind.shape],
        "stride": [_size(step) for step in kind.stride],
        "bytes": value_bytes(graph, name),
    }


def _size(dim: Dim) -> int | str:
    return dim if isinstance(dim, int) else python_text(dim)
