"""A plan as an artefact: frozen plain records with one schema, which JSON saves and loads.

In: a plan, the kernels of its regions, what they compiled to, and the memory it needs; or the data
of a saved plan. Out: a `PlanRecord`. The names of its fields are those of the JSON. Records are
equal when the plans are: pass times and gains of edges are kept and not compared. Sizes known only
at the call are texts; byte counts and times use the sizes seen while tracing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuser.dump.codec import decode, encode
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
from fuser.errors import InvalidPlan
from fuser.ir.dim import Dim, python_text
from fuser.ir.graph import Graph, Op
from fuser.ir.kernel import Configuration, RegionKernels
from fuser.ir.plan import SCHEMA, FusionPlan
from fuser.ir.region import Region, SiblingVerdict, Verdict

Size = int | str
"""A number, or the text of an expression over `symbols`."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most memory that stored values need at once, as planned and in eager."""

    planned: int
    eager: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over the whole plan; bytes and times leave out the opaque calls."""

    ops: int
    kernels: int
    opaque_calls: int
    bytes: int
    unfused_bytes: int
    predicted_us: float
    unfused_us: float
    peak_bytes: int | None = None
    eager_peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One op: its row of the op table or its torch call, and where it comes from."""

    name: str
    op: str
    source: str
    module: str


@dataclass(frozen=True, slots=True)
class OpaqueRecord:
    """An op that runs as its original call, and why."""

    name: str
    op: str
    source: str
    module: str
    reason: str


@dataclass(frozen=True, slots=True)
class AxisRecord:
    """One loop of a region."""

    name: str
    size: Size
    reduced: bool


@dataclass(frozen=True, slots=True)
class Tile:
    """How one kernel of a region is launched: elements of a program's tile, and its warps."""

    blocks: Mapping[str, int]
    warps: int


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the cost model expects of a region; resources are those of its largest kernel."""

    registers: int
    shared_bytes: int
    blocks_per_processor: int
    occupancy: float
    time_us: float
    unfused_us: float
    bound: str


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What the compiler gave one kernel."""

    name: str
    registers: int
    spills: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """The largest needs over a region's kernels, and those of each."""

    registers: int
    spills: int
    shared_bytes: int
    kernels: tuple[CompiledKernel, ...]


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """Whether a region shares its launch; `name` is that of the launch, empty for its own one."""

    name: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class RegionRecord:
    """Ops that run as one kernel (a split reduction as two); `compiled` only where asked for."""

    name: str
    kind: str
    strategy: str
    axes: tuple[AxisRecord, ...]
    tiles: tuple[Tile, ...]
    ops: tuple[OpRecord, ...]
    recomputed: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bytes: int
    unfused_bytes: int
    cached_bytes: int
    bytes_by_size: str
    flops: int
    special: int
    predicted: Predicted
    notes: tuple[str, ...]
    kernels: tuple[str, ...]
    compiled: Compiled | None = None
    launch: LaunchRecord | None = None
    """Not in plans that were saved before there were any; so are `launches` of the plan."""


@dataclass(frozen=True, slots=True)
class SharedRecord:
    """Regions that run at once, with the predicted time that sharing saves."""

    name: str
    regions: tuple[str, ...]
    saved_us: float


@dataclass(frozen=True, slots=True)
class EdgeRecord:
    """The decision on one producer-consumer edge; `code` names its reason.

    `gain_us` is the predicted time that fusing would have saved.
    """

    producer: str
    consumer: str
    fused: bool
    code: str
    reason: str
    gain_us: float = field(compare=False)


@dataclass(frozen=True, slots=True)
class SiblingRecord:
    """Two ops that read the same value in kernels that were refused to be one."""

    value: str
    first: str
    second: str
    code: str
    reason: str
    gain_us: float = field(compare=False)


@dataclass(frozen=True, slots=True)
class ValueRecord:
    """A tensor of the graph."""

    dtype: str
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class PassTime:
    """A pass that made the plan: its time, and the ops or regions before and after it."""

    name: str
    ms: float = field(compare=False)
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A whole plan; every op of the graph is in one region or in `opaque`."""

    schema: int
    target: str
    phase: str
    graph: str
    totals: Totals
    symbols: Mapping[str, int]
    order: tuple[str, ...]
    regions: tuple[RegionRecord, ...]
    opaque: tuple[OpaqueRecord, ...]
    edges: tuple[EdgeRecord, ...]
    values: Mapping[str, ValueRecord]
    passes: tuple[PassTime, ...]
    siblings: tuple[SiblingRecord, ...] = ()
    """Not in plans that were saved before there were any."""
    launches: tuple[SharedRecord, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The record as nested plain data."""
        data: dict[str, Any] = encode(self)
        return data

    @classmethod
    def from_dict(cls, data: Any) -> PlanRecord:
        """The record that `to_dict` made the data from; `InvalidPlan` for any other data."""
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema is None:
            raise InvalidPlan(reason="this is not a plan: there is no schema number.")
        if schema != SCHEMA or isinstance(schema, bool):
            raise InvalidPlan(
                reason=f"the plan has schema {schema!r}; this version of fuser reads {SCHEMA}."
            )
        return decode(cls, data)


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
