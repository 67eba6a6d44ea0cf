"""A plan as an artefact: frozen plain records with one schema, which JSON saves and loads.

The names of their fields are those of the JSON. Records are equal when the plans are: pass times
and gains of edges are kept and not compared. Sizes known only at the call are texts; byte counts
and times use the sizes seen while tracing. `fuser.dump.recording` makes them of a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fuser.dump.codec import decode, encode
from fuser.errors import InvalidPlan
from fuser.ir.plan import SCHEMA

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
