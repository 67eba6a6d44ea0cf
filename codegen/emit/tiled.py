"""A pointwise region as one kernel over tiles of two axes, each contiguous for some operands."""

from __future__ import annotations

from fuser.codegen.body import Body
from fuser.codegen.emit.context import TiledContext
from fuser.codegen.emit.kernel import Work, build, kernel_spec, summary_of
from fuser.codegen.tiles import TILED
from fuser.ir.dim import product
from fuser.ir.kernel import GridAxis, KernelSpec
from fuser.ir.space import LoopAxis
from fuser.templates import render


def tiled_kernels(work: Work) -> tuple[KernelSpec, ...]:
    """One kernel; the axes that are in no tile are numbers of the program."""
    schedule = work.region.schedule
    across = _named(work, schedule.across)
    along = _named(work, schedule.along)
    outer = tuple(axis for axis in work.parallel if axis not in (*across, *along))

    def write(body: Body) -> tuple[str, ...]:
        # One list: there is no loop.
        body.lines.inner = body.lines.outer
        for op in work.stored:
            body.store(op)
        return tuple(body.lines.outer)

    groups = {"o": outer, "x": across, "r": along}
    built = build(work, Body, write, TILED, schedule.candidates[0], groups)
    sizes = {name: product(axis.size for axis in axes) for name, axes in built.groups.items()}

    def text(parameters: tuple[str, ...]) -> str:
        context = TiledContext(
            name=work.region.name,
            summary=summary_of(work, "elementwise in tiles"),
            parameters=parameters,
            x_size=built.sizes.text(sizes["x"]),
            r_size=built.sizes.text(sizes["r"]),
            x_lines=built.lines("x"),
            r_lines=built.lines("r"),
            o_lines=built.lines("o"),
            body=built.result,
        )
        return render("pointwise_tiled.py.jinja", context)

    grid = (GridAxis(sizes["r"], "RBLOCK"), GridAxis(sizes["x"], "XBLOCK"), GridAxis(sizes["o"]))
    return (kernel_spec(work, built, work.region.name, text, grid, schedule.candidates[0]),)


def _named(work: Work, names: tuple[str, ...]) -> tuple[LoopAxis, ...]:
    by_name = {axis.name: axis for axis in work.parallel}
    return tuple(by_name[name] for name in names)
