"""Regions: the groups of ops that become one kernel, and the reasons why they do or do not."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from fuser.ir.dim import Dim
from fuser.ir.kernel import Configuration
from fuser.ir.space import Space


class RegionKind(Enum):
    """What kind of kernel a region becomes."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"


class Strategy(Enum):
    """How a region's kernel walks its iteration space."""

    FLAT = "flat"
    TILED = "tiled"
    ROW_IN_REGISTERS = "row_in_registers"
    LOOPED = "looped"
    SPLIT = "split"
    PRODUCT = "product"
    DESCRIBED_PRODUCT = "described_product"
    ROWS_AND_COLUMNS = "rows_and_columns"

    @property
    def multiplies_tiles(self) -> bool:
        return self in (Strategy.PRODUCT, Strategy.DESCRIBED_PRODUCT)


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
    OTHER_PRODUCT = "the two do not multiply tile by tile"
    NOT_LINEAR = "the view between them is not a linear index"
    DATA_DEPENDENT_READ = "the reader picks elements at computed positions, so all must be stored"
    OUTPUT_NOT_COVERED = "a stored value would be computed more than once or not everywhere"
    FORBIDDEN = "you asked not to fuse them"
    DEVICE = "the two run on different devices"
    TOO_MANY_ARGUMENTS = "the kernel would take more arguments than the limit"
    TOO_MANY_OPS = "the kernel would be longer than the limit"
    TOO_MANY_REGISTERS = "the kernel would hold more values at once than its registers allow"
    TOO_MUCH_SHARED_MEMORY = "the kernel would need more shared memory than a block has"
    LOW_OCCUPANCY = "too few threads would fit on a processor to hide the latency of memory"
    SPILLS = "the compiler found no tile for the two together without spilling registers"
    PEAK_MEMORY = "fusing them would hold more memory at once than eager does"
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
class SiblingVerdict:
    """Why two kernels that read the same value, and not each other, are not one.

    `first` and `second` are an op of each that reads `value`. `gain_us` is as for a `Verdict`.
    """

    value: str
    first: str
    second: str
    reason: Reason
    detail: str = ""
    gain_us: float = field(default=0.0, compare=False)

    @property
    def text(self) -> str:
        return f"{self.reason.value} ({self.detail})" if self.detail else self.reason.value


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a region's kernels walk its space.

    `candidates` has the configurations of each kernel in launch order: the one that the model
    prefers first, each next one with a smaller tile. `parts` is the number of programs that share
    a row, or all rows where each leaves its part of the columns. `otherwise` takes over at calls
    that this schedule's kernels cannot serve, and where the compiler has no tile for them.
    """

    strategy: Strategy
    candidates: tuple[tuple[Configuration, ...], ...] = ()
    parts: int = 1
    across: tuple[str, ...] = ()
    """Axes of the first side of a tile over two; the second side has the axes `along`. Of a product
    they are its rows and its columns."""
    along: tuple[str, ...] = ()
    otherwise: Schedule | None = None

    @property
    def by_pointers(self) -> Schedule:
        """The one that has a program for each tile, whatever is aligned."""
        return self.otherwise or self


@dataclass(frozen=True, slots=True)
class Needs:
    """What one thread and one block of a region's largest kernel are predicted to take up."""

    registers: int = 0
    """32-bit registers of a thread."""
    shared_bytes: int = 0
    """Shared memory of a block."""
    blocks_per_processor: int = 1
    occupancy: float = 1.0
    """Resident threads as a fraction of those that a processor can hold."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a region is predicted to need, with size hints in place of unknown sizes."""

    bytes: int = 0
    """Bytes that the fused kernel moves to and from device memory."""
    unfused_bytes: int = 0
    """Bytes that the same ops move when each runs alone."""
    bytes_by_size: Dim = 0
    """`bytes` as an expression over the sizes that are known only at the call."""
    cached_bytes: int = 0
    """Bytes that L2 serves, whole sectors each: reads that are repeated or use a part of one."""
    flops: int = 0
    """Arithmetic operations, special functions counted by their table weight."""
    special: int = 0
    """Evaluations of special functions: exponentials, roots, divisions."""
    needs: Needs = Needs()
    time_us: float = 0.0
    """Launch plus the longer of memory and arithmetic time."""
    unfused_us: float = 0.0
    """The sum of the same estimate over the ops run alone."""
    bound: str = "memory"
    """What the time is made of: `memory`, `compute` or `launch`."""


@dataclass(frozen=True, slots=True)
class Region:
    """Ops that become one kernel (two where programs leave parts of a reduction).

    `ops` are owned by this region alone; `recomputed` are cheap ops that another region owns and
    this one computes again. `inputs` and `outputs` are value names in the order of the kernel's
    arguments.
    """

    name: str
    kind: RegionKind
    schedule: Schedule
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    space: Space
    recomputed: tuple[str, ...] = ()
    cost: Cost = Cost()
    notes: tuple[str, ...] = ()
    """What the compiler's answer changed about the region, in words."""

    @property
    def strategy(self) -> Strategy:
        return self.schedule.strategy

    @property
    def all_ops(self) -> tuple[str, ...]:
        """Everything the kernel computes, in program order."""
        return self.recomputed + self.ops
