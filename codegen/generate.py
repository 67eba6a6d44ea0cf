"""Code generation: a plan's regions to kernel specifications."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fuser.codegen.emit.kernel import Work, work_of
from fuser.codegen.emit.pointwise import pointwise_kernels
from fuser.codegen.emit.product import described_product_kernels, product_kernels
from fuser.codegen.emit.reduction import looped_kernels, row_kernels
from fuser.codegen.emit.rows_columns import rows_and_columns_kernels
from fuser.codegen.emit.shared import shared_kernel
from fuser.codegen.emit.split import split_kernels
from fuser.codegen.emit.tiled import tiled_kernels
from fuser.ir.graph import Graph
from fuser.ir.kernel import KernelSpec, RegionKernels
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region, Strategy

EMITTERS: Mapping[Strategy, Callable[[Work], tuple[KernelSpec, ...]]] = {
    Strategy.FLAT: pointwise_kernels,
    Strategy.TILED: tiled_kernels,
    Strategy.ROW_IN_REGISTERS: row_kernels,
    Strategy.LOOPED: looped_kernels,
    Strategy.SPLIT: split_kernels,
    Strategy.PRODUCT: product_kernels,
    Strategy.DESCRIBED_PRODUCT: described_product_kernels,
    Strategy.ROWS_AND_COLUMNS: rows_and_columns_kernels,
}


def generate(plan: FusionPlan, rounds_everywhere: bool = False) -> tuple[RegionKernels, ...]:
    """The kernels of every step that has some, in the plan's running order."""
    found: list[RegionKernels] = []
    for step in plan.steps:
        own = [
            kernels_of(plan.graph, plan.by_name[name], rounds_everywhere)
            for name in step
            if name in plan.by_name
        ]
        if len(own) > 1:
            found.append(_shared(plan, step, own))
        else:
            found += own
    return tuple(found)


def _shared(plan: FusionPlan, step: tuple[str, ...], own: Sequence[RegionKernels]) -> RegionKernels:
    """The first kernels of regions that share a launch as one, and so on."""
    name = plan.launch_of[step[0]].name
    each = tuple(zip(*(entry.kernels for entry in own), strict=True))
    return RegionKernels(
        step,
        tuple(
            shared_kernel(name if len(each) == 1 else f"{name}_{end}", plan.graph, specs)
            for end, specs in zip(("partial", "combine"), each, strict=False)
        ),
    )


def kernels_of(graph: Graph, region: Region, rounds_everywhere: bool = False) -> RegionKernels:
    """The kernels of one region."""
    work = work_of(graph, region, rounds_everywhere)
    return RegionKernels((region.name,), EMITTERS[region.strategy](work))
