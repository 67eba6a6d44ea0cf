"""The computation of a region as lines of Triton, from what is stored back to what is loaded.

Every op is a function of its index, so a value is written once for each distinct index at which it
is needed: views between ops cost nothing, and a shifted or broadcast reader simply asks for another
index. Lines that vary over the reduced axis go to `inner`, all others to `outer`, so that a looped
kernel repeats only what its loop needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fuser.codegen.axes import AxisText, SizeArguments
from fuser.codegen.borders import bordered
from fuser.codegen.expressions import Held, convert, literal, plain_literal, rounded
from fuser.codegen.gathers import gathered
from fuser.codegen.names import Names
from fuser.codegen.random_numbers import random_numbers
from fuser.codegen.tiles import VARIABLES, Tiles
from fuser.ir.dim import Dim
from fuser.ir.dtype import DType
from fuser.ir.graph import Argument, Graph, Literal, Op, Operand, TensorType
from fuser.ir.ops import BY_KIND, Group, Promotion
from fuser.ir.space import Affine, Index, Space, memory_offset, through
from fuser.passes.access import operand_offset
from fuser.passes.approximate import is_approximate
from fuser.passes.unify import result_index

USERS_CAST = "aten._to_copy.default"
"""A cast that stands in the program: what it casts is eager's value, to a wider type as well."""


@dataclass
class Lines:
    """Where text goes: `outer` before a loop over a tile variable, `inner` inside it.

    What varies along the tile variable `loop` is in the loop.
    """

    loop: str = "r"
    outer: list[str] = field(default_factory=list)
    inner: list[str] = field(default_factory=list)

    def emit(self, level: frozenset[str], text: str, comment: str = "") -> None:
        target = self.inner if self.loop in level else self.outer
        target.append(f"{text}  # {comment}" if comment else text)


@dataclass(frozen=True, slots=True)
class Rounding:
    """When a half-precision value is rounded inside a kernel.

    Casts always round, and so does a value that is stored, so that every reader sees one value.
    `everywhere` rounds the result of every op, as eager does.
    """

    stored: frozenset[str]
    everywhere: bool = False

    def applies(self, op: Op) -> bool:
        is_due = op.kind == "cast" or op.name in self.stored or self.everywhere
        return op.type.dtype.is_half and is_due


class Body:
    """Builds the lines of one kernel; `accesses` collects every affine form it writes."""

    def __init__(
        self,
        graph: Graph,
        space: Space,
        rounding: Rounding,
        axis_text: AxisText,
        sizes: SizeArguments,
    ) -> None:
        self.graph = graph
        self.space = space
        self.rounding = rounding
        self.axis_text = axis_text
        self.sizes = sizes
        self.names = Names()
        self.lines = Lines()
        self.pointers: dict[str, str] = {}
        self.accesses: list[Affine] = []
        self.known: dict[object, Held] = {}
        self.levels = axis_text.levels
        self.axis_sizes: Mapping[str, Dim] = {axis.name: axis.size for axis in space.axes}
        self.inside = set(space.index)
        self.tiles: Tiles = {}
        """The tile variables with four elements in a row."""
        self.exact: frozenset[str] = frozenset()
        """The tile variables of which no lane is past the end."""

    # Values -------------------------------------------------------------------------------------

    def value(self, op: Op, index: Index, guard: Held | None = None) -> Held:
        """The result of `op` at `index` of its domain; loads are masked by `guard` as well."""
        what = (op.name, tuple(a.key() for a in index))
        recalled = self.recall(what, guard)
        if recalled is not None:
            return recalled
        builders = {
            Group.POINTWISE: self.pointwise,
            Group.CREATION: self.pointwise,
            Group.BORDER: self.border,
            Group.GATHER: self.gather,
            Group.REDUCTION: self.reduction,
            Group.CONTRACTION: self.contraction,
            Group.RANDOM: self.random,
        }
        held = builders[BY_KIND[op.kind].group](op, index, guard)
        self.known[what, _text(guard)] = held
        return held

    def recall(self, what: object, guard: Held | None) -> Held | None:
        """What was written before under this guard, or without one, which serves as well."""
        return self.known.get((what, _text(guard))) or self.known.get((what, ""))

    def operand(self, operand: Operand, index: Index, guard: Held | None) -> Held:
        """An operand of an op whose domain index is `index`."""
        assert isinstance(operand, Argument)
        if operand.value in self.inside:
            producer = self.graph.by_name[operand.value]
            if producer.reduced:
                # The space's own index for it: the reader's leaves out the reduced dimensions.
                source = self.space.index[producer.name]
            else:
                source = through(operand.map, index, self.axis_sizes)
            return self.value(producer, source, guard)
        return self.load(operand, index, guard)

    def pointwise(self, op: Op, index: Index, guard: Held | None) -> Held:
        row = BY_KIND[op.kind]
        is_bool = op.compute is DType.BOOL
        wide = row.approximate if is_approximate(op) else row.expression
        expression = (row.bool_expression if is_bool else "") or wide
        texts: list[str] = []
        level: frozenset[str] = frozenset()
        common = dict(op.attributes).get("compared_in", "")
        # Beside a tensor a number stays plain: it takes the tensor's type, and functions follow
        # eager's own special cases for numbers. Alone it needs a type.
        is_typed = not any(isinstance(o, Argument) for o in op.operands)
        for position, operand in enumerate(op.operands):
            if isinstance(operand, Literal):
                texts.append(self.literal(operand, op.compute, is_typed))
                continue
            held = self.operand(operand, index, guard)
            level |= held.level
            wanted = DType.BOOL if position in row.keeps else op.compute
            is_step = row.decides or not op.type.dtype.is_float
            if is_step or op.call.name == USERS_CAST:
                held = self.as_stored(held, operand)
            text = convert(held, wanted)
            if common and operand.type.dtype.value != common:
                text = f"fn.round_to({text}, tl.{common})"
            texts.append(text)
        text = expression.format(*texts)
        if row.kind == "iota":
            text = text.replace("index", self.index_value(index[0], op.compute))
            level |= self.level_of(index[0])
        computed = DType.BOOL if row.promotion is Promotion.COMPARE else op.compute
        return self.bind(op, Held(text, computed, level))

    def as_stored(self, held: Held, operand: Operand) -> Held:
        """An operand that something is decided by: rounded, so that what eager has equal is."""
        assert isinstance(operand, Argument)
        dtype = operand.type.dtype
        if not dtype.is_half or operand.value not in self.inside:
            return held
        if self.rounding.applies(self.graph.by_name[operand.value]):
            return held
        return replace(held, text=rounded(held.text, dtype))

    def literal(self, operand: Literal, dtype: DType, is_typed: bool) -> str:
        number = operand.value
        if not isinstance(number, (bool, int, float)):
            return f"tl.full([], {self.sizes.text(number)}, {dtype.triton})"
        return literal(number, dtype) if is_typed else plain_literal(number, dtype)

    def bind(self, op: Op, held: Held) -> Held:
        """Give the computed text a name, in the op's own type, rounded where it must be."""
        result = op.type.dtype
        text = convert(held, result.compute)
        if self.rounding.applies(op) and not self.is_only_stored(op):
            text = rounded(text, result)
        name = self.names.fresh(op.name)
        comment = f"{op.type}"
        if op.source.file:
            comment += f"  {shortened(str(op.source))}"
        self.lines.emit(held.level, f"{name} = {text}", comment)
        return Held(name, result.compute, held.level)

    def is_only_stored(self, op: Op) -> bool:
        """Whether a float8 is on its way to memory alone: the store rounds it, and costs enough."""
        readers = self.graph.readers[op.name]
        return op.type.dtype.is_float8 and not any(r.name in self.inside for r in readers)

    def border(self, op: Op, index: Index, guard: Held | None) -> Held:
        return bordered(self, op, index, guard)

    def piece_index(self, op: Op, position: int, index: Index) -> Index:
        """The index of an op over a piece that it puts in place: the op's own."""
        return index

    def gather(self, op: Op, index: Index, guard: Held | None) -> Held:
        return gathered(self, op, index, guard)

    def random(self, op: Op, index: Index, guard: Held | None) -> Held:
        return random_numbers(self, op, index) if guard is None else self.value(op, index)

    def reduction(self, op: Op, index: Index, guard: Held | None) -> Held:
        raise AssertionError(f"{op.name}: this kernel has no reductions")

    def contraction(self, op: Op, index: Index, guard: Held | None) -> Held:
        raise AssertionError(f"{op.name}: this kernel multiplies no matrices")

    # Memory -------------------------------------------------------------------------------------

    def load(self, operand: Argument, index: Index, guard: Held | None) -> Held:
        """A stored value as an op with this index reads it."""
        value = operand.value
        kind = self.graph.values[value].type
        offset = operand_offset(operand, index, self.axis_sizes)
        what = ("load", value, offset.key())
        recalled = self.recall(what, guard)
        if recalled is not None:
            return recalled
        held = self.load_from(value, kind, offset, guard)
        self.known[what, _text(guard)] = held
        return held

    def load_from(
        self,
        value: str,
        kind: TensorType,
        offset: Affine,
        guard: Held | None,
        widens: bool = True,
    ) -> Held:
        """The elements of a value from outside at these offsets."""
        text, level = self.affine(offset), self.level_of(offset)
        return self.load_at(value, kind, self.pointer(value), text, level, guard, widens)

    def load_at(
        self,
        wanted: str,
        kind: TensorType,
        pointer: str,
        offset: str,
        level: frozenset[str],
        guard: Held | None,
        widens: bool = True,
    ) -> Held:
        """A masked load. `widens` has half types held as float32, as they are computed with."""
        if guard is not None:
            for axis in sorted(guard.level - level):
                # A mask may not be wider than the addresses: spread them over its axis.
                offset = f"{offset} + {axis} * 0"
            level |= guard.level
        arguments = f"{pointer} + {_summand(offset)}"
        mask = self.mask(level, guard)
        if mask:
            arguments += f", {mask}, other=0"
        return self.loaded(wanted, kind, f"tl.load({arguments})", level, widens)

    def loaded(
        self, wanted: str, kind: TensorType, text: str, level: frozenset[str], widens: bool
    ) -> Held:
        """What was loaded, by name and as it is computed with."""
        if kind.dtype.is_float8:
            text = f"fn.from_{kind.dtype.value}({text})"
        elif kind.dtype.is_half and widens:
            text += ".to(tl.float32)"
        elif kind.dtype is DType.BOOL:
            text += ".to(tl.int1)"
        name = self.names.fresh(wanted)
        self.lines.emit(level, f"{name} = {text}", str(kind))
        return Held(name, kind.dtype.compute if widens else kind.dtype, level)

    def mask(self, level: frozenset[str], guard: Held | None) -> str:
        """The lanes of a value of this level that are elements, and inside the guard."""
        masked = level - self.exact
        masks = [f"{variable}_mask" for variable in VARIABLES if variable in masked]
        if guard is not None:
            masks.append(_factor(guard.text))
        return " & ".join(masks)

    def store(self, op: Op) -> None:
        """Write the op's value at its place in the space."""
        index = self.space.index[op.name]
        held = self.value(op, index)
        offset = memory_offset(result_index(op, index), op.type.stride)
        level, text = self.place_to_store(offset)
        pointer = self.pointer(op.name, is_output=True)
        mask = self.mask(level, None)
        value = held.text
        if op.type.dtype.is_float8:
            value = f"fn.to_{op.type.dtype.value}({value})"
        arguments = f"{pointer} + {_summand(text)}, {value}{f', {mask}' if mask else ''}"
        self.lines.emit(level | held.level, f"tl.store({arguments})")

    def place_to_store(self, offset: Affine) -> tuple[frozenset[str], str]:
        """The tile variables along which a result is stored, and the text of its offsets."""
        level = self.level_of(offset)
        text = self.affine(offset)
        # A single value: the tile's only valid element, so that shapes agree.
        return (level, text) if level else (frozenset({"x"}), "x")

    def pointer(self, value: str, is_output: bool = False) -> str:
        """The parameter that points to a value; the first request makes it one."""
        if value not in self.pointers:
            self.pointers[value] = self.names.fresh(f"{value}_out" if is_output else f"{value}_ptr")
        return self.pointers[value]

    # Indices ------------------------------------------------------------------------------------

    def affine(self, form: Affine) -> str:
        self.accesses.append(form)
        return self.axis_text.affine(form)

    def level_of(self, form: Affine) -> frozenset[str]:
        return frozenset(self.levels[axis] for axis in form.axes if self.levels[axis])

    def index_value(self, form: Affine, dtype: DType) -> str:
        """An index as a value that is computed with."""
        return f"({self.affine(form)}).to({dtype.triton})" if form.axes else str(form.offset)

    def logical_position(self, op: Op, index: Index) -> Affine:
        """The row-major number of an element among those that `op` reduces."""
        position = Affine()
        step: Dim = 1
        for axis in reversed(op.reduced):
            position = position.plus(index[axis].scaled(step, 0))
            step = step * op.domain[axis]
        return position


def shortened(text: str, width: int = 72) -> str:
    """Long source lines keep their beginning: the file and line number say where the rest is."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _text(guard: Held | None) -> str:
    return guard.text if guard else ""


def _summand(text: str) -> str:
    return f"({text})" if " " in text else text


def _factor(text: str) -> str:
    return f"({text})" if " < " in text or " >= " in text else text
