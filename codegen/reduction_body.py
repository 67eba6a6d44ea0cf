"""Bodies with reductions: a row in registers, or a loop over the row in passes.

A row in registers is one straight body. In a loop, the reductions that wait for no other one are
accumulated in pass 0, those that need their results in pass 1, and so on; each pass loads and
computes again what it needs of the row. Sums that are shifted by a result of a pass are taken from
running shifts in the same pass. A value of row length is stored in the earliest pass that can
compute it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fuser.codegen.body import Body, Lines
from fuser.codegen.expressions import Held, convert
from fuser.codegen.products import factors, with_added
from fuser.codegen.reductions import FOLDS, Fold
from fuser.ir.dim import product
from fuser.ir.dtype import DType
from fuser.ir.graph import Argument, Op, Operand
from fuser.ir.ops import BY_KIND, is_contraction
from fuser.ir.space import Index, through
from fuser.passes.access import operand_offset
from fuser.passes.online import Rule, Shifted, shifted_sums
from fuser.passes.stages import online_sums, reduction_stages
from fuser.passes.unify import argument_of

ROW = frozenset("xr")
"""The level of a tile of rows."""


class ReductionBody(Body):
    """What all ways of folding share."""

    row, element, shape = "x", "r", "[XBLOCK, RBLOCK]"
    """The tile variables of the rows and of what is folded of each, and the blocks of the two."""

    @property
    def mask_of_row(self) -> str:
        return f"{self.element}_mask"

    def folded(self, op: Op, index: Index, mask: str = "") -> tuple[Fold, str, str]:
        """The fold, the operand's tile with its masked lanes neutral, and the index tile."""
        fold = FOLDS[op.kind]
        if is_contraction(op):
            held = factors(self, op, index)
        else:
            held = self.operand(op.operands[0], index, None)
            if not op.type.dtype.is_float:
                held = self.as_stored(held, op.operands[0])
        tile = self.tile(held, op.compute)
        if mask or self.element not in self.exact:
            mask = mask or self.mask_of_row
            tile = f"tl.where({mask}, {tile}, {fold.identity(op.compute)})"
        position = ""
        if fold.is_argument:
            form = self.logical_position(op, index)
            number = self.affine(form) if form.axes else f"tl.full([], {form.offset}, tl.int64)"
            position = f"tl.broadcast_to({number}, {self.shape}).to(tl.int64)"
            # Lanes past the row must lose every tie.
            position = f"tl.where({self.mask_of_row}, {position}, {2**63 - 1})"
        return fold, tile, position

    def contraction(self, op: Op, index: Index, guard: Held | None) -> Held:
        return self.reduction(op, index, guard)

    def tile(self, held: Held, dtype: DType) -> str:
        """A value as a whole tile of this type."""
        text = convert(held, dtype)
        is_whole = held.level == {self.row, self.element}
        return text if is_whole else f"tl.broadcast_to({text}, {self.shape})"

    def held_result(self, op: Op, text: str) -> Held:
        fold = FOLDS[op.kind]
        computed = DType.INT64 if fold.is_argument else op.compute
        if is_contraction(op):
            text = with_added(self, op, text, self.space.index[op.name], None)
        return self.bind(op, Held(text, computed, frozenset({self.row})))

    def place_in_chain(self, op: Op, shifted: Shifted, depth: int) -> Index:
        """Where the sum's chain computes its op number `depth`."""
        index = self.space.index[op.name]
        for operand in shifted.operands[: depth + 1]:
            index = through(operand.map, index, self.axis_sizes)
        return index

    def place(self, operand: Operand, index: Index) -> object:
        """What an operand reads there: equal for equal elements."""
        assert isinstance(operand, Argument)
        if operand.value not in self.inside:
            return ("load", operand.value, operand_offset(operand, index, self.axis_sizes).key())
        return _place(operand.value, through(operand.map, index, self.axis_sizes))


class RowBody(ReductionBody):
    """The whole row is one tile: reductions are ordinary lines."""

    def reduction(self, op: Op, index: Index, guard: Held | None) -> Held:
        fold, tile, position = self.folded(op, index)
        if not fold.is_argument:
            return self.held_result(op, f"fn.{fold.function}({tile}, 1, True)")
        name = self.names.fresh(f"{op.name}_where")
        line = f"_, {name} = fn.{fold.function}({tile}, {position}, 1, True)"
        self.lines.emit(frozenset((self.row, self.element)), line)
        return self.held_result(op, name)

    @cached_property
    def means(self) -> Mapping[str, tuple[Op, Shifted]]:
        """The means that sums of squares are taken from, with those sums.

        Only these have to be exact to the last bit, and not of values that eager has in a half
        type: those are apart by more than the error of a mean in float32.
        """
        inside = [op for op in self.graph.ops if op.name in self.inside]
        shifted = shifted_sums(inside, self.rounding.applies)
        by_name = self.graph.by_name
        return {
            each.shift.value: (by_name[name], each)
            for name, each in shifted.items()
            if each.rule is Rule.SQUARE and not self.is_half(each.values)
        }

    def is_half(self, argument: Argument) -> bool:
        """Whether a value, or what it was cast from, is of a half type in eager."""
        while not argument.type.dtype.is_half:
            op = self.graph.by_name.get(argument.value)
            if op is None or op.kind != "cast":
                return False
            argument = argument_of(op, 0)
        return True

    def pointwise(self, op: Op, index: Index, guard: Held | None) -> Held:
        held = super().pointwise(op, index, guard)
        if op.name not in self.means:
            return held
        total, shifted = self.means[op.name]
        values = self.operand(shifted.values, self.place_in_chain(total, shifted, 1), None)
        distance = f"{self.tile(values, total.compute)} - {held.text}"
        count = self.sizes.text(product(total.domain[axis] for axis in total.reduced))
        tile = f"tl.where({self.mask_of_row}, {distance}, 0)"
        return self.bind(op, replace(held, text=f"fn.refined_mean({held.text}, {tile}, {count})"))


@dataclass(frozen=True, slots=True)
class Pass:
    """One loop over the row: lines before it, accumulators, the loop's body, lines after it."""

    before: tuple[str, ...]
    accumulators: tuple[str, ...]
    body: tuple[str, ...]
    after: tuple[str, ...]


Finish = list[tuple[Op, Callable[[], str]]]
"""Reductions whose loop is complete, and what gives their result from the accumulators."""


@dataclass(frozen=True, slots=True)
class Running:
    """The names of a running maximum of values, before and after a step, and of the shift."""

    largest: str
    before: str
    shift: str


class LoopedBody(ReductionBody):
    """The row in blocks of RBLOCK; see the module's docstring.

    `chunk` is how many neighbours of a row a lane is expected to hold together.
    """

    def __init__(self, *arguments: Any, chunk: int = 1) -> None:
        super().__init__(*arguments)
        self.chunk = chunk
        self.running: dict[object, Running] = {}
        self.states: dict[str, tuple[str, ...]] = {}
        """Of each shifted sum its accumulators."""

    def reduction(self, op: Op, index: Index, guard: Held | None) -> Held:
        return self.known["reduced", op.name]

    def passes(self, ops: Sequence[Op], stored: frozenset[str]) -> tuple[Pass, ...]:
        stages = reduction_stages(ops, self.rounding.applies)
        online = online_sums(ops, self.rounding.applies)
        reduced = {axis.name for axis in self.space.reduced}
        rows = [op for op in ops if op.name in stored and self.is_row(op, reduced)]
        last = max([stages[op.name] for op in rows], default=-1)
        last = max([last] + [stages[op.name] for op in ops if op.reduced])
        found: list[Pass] = []
        for stage in range(last + 1):
            self.lines = Lines()
            folds = [op for op in ops if op.reduced and stages[op.name] == stage]
            accumulators: list[str] = []
            finish: Finish = []
            self.running = {}
            # Exponentials first: a maximum may be the one that they run with.
            for op in sorted(folds, key=lambda op: op.name not in online):
                if op.name in online:
                    accumulators += self.accumulate_shifted(op, online[op.name], finish)
                else:
                    accumulators += self.accumulate(op, finish)
            for op in rows:
                if stages[op.name] == stage:
                    self.store(op)
            before, body = self.lines.outer, self.lines.inner
            self.lines = Lines()
            # In program order, which has every shift before what is shifted by it.
            for op, text in sorted(finish, key=lambda item: ops.index(item[0])):
                self.known["reduced", op.name] = self.held_result(op, text())
            self.forget_rows()
            found.append(
                Pass(tuple(before), tuple(accumulators), tuple(body), tuple(self.lines.outer))
            )
        return tuple(found)

    def is_row(self, op: Op, reduced: set[str]) -> bool:
        return not op.reduced and any(a.axes & reduced for a in self.space.index[op.name])

    def accumulate(self, op: Op, finish: Finish) -> list[str]:
        """Emit the loop's line for one reduction; returns the accumulator's first lines."""
        running = None
        if op.kind == "amax":
            running = self.running.get(self.place(op.operands[0], self.space.index[op.name]))
        if running is not None:
            finish.append((op, lambda: f"fn.max({running.largest}, 1, True)"))
            return []
        fold, tile, position = self.folded(op, self.space.index[op.name])
        name = self.names.fresh(f"{op.name}_so_far")
        full = "[XBLOCK, RBLOCK]"
        start = [f"{name} = tl.full({full}, {fold.identity(op.compute)}, {op.compute.triton})"]
        if fold.function == "sum" and self.chunk > 1:
            start = [self.accumulator(name, "0", op.compute)]
            self.lines.emit(ROW, f"{name} = fn.accumulate_chunks({name}, {tile}, {self.chunk})")
            finish.append((op, lambda: f"fn.sum({name}, 1, True)"))
            return start
        if not fold.is_argument:
            self.lines.emit(ROW, f"{name} = fn.accumulate_{fold.function}({name}, {tile})")
            finish.append((op, lambda: f"fn.{fold.function}({name}, 1, True)"))
            return start
        where = self.names.fresh(f"{op.name}_where")
        start.append(f"{where} = tl.full({full}, {2**63 - 1}, tl.int64)")
        self.lines.emit(
            ROW,
            f"{name}, {where} = fn.accumulate_{fold.function}({name}, {where}, {tile}, {position})",
        )
        finish.append((op, lambda: f"fn.{fold.function}({name}, {where}, 1, True)[1]"))
        return start

    def accumulate_shifted(self, op: Op, shifted: Shifted, finish: Finish) -> list[str]:
        """The same for a sum that is shifted by a result of this pass."""
        if shifted.rule is Rule.SQUARE:
            return self.accumulate_squares(op, shifted, finish)
        place = self.place_in_chain(op, shifted, len(shifted.chain) - 1)
        values = self.operand(shifted.values, place, None)
        start: list[str] = []
        running = self.running_with(shifted, place, values, op.compute, start)
        # The sum's body with the running shift in place of its own.
        exponential = shifted.chain[-2]
        name = self.names.fresh(exponential.name)
        shift = f"{convert(values, op.compute)} - {running.shift}"
        text = BY_KIND[exponential.kind].expression.format(shift)
        self.lines.emit(ROW, f"{name} = {text}", f"{exponential.type}")
        index = self.place_in_chain(op, shifted, len(shifted.chain) - 2)
        before = dict(self.known)
        self.known[_place(exponential.name, index), ""] = Held(name, op.compute, ROW)
        _, tile, _ = self.folded(op, self.space.index[op.name])
        self.known = before
        total = self.names.fresh(f"{op.name}_so_far")
        self.states[op.name] = (total, running.largest)
        start.append(self.accumulator(total, "0", op.compute))
        states = f"{total}, {running.before}, {running.largest}"
        self.lines.emit(ROW, f"{total} = fn.accumulate_rescaled({states}, {tile}, {self.chunk})")

        def result() -> str:
            final = convert(self.operand(shifted.shift, place, None), op.compute)
            return f"fn.rescaled_sum({total}, {running.largest}, {final})"

        finish.append((op, result))
        return start

    def running_with(
        self, shifted: Shifted, place: Index, values: Held, dtype: DType, start: list[str]
    ) -> Running:
        """The running maximum of what is exponentiated, one for all sums that need it."""
        what = self.place(shifted.values, place)
        if what not in self.running:
            stem = shifted.values.value
            names = (self.names.fresh(f"{stem}_{end}") for end in ("largest", "before", "shift"))
            running = self.running[what] = Running(*names)
            start.append(self.accumulator(running.largest, 'float("-inf")', dtype))
            tile = f'tl.where(r_mask, {self.tile(values, dtype)}, float("-inf"))'
            for line in (
                f"{running.before} = {running.largest}",
                f"{running.largest} = fn.largest_of_chunks({running.before}, {tile}, {self.chunk})",
                f"{running.shift} = fn.spread_chunks(fn.shift_of({running.largest}), {self.chunk})",
            ):
                self.lines.emit(ROW, line)
        return self.running[what]

    def accumulate_squares(self, op: Op, shifted: Shifted, finish: Finish) -> list[str]:
        place = self.place_in_chain(op, shifted, 1)
        tile = self.tile(self.operand(shifted.values, place, None), op.compute)
        ends = ("count", "mean", "squares")
        states = [self.names.fresh(f"{op.name}_{end}") for end in ends]
        self.states[op.name] = tuple(states)
        together = ", ".join(states)
        text = f"fn.accumulate_spread({together}, {tile}, r_mask, {self.chunk})"
        self.lines.emit(ROW, f"{together} = {text}")

        def result() -> str:
            mean = self.graph.by_name[shifted.shift.value]
            held = self.operand(shifted.shift, place, None)
            text = f"fn.mean_of_chunks({states[0]}, {states[1]}, {held.text})"
            held = self.bind(mean, replace(held, text=text))
            self.known[self.place(shifted.shift, place), ""] = held
            return f"fn.spread_sum({together}, {held.text})"

        finish.append((op, result))
        return [self.accumulator(state, "0", op.compute) for state in states]

    def accumulator(self, name: str, value: str, dtype: DType) -> str:
        """The first line of an accumulator with one element a chunk."""
        shape = "RBLOCK" if self.chunk == 1 else f"RBLOCK // {self.chunk}"
        return f"{name} = tl.full([XBLOCK, {shape}], {value}, {dtype.triton})"

    def forget_rows(self) -> None:
        """Values of row length do not outlive the loop they were computed in."""
        self.known = {key: held for key, held in self.known.items() if "r" not in held.level}

    def store_results(self, ops: Sequence[Op], stored: frozenset[str]) -> tuple[str, ...]:
        """Lines after the last loop: the stored values with one element a row."""
        reduced = {axis.name for axis in self.space.reduced}
        self.lines = Lines()
        for op in ops:
            if op.name in stored and not self.is_row(op, reduced):
                self.store(op)
        return tuple(self.lines.outer)


def _place(value: str, index: Index) -> object:
    """A value and where it is needed, as `Body.value` remembers it."""
    return (value, tuple(affine.key() for affine in index))
