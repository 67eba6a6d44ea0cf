"""Rows and columns in one reading: whole rows, and folds over all of them beside.

Each program walks some rows, adds what they have of each column to an accumulator that lies as the
rows lie, and leaves it at the end; a second kernel combines what the programs left. No lane waits
for another one for a column, and no order depends on time: results are the same in every run.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType

from fuser.codegen.body import Lines
from fuser.codegen.emit.context import PartialContext
from fuser.codegen.emit.kernel import Work, build, scratch
from fuser.codegen.emit.split import CombineBody, combine_kernel, parts_kernel, workspace_name
from fuser.codegen.reduction_body import ROW, Pass, RowBody
from fuser.codegen.tiles import WALKED
from fuser.ir.dim import product
from fuser.ir.graph import Op
from fuser.ir.kernel import GridAxis, KernelArgument, KernelSpec
from fuser.passes.columns import column_folds, column_values
from fuser.templates import render


class WalkingBody(RowBody):
    """Rows in registers, in a loop over rows: what is the same for all of them stands before it."""

    def walk(self, folds: tuple[Op, ...], results: tuple[Op, ...]) -> tuple[Pass, list[str]]:
        """The loop that stores the results, and what is left of each fold's accumulator."""
        self.lines = Lines("x")
        for op in results:
            self.store(op)
        accumulators: list[str] = []
        left: list[str] = []
        for op in folds:
            fold, tile, _ = self.folded(op, self.space.index[op.name], "x_mask")
            name = self.names.fresh(f"{op.name}_so_far")
            start = f"[XBLOCK, RBLOCK], {fold.identity(op.compute)}, {op.compute.triton}"
            accumulators.append(f"{name} = tl.full({start})")
            self.lines.emit(ROW, f"{name} = fn.accumulate_{fold.function}({name}, {tile})")
            left.append(f"fn.{fold.function}({name}, 0, True)")
        lines = self.lines
        return Pass(tuple(lines.outer), tuple(accumulators), tuple(lines.inner), ()), left


def rows_and_columns_kernels(work: Work) -> tuple[KernelSpec, ...]:
    """Two kernels and one workspace for each fold over all rows."""
    parts = work.region.schedule.parts
    names = column_folds(work.ops, work.region.space)
    after = column_values(work.ops, work.region.space)
    folds = tuple(op for op in work.ops if op.name in names)
    r_size = product(axis.size for axis in work.reduced)
    assert isinstance(r_size, int)
    spaces = [scratch(workspace_name(op), op.compute, parts * r_size) for op in folds]
    place = partial(CombineBody, place=f"r * {r_size} + x", online=MappingProxyType({}))
    results = [op for op in work.stored if op.name in after]
    return (
        _walking_kernel(work, folds, spaces),
        combine_kernel(work, place, results, {"x": work.reduced, "r": ()}, spaces),
    )


def _walking_kernel(work: Work, folds: tuple[Op, ...], spaces: list[KernelArgument]) -> KernelSpec:
    after = column_values(work.ops, work.region.space)
    results = tuple(op for op in work.stored if op.name not in after)

    def write(body: WalkingBody) -> tuple[Pass, tuple[tuple[str, str], ...]]:
        step, left = body.walk(folds, results)
        pointers = [body.pointer(workspace_name(op)) for op in folds]
        return step, tuple(zip(pointers, left, strict=True))

    built = build(work, WalkingBody, write, WALKED, work.region.schedule.candidates[0])
    grid = (GridAxis(work.region.schedule.parts),)
    name, what = f"{work.region.name}_rows", "rows in registers and parts of columns"

    def written(context: PartialContext) -> str:
        return render("reduction_walking.py.jinja", context)

    return parts_kernel(work, built, name, what, written, grid, spaces)
