"""Fusion plans: which ops run together, in which order, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fuser.ir.graph import Graph
from fuser.ir.launch import LaunchVerdict, SharedLaunch
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

    `order` lists region names and opaque op names in the order in which they run, those of a
    shared launch one after the other. `phase` is `inference`, `forward` or `backward`. `verdicts`
    are about edges, `siblings` about kernels that read the same value, have no edge between them
    and were refused to be one, `launch_verdicts` about the launch of each region.
    """

    graph: Graph
    target: str
    regions: tuple[Region, ...]
    order: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    passes: tuple[PassRecord, ...] = ()
    phase: str = "inference"
    siblings: tuple[SiblingVerdict, ...] = ()
    launches: tuple[SharedLaunch, ...] = ()
    launch_verdicts: tuple[LaunchVerdict, ...] = ()

    @cached_property
    def region_of(self) -> Mapping[str, Region]:
        """Op name to the region that owns it."""
        return {op: region for region in self.regions for op in region.ops}

    @cached_property
    def by_name(self) -> Mapping[str, Region]:
        return {region.name: region for region in self.regions}

    @cached_property
    def launch_of(self) -> Mapping[str, SharedLaunch]:
        """Region name to the launch that it shares, where it shares one."""
        return {name: launch for launch in self.launches for name in launch.regions}

    @cached_property
    def launch_verdict_on(self) -> Mapping[str, LaunchVerdict]:
        """Region name to the decision on its launch."""
        return {verdict.region: verdict for verdict in self.launch_verdicts}

    @cached_property
    def steps(self) -> tuple[tuple[str, ...], ...]:
        """What runs at once, in running order: regions that share a launch, else one name."""
        return tuple(
            self.launch_of[name].regions if name in self.launch_of else (name,)
            for name in self.order
            if name not in self.launch_of or self.launch_of[name].regions[0] == name
        )

    @cached_property
    def opaque(self) -> tuple[str, ...]:
        return tuple(op.name for op in self.graph.ops if op.is_opaque)

    @property
    def kernel_count(self) -> int:
        """Launches of generated kernels plus opaque calls that launch work of their own."""
        return sum(map(self.kernels_in, self.steps)) + len(self.opaque)

    def kernels_in(self, step: tuple[str, ...]) -> int:
        """How many kernels one of `steps` launches; an opaque call launches none of ours."""
        regions = [self.by_name[name] for name in step if name in self.by_name]
        return max((max(1, len(r.schedule.candidates)) for r in regions), default=0)
