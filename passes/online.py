"""Sums that one pass over a row can form although they are shifted by a result of that pass.

In: ops in program order. Out: the sums of two kinds, by name. `sum(exp(f - c))` is taken from
running shifts instead of `c` and brought to `c` at the end, because exp(f - c) is
exp(f - s) * exp(s - c) for any s; what the sum's body does with the exponential has to be linear.
`sum((f - c)**2)` with `c` the mean of f is taken from running means (Chan, Golub and LeVeque 1979).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from fuser.ir.dim import is_equal, product
from fuser.ir.dtype import DType
from fuser.ir.graph import Argument, Literal, Op, Operand


class Rule(Enum):
    """How a sum is brought to the shift that is known when the pass is over."""

    EXPONENTIAL = "exponential"
    SQUARE = "square"


@dataclass(frozen=True, slots=True)
class Shifted:
    """One such sum.

    `chain` has the ops from the sum's operand to the one that subtracts, which comes last;
    `operands` are the places in the sum and in all but the last of them that lead to the next.
    """

    rule: Rule
    chain: tuple[Op, ...]
    operands: tuple[Argument, ...]
    values: Argument
    """What the subtraction takes the shift from."""
    shift: Argument
    """The shift: of each row one, made of reductions."""


Rounds = Callable[[Op], bool]
"""Whether an op's value is rounded to a half type, so that no algebra may pass through it."""


def casts(op: Op) -> bool:
    """The values that every kernel rounds."""
    return op.kind == "cast" and op.type.dtype.is_half


def shifted_sums(ops: Sequence[Op], rounds: Rounds = casts) -> Mapping[str, Shifted]:
    """The sums of both kinds among `ops`."""
    group = {op.name: op for op in ops}
    made = _made_of_reductions(ops)
    found: dict[str, Shifted] = {}
    for op in ops:
        if op.kind == "sum" and op.compute in (DType.FLOAT32, DType.FLOAT64):
            shifted = _Matcher(group, made, rounds, op.compute).shifted(op)
            if shifted is not None:
                found[op.name] = shifted
    return found


def _made_of_reductions(ops: Sequence[Op]) -> Collection[str]:
    """Reductions and what is computed of them and of constants alone: one value a row."""
    found: set[str] = set()
    constants = {op.name for op in ops if op.kind == "full"}
    for op in ops:
        reads = set(op.reads)
        if op.reduced or (reads & found and reads <= found | constants):
            found.add(op.name)
    return found


@dataclass(frozen=True, slots=True)
class _Matcher:
    group: Mapping[str, Op]
    made: Collection[str]
    rounds: Rounds
    compute: DType

    def shifted(self, op: Op) -> Shifted | None:
        operand = op.operands[0]
        if not isinstance(operand, Argument):
            return None
        return self.square(op, operand) or self.exponential(operand, (), ())

    def producer(self, operand: Operand) -> Op | None:
        """The op of the group that computes an operand, if in full precision."""
        op = self.group.get(operand.value) if isinstance(operand, Argument) else None
        if op is None or op.reduced or op.compute is not self.compute or self.rounds(op):
            return None
        return op

    def difference(self, operand: Operand) -> tuple[Op, Argument, Argument] | None:
        """The subtraction that computes an operand, its values and its shift."""
        op = self.producer(operand)
        if op is None or op.kind != "sub":
            return None
        values, shift = op.operands
        if not isinstance(values, Argument) or not isinstance(shift, Argument):
            return None
        if shift.value not in self.made or values.value in self.made:
            return None
        return op, values, shift

    # Exponentials -------------------------------------------------------------------------------

    def exponential(
        self, operand: Operand, chain: tuple[Op, ...], places: tuple[Argument, ...]
    ) -> Shifted | None:
        op = self.producer(operand)
        if op is None:
            return None
        assert isinstance(operand, Argument)
        chain, places = (*chain, op), (*places, operand)
        if op.kind == "exp":
            found = self.difference(op.operands[0])
            if found is None:
                return None
            assert isinstance(op.operands[0], Argument)
            difference, values, shift = found
            places = (*places, op.operands[0])
            return Shifted(Rule.EXPONENTIAL, (*chain, difference), places, values, shift)
        matches = [
            match
            for position in self.linear_in(op)
            if (match := self.exponential(op.operands[position], chain, places)) is not None
        ]
        # A product of two exponentials is not linear in either.
        return matches[0] if len(matches) == 1 else None

    def linear_in(self, op: Op) -> tuple[int, ...]:
        """The operands by which the op's result is multiplied."""
        if op.kind in ("convert", "copy", "neg", "divide"):
            return (0,)
        if op.kind == "mul":
            return (0, 1)
        if op.kind == "where":
            return tuple(p for p, other in ((1, 2), (2, 1)) if self.is_zero(op.operands[other]))
        return ()

    def is_zero(self, operand: Operand) -> bool:
        if isinstance(operand, Literal):
            return operand.value == 0
        op = self.group.get(operand.value)
        return op is not None and op.kind == "full" and op.operands == (Literal(0.0),)

    # Squares ------------------------------------------------------------------------------------

    def square(self, fold: Op, operand: Argument) -> Shifted | None:
        op = self.producer(operand)
        if op is None or not _squares(op):
            return None
        found = self.difference(op.operands[0])
        if found is None:
            return None
        difference, values, shift = found
        if not self.is_mean(shift, values, difference, fold):
            return None
        assert isinstance(op.operands[0], Argument)
        return Shifted(Rule.SQUARE, (op, difference), (operand, op.operands[0]), values, shift)

    def is_mean(self, shift: Argument, values: Argument, difference: Op, fold: Op) -> bool:
        """Whether the shift is the mean of the values over the axes of the fold."""
        op = self.group[shift.value]
        if op.kind != "divide" or self.rounds(op) or len(op.operands) != 2:
            return False
        total, count = op.operands
        if not isinstance(total, Argument) or not isinstance(count, Literal):
            return False
        summed = self.group.get(total.value)
        if summed is None or summed.kind != "sum" or summed.reduced != fold.reduced:
            return False
        reduced = product(summed.domain[axis] for axis in summed.reduced)
        same = summed.operands[0]
        return (
            isinstance(same, Argument)
            and not isinstance(count.value, float)
            and is_equal(count.value, reduced)
            and same.value == values.value
            and same.map == values.map
            and summed.domain == difference.domain == fold.domain
        )


def decisive(number: Literal) -> object:
    """What of a number decides which sums are shifted: of a fraction, whether it is none of those
    that `is_zero` and `_squares` ask for. Equal for numbers that make no difference."""
    value = number.value
    is_other = isinstance(value, float) and value not in (0.0, 2.0)
    return float if is_other else repr(value)


def _squares(op: Op) -> bool:
    """Whether the op multiplies its first operand by itself."""
    left, right = (*op.operands, None)[:2]
    if op.kind == "mul":
        return isinstance(left, Argument) and left == right
    return op.kind == "pow" and isinstance(right, Literal) and right.value == 2
