"""Bodies with reductions: a row in registers, or a loop over the row in passes.

A row in registers is one straight body. In a loop, the reductions that wait for no other one are
accumulated in pass 0, those that need their results in pass 1, and so on; each pass loads and
computes again what it needs of the row. A value of row length is stored in the earliest pass that
can compute it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuser.codegen.body import Body, Lines
from fuser.codegen.expressions import Held, convert
from fuser.codegen.reductions import FOLDS, Fold
from fuser.ir.dtype import DType
from fuser.ir.graph import Op
from fuser.ir.space import Index
from fuser.passes.stages import reduction_stages


class ReductionBody(Body):
    """What both ways of folding share."""

    def folded(self, op: Op, index: Index) -> tuple[Fold, str, str]:
        """The fold, the operand's tile with its masked lanes neutral, and the index tile."""
        fold = FOLDS[op.kind]
        held = self.operand(op.operands[0], index, None)
        if not op.type.dtype.is_float:
            held = self.as_stored(held, op.operands[0])
        text = convert(held, op.compute)
        if held.level != frozenset("xr"):
            text = f"tl.broadcast_to({text}, [XBLOCK, RBLOCK])"
        tile = f"tl.where(r_mask, {text}, {fold.identity(op.compute)})"
        position = ""
        if fold.is_argument:
            form = self.logical_position(op, index)
            number = self.affine(form) if form.axes else f"tl.full([], {form.offset}, tl.int64)"
            position = f"tl.broadcast_to({number}, [XBLOCK, RBLOCK]).to(tl.int64)"
            # Lanes past the row must lose every tie.
            position = f"tl.where(r_mask, {position}, {2**63 - 1})"
        return fold, tile, position

    def held_result(self, op: Op, text: str) -> Held:
        fold = FOLDS[op.kind]
        computed = DType.INT64 if fold.is_argument else op.compute
        return self.bind(op, Held(text, computed, frozenset({"x"})))


class RowBody(ReductionBody):
    """The whole row is one tile: reductions are ordinary lines."""

    def reduction(self, op: Op, index: Index, guard: Held | None) -> Held:
        fold, tile, position = self.folded(op, index)
        if not fold.is_argument:
            return self.held_result(op, f"fn.{fold.function}({tile}, 1, True)")
        name = self.names.fresh(f"{op.name}_where")
        self.lines.emit(
            frozenset("xr"), f"_, {name} = fn.{fold.function}({tile}, {position}, 1, True)"
        )
        return self.held_result(op, name)


@dataclass(frozen=True, slots=True)
class Pass:
    """One loop over the row: lines before it, accumulators, the loop's body, lines after it."""

    before: tuple[str, ...]
    accumulators: tuple[str, ...]
    body: tuple[str, ...]
    after: tuple[str, ...]


class LoopedBody(ReductionBody):
    """The row in blocks of RBLOCK; see the module's docstring."""

    def reduction(self, op: Op, index: Index, guard: Held | None) -> Held:
        return self.known["reduced", op.name]

    def passes(self, ops: Sequence[Op], stored: frozenset[str]) -> tuple[Pass, ...]:
        stages = reduction_stages(ops)
        reduced = {axis.name for axis in self.space.reduced}
        rows = [op for op in ops if op.name in stored and self.is_row(op, reduced)]
        last = max([stages[op.name] for op in rows], default=-1)
        last = max([last] + [stages[op.name] for op in ops if op.reduced])
        found: list[Pass] = []
        for stage in range(last + 1):
            self.lines = Lines()
            folds = [op for op in ops if op.reduced and stages[op.name] == stage]
            accumulators: list[str] = []
            finish: list[tuple[Op, str]] = []
            for op in folds:
                accumulators += self.accumulate(op, finish)
            for op in rows:
                if stages[op.name] == stage:
                    self.store(op)
            before, body = self.lines.outer, self.lines.inner
            self.lines = Lines()
            for op, text in finish:
                self.known["reduced", op.name] = self.held_result(op, text)
            self.forget_rows()
            found.append(
                Pass(tuple(before), tuple(accumulators), tuple(body), tuple(self.lines.outer))
            )
        return tuple(found)

    def is_row(self, op: Op, reduced: set[str]) -> bool:
        return not op.reduced and any(a.axes & reduced for a in self.space.index[op.name])

    def accumulate(self, op: Op, finish: list[tuple[Op, str]]) -> list[str]:
        """Emit the loop's line for one reduction; returns the accumulator's first lines."""
        fold, tile, position = self.folded(op, self.space.index[op.name])
        name = self.names.fresh(f"{op.name}_so_far")
        full = "[XBLOCK, RBLOCK]"
        start = [f"{name} = tl.full({full}, {fold.identity(op.compute)}, {op.compute.triton})"]
        row = frozenset("xr")
        if not fold.is_argument:
            self.lines.emit(row, f"{name} = fn.accumulate_{fold.function}({name}, {tile})")
            finish.append((op, f"fn.{fold.function}({name}, 1, True)"))
            return start
        where = self.names.fresh(f"{op.name}_where")
        start.append(f"{where} = tl.full({full}, {2**63 - 1}, tl.int64)")
        self.lines.emit(
            row,
            f"{name}, {where} = fn.accumulate_{fold.function}({name}, {where}, {tile}, {position})",
        )
        finish.append((op, f"fn.{fold.function}({name}, {where}, 1, True)[1]"))
        return start

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
