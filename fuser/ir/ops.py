"""The op table: one row per operation that generated kernels can compute.

A row says which torch calls it stands for, which of their parameters are operands, the Triton
expression, and how element types promote. Rows of one target are tried in order; the first whose
`requires` holds is taken, and a call that no row takes stays opaque. `fn` in an expression is
`fuser.runtime.device_functions`, where torch's exact semantics live.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any


class Group(Enum):
    """How generated code forms an op's value from its operands."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"
    BORDER = "border"
    GATHER = "gather"
    CREATION = "creation"
    RANDOM = "random"


class Promotion(Enum):
    """From operand element types to the computation's (torch's promotion kinds)."""

    DEFAULT = "default"
    INT_TO_FLOAT = "int_to_float"
    NO_OPMATH = "no_opmath"
    COMPARE = "compare"
    TO_BOOL = "to_bool"
    RESULT = "result"


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One row. `{0}`, `{1}`, ... in the expressions are the operands after conversion.

    `keeps` lists operands that are conditions, not of the computation's type. `weight` is
    arithmetic operations an element, a special function counting as its instruction count on the
    vector unit. `bool_expression` replaces the expression where the computation is on booleans; a
    row without one stays opaque there unless it compares. A row whose result depends on the spacing
    of its type's numbers (`by_spacing`) stays opaque for the half types, which kernels hold as
    float32. `approximate` is an expression of fewer instructions, `approximate_weight` of them, for
    results that eager rounds to a half type (`passes/approximate.py`). A row that `decides` has
    steps: of nearly equal operands it makes different results, so it reads eager's rounded ones.
    """

    kind: str
    targets: tuple[str, ...]
    operands: tuple[str, ...]
    expression: str = ""
    promotion: Promotion = Promotion.DEFAULT
    group: Group = Group.POINTWISE
    weight: int = 1
    requires: tuple[tuple[str, Any], ...] = ()
    keeps: tuple[int, ...] = ()
    bool_expression: str = ""
    by_spacing: bool = False
    approximate: str = ""
    approximate_weight: int = 0
    decides: bool = False


def _unary(kind: str, expression: str = "", weight: int = 1, **fields: Any) -> OpSpec:
    return OpSpec(
        kind, (f"aten.{kind}.default",), ("self",), expression or f"fn.{kind}({{0}})",
        weight=weight, **fields,
    )  # fmt: skip


def _special(kind: str, weight: int = 16, approximate_weight: int = 0) -> OpSpec:
    """A function that torch computes in floating point whatever the input type."""
    return _unary(
        kind, weight=weight, promotion=Promotion.INT_TO_FLOAT,
        approximate=f"fn.approximate_{kind}({{0}})" if approximate_weight else "",
        approximate_weight=approximate_weight,
    )  # fmt: skip


_WITH_NUMBERS = ("Tensor", "Scalar")
_WHOLE = ("default",)
_FLOOR = ("default", "Scalar")
_BITS = ("Tensor", "Scalar", "Scalar_Tensor")
_SHIFTS = ("Tensor", "Tensor_Scalar", "Scalar_Tensor")


def _binary(
    kind: str,
    expression: str,
    weight: int = 1,
    overloads: tuple[str, ...] = _WITH_NUMBERS,
    **fields: Any,
) -> OpSpec:
    targets = tuple(f"aten.{kind}.{overload}" for overload in overloads)
    return OpSpec(kind, targets, ("self", "other"), expression, weight=weight, **fields)


def _compare(kind: str, symbol: str) -> OpSpec:
    return _binary(kind, f"{{0}} {symbol} {{1}}", promotion=Promotion.COMPARE)


def _logical(kind: str, expression: str) -> OpSpec:
    return OpSpec(
        kind, (f"aten.{kind}.default",), ("self", "other"), expression,
        promotion=Promotion.TO_BOOL, bool_expression=expression,
    )  # fmt: skip


_TRUE_DIVISION = ("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
_MODE_DIVISION = ("aten.div.Tensor_mode", "aten.div.Scalar_mode")
_INT = Promotion.INT_TO_FLOAT
_APPROXIMATE_DIVISION: Mapping[str, Any] = {
    "approximate": "fn.approximate_divide({0}, {1})", "approximate_weight": 8,
}  # fmt: skip

_ARITHMETIC = (
    _binary("add", "{0} + {1}", requires=(("alpha", 1),), bool_expression="{0} | {1}"),
    OpSpec("add_scaled", ("aten.add.Tensor", "aten.add.Scalar"), ("self", "other", "alpha"),
           "{0} + {1} * {2}", weight=2),
    _binary("sub", "{0} - {1}", requires=(("alpha", 1),)),
    OpSpec("sub_scaled", ("aten.sub.Tensor", "aten.sub.Scalar"), ("self", "other", "alpha"),
           "{0} - {1} * {2}", weight=2),
    OpSpec("reverse_sub", ("aten.rsub.Tensor", "aten.rsub.Scalar"), ("self", "other"),
           "{1} - {0}", requires=(("alpha", 1),)),
    _binary("mul", "{0} * {1}", bool_expression="{0} & {1}"),
    OpSpec("divide", _TRUE_DIVISION, ("self", "other"), "fn.divide({0}, {1})", _INT, weight=8,
           **_APPROXIMATE_DIVISION),
    OpSpec("divide", _MODE_DIVISION, ("self", "other"), "fn.divide({0}, {1})", _INT, weight=8,
           requires=(("rounding_mode", None),), **_APPROXIMATE_DIVISION),
    OpSpec("floor_divide", _MODE_DIVISION, ("self", "other"), "fn.floor_divide({0}, {1})",
           weight=12, decides=True, requires=(("rounding_mode", "floor"),)),
    OpSpec("trunc_divide", _MODE_DIVISION, ("self", "other"), "fn.trunc_divide({0}, {1})",
           weight=10, decides=True, requires=(("rounding_mode", "trunc"),)),
    _binary("floor_divide", "fn.floor_divide({0}, {1})", overloads=_FLOOR, weight=12, decides=True),
    _binary("remainder", "fn.remainder({0}, {1})", weight=12, decides=True),
    _binary("fmod", "fn.fmod({0}, {1})", weight=12, decides=True),
    _binary("maximum", "fn.maximum({0}, {1})", overloads=_WHOLE, bool_expression="{0} | {1}"),
    _binary("minimum", "fn.minimum({0}, {1})", overloads=_WHOLE, bool_expression="{0} & {1}"),
    _binary("fmax", "fn.fmax({0}, {1})", overloads=_WHOLE),
    _binary("fmin", "fn.fmin({0}, {1})", overloads=_WHOLE),
    OpSpec("pow", ("aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar", "aten.pow.Scalar"),
           ("self", "exponent"), "fn.pow({0}, {1})", weight=32),
    _binary("atan2", "fn.atan2({0}, {1})", overloads=_WHOLE, weight=24, promotion=_INT),
    _binary("hypot", "fn.hypot({0}, {1})", overloads=_WHOLE, weight=10),
    _binary("copysign", "fn.copysign({0}, {1})", promotion=_INT),
    _binary("nextafter", "fn.nextafter({0}, {1})", overloads=_WHOLE, weight=4,
            promotion=Promotion.NO_OPMATH, by_spacing=True),
    _unary("neg"),
    _unary("abs"),
    _unary("sign", "fn.sign({0})", weight=2, decides=True),
    _special("reciprocal", 8, 8),
    _unary("relu", "fn.maximum({0}, 0)"),
    OpSpec("clamp_min", ("aten.clamp_min.default", "aten.clamp_min.Tensor"), ("self", "min"),
           "fn.maximum({0}, {1})"),
    OpSpec("clamp_max", ("aten.clamp_max.default", "aten.clamp_max.Tensor"), ("self", "max"),
           "fn.minimum({0}, {1})"),
    OpSpec("clamp_min", ("aten.clamp.default", "aten.clamp.Tensor"), ("self", "min"),
           "fn.maximum({0}, {1})", requires=(("max", None),)),
    OpSpec("clamp_max", ("aten.clamp.default", "aten.clamp.Tensor"), ("self", "max"),
           "fn.minimum({0}, {1})", requires=(("min", None),)),
    OpSpec("clamp", ("aten.clamp.default", "aten.clamp.Tensor"), ("self", "min", "max"),
           "fn.minimum(fn.maximum({0}, {1}), {2})", weight=2),
)  # fmt: skip

_FUNCTIONS = (
    *(_special(kind) for kind in (
        "expm1", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh",
        "acosh", "atanh", "erf", "erfinv", "lgamma",
    )),
    _special("exp", 16, 3),
    _special("exp2", 16, 3),
    _special("log", 16, 12),
    _special("log2", 16, 12),
    _special("log10", 16, 13),
    _special("tanh", 16, 10),
    _special("erfc", 16, 15),
    _special("sigmoid", 16, 5),
    _special("sqrt", 8, 4),
    _unary("rsqrt", weight=8, promotion=_INT),
    _unary("floor", decides=True),
    _unary("ceil", decides=True),
    _unary("trunc", decides=True),
    _unary("round", decides=True),
    _unary("frac", weight=2, decides=True),
    _unary("isnan", promotion=Promotion.COMPARE),
    _unary("isinf", promotion=Promotion.COMPARE),
    _unary("isfinite", promotion=Promotion.COMPARE),
    _unary("signbit", promotion=Promotion.COMPARE),
)  # fmt: skip

_LOGIC = (
    _compare("eq", "=="),
    _compare("ne", "!="),
    _compare("lt", "<"),
    _compare("le", "<="),
    _compare("gt", ">"),
    _compare("ge", ">="),
    _logical("logical_and", "{0} & {1}"),
    _logical("logical_or", "{0} | {1}"),
    _logical("logical_xor", "{0} ^ {1}"),
    OpSpec("logical_not", ("aten.logical_not.default",), ("self",), "fn.logical_not({0})",
           Promotion.TO_BOOL, bool_expression="fn.logical_not({0})"),
    _binary("bitwise_and", "{0} & {1}", overloads=_BITS, bool_expression="{0} & {1}"),
    _binary("bitwise_or", "{0} | {1}", overloads=_BITS, bool_expression="{0} | {1}"),
    _binary("bitwise_xor", "{0} ^ {1}", overloads=_BITS, bool_expression="{0} ^ {1}"),
    _unary("bitwise_not", "fn.bitwise_not({0})", bool_expression="fn.logical_not({0})"),
    _binary("bitwise_left_shift", "fn.shift_left({0}, {1})", overloads=_SHIFTS, weight=3),
    _binary("bitwise_right_shift", "fn.shift_right({0}, {1})", overloads=_SHIFTS, weight=3),
    OpSpec("shift_left", ("aten.__lshift__.Tensor", "aten.__lshift__.Scalar"),
           ("self", "other"), "fn.shift_left({0}, {1})", weight=3),
    OpSpec("shift_right", ("aten.__rshift__.Tensor", "aten.__rshift__.Scalar"),
           ("self", "other"), "fn.shift_right({0}, {1})", weight=3),
    OpSpec("where", ("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf"),
           ("condition", "self", "other"), "tl.where({0}, {1}, {2})", Promotion.NO_OPMATH,
           keeps=(0,), bool_expression="tl.where({0}, {1}, {2})"),
)  # fmt: skip

_MOVES = (
    # A cast inside a decomposition: the value may stay wide, where the user's cast must round.
    OpSpec("convert", ("prims.convert_element_type.default",), ("a",), "{0}", Promotion.RESULT,
           bool_expression="{0}"),
    OpSpec("cast", ("aten._to_copy.default",), ("self",), "{0}", Promotion.RESULT,
           bool_expression="{0}"),
    OpSpec("copy", ("aten.clone.default",), ("self",), "{0}", Promotion.RESULT,
           bool_expression="{0}"),
)  # fmt: skip


def _reduction(kind: str, *targets: str, **fields: Any) -> OpSpec:
    return OpSpec(kind, targets, ("self",), group=Group.REDUCTION, **fields)


_REDUCTIONS = (
    _reduction("sum", "aten.sum.dim_IntList", "aten.sum.default", promotion=Promotion.RESULT),
    _reduction("prod", "aten.prod.dim_int", "aten.prod.default", promotion=Promotion.RESULT),
    _reduction("amax", "aten.amax.default", promotion=Promotion.NO_OPMATH),
    _reduction("amin", "aten.amin.default", promotion=Promotion.NO_OPMATH),
    _reduction("any", "aten.any.default", "aten.any.dim", "aten.any.dims",
               promotion=Promotion.TO_BOOL),
    _reduction("all", "aten.all.default", "aten.all.dim", "aten.all.dims",
               promotion=Promotion.TO_BOOL),
    _reduction("argmax", "aten.argmax.default", promotion=Promotion.NO_OPMATH, weight=2),
    _reduction("argmin", "aten.argmin.default", promotion=Promotion.NO_OPMATH, weight=2),
)  # fmt: skip

# Operands of these groups depend on the call's other parameters: the importer works them out.
_PRODUCTS = (
    OpSpec("product", ("aten.mm.default", "aten.bmm.default", "aten.addmm.default",
           "aten.baddbmm.default"), (), "{0} * {1}", Promotion.RESULT, Group.CONTRACTION, weight=2),
)  # fmt: skip
_BORDERS = tuple(
    OpSpec(kind, (target,), (), group=Group.BORDER, promotion=Promotion.RESULT,
           bool_expression="border")
    for kind, target in (
        ("cat", "aten.cat.default"),
        ("pad", "aten.constant_pad_nd.default"),
        ("slice_scatter", "aten.slice_scatter.default"),
        ("select_scatter", "aten.select_scatter.default"),
    )
)  # fmt: skip
_GATHERS = tuple(
    OpSpec(kind, (target,), (), group=Group.GATHER, promotion=Promotion.RESULT,
           bool_expression="gather")
    for kind, target in (
        ("embedding", "aten.embedding.default"),
        ("index", "aten.index.Tensor"),
        ("index_select", "aten.index_select.default"),
        ("gather", "aten.gather.default"),
    )
)  # fmt: skip
_CREATIONS = (
    OpSpec("full", ("aten.full.default",), ("fill_value",), "{0}", Promotion.RESULT,
           Group.CREATION, bool_expression="{0}"),
    OpSpec("full", ("aten.full_like.default",), ("fill_value",), "{0}", Promotion.RESULT,
           Group.CREATION, bool_expression="{0}"),
    OpSpec("full", ("aten.scalar_tensor.default",), ("s",), "{0}", Promotion.RESULT,
           Group.CREATION, bool_expression="{0}"),
    OpSpec("iota", ("prims.iota.default",), ("start", "step"), "{0} + {1} * index",
           Promotion.RESULT, Group.CREATION, weight=2),
)  # fmt: skip

# Of a seed and the op's number, at the row-major number of each element (`fuser/philox.py`). Four
# elements share ten rounds of Philox: two wide products and four exclusive ors each.
_RANDOM = (
    OpSpec("uniform", ("fuser.uniform.default",), ("seed", "number"),
           "fn.uniform({0}, {1}, {index})", Promotion.RESULT, Group.RANDOM, weight=24),
    OpSpec("normal", ("fuser.normal.default",), ("seed", "number"),
           "fn.normal({0}, {1}, {index})", Promotion.RESULT, Group.RANDOM, weight=64),
)  # fmt: skip

TABLE: tuple[OpSpec, ...] = (
    *_ARITHMETIC, *_FUNCTIONS, *_LOGIC, *_MOVES,
    *_REDUCTIONS, *_PRODUCTS, *_BORDERS, *_GATHERS, *_CREATIONS, *_RANDOM,
)  # fmt: skip

BY_KIND: Mapping[str, OpSpec] = MappingProxyType({row.kind: row for row in reversed(TABLE)})


def _index_by_target() -> Mapping[str, tuple[OpSpec, ...]]:
    rows: dict[str, list[OpSpec]] = {}
    for row in TABLE:
        for target in row.targets:
            rows.setdefault(target, []).append(row)
    return MappingProxyType({target: tuple(found) for target, found in rows.items()})


def is_contraction(op: Any) -> bool:
    """Whether an op sums products of two operands: `Op.reduced` are the axes that it sums over."""
    return not op.is_opaque and BY_KIND[op.kind].group is Group.CONTRACTION


BY_TARGET: Mapping[str, tuple[OpSpec, ...]] = _index_by_target()
