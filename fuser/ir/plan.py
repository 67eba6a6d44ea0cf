"""Fusion plans: which ops run together, in which order, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fuser.ir.graph import Graph
from fuser.ir.region import Region, SiblingVerdict, Verdict

SCHEMA = 2


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One pass that made the plan: how long it took and how many ops or regions it left."""

    name: str
    milliseconds: float
    before: int
    after: int


@dataclass(frozen=True)
class FusionPlan:
    """The decisions for one graph.

    `order` lists region names and opaque op names in the order in which they run. `phase` is
    `inference`, `forward` or `backward`. `verdicts` are about edges, `siblings` about kernels
    that read the same value, have no edge between them and were refused to be one.
    """

    graph: Graph
    target: str
    regions: tuple[Region, ...]
    order: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    passes: tuple[PassRecord, ...] = ()
    phase: str = "inference"
    siblings: tuple[SiblingVerdict, ...] = ()

    @cached_property
    def region_of(self) -> Mapping[str, Region]:
        """Op name to the region that owns it."""
        return {op: region for region in self.regions for op in region.ops}

    @cached_property
    def by_name(self) -> Mapping[str, Region]:
        return {region.name: region for region in self.regions}

    @cached_property
    def opaque(self) -> tuple[str, ...]:
        return tuple(op.name for op in self.graph.ops if op.is_opaque)

    @property
    def kernel_count(self) -> int:
        """Generated kernels plus opaque calls that launch work of their own."""
        return len(self.regions) + len(self.opaque)
