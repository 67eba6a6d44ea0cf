"""The records of a plan, as `fuser.dump.record` defines them.

In: a plan, the kernels of its steps, what they compiled to, and the memory it needs. Out: a
`PlanRecord`, or its counts alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.dump.facts import (
    NOT_COMPILED,
    CompiledKernels,
    edges,
    kernel_count,
    kernel_names,
    most,
    operation,
    predicted_us,
    tiles,
    value_bytes,
)
from fuser.dump.record import (
    AxisRecord,
    Compiled,
    CompiledKernel,
    EdgeRecord,
    LaunchRecord,
    OpaqueRecord,
    OpRecord,
    PassTime,
    Peaks,
    PlanRecord,
    Predicted,
    RegionRecord,
    SharedRecord,
    SiblingRecord,
    Size,
    Tile,
    Totals,
    ValueRecord,
)
from fuser.ir.dim import Dim, python_text
from fuser.ir.graph import Graph, Op
from fuser.ir.kernel import Configuration, RegionKernels
from fuser.ir.plan import SCHEMA, FusionPlan
from fuser.ir.region import Region, SiblingVerdict, Verdict


def record_of(
    plan: FusionPlan,
    kernels: Sequence[RegionKernels] = (),
    resources: CompiledKernels = NOT_COMPILED,
    peaks: Peaks | None = None,
) -> PlanRecord:
    """The record of a plan, with what is known of its kernels and of its memory."""
    graph = plan.graph
    names = kernel_names(kernels)
    return PlanRecord(
        schema=SCHEMA,
        target=plan.target,
        phase=plan.phase,
        graph=graph.name,
        totals=totals(plan, kernels, peaks),
        symbols=dict(graph.hints),
        order=plan.order,
        regions=tuple(
            _region(plan, region, names.get(region.name, ()), resources) for region in plan.regions
        ),
        opaque=tuple(_opaque(graph.by_name[name]) for name in plan.opaque),
        edges=tuple(map(_edge, edges(plan))),
        values={name: _value(graph, name) for name in graph.values},
        passes=tuple(
            PassTime(item.name, round(item.milliseconds, 3), item.before, item.after)
            for item in plan.passes
        ),
        siblings=tuple(map(_sibling, plan.siblings)),
        launches=tuple(
            SharedRecord(launch.name, launch.regions, round(float(launch.saved_us), 3))
            for launch in plan.launches
        ),
    )


def totals(
    plan: FusionPlan, kernels: Sequence[RegionKernels] = (), peaks: Peaks | None = None
) -> Totals:
    """The counts of a plan."""
    costs = [region.cost for region in plan.regions]
    return Totals(
        ops=len(plan.graph.ops),
        kernels=kernel_count(plan, kernels),
        opaque_calls=len(plan.opaque),
        bytes=sum(cost.bytes for cost in costs),
        unfused_bytes=sum(cost.unfused_bytes for cost in costs),
        predicted_us=round(predicted_us(plan), 3),
        unfused_us=round(float(sum(cost.unfused_us for cost in costs)), 3),
        peak_bytes=None if peaks is None else peaks.planned,
        eager_peak_bytes=None if peaks is None else peaks.eager,
    )


def _region(
    plan: FusionPlan, region: Region, names: Sequence[str], resources: CompiledKernels
) -> RegionRecord:
    graph, cost = plan.graph, region.cost
    return RegionRecord(
        name=region.name,
        kind=region.kind.value,
        strategy=region.strategy.value,
        axes=tuple(
            AxisRecord(axis.name, _size(axis.size), axis.is_reduced) for axis in region.space.axes
        ),
        tiles=tuple(map(_tile, tiles(region))),
        ops=tuple(_op(graph.by_name[name]) for name in region.ops),
        recomputed=region.recomputed,
        inputs=region.inputs,
        outputs=region.outputs,
        bytes=cost.bytes,
        unfused_bytes=cost.unfused_bytes,
        cached_bytes=cost.cached_bytes,
        bytes_by_size=python_text(cost.bytes_by_size),
        flops=cost.flops,
        special=cost.special,
        predicted=Predicted(
            registers=cost.needs.registers,
            shared_bytes=cost.needs.shared_bytes,
            blocks_per_processor=cost.needs.blocks_per_processor,
            occupancy=round(float(cost.needs.occupancy), 4),
            time_us=round(float(cost.time_us), 3),
            unfused_us=round(float(cost.unfused_us), 3),
            bound=cost.bound,
        ),
        notes=region.notes,
        kernels=tuple(names),
        compiled=_compiled(names, resources),
        launch=_launch(plan, region.name),
    )


def _launch(plan: FusionPlan, region: str) -> LaunchRecord | None:
    verdict = plan.launch_verdict_on.get(region)
    if verdict is None:
        return None
    shared = plan.launch_of.get(region)
    return LaunchRecord(
        "" if shared is None else shared.name, verdict.reason.name.lower(), verdict.text
    )


def _compiled(names: Sequence[str], resources: CompiledKernels) -> Compiled | None:
    found = {name: resources[name] for name in names if name in resources}
    largest = most(list(found.values()))
    if largest is None:
        return None
    return Compiled(
        largest.registers,
        largest.spills,
        largest.shared_bytes,
        tuple(
            CompiledKernel(name, item.registers, item.spills, item.shared_bytes)
            for name, item in found.items()
        ),
    )


def _tile(configuration: Configuration) -> Tile:
    return Tile(dict(configuration.blocks), configuration.num_warps)


def _op(op: Op) -> OpRecord:
    return OpRecord(op.name, operation(op), str(op.source), op.source.module)


def _opaque(op: Op) -> OpaqueRecord:
    return OpaqueRecord(op.name, operation(op), str(op.source), op.source.module, op.reason)


def _edge(verdict: Verdict) -> EdgeRecord:
    return EdgeRecord(
        producer=verdict.producer,
        consumer=verdict.consumer,
        fused=verdict.fused,
        code=verdict.reason.name.lower(),
        reason=verdict.text,
        gain_us=round(float(verdict.gain_us), 3),
    )


def _sibling(verdict: SiblingVerdict) -> SiblingRecord:
    return SiblingRecord(
        value=verdict.value,
        first=verdict.first,
        second=verdict.second,
        code=verdict.reason.name.lower(),
        reason=verdict.text,
        gain_us=round(float(verdict.gain_us), 3),
    )


def _value(graph: Graph, name: str) -> ValueRecord:
    kind = graph.values[name].type
    return ValueRecord(
        dtype=kind.dtype.value,
        shape=tuple(map(_size, kind.shape)),
        stride=tuple(map(_size, kind.stride)),
        bytes=value_bytes(graph, name),
    )


def _size(dim: Dim) -> Size:
    return dim if isinstance(dim, int) else python_text(dim)
