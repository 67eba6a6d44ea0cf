"""Bodies of a product's kernel: the operands' tiles inside the loop, and what becomes of the sums.

A kernel has three bodies over the same ops. The rows' operands vary along `m` and the inner axis,
those of the columns along the inner axis and `n`, the results along `m` and `n`. The inner axis has
two variables, `ka` along the lanes of a tile and `kb` down it. The three bodies share parameters,
names and sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fuser.codegen.body import Body
from fuser.codegen.expressions import Held, convert
from fuser.codegen.products import with_added
from fuser.codegen.reduction_body import RowBody
from fuser.ir.dim import product
from fuser.ir.dtype import DType
from fuser.ir.graph import Argument, Op, Operand, TensorType
from fuser.ir.kernel import Window
from fuser.ir.ops import is_contraction
from fuser.ir.space import Affine, Index, LoopAxis, through
from fuser.passes.access import operand_offset
from fuser.passes.base import after
from fuser.passes.contraction import read_where
from fuser.passes.parts import Half, half_of, piece_index
from fuser.passes.unify import result_index
from fuser.passes.windows import tile_window

INNER = ("ka", "kb")
"""The variables of the axis that is summed over."""

STARTS: Mapping[str, str] = {"m": "m_start", "n": "n_start", "ka": "k_start", "kb": "k_start"}
"""Where a tile begins along its variables."""


class OperandBody(Body):
    """Tiles of the operands on one side of the products."""

    def __init__(
        self,
        *arguments: Any,
        shape: Mapping[str, str],
        groups: Mapping[str, tuple[LoopAxis, ...]],
    ) -> None:
        """`shape` has the block of each of the tile's two variables, `groups` the loop axes of
        every variable."""
        super().__init__(*arguments)
        self.shape = shape
        self.groups = groups
        self.inner = next(name for name in shape if name in INNER)
        self.windows: dict[tuple[str, Window], str] = {}
        self.lines.loop = self.inner

    def tile(self, operand: Argument, index: Index) -> str:
        """An operand's tile, in its own element type and zero past the end of the inner axis."""
        operand, index = read_where(self.graph, operand, index, self.space)
        if operand.value in self.inside:
            held = self.computed(operand, through(operand.map, index, self.axis_sizes))
        else:
            offset = operand_offset(operand, index, self.axis_sizes)
            what = ("tile", operand.value, offset.key())
            if what not in self.known:
                self.known[what, ""] = self.load_from(
                    operand.value, operand.type, offset, None, widens=False
                )
            held = self.known[what, ""]
        if held.level == frozenset(self.shape):
            return held.text
        # Of a side of one element, or one that the operand is the same along.
        name = self.names.fresh(f"{operand.value}_tile")
        text = f"tl.broadcast_to({held.text}, [{', '.join(self.shape.values())}])"
        if self.inner not in held.level | self.exact:
            text = f"tl.where({self.inner}_mask, {text}, 0)"
        self.lines.emit(frozenset({self.inner}), f"{name} = {text}")
        return name

    def computed(self, operand: Argument, index: Index) -> Held:
        """An operand that this kernel computes, rounded as eager stores it."""
        what = ("tile", operand.value, tuple(affine.key() for affine in index))
        recalled = self.recall(what, None)
        if recalled is not None:
            return recalled
        dtype = operand.type.dtype
        held = self.value(self.graph.by_name[operand.value], index)
        text = convert(held, dtype.compute)
        if dtype.is_half:
            text = f"{text}.to({dtype.triton})"
        level = held.level
        if self.inner not in self.exact:
            # What is computed from a masked load need not be zero.
            text, level = f"tl.where({self.inner}_mask, {text}, 0)", level | {self.inner}
        name = self.names.fresh(f"{operand.value}_tile")
        self.lines.emit(level, f"{name} = {text}")
        self.known[what, ""] = Held(name, dtype, level)
        return self.known[what, ""]


class DescribedOperandBody(OperandBody):
    """The same, with whole tiles read by tensor descriptors where memory allows it."""

    def load_from(
        self,
        value: str,
        kind: TensorType,
        offset: Affine,
        guard: Held | None,
        widens: bool = True,
    ) -> Held:
        variables = ("o", *self.shape)
        found = tile_window(offset, kind.dtype, variables, self.groups) if guard is None else None
        if found is None:
            return super().load_from(value, kind, offset, guard, widens)
        places = [f"({self.affine(place)}).to(tl.int32)" for place in found.batch]
        places += [STARTS[variable] for variable in found.variables]
        text = f"{self.descriptor(value, found.window)}.load([{', '.join(places)}])"
        if found.batch:
            blocks = (self.shape[variable] for variable in found.variables)
            text += f".reshape({', '.join(blocks)})"
        if found.variables != tuple(self.shape):
            text += ".T"
        return self.loaded(value, kind, text, frozenset(self.shape), widens)

    def descriptor(self, value: str, window: Window) -> str:
        """The parameter that describes a window; the first request makes it one."""
        known = (value, window)
        if known not in self.windows:
            self.windows[known] = self.names.fresh(f"{value}_tiles")
        return self.windows[known]


class ResultBody(RowBody):
    """What is done with the sums, after the loop. Where they are folded, a tile has whole rows."""

    row, element, shape = "m", "n", "[MBLOCK, NBLOCK]"

    def __init__(
        self,
        *arguments: Any,
        sums: Mapping[str, str],
        along: Mapping[str, Sequence[LoopAxis]],
        has_rows: bool,
    ) -> None:
        """`sums` has the accumulator of each product, `along` the axes of each tile variable;
        `has_rows` says that rows are folded."""
        super().__init__(*arguments)
        self.sums = sums
        self.along = along
        self.has_rows = has_rows
        self.after_products = after(self.graph.in_order(self.inside), is_contraction)

    def operand(self, operand: Operand, index: Index, guard: Held | None) -> Held:
        """A product is read at its own place, or at one half of an axis of the tile."""
        half = self.half(operand, index)
        if half is None:
            return super().operand(operand, index, guard)
        assert isinstance(operand, Argument)
        what = ("half", operand.value, half)
        if what not in self.known:
            self.known[what] = self.halved(self.graph.by_name[operand.value], half)
        return self.known[what]

    def half(self, operand: Operand, index: Index) -> Half | None:
        if not isinstance(operand, Argument) or operand.value not in self.sums:
            return None
        producer = self.graph.by_name[operand.value]
        own = result_index(producer, self.space.index[producer.name])
        return half_of(through(operand.map, index, self.axis_sizes), own, self.axis_sizes)

    def halved(self, product_op: Op, half: Half) -> Held:
        held = self.value(product_op, self.space.index[product_op.name])
        variable = self.levels[half.axis]
        side = {"m": "rows", "n": "columns"}[variable]
        within = self.along[variable]
        inner = product(a.size for a in within[1 + [a.name for a in within].index(half.axis) :])
        name = self.names.fresh(f"{product_op.name}_half")
        text = f"fn.half_of_{side}({held.text}, {half.place}, {inner})"
        self.lines.emit(held.level, f"{name} = {text}")
        return Held(name, held.dtype, held.level)

    def piece_index(self, op: Op, position: int, index: Index) -> Index:
        operand = op.operands[position]
        if not isinstance(operand, Argument) or operand.value not in self.after_products:
            return index
        return piece_index(op, position, index, self.axis_sizes)

    def contraction(self, op: Op, index: Index, guard: Held | None) -> Held:
        text = with_added(self, op, self.sums[op.name], index, guard)
        return self.bind(op, Held(text, DType.FLOAT32, frozenset("mn")))

    def place_to_store(self, offset: Affine) -> tuple[frozenset[str], str]:
        """A result has an element for each of the tile's, also where a side has one alone, or one
        for each row of it."""
        is_of_row = self.has_rows and "n" not in self.level_of(offset)
        level = frozenset("m") if is_of_row else frozenset("mn")
        missing = sorted(level - self.level_of(offset))
        return level, " + ".join([self.affine(offset), *missing])
