"""Results that are stored where an input was, because the program overwrites that input with them.

In: a plan. Out: result to input. Whoever calls the graph copies such results to their inputs after
it, which costs nothing where they are there already: an optimizer's step then reads and writes each
parameter once. What a kernel stores over an input nothing reads afterwards or at the same time, and
in the kernel only the program that stores an element reads it, before it does so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fuser.ir.graph import Argument, Output
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region
from fuser.ir.space import memory_offset
from fuser.passes.access import operand_offset
from fuser.passes.unify import is_gather, result_index


def stored_in_place(plan: FusionPlan, last_use: Mapping[str, int]) -> Mapping[str, str]:
    """Values to the inputs whose memory they take; `last_use` has the position in the plan's steps
    of the last one that reads a value."""
    shown = Counter(o.argument.value for o in plan.graph.outputs if o.argument is not None)
    place = {name: position for position, step in enumerate(plan.steps) for name in step}
    found: dict[str, str] = {}
    for output in plan.graph.outputs:
        value = _whole_value(plan, output)
        if not value or shown[value] > 1 or output.into in shown or output.into in found.values():
            continue
        region = plan.region_of.get(value)
        if region is None or last_use.get(output.into, -1) > place[region.name]:
            continue
        if len(region.schedule.candidates) > 1:
            # Where its second kernel cannot be compiled, its ops need the input as it was.
            continue
        together = plan.launch_of[region.name].regions if region.name in plan.launch_of else ()
        if any(output.into in plan.by_name[other].inputs for other in {*together} - {region.name}):
            # Those that run at once may read the input before or after.
            continue
        if _reads_where_it_stores(plan, region, value, output.into):
            found[value] = output.into
    return found


def _whole_value(plan: FusionPlan, output: Output) -> str:
    """The value that an output shows as it is and that has its input's type, else nothing."""
    values, argument = plan.graph.values, output.argument
    if not output.into or argument is None or not argument.map.is_identity:
        return ""
    kind = values[argument.value].type
    return argument.value if argument.type == kind == values[output.into].type else ""


def _reads_where_it_stores(plan: FusionPlan, region: Region, value: str, into: str) -> bool:
    """Whether the region reads each element of an input only where it stores that of a value."""
    space, by_name = region.space, plan.graph.by_name
    sizes = {axis.name: axis.size for axis in space.axes}
    index, strides = space.index[value], by_name[value].type.stride
    target = memory_offset(result_index(by_name[value], index), strides).key()
    return all(
        operand_offset(operand, space.index[op.name], sizes).key() == target and not is_gather(op)
        for op in map(by_name.__getitem__, region.all_ops)
        for operand in op.operands
        if isinstance(operand, Argument) and operand.value == into
    )
