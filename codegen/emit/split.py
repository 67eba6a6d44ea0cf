"""Few long rows: each is folded by many programs, and a second kernel combines their parts."""

from __future__ import annotations

from functools import partial

from fuser.codegen.emit.context import CombineContext, PartialContext
from fuser.codegen.emit.kernel import Work, build, chunk_of, kernel_spec, scratch, summary_of
from fuser.codegen.expressions import Held
from fuser.codegen.reduction_body import Finish, LoopedBody, Pass, RowBody
from fuser.codegen.reductions import FOLDS
from fuser.ir.dim import multiply, product
from fuser.ir.graph import Op
from fuser.ir.kernel import GridAxis, KernelArgument, KernelSpec
from fuser.ir.space import Index
from fuser.templates import render


class PartialBody(LoopedBody):
    """One pass over a part of the row; ends with a total a reduction, not with its result."""

    def partial(self, ops: tuple[Op, ...], stored: frozenset[str]) -> tuple[Pass, list[str]]:
        reduced = {axis.name for axis in self.space.reduced}
        accumulators: list[str] = []
        finish: Finish = []
        for op in ops:
            if op.reduced:
                accumulators += self.accumulate(op, finish)
            elif op.name in stored and self.is_row(op, reduced):
                self.store(op)
        lines = self.lines
        step = Pass(tuple(lines.outer), tuple(accumulators), tuple(lines.inner), ())
        return step, [text() for _, text in finish]


class CombineBody(RowBody):
    """The parts of a row as one tile; everything else has one element a row."""

    def __init__(self, *arguments: object, parts: int) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.parts = parts

    def reduction(self, op: Op, index: Index, guard: Held | None) -> Held:
        fold = FOLDS[op.kind]
        pointer = self.pointer(workspace_name(op))
        tile = self.names.fresh(f"{op.name}_parts")
        neutral = fold.identity(op.compute)
        both = frozenset("xr")
        load = f"tl.load({pointer} + (x * {self.parts} + r), x_mask & r_mask, other=0)"
        self.lines.emit(
            both, f"{tile} = tl.where(r_mask, {load}.to({op.compute.triton}), {neutral})"
        )
        return self.held_result(op, f"fn.{fold.function}({tile}, 1, True)")


def workspace_name(op: Op) -> str:
    return f"{op.name}_parts"


def split_kernels(work: Work) -> tuple[KernelSpec, ...]:
    """Two kernels and one workspace for each reduction."""
    parts = work.region.schedule.parts
    x_size = product(axis.size for axis in work.parallel)
    folds = [op for op in work.ops if op.reduced]
    spaces = [scratch(workspace_name(op), op.compute, multiply(x_size, parts)) for op in folds]
    return (
        _partial_kernel(work, parts, folds, spaces),
        _combine_kernel(work, parts, spaces),
    )


def _partial_kernel(
    work: Work, parts: int, folds: list[Op], spaces: list[KernelArgument]
) -> KernelSpec:
    stored = frozenset(work.region.outputs)

    def write(body: PartialBody) -> tuple[Pass, tuple[tuple[str, str], ...]]:
        step, totals = body.partial(work.ops, stored)
        pointers = [body.pointer(workspace_name(op)) for op in folds]
        return step, tuple(zip(pointers, totals, strict=True))

    built = build(work, partial(PartialBody, chunk=chunk_of(work)), write)
    x_size = product(axis.size for axis in work.parallel)
    r_size = product(axis.size for axis in work.reduced)
    name = f"{work.region.name}_partial"

    def text(parameters: tuple[str, ...]) -> str:
        step, partials = built.result
        context = PartialContext(
            name=name,
            summary=summary_of(work, "parts of rows"),
            parameters=parameters,
            x_size=built.sizes.text(x_size),
            r_size=built.sizes.text(r_size),
            parts=parts,
            x_lines=built.x_lines(),
            r_lines=built.r_lines(),
            body=step,
            partials=partials,
        )
        return render("reduction_partial.py.jinja", context)

    configurations = work.region.schedule.candidates[0]
    grid = (GridAxis(x_size, "XBLOCK"), GridAxis(parts))
    # The last part may begin past the end of the row.
    overshoot = parts * max(each.block("RBLOCK") for each in configurations)
    return kernel_spec(work, built, name, text, grid, configurations, spaces, overshoot)


def _combine_kernel(work: Work, parts: int, spaces: list[KernelArgument]) -> KernelSpec:
    reduced = {axis.name for axis in work.reduced}

    def make(*arguments: object) -> CombineBody:
        return CombineBody(*arguments, parts=parts)

    def write(body: CombineBody) -> tuple[str, ...]:
        body.lines.inner = body.lines.outer
        for op in work.stored:
            index = work.region.space.index[op.name]
            if op.reduced or not any(affine.axes & reduced for affine in index):
                body.store(op)
        return tuple(body.lines.outer)

    built = build(work, make, write)
    x_size = product(axis.size for axis in work.parallel)
    name = f"{work.region.name}_combine"

    def text(parameters: tuple[str, ...]) -> str:
        context = CombineContext(
            name=name,
            summary=summary_of(work, "combines the parts of rows"),
            parameters=parameters,
            x_size=built.sizes.text(x_size),
            parts=parts,
            x_lines=built.x_lines(),
            body=built.result,
        )
        return render("reduction_combine.py.jinja", context)

    configurations = work.region.schedule.candidates[1]
    grid = (GridAxis(x_size, "XBLOCK"),)
    return kernel_spec(work, built, name, text, grid, configurations, spaces)
