"""Code generation: a plan's regions to kernel specifications."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fuser.codegen.emit.kernel import Work, work_of
from fuser.codegen.emit.pointwise import pointwise_kernels
from fuser.codegen.emit.product import product_kernels
from fuser.codegen.emit.reduction import looped_kernels, row_kernels
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
}


def generate(plan: FusionPlan, rounds_everywhere: bool = False) -> tuple[RegionKernels, ...]:
    """The kernels of every region, in the plan's region order."""
    return tuple(kernels_of(plan.graph, region, rounds_everywhere) for region in plan.regions)


def kernels_of(graph: Graph, region: Region, rounds_everywhere: bool = False) -> RegionKernels:
    """The kernels of one region."""
    work = work_of(graph, region, rounds_everywhere)
    return RegionKernels(region.name, EMITTERS[region.strategy](work))
