"""Predicted bytes, operations and time of a group of ops as one kernel.

In: the ops with their iteration space, schedule and needs. Out: a `Cost`. Time is a launch plus the
longer of memory and arithmetic time, and of rows in registers what of the shorter is not hidden.
Memory time is the longer of two: what device memory moves, each element once, and what L2 serves,
whole sectors for each read that is repeated or strided. Both are slower when too few bytes are in
flight to hide the latency of memory (Little's law).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from fuser.device import DeviceSpec
from fuser.ir.dim import Dim, evaluate, multiply, product, total
from fuser.ir.graph import Graph, Op
from fuser.ir.ops import BY_KIND, is_contraction
from fuser.ir.region import Cost, Needs, Schedule, Strategy
from fuser.ir.space import LoopAxis, Space
from fuser.passes.access import Access, order_axes
from fuser.passes.approximate import weight_of
from fuser.passes.stages import needed_in_passes

SECTOR = 32
"""Bytes that memory and caches move at least."""

NEAR_BYTES = 32 << 10
"""Of a tensor that every program reads, what a processor's own cache keeps while others pass
through it."""

LATENCY_S = 0.8e-6
"""Seconds from a load to its value while memory is busy."""

LOAD_WEIGHT = 4
"""Operations in whose time one lane loads: a processor has a quarter as many ways to its cache."""

SPECIAL_WEIGHT = 8
"""Operations from which a function of the op table counts as a special one."""


TENSOR_ADVANTAGE = 16
"""Operations of a tensor core in the time of one of the vector unit: 15 to 28 on the devices that
are known."""


def op_work(graph: Graph, op: Op) -> int:
    """Arithmetic operations of one op over its domain, in terms of the vector unit."""
    work = weight_of(op) * graph.points_of[op.name]
    return work // TENSOR_ADVANTAGE if is_contraction(op) else work


def region_cost(
    graph: Graph,
    ops: Sequence[Op],
    stored: Collection[str],
    walk: Walk,
    found: Sequence[Access],
    schedule: Schedule,
    needs: Needs,
    device: DeviceSpec,
    left: int = 0,
) -> Cost:
    """The cost of `ops` as one region; what they cost alone is for the caller to add.

    `left` are the bytes that programs leave for a second kernel to read.
    """
    traffic = _traffic(ops, stored, schedule, walk, found, needs, device).with_parts(left)
    passes = needed_in_passes(ops, stored) if schedule.strategy is Strategy.LOOPED else ()
    work = special = computed = 0
    for op in ops:
        size = graph.points_of[op.name]
        each = weight_of(op) * size
        work += each
        computed += each * max(1, sum(op.name in names for names in passes))
        special += size if BY_KIND[op.kind].weight >= SPECIAL_WEIGHT else 0
    computed += _repeated_loads(schedule, walk, found, device)
    flow = _flow(walk, traffic, needs, schedule, device)
    memory_us = 1e6 * max(traffic.moved / device.copy_rate, traffic.cached / device.l2_rate) / flow
    resident = device.processors * -(-walk.blocks // device.processors)
    # A multiply-add is two operations of the rate and one instruction; what is not contracted is
    # one of either.
    compute_us = 1e6 * computed / (device.vector_rate / 2) * resident / max(walk.blocks, 1)
    launches = len(schedule.candidates)
    bound = "compute" if compute_us > memory_us else "memory"
    if max(memory_us, compute_us) < device.launch_us:
        bound = "launch"
    busy_us = max(memory_us, compute_us)
    if _waits_for_rows(schedule) and device.backend != "cpu":
        # A block that has its row computes and loads nothing: other blocks have to, if there are.
        busy_us += min(memory_us, compute_us) / max(needs.blocks_per_processor, 1)
    return Cost(
        bytes=traffic.moved,
        bytes_by_size=bytes_by_size(graph, walk.symbolic, found, traffic.moved),
        cached_bytes=traffic.cached,
        flops=work,
        special=special,
        needs=needs,
        time_us=launches * device.launch_us + busy_us,
        bound=bound,
    )


def _waits_for_rows(schedule: Schedule) -> bool:
    """Whether a block has whole rows in registers, and loads the next ones only after them."""
    if schedule.strategy is Strategy.ROWS_AND_COLUMNS:
        return dict(schedule.candidates[0][0].blocks)["STAGES"] == 1
    return schedule.strategy is Strategy.ROW_IN_REGISTERS


def _repeated_loads(
    schedule: Schedule, walk: Walk, found: Sequence[Access], device: DeviceSpec
) -> int:
    """In operations, the loads by which each lane of a flat kernel gets a row's value itself."""
    if schedule.strategy is not Strategy.FLAT or device.backend == "cpu":
        return 0
    loads = {
        (access.value, access.offset, *sorted(access.steps.items()))
        for access in found
        if access.steps and not access.steps.keys() & walk.fast and not access.is_store
    }
    return LOAD_WEIGHT * len(loads) * prod(walk.sizes.values())


@dataclass(frozen=True, slots=True)
class Walk:
    """The axes in the order in which a kernel walks them, and how many elements its tile spans."""

    sizes: Mapping[str, int]
    """Axis to its size, outermost first: rows, then the elements of a row."""
    spans: Mapping[str, int]
    """Axis to the elements of it in one tile."""
    blocks: int
    """Programs of the largest launch."""

    symbolic: Mapping[str, Dim]
    """The sizes before unknown ones got their hints."""
    fast: frozenset[str]
    """The axes along which the lanes of a tile are neighbours."""
    walked: frozenset[str] = frozenset()
    """The axes of the rows, where a program walks them and keeps what does not depend on them."""

    @staticmethod
    def of(graph: Graph, space: Space, schedule: Schedule, primary: Access | None) -> Walk:
        rows = order_axes(space.parallel, primary)
        if schedule.strategy is Strategy.TILED:
            return Walk.in_tiles(graph, rows, schedule)
        row = order_axes(space.reduced, primary)
        sizes = {axis.name: evaluate(axis.size, graph.hints) for axis in (*rows, *row)}
        tile = schedule.candidates[0][0]
        blocks = dict(tile.blocks)
        spans = {
            **_spans(rows, sizes, blocks["XBLOCK"]),
            **_spans(row, sizes, blocks.get("RBLOCK", 1)),
        }
        symbolic = {axis.name: axis.size for axis in space.axes}
        fast = _innermost((rows, row), sizes)
        if schedule.strategy is Strategy.ROWS_AND_COLUMNS:
            walked = frozenset(axis.name for axis in rows)
            return Walk(sizes, spans, schedule.parts, symbolic, fast, walked)
        programs = schedule.parts * -(-prod(sizes[axis.name] for axis in rows) // blocks["XBLOCK"])
        return Walk(sizes, spans, programs, symbolic, fast)

    @staticmethod
    def in_tiles(graph: Graph, axes: Sequence[LoopAxis], schedule: Schedule) -> Walk:
        """The walk of tiles over two axes, with all others outside."""
        groups = [
            [axis for axis in axes if axis.name not in (*schedule.across, *schedule.along)],
            [axis for axis in axes if axis.name in schedule.across],
            [axis for axis in axes if axis.name in schedule.along],
        ]
        ordered = [axis for group in groups for axis in group]
        sizes = {axis.name: evaluate(axis.size, graph.hints) for axis in ordered}
        tile = schedule.candidates[0][0]
        blocks = (1, tile.block("XBLOCK"), tile.block("RBLOCK"))
        spans: dict[str, int] = {}
        programs = 1
        for group, block in zip(groups, blocks, strict=True):
            spans |= _spans(group, sizes, block)
            programs *= -(-prod(sizes[axis.name] for axis in group) // block)
        symbolic = {axis.name: axis.size for axis in ordered}
        return Walk(sizes, spans, programs, symbolic, _innermost(groups, sizes))


def _innermost(groups: Iterable[Sequence[LoopAxis]], sizes: Mapping[str, int]) -> frozenset[str]:
    """The innermost axis of each group that has more than one element."""
    found = ([axis.name for axis in group if sizes[axis.name] > 1] for group in groups)
    return frozenset(names[-1] for names in found if names)


def _spans(axes: Sequence[LoopAxis], sizes: Mapping[str, int], block: int) -> dict[str, int]:
    """How a block of consecutive elements spreads over the axes, the innermost filled first."""
    found: dict[str, int] = {}
    for axis in reversed(axes):
        found[axis.name] = min(sizes[axis.name], block) or 1
        block = -(-block // max(sizes[axis.name], 1))
    return found


@dataclass(frozen=True, slots=True)
class _Traffic:
    moved: int
    """Bytes of device memory."""
    cached: int
    """Bytes of L2."""
    read: int
    """Those of `moved` that are read."""
    tile_read: int
    """Bytes that one program has asked for before it waits."""

    def with_parts(self, left: int) -> _Traffic:
        """With bytes that are written and read again as well."""
        return replace(self, moved=self.moved + 2 * left, cached=self.cached + 2 * left)


def _traffic(
    ops: Sequence[Op],
    stored: Collection[str],
    schedule: Schedule,
    walk: Walk,
    found: Sequence[Access],
    needs: Needs,
    device: DeviceSpec,
) -> _Traffic:
    passes: tuple[frozenset[str], ...] = ()
    if schedule.strategy is Strategy.LOOPED:
        passes = needed_in_passes(ops, stored)
    read: dict[str, int] = {}
    written = cached = again = tile_read = 0
    # The same elements of a value are loaded once in a pass, whichever op asks for them.
    shared: dict[object, tuple[Access, set[int]]] = {}
    for access in found:
        what = (access.value, access.is_store, access.offset, *sorted(access.steps.items()))
        needed = shared.setdefault(what, (access, set()))[1]
        needed.update(k for k, names in enumerate(passes) if access.op in names)
    # Most tensors of a kernel are walked alike.
    alike: dict[object, _Asked] = {}
    for access, needed in shared.values():
        how = (access.width, access.numel, access.is_store, access.is_scattered)
        pattern = (*how, *access.steps.items())
        asked = alike.get(pattern)
        if asked is None:
            asked = alike[pattern] = _Asked.of(access, walk, device)
        if access.is_store:
            written += asked.once
            cached += asked.cached
            continue
        repeats = max(1, len(needed))
        cached += asked.cached * (1 if asked.stays_near else repeats)
        again += asked.once * (repeats - 1)
        tile_read += asked.tile
        read[access.value] = min(read.get(access.value, 0) + asked.once, asked.most)
    once = sum(read.values())
    # A later pass walks a row backwards: L2 serves as much of the rows in progress as it holds.
    resident = device.processors * max(needs.blocks_per_processor, 1)
    in_progress = once * min(1.0, resident / max(walk.blocks, 1))
    again = int(again * max(0.0, 1 - device.l2_bytes / 2 / max(in_progress, 1)))
    moved = once + again
    return _Traffic(moved + written, max(cached, moved + written), moved, tile_read)


class _Asked(NamedTuple):
    """What one access asks memory for, in bytes."""

    once: int
    """Of device memory, each element once."""
    most: int
    """Of device memory, if all of the tensor is touched."""
    cached: int
    """Of L2, by all programs."""
    tile: int
    """By one program at once."""
    stays_near: bool

    @staticmethod
    def of(access: Access, walk: Walk, device: DeviceSpec) -> _Asked:
        width, numel = access.width, access.numel
        distinct = min(prod(walk.sizes[axis] for axis in access.steps), numel)
        factor = _sector_factor(access, walk)
        once = int(width * distinct * (factor if _leaves_cache(access, walk, device) else 1))
        stays_near = _stays_near(access, walk, device)
        return _Asked(
            once,
            int(width * numel * factor),
            once * min(walk.blocks, device.processors)
            if stays_near
            else int(width * factor * _requested(access, walk)),
            width * prod(walk.spans[axis] for axis in access.steps),
            stays_near,
        )


def _stays_near(access: Access, walk: Walk, device: DeviceSpec) -> bool:
    """Whether every program reads the same, so little that the cache of its processor keeps it."""
    parallel = [axis for axis, size in walk.sizes.items() if walk.spans[axis] < size]
    is_same = not access.is_store and not access.steps.keys() & set(parallel)
    return is_same and access.width * access.numel <= NEAR_BYTES and device.backend != "cpu"


def _unit_axis(access: Access) -> str | None:
    """The axis along which the access has its nearest neighbours."""
    steps = {axis: step for axis, step in access.steps.items() if step}
    return min(steps, key=steps.__getitem__) if steps else None


def _sector_factor(access: Access, walk: Walk) -> float:
    """Bytes of the sectors that a tile touches over the bytes it uses of them."""
    axis = _unit_axis(access)
    if axis is None or access.is_scattered or walk.sizes[axis] == 1:
        return 1.0
    step, width = access.steps[axis], access.width
    if step > 1:
        return min(SECTOR / width, float(step)) if width < SECTOR else 1.0
    if axis not in walk.fast:
        return max(1.0, SECTOR / width)
    run = walk.spans[axis] * width
    return 1.0 if run >= SECTOR or walk.spans[axis] == walk.sizes[axis] else SECTOR / run


def _requested(access: Access, walk: Walk) -> int:
    """Elements that all tiles ask for: a tile loads once what its lanes share."""
    if walk.walked and not access.steps.keys() & walk.walked:
        return walk.blocks * prod(walk.sizes[axis] for axis in access.steps)
    count = 1
    for axis, size in walk.sizes.items():
        count *= size if axis in access.steps else -(-size // walk.spans[axis])
    return count


def _leaves_cache(access: Access, walk: Walk, device: DeviceSpec) -> bool:
    """Whether the rest of a sector is evicted before a later tile asks for it."""
    unit = _unit_axis(access)
    if unit is None or unit not in walk.sizes:
        return False
    order = list(walk.sizes)
    inner = order[order.index(unit) + 1 :]
    return SECTOR * prod(walk.sizes[axis] for axis in inner) > device.l2_bytes // 2


def _flow(
    walk: Walk, traffic: _Traffic, needs: Needs, schedule: Schedule, device: DeviceSpec
) -> float:
    """The share of the copy rate that the bytes in flight sustain, at most 1."""
    if device.backend == "cpu" or not traffic.read:
        return 1.0
    resident = min(walk.blocks, device.processors * max(needs.blocks_per_processor, 1))
    share = traffic.read / max(traffic.moved, 1)
    wanted = device.copy_rate * share * LATENCY_S
    return min(1.0, max(resident * traffic.tile_read / wanted, 1e-3))


def bytes_by_size(
    graph: Graph, symbolic: Mapping[str, Dim], found: Sequence[Access], moved: int
) -> Dim:
    """The bytes moved, each element once, as an expression of the sizes that are known only at the
    call: `symbolic` has those of the axes. `moved`, where all sizes are known."""
    if not graph.symbols:
        return moved
    largest: dict[str, tuple[int, Dim]] = {}
    for access in found:
        expression = multiply(access.width, product(symbolic[axis] for axis in access.steps))
        size = evaluate(expression, graph.hints)
        if size > largest.get(access.value, (-1, 0))[0]:
            largest[access.value] = (size, expression)
    return total(expression for _, expression in largest.values())
