"""A pointwise region as one kernel over its elements."""

from __future__ import annotations

from fuser.codegen.body import Body
from fuser.codegen.emit.context import PointwiseContext
from fuser.codegen.emit.kernel import Work, build, kernel_spec, summary_of
from fuser.codegen.tiles import FLAT
from fuser.ir.dim import product
from fuser.ir.kernel import GridAxis, KernelSpec
from fuser.templates import render


def pointwise_kernels(work: Work) -> tuple[KernelSpec, ...]:
    """One kernel; each lane computes one element of every stored value."""

    def write(body: Body) -> tuple[str, ...]:
        for op in work.stored:
            body.store(op)
        return tuple(body.lines.outer)

    built = build(work, Body, write, FLAT, work.region.schedule.candidates[0])
    size = product(axis.size for axis in work.parallel)

    def text(parameters: tuple[str, ...]) -> str:
        context = PointwiseContext(
            name=work.region.name,
            summary=summary_of(work, "elementwise"),
            parameters=parameters,
            x_size=built.sizes.text(size),
            x_lines=built.x_lines(),
            body=built.result,
        )
        return render("pointwise.py.jinja", context)

    return (
        kernel_spec(
            work,
            built,
            work.region.name,
            text,
            (GridAxis(size, "XBLOCK"),),
            work.region.schedule.candidates[0],
        ),
    )
