"""A plan that the compiler agrees with: no kernel spills registers, each fits into a block.

In: a plan with its kernels and a way to compile them. Out: the same with what the compiler said. A
kernel that spills gets its next smaller tile. A region of which every tile spills is cut in two
where that costs least, and the graph is planned again with the two sides apart. Regions whose
shared kernel spills, or does not compile, get launches of their own. The plan says so:
`Region.notes` for tiles, the verdict of an edge for a cut, that of a region for its launch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fuser.codegen.generate import generate
from fuser.ir.kernel import Configuration, KernelSpec, RegionKernels, Resources
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Reason, Region
from fuser.ir.rules import FusionRule, apply
from fuser.log import get_logger
from fuser.passes.base import Cuts
from fuser.passes.decide import cut_region

Compile = Callable[[Sequence[KernelSpec]], Sequence[Resources | str]]
"""Kernels to what their first configurations need, or to the compiler's complaint."""

Replan = Callable[[Cuts, Collection[str]], FusionPlan]
"""The plan of the same graph with pairs of ops apart, and ops whose regions share no launch."""

MOST_CUTS = 64
"""Regions that are cut before the rest is left as it is."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A plan, its kernels, and by kernel name what they compiled to."""

    plan: FusionPlan
    kernels: tuple[RegionKernels, ...]
    resources: Mapping[str, Resources | str]


def fit(
    plan: FusionPlan,
    compile_kernels: Compile,
    replan: Replan,
    rounds_everywhere: bool = False,
    rules: Sequence[FusionRule] = (),
) -> Fitted:
    """Compile every kernel of the plan, and change the plan until none spills.

    What `rules` want in one kernel stays there, spilling or not.
    """
    requests = apply(rules, plan.graph, warn=False)
    known: dict[tuple[str, Configuration], Resources | str] = {}
    cuts: dict[tuple[str, str], Reason] = {}
    unshared: set[str] = set()
    made = 0
    while True:
        kernels = generate(plan, rounds_everywhere=rounds_everywhere)
        specs = [spec for entry in kernels for spec in entry.kernels]
        _compile_new(specs, known, compile_kernels)
        smaller: dict[str, Region] = {}
        found: dict[tuple[str, str], Reason] = {}
        failed: set[str] = set()
        for entry in kernels:
            if len(entry.regions) > 1:
                if not all(_fits(known[_what(spec)]) for spec in entry.kernels):
                    failed.update(op for name in entry.regions for op in plan.by_name[name].ops)
                continue
            region = plan.by_name[entry.regions[0]]
            changed = _smaller(region, entry.kernels, known)
            if changed is None and len(region.ops) > 1 and made < MOST_CUTS:
                pairs = cut_region(plan, region, requests)
                found.update(dict.fromkeys(pairs, Reason.SPILLS))
                made += bool(pairs)
            elif changed is not None and changed is not region:
                smaller[region.name] = changed
        if found.keys() - cuts.keys() or failed:
            cuts.update(found)
            unshared |= failed
            get_logger("fit").info("%d pairs of ops are kept apart", len(cuts))
            plan = replan(cuts, unshared)
        elif smaller:
            regions = tuple(smaller.get(region.name, region) for region in plan.regions)
            plan = replace(plan, regions=regions)
        else:
            needs = {spec.name: known[_what(spec)] for spec in specs}
            return Fitted(plan, kernels, needs)


def _what(spec: KernelSpec) -> tuple[str, Configuration]:
    return spec.key, spec.configurations[0]


def _fits(needs: Resources | str) -> bool:
    return isinstance(needs, Resources) and not needs.spills


def _compile_new(
    specs: Sequence[KernelSpec],
    known: dict[tuple[str, Configuration], Resources | str],
    compile_kernels: Compile,
) -> None:
    waiting = {_what(spec): spec for spec in specs if _what(spec) not in known}
    known.update(zip(waiting, compile_kernels(list(waiting.values())), strict=True))


def _smaller(
    region: Region,
    specs: Sequence[KernelSpec],
    known: Mapping[tuple[str, Configuration], Resources | str],
) -> Region | None:
    """The region with the next tile for each kernel that spills: itself where none does, None
    where a kernel has no tile left."""
    candidates = list(region.schedule.candidates)
    notes = list(region.notes)
    for position, spec in enumerate(specs):
        needs = known[_what(spec)]
        if not isinstance(needs, Resources) or not needs.spills:
            continue
        notes.append(f"{spec.name}: {_text(spec)} spilled {needs.spills} registers")
        if len(candidates[position]) == 1:
            otherwise = region.schedule.otherwise
            if otherwise is None:
                return None
            return replace(region, schedule=otherwise, notes=tuple(notes))
        candidates[position] = candidates[position][1:]
    if len(notes) == len(region.notes):
        return region
    schedule = replace(region.schedule, candidates=tuple(candidates))
    return replace(region, schedule=schedule, notes=tuple(notes))


def _text(spec: KernelSpec) -> str:
    tile = spec.configurations[0]
    blocks = " ".join(f"{name}={size}" for name, size in tile.blocks)
    return f"{blocks} with {tile.num_warps} warps"
