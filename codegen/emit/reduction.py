"""A reduction region as one kernel over its rows: in registers, or looped."""

from __future__ import annotations

from functools import partial

from fuser.codegen.emit.context import LoopedContext, RowContext
from fuser.codegen.emit.kernel import Work, build, chunk_of, kernel_spec, summary_of
from fuser.codegen.reduction_body import LoopedBody, Pass, RowBody
from fuser.codegen.tiles import LOOPED, ROW
from fuser.ir.dim import product
from fuser.ir.kernel import GridAxis, KernelSpec
from fuser.templates import render


def row_kernels(work: Work) -> tuple[KernelSpec, ...]:
    """Every row is one tile line, loaded once and kept in registers."""

    def write(body: RowBody) -> tuple[str, ...]:
        # One list: the lines of a row need no loop to be in.
        body.lines.inner = body.lines.outer
        for op in work.stored:
            body.store(op)
        return tuple(body.lines.outer)

    built = build(work, RowBody, write, ROW, work.region.schedule.candidates[0])
    x_size = product(axis.size for axis in work.parallel)
    r_size = product(axis.size for axis in work.reduced)

    def text(parameters: tuple[str, ...]) -> str:
        context = RowContext(
            name=work.region.name,
            summary=summary_of(work, "rows in registers"),
            parameters=parameters,
            x_size=built.sizes.text(x_size),
            r_size=built.sizes.text(r_size),
            x_lines=built.x_lines(),
            r_lines=built.r_lines(),
            body=built.result,
        )
        return render("reduction_row.py.jinja", context)

    return (
        kernel_spec(
            work,
            built,
            work.region.name,
            text,
            (GridAxis(x_size, "XBLOCK"),),
            work.region.schedule.candidates[0],
        ),
    )


def looped_kernels(work: Work) -> tuple[KernelSpec, ...]:
    """Rows too long for registers, or of a length known only at the call."""
    stored = frozenset(work.region.outputs)

    def write(body: LoopedBody) -> tuple[tuple[Pass, ...], tuple[str, ...]]:
        passes = body.passes(work.ops, stored)
        return passes, body.store_results(work.ops, stored)

    form = partial(LoopedBody, chunk=chunk_of(work))
    built = build(work, form, write, LOOPED, work.region.schedule.candidates[0])
    x_size = product(axis.size for axis in work.parallel)
    r_size = product(axis.size for axis in work.reduced)

    def text(parameters: tuple[str, ...]) -> str:
        passes, results = built.result
        context = LoopedContext(
            name=work.region.name,
            summary=summary_of(work, "rows in blocks"),
            parameters=parameters,
            x_size=built.sizes.text(x_size),
            r_size=built.sizes.text(r_size),
            x_lines=built.x_lines(),
            r_lines=built.r_lines(),
            passes=passes,
            results=results,
        )
        return render("reduction_looped.py.jinja", context)

    return (
        kernel_spec(
            work,
            built,
            work.region.name,
            text,
            (GridAxis(x_size, "XBLOCK"),),
            work.region.schedule.candidates[0],
        ),
    )
