"""Generated product or the library's: both are measured, and the faster is kept.

In: a plan with its kernels and a way to race two ways of computing a region. Out: the plan with
both times in the notes of each region with products, and the products that are faster as the
library's, the rest of their region being kernels of its own. Regions that share a launch are raced
together. What was measured is kept by what the kernel computes, so that the same program gets the
same choice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fuser.codegen.generate import generate
from fuser.ir.graph import Graph, Op
from fuser.ir.kernel import KernelSpec, RegionKernels
from fuser.ir.ops import is_contraction
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region
from fuser.ir.timing import Memory
from fuser.passes.library import as_calls, region_graph
from fuser.passes.pipeline import plan_graph
from fuser.tune import CLEARLY


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute a region's outputs: kernels and calls, in order."""

    graph: Graph
    steps: tuple[KernelSpec | Op, ...]


Race = Callable[[Sequence[Way]], Sequence[float | None]]
"""Ways to compute the same to microseconds, taken in turn; None for one that cannot be used."""

MEASURED = "measured: the library's product"


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan with what was measured, and products with the reason why they are the library's."""

    plan: FusionPlan
    calls: Mapping[str, str]


def choose(
    plan: FusionPlan,
    kernels: Sequence[RegionKernels],
    race: Race,
    memory: Memory,
    rounds_everywhere: bool = False,
) -> Choice:
    """Measure each region with products against the library's products and kernels for the rest."""
    calls: dict[str, str] = {}
    noted: dict[str, Region] = {}
    for entry in kernels:
        launched = [plan.by_name[name] for name in entry.regions]
        products = _in_question(plan.graph, launched)
        if not products:
            continue
        ours, theirs = _times(plan, launched, products, entry, race, memory, rounds_everywhere)
        if ours is not None and theirs is not None:
            text = f"and the rest {theirs:.1f} us, one kernel {ours:.1f} us"
            for region in launched:
                note = f"{region.name}: the library {text}"
                noted[region.name] = replace(region, notes=(*region.notes, note))
            if theirs < CLEARLY * ours:
                calls |= dict.fromkeys(products, f"{MEASURED} {text}")
    regions = tuple(noted.get(region.name, region) for region in plan.regions)
    return Choice(replace(plan, regions=regions), calls)


def _in_question(graph: Graph, regions: Sequence[Region]) -> list[str]:
    """The products of a launch that may be the library's: those that nothing is fused into, and all
    where there are none such."""
    each = [[n for n in region.ops if is_contraction(graph.by_name[n])] for region in regions]
    lone = [
        names for region, names in zip(regions, each, strict=True) if names == list(region.all_ops)
    ]
    return [name for names in (lone if len(regions) > 1 and lone else each) for name in names]


def _times(
    plan: FusionPlan,
    regions: Sequence[Region],
    products: Sequence[str],
    entry: RegionKernels,
    race: Race,
    memory: Memory,
    rounds_everywhere: bool,
) -> Sequence[float | None]:
    """Microseconds of the launch's own kernels, and of the library's products with the rest."""
    key = f"{memory.key(entry.kernels[0], plan.graph.hints)}-library"
    known = memory.recall(key, 2)
    if known is not None:
        return known
    graph = region_graph(plan.graph, regions)
    apart = plan_graph(
        as_calls(graph, dict.fromkeys(products, MEASURED)),
        plan.target,
        plan.phase,
        rounds_everywhere=rounds_everywhere,
    )
    steps: list[KernelSpec | Op] = []
    made = {each.regions: each.kernels for each in generate(apart, rounds_everywhere)}
    for step in apart.steps:
        steps += made.get(step) or [apart.graph.by_name[name] for name in step]
    found = race([Way(graph, entry.kernels), Way(apart.graph, tuple(steps))])
    times = [None if time is None else float(time) for time in found]
    memory.write(key, json.dumps(times))
    return times
