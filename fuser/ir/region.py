"""Regions: the groups of ops that become one kernel, and the reasons why they do or do not."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from fuser.ir.space import Space


class RegionKind(Enum):
    """What kind of kernel a region becomes."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"


class Strategy(Enum):
    """How a region's kernel walks its iteration space."""

    FLAT = "flat"
    ROW_IN_REGISTERS = "row_in_registers"
    LOOPED = "looped"
    SPLIT = "split"


class Reason(Enum):
    """Why an edge was fused or refused. The value is the text a model author reads."""

    FUSED = "fused: the value stays in registers"
    FUSED_AND_STORED = "fused: the value stays in registers and is stored once for other readers"
    RECOMPUTED = "fused: cheaper to compute again in the reader than to load"
    OPAQUE_PRODUCER = "the producer runs as its original call"
    OPAQUE_READER = "the reader runs as its original call"
    CYCLE = "fusing would make the kernel wait for its own result through another one"
    OTHER_SPACE = "the two loop over different index spaces"
    OTHER_REDUCTION = "the two reduce over different axes"
    NOT_LINEAR = "the view between them is not a linear index"
    DATA_DEPENDENT_READ = "the reader picks elements at computed positions, so all must be stored"
    OUTPUT_NOT_COVERED = "a stored value would be computed more than once or not everywhere"
    ORDER = "an op with side effects stands between them"
    FORBIDDEN = "you asked not to fuse them"
    DEVICE = "the two run on different devices"
    TOO_MANY_ARGUMENTS = "the kernel would take more arguments than the limit"
    TOO_MANY_LIVE_VALUES = "the kernel would hold more values at once than registers allow"
    TOO_MANY_OPS = "the kernel would be longer than the limit"
    NO_GAIN = "fusing is not predicted to save time"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on one producer-consumer edge.

    `gain_us` is the predicted time that fusing would have saved, 0 where it was fused, would have
    saved nothing, or could not be asked because one of the two runs as its original call. It is
    an estimate beside the decision and no part of what makes two verdicts equal.
    """

    producer: str
    consumer: str
    fused: bool
    reason: Reason
    detail: str = ""
    gain_us: float = field(default=0.0, compare=False)

    @property
    def text(self) -> str:
        return f"{self.reason.value} ({self.detail})" if self.detail else self.reason.value


@dataclass(frozen=True, slots=True)
class Cost:
    """What a region is predicted to need, with size hints in place of unknown sizes."""

    bytes: int = 0
    """Bytes that the fused kernel reads and writes."""
    unfused_bytes: int = 0
    """Bytes that the same ops read and write when each runs alone."""
    flops: int = 0
    """Arithmetic operations, special functions counted by their table weight."""
    time_us: float = 0.0
    """Launch plus the longer of memory and arithmetic time."""
    unfused_us: float = 0.0
    """The sum of the same estimate over the ops run alone."""
    bound: str = "memory"
    """What the time is made of: `memory`, `compute` or `launch`."""


@dataclass(frozen=True, slots=True)
class Region:
    """Ops that become one kernel (two for a split reduction).

    `ops` are owned by this region alone; `recomputed` are cheap ops that another region owns and
    this one computes again. `inputs` and `outputs` are value names in the order of the kernel's
    arguments.
    """

    name: str
    kind: RegionKind
    strategy: Strategy
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    space: Space
    recomputed: tuple[str, ...] = ()
    cost: Cost = Cost()

    @property
    def all_ops(self) -> tuple[str, ...]:
        """Everything the kernel computes, in program order."""
        return self.recomputed + self.ops
