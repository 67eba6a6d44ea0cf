"""Facts about a plan that its text, its JSON and its drawing say in the same way.

In: a plan, its graph, or the kernels of its regions. Out: names, numbers and tuples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fuser.device import device_spec
from fuser.ir.graph import Graph, Op
from fuser.ir.kernel import Configuration, RegionKernels, Resources
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region, Verdict

CompiledKernels = Mapping[str, Resources]
"""Kernel name to what the compiler really gave it."""

NOT_COMPILED: CompiledKernels = MappingProxyType({})


def edges(plan: FusionPlan) -> tuple[Verdict, ...]:
    """The verdicts, each once: a reader of two results of one call has two equal ones."""
    return tuple(dict.fromkeys(plan.verdicts))


def kernel_names(kernels: Sequence[RegionKernels]) -> Mapping[str, tuple[str, ...]]:
    """Region name to the names of its kernels, in launch order; some are those of others too."""
    return {
        region: tuple(spec.name for spec in item.kernels)
        for item in kernels
        for region in item.regions
    }


def kernel_count(plan: FusionPlan, kernels: Sequence[RegionKernels]) -> int:
    """The kernels that are launched, or how many it will be where they are not generated yet."""
    names = kernel_names(kernels)
    return sum(
        len(names[step[0]]) if step[0] in names else plan.kernels_in(step) for step in plan.steps
    )


def predicted_us(plan: FusionPlan) -> float:
    """The predicted time of all regions, less what sharing launches saves."""
    time = sum(region.cost.time_us for region in plan.regions)
    return float(time - sum(launch.saved_us for launch in plan.launches))


def tiles(region: Region) -> tuple[Configuration, ...]:
    """The configuration that each kernel of the region runs with, in launch order."""
    return tuple(candidates[0] for candidates in region.schedule.candidates if candidates)


def has_registers(target: str) -> bool:
    """Whether kernels for the target are compiled: the interpreter allocates nothing."""
    return device_spec(target).backend != "cpu"


def compiled_of(names: Sequence[str], resources: CompiledKernels) -> Resources | None:
    """The largest needs of the named kernels; None where none is compiled."""
    return most([resources[name] for name in names if name in resources])


def operation(op: Op) -> str:
    """The op's row in the op table, or the torch call that an opaque op makes."""
    return op.call.name if op.is_opaque else op.kind


def value_bytes(graph: Graph, name: str) -> int:
    """Bytes of the whole value, with size hints in place of unknown sizes."""
    return graph.bytes_of[name]


def most(resources: Sequence[Resources]) -> Resources | None:
    """The largest need for each resource over several kernels; None for no kernel."""
    if not resources:
        return None
    return Resources(
        max(item.registers for item in resources),
        max(item.spills for item in resources),
        max(item.shared_bytes for item in resources),
    )
