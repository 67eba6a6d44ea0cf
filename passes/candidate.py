"""What one kernel of some ops would be: its space, schedule, needs and cost, or what forbids it.

In: a graph, ops in program order, which of their values are stored, a device and the limits. Out: a
`Candidate`; raises `Refused` with the first hard limit that the kernel would break.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuser.device import DeviceSpec
from fuser.ir.graph import Graph, Op
from fuser.ir.ops import is_contraction
from fuser.ir.region import Cost, Reason, Schedule
from fuser.ir.space import Space
from fuser.passes.access import Access, accesses, primary_access
from fuser.passes.base import Limits
from fuser.passes.columns import obstacle, part_bytes, result_folds
from fuser.passes.contraction import is_of_one_row
from fuser.passes.cost import Walk, region_cost
from fuser.passes.crossing import rows_schedule, tiled_schedule
from fuser.passes.product import fastest, product_kernels
from fuser.passes.resources import needs_of
from fuser.passes.schedule import schedules_for
from fuser.passes.unify import NoSpace, unify


@dataclass(frozen=True, slots=True)
class Candidate:
    """Ops as one kernel."""

    space: Space
    schedule: Schedule
    cost: Cost


class Refused(Exception):
    """The ops cannot be one kernel; `reason` and `detail` say why."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(reason.value, detail)
        self.reason = reason
        self.detail = detail


def candidate_for(
    graph: Graph,
    ops: Sequence[Op],
    stored: frozenset[str],
    device: DeviceSpec,
    limits: Limits,
) -> Candidate:
    """The kernel of these ops; raises `Refused`."""
    devices = {op.type.device for op in ops}
    if len(devices) > 1:
        raise Refused(Reason.DEVICE, ", ".join(sorted(devices)))
    if len(ops) > limits.ops:
        raise Refused(Reason.TOO_MANY_OPS, f"{len(ops)} > {limits.ops}")
    arguments = len(outside_values(ops)) + len(stored)
    if arguments > limits.arguments:
        raise Refused(Reason.TOO_MANY_ARGUMENTS, f"{arguments} > {limits.arguments}")
    try:
        space = unify(graph, ops, stored, limits.ops)
    except NoSpace as failure:
        raise Refused(failure.reason, failure.detail) from None
    detail = obstacle(ops, space)
    if detail:
        raise Refused(Reason.OTHER_REDUCTION, detail)
    found = accesses(graph, ops, stored, space)
    # Rows are summed where there are no products, and where there is nothing for tiles to share.
    walks_rows = is_of_one_row(ops) and not (space.halved or result_folds(ops, space))
    made = _reductions(graph, ops, stored, space, found, device) if walks_rows else []
    if any(map(is_contraction, ops)):
        try:
            most = limits.registers
            kernel = fastest(product_kernels(graph, ops, stored, space, found, device, most))
            made.insert(0, Candidate(space, kernel.schedule, kernel.cost))
        except NoSpace as failure:
            if not made:
                raise Refused(failure.reason, failure.detail) from None
    best = min(made, key=lambda candidate: candidate.cost.time_us)
    _check(best, device, limits)
    return best


def _reductions(
    graph: Graph,
    ops: Sequence[Op],
    stored: frozenset[str],
    space: Space,
    found: Sequence[Access],
    device: DeviceSpec,
) -> list[Candidate]:
    """The kernels that walk elements or rows."""
    primary = primary_access(found)
    schedules = list(schedules_for(graph, ops, stored, space, primary, device))
    tiled = tiled_schedule(graph, space, found, primary, device)
    rows = rows_schedule(graph, space, found, primary, device) if tiled is None else None
    schedules += [schedule for schedule in (tiled, rows) if schedule is not None]
    made: list[Candidate] = []
    for schedule in schedules:
        needs = needs_of(graph, ops, stored, space, schedule, device, found)
        walk = Walk.of(graph, space, schedule, primary)
        left = part_bytes(graph, ops, space, schedule)
        cost = region_cost(graph, ops, stored, walk, found, schedule, needs, device, left)
        made.append(Candidate(space, schedule, cost))
    return made


def _check(candidate: Candidate, device: DeviceSpec, limits: Limits) -> None:
    needs = candidate.cost.needs
    registers = min(limits.registers, device.max_registers_per_thread)
    if needs.registers > registers:
        raise Refused(Reason.TOO_MANY_REGISTERS, f"{needs.registers} > {registers}")
    shared = min(limits.shared_bytes, device.shared_bytes_per_block)
    if needs.shared_bytes > shared:
        raise Refused(Reason.TOO_MUCH_SHARED_MEMORY, f"{needs.shared_bytes} > {shared}")
    # What a product loads is on its way for some steps, whatever other threads there are.
    hides_latency = candidate.schedule.strategy.multiplies_tiles
    if needs.occupancy < limits.occupancy and not hides_latency:
        raise Refused(Reason.LOW_OCCUPANCY, f"{needs.occupancy:.2f} < {limits.occupancy:.2f}")


def outside_values(ops: Sequence[Op]) -> tuple[str, ...]:
    """What the ops read and do not compute, in order."""
    inside = {op.name for op in ops}
    return tuple(dict.fromkeys(v for op in ops for v in op.reads if v not in inside))
