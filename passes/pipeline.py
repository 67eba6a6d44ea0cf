"""The planner: graph in, plan out, as an ordered tuple of steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fuser import config
from fuser.device import device_spec
from fuser.dump.stages import NO_STAGES, Stages
from fuser.ir.check import check_graph, check_plan
from fuser.ir.graph import Graph
from fuser.ir.plan import FusionPlan, PassRecord
from fuser.ir.rules import FusionRule, apply, check_asserted
from fuser.passes.base import Limits
from fuser.passes.canonicalize import merge_equal_ops, remove_unused_ops
from fuser.passes.partition import Partitioner

Rewrite = Callable[[Graph], Graph]

REWRITES: tuple[Rewrite, ...] = (
    merge_equal_ops,
    # After merging, because the copies that lost their readers are then unused.
    remove_unused_ops,
)


def plan_graph(
    graph: Graph,
    target: str,
    phase: str = "inference",
    stages: Stages = NO_STAGES,
    rules: Sequence[FusionRule] = (),
) -> FusionPlan:
    """Rewrite the graph, partition it for `target` and record what each step did.

    Raises `MustFuseError` or `AssertFusedError` where a rule cannot be or was not kept.
    """
    is_checked = config.check()
    stages.graph("import", graph)
    if is_checked:
        check_graph(graph, "import")
    records: list[PassRecord] = []
    for rewrite in REWRITES:
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
    partitioner = Partitioner(graph, device_spec(target), Limits(), requests)
    regions, order, verdicts = partitioner.run()
    records.append(_record("partition", start, len(graph.ops), len(order)))
    plan = FusionPlan(graph, target, regions, order, verdicts, tuple(records), phase)
    if is_checked:
        check_plan(plan, "partition")
    check_asserted(requests, plan)
    return plan


def _record(name: str, start: float, before: int, after: int) -> PassRecord:
    return PassRecord(name, (time.perf_counter() - start) * 1e3, before, after)
