"""Tiles over two axes, for elementwise work whose operands disagree on which axis is contiguous,
or some of whose operands have one element a row.

In: a region's space and accesses. Out: a `Schedule`, or None where one axis serves all. A tile of
the two fast axes reads whole sectors of every operand; the compiler turns the ones that lie across
within shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.device import DeviceSpec
from fuser.ir.dim import evaluate
from fuser.ir.graph import Graph
from fuser.ir.kernel import Configuration
from fuser.ir.region import Schedule, Strategy
from fuser.ir.space import LoopAxis, Space
from fuser.passes.access import Access, order_axes
from fuser.passes.configurations import power_of_two

SECTOR = 32
"""Bytes that memory and caches move at least."""

SIDE = 64
"""Elements of a tile's side: two lines of a half type."""

MIN_ROW = 1024
"""Elements of a row from which one tile has enough to do with it."""

FILLED = 0.8
"""Of the lanes of a row's tiles, those that have an element at least."""

MAX_GRID = 65535
"""Programs along the second and third axis of a grid."""


def tiled_schedule(
    graph: Graph,
    space: Space,
    found: Sequence[Access],
    primary: Access | None,
    device: DeviceSpec,
) -> Schedule | None:
    """The schedule with a tile over the fast axis of the primary access and that of the largest
    access that lies across it."""
    if primary is None or space.reduced:
        return None
    axes = order_axes(space.parallel, primary)
    sizes = {axis.name: evaluate(axis.size, graph.hints) for axis in axes}
    fast = _fast_axis(primary, sizes)
    crossing = [
        access
        for access in found
        if not access.is_scattered
        and _fast_axis(access, sizes) not in (None, fast)
        and access.steps.get(fast or "", 0) * access.width >= SECTOR
    ]
    if fast is None or not crossing:
        return None
    largest = max(crossing, key=lambda access: access.numel * access.width)
    other = _fast_axis(largest, sizes)
    assert other is not None
    along = _with_outer(fast, axes, found, sizes, (other,))
    across = _with_outer(other, axes, found, sizes, along)
    rest = [axis for axis in axes if axis.name not in (*along, *across)]
    if not all(isinstance(a.size, int) for a in axes if a.name not in along):
        return None  # the grid's limits have to be known
    outer = 1
    for axis in rest:
        outer *= sizes[axis.name]
    wide, high = (_product(names, sizes) for names in (along, across))
    if outer > MAX_GRID or high > MAX_GRID * 8:
        return None
    return Schedule(Strategy.TILED, (_candidates(high, wide, device),), 1, across, along)


def rows_schedule(
    graph: Graph,
    space: Space,
    found: Sequence[Access],
    primary: Access | None,
    device: DeviceSpec,
) -> Schedule | None:
    """The schedule with tiles of one row, where some values are one for each row: a tile then loads
    them once, and every lane of a flat kernel for itself. None without such values."""
    if primary is None or space.reduced or device.backend == "cpu":
        return None
    axes = order_axes(space.parallel, primary)
    sizes = {axis.name: evaluate(axis.size, graph.hints) for axis in axes}
    fast = _fast_axis(primary, sizes)
    if fast is None or not all(isinstance(axis.size, int) for axis in axes):
        return None
    along = _with_outer(fast, axes, found, sizes, ())
    if not any(access.steps and not access.steps.keys() & set(along) for access in found):
        return None
    across = tuple(axis.name for axis in axes if axis.name not in along)
    wide, high = (_product(names, sizes) for names in (along, across))
    tiles = [min(power_of_two(wide), most) for most in (2048, 1024, 512)]
    is_filled = wide >= FILLED * tiles[0] * -(-wide // tiles[0])
    if wide < MIN_ROW or high > MAX_GRID or not is_filled:
        return None
    configurations = tuple(
        Configuration((("XBLOCK", 1), ("RBLOCK", block)), num_warps=max(1, min(8, block // 256)))
        for block in dict.fromkeys(tiles)
    )
    return Schedule(Strategy.TILED, (configurations,), 1, across, along)


def _candidates(high: int, wide: int, device: DeviceSpec) -> tuple[Configuration, ...]:
    if device.backend == "cpu":
        sides = [(min(power_of_two(high), 256), min(power_of_two(wide), 512))]
    else:
        sides = [(64, 64), (32, 64), (32, 32), (16, 32)]
        sides = [(min(power_of_two(high), x), min(power_of_two(wide), r)) for x, r in sides]
    return tuple(
        Configuration((("XBLOCK", x), ("RBLOCK", r)), num_warps=8 if x * r >= 4096 else 4)
        for x, r in dict.fromkeys(sides)
    )


def _fast_axis(access: Access, sizes: dict[str, int]) -> str | None:
    """The axis along which the access is contiguous, or so nearly that sectors are shared."""
    steps = {axis: step for axis, step in access.steps.items() if step and sizes[axis] > 1}
    if not steps:
        return None
    axis = min(steps, key=steps.__getitem__)
    return axis if steps[axis] * access.width < SECTOR else None


def _with_outer(
    axis: str,
    axes: Sequence[LoopAxis],
    found: Sequence[Access],
    sizes: dict[str, int],
    taken: Sequence[str],
) -> tuple[str, ...]:
    """An axis with those outside of it that every access walks on from it, outermost first."""
    names = [a.name for a in axes]
    chosen = [axis]
    position = names.index(axis)
    while position > 0:
        outer, inner = names[position - 1], names[position]
        if outer in taken or not all(_walks_on(a, outer, inner, sizes[inner]) for a in found):
            break
        chosen.insert(0, outer)
        position -= 1
    return tuple(chosen)


def _walks_on(access: Access, outer: str, inner: str, size: int) -> bool:
    return access.steps.get(outer, 0) == access.steps.get(inner, 0) * size


def _product(names: Sequence[str], sizes: dict[str, int]) -> int:
    result = 1
    for name in names:
        result *= sizes[name]
    return result
