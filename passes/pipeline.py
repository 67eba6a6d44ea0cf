"""The planner: graph in, plan out, as an ordered tuple of steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from fuser import config
from fuser.device import DeviceSpec, device_spec
from fuser.dump.stages import NO_STAGES, Stages
from fuser.ir.check import check_graph, check_plan
from fuser.ir.graph import Graph
from fuser.ir.plan import FusionPlan, PassRecord
from fuser.ir.rules import FusionRule, apply, check_asserted
from fuser.passes.approximate import approximate
from fuser.passes.base import NO_CUTS, Cuts, Limits
from fuser.passes.canonicalize import merge_equal_ops, remove_unused_ops
from fuser.passes.decide import Decisions, decide
from fuser.passes.launches import share_launches
from fuser.passes.library import as_calls, lone_products
from fuser.passes.narrow import gather_early, sum_one_hot
from fuser.passes.slices import joined, split_products

Rewrite = Callable[[Graph], Graph]

REWRITES: tuple[Rewrite, ...] = (
    gather_early,
    sum_one_hot,
    # After both, because rows of which one element is used may have no reader left.
    merge_equal_ops,
    # After merging, because the copies that lost their readers are then unused.
    remove_unused_ops,
    # After both, because who reads a product decides, and equal products are read as one.
    split_products,
)
APPROXIMATIONS: tuple[Rewrite, ...] = (
    # Last, because who reads a value decides; not at all where every op rounds as in eager, for
    # there the results are eager's bit for bit.
    approximate,
)


def plan_graph(
    graph: Graph,
    target: str,
    phase: str = "inference",
    stages: Stages = NO_STAGES,
    rules: Sequence[FusionRule] = (),
    cuts: Cuts = NO_CUTS,
    rounds_everywhere: bool = False,
    unshared: Collection[str] = (),
) -> FusionPlan:
    """Rewrite the graph, partition it for `target` and record what each step did.

    `cuts` are pairs of ops that an earlier plan could not keep in one kernel, `unshared` ops
    whose regions could not share a launch.
    `rounds_everywhere` says that kernels will round after every op, to eager's results.

    Raises `MustFuseError` or `AssertFusedError` where a rule cannot be or was not kept.
    """
    is_checked = config.check()
    stages.graph("import", graph)
    if is_checked:
        check_graph(graph, "import")
    records: list[PassRecord] = []
    for rewrite in (*REWRITES, *(() if rounds_everywhere else APPROXIMATIONS)):
        start = time.perf_counter()
        before = len(graph.ops)
        graph = rewrite(graph)
        records.append(_record(rewrite.__name__, start, before, len(graph.ops)))
        stages.graph(rewrite.__name__, graph)
        if is_checked:
            check_graph(graph, rewrite.__name__)
    start = time.perf_counter()
    # The backward of a model has few of its modules and lines: there a rule may well be idle.
    requests = apply(rules, graph, warn=phase != "backward")
    device = device_spec(target)
    decided = decide(graph, device, Limits(), requests, cuts)
    while alone := _left_alone(graph, decided, device, unshared):
        # Around a call other merges may be best: all is decided anew. So it is around a product
        # that is whole again.
        whole = joined(graph, alone)
        if whole is graph:
            graph = as_calls(graph, alone)
        else:
            graph, requests = whole, apply(rules, whole, warn=phase != "backward")
        decided = decide(graph, device, Limits(), requests, cuts)
    records.append(_record("partition", start, len(graph.ops), len(decided.order)))
    start = time.perf_counter()
    shared = share_launches(graph, decided.regions, decided.order, device, decided.peak, unshared)
    plan = FusionPlan(
        graph,
        target,
        shared.regions,
        shared.order,
        decided.verdicts,
        phase=phase,
        siblings=decided.siblings,
        launches=shared.launches,
        launch_verdicts=shared.verdicts,
    )
    records.append(_record("share_launches", start, len(decided.order), len(plan.steps)))
    plan = replace(plan, passes=tuple(records))
    if is_checked:
        check_plan(plan, "share_launches")
    check_asserted(requests, plan)
    return plan


def _left_alone(
    graph: Graph, decided: Decisions, device: DeviceSpec, unshared: Collection[str]
) -> Mapping[str, str]:
    """The products that nothing is fused into and that share no launch, and why they are calls.

    Of a product in slices a slice is no product by itself: the whole is one call.
    """
    alone = lone_products(decided, graph)
    if not alone:
        return alone
    shared = share_launches(graph, decided.regions, decided.order, device, decided.peak, unshared)
    together = {name for launch in shared.launches for name in launch.regions}
    ops = {op for region in shared.regions if region.name in together for op in region.ops}
    ops = {name for name in ops if graph.by_name[name].part is None}
    return {name: reason for name, reason in alone.items() if name not in ops}


def _record(name: str, start: float, before: int, after: int) -> PassRecord:
    return PassRecord(name, (time.perf_counter() - start) * 1e3, before, after)
