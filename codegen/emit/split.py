"""Few long rows: each is folded by many programs, and a second kernel combines their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from fuser.codegen.emit.context import CombineContext, PartialContext
from fuser.codegen.emit.kernel import (
    Built,
    Groups,
    MakeBody,
    Work,
    build,
    chunk_of,
    kernel_spec,
    scratch,
    summary_of,
)
from fuser.codegen.expressions import Held, convert
from fuser.codegen.reduction_body import ROW, Finish, LoopedBody, Pass, RowBody
from fuser.codegen.reductions import FOLDS
from fuser.codegen.tiles import PARTIAL
from fuser.codegen.tiles import ROW as ROW_TILES
from fuser.ir.dim import multiply, product
from fuser.ir.graph import Op
from fuser.ir.kernel import GridAxis, KernelArgument, KernelSpec
from fuser.ir.space import Index
from fuser.passes.online import Rule, Shifted
from fuser.passes.stages import online_sums
from fuser.templates import render

Parts = tuple[tuple[str, str, str], ...]
"""What a part leaves of one reduction: of each value the end of its name, the text that makes it of
the accumulators, and its neutral element."""

SHIFTED_PARTS: Mapping[Rule, Parts] = MappingProxyType({
    Rule.EXPONENTIAL: (
        ("parts", "fn.rescaled_part({0}, {1})", "0"),
        ("largest", "fn.largest_of_part({1})", 'float("-inf")'),
    ),
    Rule.SQUARE: (
        ("count", "fn.sum({0}, 1, True)", "0"),
        ("mean", "fn.mean_of_part({0}, {1})", "0"),
        ("squares", "fn.spread_of_part({0}, {1}, {2})", "0"),
    ),
})  # fmt: skip


class PartialBody(LoopedBody):
    """One pass over a part of the row; ends with a total a reduction, not with its result."""

    def partial(
        self, ops: tuple[Op, ...], stored: frozenset[str]
    ) -> tuple[Pass, list[tuple[str, str]]]:
        """The pass, and for each workspace the text of what is stored there."""
        reduced = {axis.name for axis in self.space.reduced}
        online = online_sums(ops, self.rounding.applies)
        accumulators: list[str] = []
        finish: Finish = []
        for op in sorted(ops, key=lambda op: op.name not in online):
            if op.name in online:
                accumulators += self.accumulate_shifted(op, online[op.name], finish)
            elif op.reduced:
                accumulators += self.accumulate(op, finish)
            elif op.name in stored and self.is_row(op, reduced):
                self.store(op)
        lines = self.lines
        step = Pass(tuple(lines.outer), tuple(accumulators), tuple(lines.inner), ())
        partials: list[tuple[str, str]] = []
        for op, text in finish:
            each = online.get(op.name)
            if each is None:
                partials.append((workspace_name(op), text()))
                continue
            for end, form, _ in SHIFTED_PARTS[each.rule]:
                partials.append((workspace_name(op, end), form.format(*self.states[op.name])))
        return step, partials


class CombineBody(RowBody):
    """The parts of a row as one tile; everything else has one element a row.

    `place` is where the part `r` of the row `x` lies in a workspace; `online` are the reductions of
    which parts left states.
    """

    def __init__(self, *arguments: Any, place: str, online: Mapping[str, Shifted]) -> None:
        super().__init__(*arguments)
        self.place_of_part = place
        self.online = online

    @property
    def means(self) -> Mapping[str, tuple[Op, Shifted]]:
        return MappingProxyType({})  # their rows are not here

    def reduction(self, op: Op, index: Index, guard: Held | None) -> Held:
        each = self.online.get(op.name)
        if each is not None:
            return self.held_result(op, self.shifted_sum(op, each))
        fold = FOLDS[op.kind]
        tile = self.tile_of_parts(op, "parts", fold.identity(op.compute))
        return self.held_result(op, f"fn.{fold.function}({tile}, 1, True)")

    def tile_of_parts(self, op: Op, end: str, neutral: str) -> str:
        """One value of each part, by name."""
        pointer = self.pointer(workspace_name(op, end))
        tile = self.names.fresh(f"{op.name}_{end}")
        load = f"tl.load({pointer} + ({self.place_of_part}), x_mask & r_mask, other=0)"
        text = f"tl.where(r_mask, {load}.to({op.compute.triton}), {neutral})"
        self.lines.emit(ROW, f"{tile} = {text}")
        return tile

    def shifted_sum(self, op: Op, shifted: Shifted) -> str:
        """What the parts' own shifts and sums come to with the shift of the whole row."""
        parts = SHIFTED_PARTS[shifted.rule]
        tiles = [self.tile_of_parts(op, end, neutral) for end, _, neutral in parts]
        place = self.place_in_chain(op, shifted, len(shifted.chain) - 1)
        held = self.operand(shifted.shift, place, None)
        if shifted.rule is Rule.EXPONENTIAL:
            return f"fn.rescaled_sum({', '.join(tiles)}, {convert(held, op.compute)})"
        mean = self.graph.by_name[shifted.shift.value]
        text = f"fn.mean_of_chunks({tiles[0]}, {tiles[1]}, {held.text})"
        held = self.bind(mean, replace(held, text=text))
        self.known[self.place(shifted.shift, place), ""] = held
        return f"fn.spread_sum({', '.join(tiles)}, {held.text})"


def workspace_name(op: Op, end: str = "parts") -> str:
    return f"{op.name}_{end}"


def split_kernels(work: Work) -> tuple[KernelSpec, ...]:
    """Two kernels and one workspace for each reduction."""
    parts = work.region.schedule.parts
    x_size = product(axis.size for axis in work.parallel)
    online = online_sums(work.ops, work.rounding.applies)
    size = multiply(x_size, parts)
    spaces: list[KernelArgument] = []
    for op in work.ops:
        if op.reduced:
            ends = ["parts"]
            if op.name in online:
                ends = [end for end, _, _ in SHIFTED_PARTS[online[op.name].rule]]
            spaces += [scratch(workspace_name(op, end), op.compute, size) for end in ends]
    reduced = {axis.name for axis in work.reduced}
    index = work.region.space.index
    results = [
        op
        for op in work.stored
        if op.reduced or not any(affine.axes & reduced for affine in index[op.name])
    ]
    make = partial(CombineBody, place=f"x * {parts} + r", online=online)
    groups = {"x": work.parallel, "r": work.reduced}
    return (
        _partial_kernel(work, parts, spaces),
        combine_kernel(work, make, results, groups, spaces),
    )


def _partial_kernel(work: Work, parts: int, spaces: list[KernelArgument]) -> KernelSpec:
    stored = frozenset(work.region.outputs)

    def write(body: PartialBody) -> tuple[Pass, tuple[tuple[str, str], ...]]:
        step, totals = body.partial(work.ops, stored)
        return step, tuple((body.pointer(name), text) for name, text in totals)

    configurations = work.region.schedule.candidates[0]
    form = partial(PartialBody, chunk=chunk_of(work))
    built = build(work, form, write, PARTIAL, configurations)
    grid = (GridAxis(product(axis.size for axis in work.parallel), "XBLOCK"), GridAxis(parts))
    # The last part may begin past the end of the row.
    overshoot = parts * max(each.block("RBLOCK") for each in configurations)
    name, what = f"{work.region.name}_partial", "parts of rows"

    def written(context: PartialContext) -> str:
        return render("reduction_partial.py.jinja", context)

    return parts_kernel(work, built, name, what, written, grid, spaces, overshoot)


def parts_kernel(
    work: Work,
    built: Built,
    name: str,
    what: str,
    written: Callable[[PartialContext], str],
    grid: tuple[GridAxis, ...],
    spaces: Sequence[KernelArgument],
    overshoot: int = 0,
) -> KernelSpec:
    """The first kernel: `built` has its pass, and what that leaves in each workspace."""

    def text(parameters: tuple[str, ...]) -> str:
        step, partials = built.result
        context = PartialContext(
            name=name,
            summary=summary_of(work, what),
            parameters=parameters,
            x_size=built.sizes.text(product(axis.size for axis in work.parallel)),
            r_size=built.sizes.text(product(axis.size for axis in work.reduced)),
            parts=work.region.schedule.parts,
            x_lines=built.x_lines(),
            r_lines=built.r_lines(),
            body=step,
            partials=partials,
        )
        return written(context)

    configurations = work.region.schedule.candidates[0]
    return kernel_spec(work, built, name, text, grid, configurations, spaces, overshoot)


def combine_kernel(
    work: Work,
    make: MakeBody,
    results: Sequence[Op],
    groups: Groups,
    spaces: Sequence[KernelArgument],
) -> KernelSpec:
    """The second kernel: what is stored of the parts, for each element of the axes under `x`."""

    def write(body: CombineBody) -> tuple[str, ...]:
        body.lines.inner = body.lines.outer
        for op in results:
            body.store(op)
        return tuple(body.lines.outer)

    configurations = work.region.schedule.candidates[1]
    built = build(work, make, write, ROW_TILES, configurations, groups)
    x_size = product(axis.size for axis in groups["x"])
    name = f"{work.region.name}_combine"

    def text(parameters: tuple[str, ...]) -> str:
        context = CombineContext(
            name=name,
            summary=summary_of(work, "combines the parts of rows"),
            parameters=parameters,
            x_size=built.sizes.text(x_size),
            parts=work.region.schedule.parts,
            x_lines=built.x_lines(),
            body=built.result,
        )
        return render("reduction_combine.py.jinja", context)

    grid = (GridAxis(x_size, "XBLOCK"),)
    return kernel_spec(work, built, name, text, grid, configurations, spaces)
