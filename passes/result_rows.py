"""Rows of a product's results that are folded in its kernel: norms, softmax, scales.

In: the ops of a region of products with its space and roles. Out: the tiles that have whole rows,
what a program holds of them while it folds, and `NoSpace` where a row is too wide for one tile.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.ir.dim import product
from fuser.ir.graph import Op
from fuser.ir.ops import is_contraction
from fuser.ir.region import Reason
from fuser.ir.space import Space
from fuser.passes.access import Access
from fuser.passes.columns import result_folds
from fuser.passes.contraction import Roles, feeding
from fuser.passes.unify import NoSpace

MAX_ROW = 512
"""Elements of a row beyond which a tile of the fewest rows that tensor cores are fed with well has
more sums than the registers of a block hold beside a step of the operands."""

MOST_OF_LANE = 128
"""Sums of a lane: half of its registers."""

FOLDING = 0.4
"""Of the tiles that a program holds, what one more takes up that is on its way into a fold."""

# Rows, bytes along the inner axis, warps, stages.
_TILES = (
    (128, 128, 8, 3),
    (128, 128, 4, 3),
    (64, 128, 8, 3),
    (64, 128, 4, 3),
    (64, 64, 8, 3),
    (64, 64, 4, 3),
    (32, 128, 4, 3),
    (32, 64, 8, 3),
    (16, 128, 4, 3),
    (16, 64, 4, 3),
    (16, 64, 8, 2),
)


def check_rows(ops: Sequence[Op], space: Space, roles: Roles) -> None:
    """Raises `NoSpace` where rows are folded and no tile has one whole."""
    if not result_folds(ops, space):
        return
    sizes = {axis.name: axis.size for axis in space.axes}
    row = product(sizes[name] for name in roles.columns)
    if not isinstance(row, int):
        raise NoSpace(Reason.TOO_MANY_REGISTERS, f"rows of {row} sums, which is not known")
    if row > MAX_ROW:
        raise NoSpace(Reason.TOO_MANY_REGISTERS, f"rows of {row} sums, more than {MAX_ROW}")


def tiles_of_rows(columns: int) -> list[tuple[int, int, int, int, int]]:
    """Rows, columns, bytes along the inner axis, warps and stages of tiles with whole rows."""
    fitting = [tile for tile in _TILES if tile[0] * columns <= MOST_OF_LANE * 32 * tile[2]]
    return [
        (rows, columns, deep, warps, stages) for rows, deep, warps, stages in fitting or _TILES[-1:]
    ]


def held_tiles(ops: Sequence[Op], space: Space, found: Sequence[Access], roles: Roles) -> int:
    """The most tiles of results that wait for a fold at once; 0 where nothing is folded.

    What is computed or loaded before a fold and read after it waits for that.
    """
    folds = result_folds(ops, space)
    if not folds:
        return 0
    inner = feeding(ops)
    whole = _whole_values(ops, space, found, roles) - folds
    stages: dict[str, int] = {}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for op in ops:
        if op.name in inner:
            continue
        reads = () if is_contraction(op) else op.reads
        waits = (stages[name] + (name in folds) for name in reads if name in stages)
        stage = stages[op.name] = max(waits, default=0)
        for name in whole.intersection((op.name, *reads)):
            first[name] = min(first.get(name, stage), stage)
            last[name] = stage if name not in last else max(last[name], stage)
    together = (sum(first[n] < stage <= last[n] for n in first) for stage in stages.values())
    return max(1, *together)


def _whole_values(
    ops: Sequence[Op], space: Space, found: Sequence[Access], roles: Roles
) -> set[str]:
    """The values with an element for each one of a tile."""
    sides = [set(side) for side in (roles.rows, roles.columns) if side]
    axes = {access.value: set(access.steps) for access in found}
    axes |= {op.name: {a for form in space.index[op.name] for a in form.axes} for op in ops}
    return {name for name, used in axes.items() if all(used & side for side in sides)}
