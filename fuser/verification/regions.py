"""One region against its ops run unfused, in eager and in float64.

In: a plan, a region, the values there were before it ran and what it stored. Out: a check for each
stored value, or the error that names the first one that is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fuser.capture.backend import CompileContext
from fuser.errors import FusionMismatch
from fuser.ir.dim import evaluate
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region, Strategy
from fuser.numerics import Comparison, compare
from fuser.runtime.executable import Executable
from fuser.runtime.unfused import run_ops
from fuser.verification.report import RegionCheck


def check_region(
    plan: FusionPlan,
    region: Region,
    before: Mapping[str, Any],
    outputs: Mapping[str, Any],
    symbols: Mapping[str, int],
    context: CompileContext,
) -> list[RegionCheck]:
    """Compare the stored values of one region with its ops run unfused on the same inputs."""
    graph = plan.graph
    eager, exact = dict(before), dict(before)
    run_ops(graph, region.all_ops, eager, symbols)
    run_ops(graph, region.all_ops, exact, symbols, precision=torch.float64)
    row = evaluate(region.space.reduced_size, symbols)
    if region.strategy is Strategy.ROWS_AND_COLUMNS:
        row = max(row, evaluate(region.space.parallel_size, symbols))
    steps = len(region.all_ops) + math.ceil(math.log2(row + 1))
    return [
        RegionCheck(
            context.graph_index, context.phase, region.name, name,
            tuple(graph.by_name[op].kind for op in region.ops),
            str(graph.by_name[name].source),
            compare(outputs[name], eager[name], exact[name], steps),
        )
        for name in region.outputs
    ]  # fmt: skip


def host_difference(
    executable: Executable, inputs: list[Any], walked: Sequence[Any]
) -> tuple[str, Comparison] | None:
    """The first value that the host program returns otherwise than the same kernels one by one.

    `inputs` are emptied; `walked` is what they give to `Executable.walk` from the random state that
    there is now.
    """
    returned = executable(inputs)
    for output, mine, theirs in zip(executable.plan.graph.outputs, returned, walked, strict=True):
        if isinstance(theirs, torch.Tensor) and output.argument is not None:
            comparison = compare(mine, theirs, theirs.double())
            if not comparison.is_right:
                return output.argument.value, comparison
    return None


def raise_first(checks: Sequence[RegionCheck], detail: str = "") -> None:
    """Raise `FusionMismatch` for the first check that failed; `detail` is added to its reason."""
    for check in checks:
        if not check.comparison.is_right:
            where = f"{check.region} ({check.phase} graph {check.graph}), value %{check.value}"
            raise mismatch(where, check.operations, check.source, check.comparison, detail)


def mismatch(
    region: str,
    operations: tuple[str, ...],
    source: str,
    comparison: Comparison,
    detail: str = "",
) -> FusionMismatch:
    return FusionMismatch(
        region=region,
        operations=operations,
        source_line=source,
        index=comparison.index,
        fused_value=comparison.fused_value,
        eager_value=comparison.eager_value,
        reference_value=comparison.reference_value,
        fused_error=comparison.fused_error,
        eager_error=comparison.eager_error,
        detail="; ".join(filter(None, (comparison.reason, detail))),
    )
