"""Sample calls for every row of the op table: the public torch call and arguments for it.

A sample says which row its call reaches, how to make arguments, for which element types the call
exists, and whether it has a gradient. Tests run all of them against eager and float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from support.inputs import ANY, FLAG, POSITIVE, UNIT, Cases, Domain, Inputs, pointwise

__all__ = ["ALL", "BOOL", "FLOATS", "INTEGERS", "SAMPLES", "Sample"]

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
BOOL = (torch.bool,)
NUMBERS = FLOATS + INTEGERS
ALL = NUMBERS + BOOL


@dataclass(frozen=True, slots=True)
class Sample:
    """One call. `reaches` is the row that its capture ends in, where that is another than `kind`.

    `backward_calls` are the original calls that its gradient is left with. `elementwise` says that
    an output element depends on one element of each operand. Eager's own choice of a layout, or of
    the sign of a zero, can be unpredictable: `layouts` and `signed_zeros` say where.
    """

    kind: str
    call: Callable[..., Any]
    cases: Callable[[Inputs], Cases]
    dtypes: tuple[torch.dtype, ...] = FLOATS
    gradient: bool = True
    label: str = ""
    reaches: str = ""
    backward_calls: tuple[str, ...] = ()
    elementwise: bool = True
    layouts: bool = True
    signed_zeros: bool = True

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.label}" if self.label else self.kind


# Pointwise ----------------------------------------------------------------------------------------

# Eager stops the process when it divides an integer by zero.
DIVISOR = Domain(low=-9, high=9, avoids=(0, -1))
# Eager multiplies by alpha and adds with one rounding, so that only its product cannot overflow.
SCALED = Domain(leaves_out=("largest", "lowest"))
# Where a quotient has too many digits, the vector code of eager's remainder gives NaN, its scalar
# code does not.
MODULUS = Domain(low=-9, high=9, avoids=(0, -1), leaves_out=("denormal",))
SMALL = Domain(low=-3, high=3)
EXPONENT = Domain(low=0, high=5, avoids=(-1, -2), takes_special=False)
SHIFT = Domain(low=0, high=7, special=(31, 63, 8, 64))
ABOVE_ONE = Domain(low=1.0, high=9.0)
GAMMA = Domain(low=0.1, high=30.0, special=(-1.0, -3.0, 30.0))
ONE = pointwise(ANY)
TWO = pointwise(ANY, ANY)
DIVISION = pointwise(ANY, DIVISOR)
MODULO = pointwise(SCALED, MODULUS)
# Of two zeros, eager's vector and scalar code choose differently.
CHOICE: dict[str, Any] = {"signed_zeros": False}
# torch's own shape functions, which a traced graph goes by, give other strides than eager.
TRACED_LAYOUT: dict[str, Any] = {"layouts": False}


def _one(kind: str, domain: Domain = ANY, **fields: Any) -> Sample:
    return Sample(kind, getattr(torch, kind), pointwise(domain), **fields)


def _two(kind: str, first: Domain = ANY, second: Domain = ANY, **fields: Any) -> Sample:
    return Sample(kind, getattr(torch, kind), pointwise(first, second), **fields)


def _plain(kind: str, call: Callable[..., Any], label: str = "", **fields: Any) -> Sample:
    """A call on one tensor and Python numbers."""
    return Sample(kind, call, fields.pop("cases", ONE), label=label, **fields)


_ARITHMETIC = (
    _two("add", dtypes=ALL),
    _plain("add", lambda x: x + 3, "number", dtypes=NUMBERS),
    _plain("add", lambda x: x + 1.1, "fraction", dtypes=ALL),
    Sample("add_scaled", lambda x, y: torch.add(x, y, alpha=3), pointwise(ANY, SCALED), NUMBERS),
    _plain("add_scaled", lambda x: torch.add(x, 2, alpha=3), "number", dtypes=NUMBERS),
    _two("sub", dtypes=NUMBERS),
    _plain("sub", lambda x: 3 - x, "from_number", dtypes=NUMBERS),
    Sample("sub_scaled", lambda x, y: torch.sub(x, y, alpha=3), pointwise(ANY, SCALED), NUMBERS),
    Sample("reverse_sub", lambda x, y: torch.rsub(x, y), TWO, NUMBERS, reaches="sub"),
    _two("mul", dtypes=ALL),
    _plain("mul", lambda x: x * 3, "number", dtypes=NUMBERS),
    _plain("mul", lambda x: x * 1.1, "fraction", dtypes=ALL),
    Sample("divide", torch.div, DIVISION, ALL),
    _plain("divide", lambda x: x / 3, "by_number", dtypes=NUMBERS),
    _plain("divide", lambda x: x / 1.1, "by_fraction", dtypes=ALL),
    _plain("divide", lambda x: 3 / x, "of_number", reaches="reciprocal"),
    Sample("divide", lambda x, y: torch.div(x, y, rounding_mode=None), DIVISION, label="mode"),
    Sample(
        "floor_divide",
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        DIVISION,
        NUMBERS,
        **TRACED_LAYOUT,
    ),
    Sample(
        "floor_divide",
        torch.floor_divide,
        DIVISION,
        gradient=False,
        label="function",
        **TRACED_LAYOUT,
    ),
    _plain("floor_divide", lambda x: x // 3, "number", dtypes=NUMBERS, gradient=False),
    Sample("trunc_divide", lambda x, y: torch.div(x, y, rounding_mode="trunc"), DIVISION, NUMBERS),
    Sample("remainder", torch.remainder, MODULO, NUMBERS),
    _plain("remainder", lambda x: x % 3, "number", dtypes=NUMBERS),
    Sample("fmod", torch.fmod, MODULO, NUMBERS),
    _two("maximum", dtypes=ALL, **CHOICE),
    _two("minimum", dtypes=ALL, **CHOICE),
    _two("fmax", dtypes=NUMBERS, **CHOICE),
    _two("fmin", dtypes=NUMBERS, **CHOICE),
    _two("pow", POSITIVE, ANY),
    Sample("pow", torch.pow, pointwise(SMALL, EXPONENT), INTEGERS, label="integer"),
    _plain("pow", lambda x: x**2.7, "to_number", cases=pointwise(POSITIVE)),
    _plain("pow", lambda x: 2.5**x, "of_number", **TRACED_LAYOUT),
    _plain("pow", lambda x: x**4, "to_integer", dtypes=NUMBERS),
    _two("atan2", dtypes=ALL),
    _two("hypot"),
    _two("copysign", dtypes=ALL, **TRACED_LAYOUT),
    _two("nextafter", dtypes=(torch.float32, torch.float64), gradient=False),
    _one("neg", dtypes=NUMBERS),
    _one("abs", dtypes=NUMBERS),
    _one("sign", dtypes=NUMBERS),
    _one("reciprocal", dtypes=ALL),
    _one("relu", dtypes=NUMBERS),
    _plain("clamp_min", lambda x: torch.clamp(x, min=1.1), dtypes=NUMBERS, **CHOICE),
    Sample("clamp_min", lambda x, y: torch.clamp(x, min=y), TWO, NUMBERS, label="tensor", **CHOICE),
    _plain("clamp_max", lambda x: torch.clamp(x, max=1), dtypes=NUMBERS, **CHOICE),
    Sample("clamp_max", lambda x, y: torch.clamp(x, max=y), TWO, NUMBERS, label="tensor", **CHOICE),
    _plain("clamp", lambda x: torch.clamp(x, 0.3, 1.1), dtypes=NUMBERS, **CHOICE),
    # Eager has no gradient for limits that widen the result.
    Sample(
        "clamp",
        torch.clamp,
        pointwise(ANY, ANY, ANY, leaves_out=("special", "broadcast")),
        NUMBERS,
        label="tensor",
        **CHOICE,
    ),
    Sample("clamp", torch.clamp, pointwise(ANY, ANY, ANY), NUMBERS, False, "broadcast", **CHOICE),
)

_FUNCTIONS = (
    *(_one(k) for k in ("exp", "exp2", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh")),
    *(_one(k) for k in ("tanh", "asinh", "erf", "erfc", "sigmoid")),
    *(_one(k, POSITIVE) for k in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt")),
    *(_one(k, UNIT) for k in ("asin", "acos", "atanh", "erfinv")),
    _one("acosh", ABOVE_ONE),
    _one("lgamma", GAMMA, backward_calls=("aten.digamma.default",)),
    *(
        _plain(k, getattr(torch, k), "exact", dtypes=INTEGERS + BOOL, gradient=False)
        for k in ("exp", "log", "sqrt", "rsqrt", "sigmoid", "erf", "sin")
    ),
    *(_one(k, dtypes=NUMBERS) for k in ("floor", "ceil", "trunc", "round")),
    _one("frac"),
    *(_one(k, dtypes=FLOATS, gradient=False) for k in ("isnan", "isinf")),
    _one("isfinite", gradient=False, reaches="abs"),
    _one("signbit", dtypes=ALL, gradient=False),
)

_LOGIC = (
    *(
        _two(kind, dtypes=ALL, gradient=False)
        for kind in ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor")
    ),
    _plain("lt", lambda x: x < 1.1, "number", dtypes=ALL, gradient=False),
    _plain("ge", lambda x: x >= 1, "number", dtypes=ALL, gradient=False),
    _one("logical_not", dtypes=ALL, gradient=False),
    *(
        _two(f"bitwise_{kind}", dtypes=INTEGERS + BOOL, gradient=False)
        for kind in ("and", "or", "xor")
    ),
    _one("bitwise_not", dtypes=INTEGERS + BOOL, gradient=False),
    _two("bitwise_left_shift", ANY, SHIFT, dtypes=INTEGERS, gradient=False),
    _two("bitwise_right_shift", ANY, SHIFT, dtypes=INTEGERS, gradient=False),
    Sample("shift_left", lambda x, y: x << y, pointwise(ANY, SHIFT), INTEGERS, False),
    _plain("shift_left", lambda x: x << 2, "number", dtypes=INTEGERS, gradient=False),
    Sample("shift_right", lambda x, y: x >> y, pointwise(ANY, SHIFT), INTEGERS, False),
    _plain("shift_right", lambda x: x >> 2, "number", dtypes=INTEGERS, gradient=False),
    Sample("where", torch.where, pointwise(FLAG, ANY, ANY), ALL),
    Sample("where", lambda c, x: torch.where(c, x, 2), pointwise(FLAG, ANY), NUMBERS,
           label="number"),
)  # fmt: skip

# What a float outside the range of an integer type becomes is not defined.
IN_RANGE = Domain(low=0, high=120, takes_special=False)


def _to(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.to(dtype)


_MOVES = (
    *(
        _plain("cast", _to(target), str(target).removeprefix("torch."), dtypes=sources)
        for target, sources in (
            (torch.float32, (torch.bfloat16, torch.float16, torch.float64, *INTEGERS, *BOOL)),
            (torch.bfloat16, (torch.float32, torch.float16, torch.float64, torch.int64, *BOOL)),
            (torch.float16, (torch.float32, torch.bfloat16, torch.float64, torch.int32)),
            (torch.float64, (torch.float32, torch.bfloat16, torch.int64)),
        )
    ),
    *(
        _plain(
            "cast", _to(target), str(target).removeprefix("torch."), gradient=False,
            dtypes=FLOATS, cases=pointwise(IN_RANGE),
        )
        for target in INTEGERS
    ),
    _plain("cast", _to(torch.bool), "bool", dtypes=NUMBERS, gradient=False),
    _plain("cast", _to(torch.int8), "narrow", dtypes=(torch.int64, torch.int32, torch.uint8),
           gradient=False),
    # The casts inside an activation's own formula.
    _plain("convert", torch.nn.functional.silu, dtypes=(torch.bfloat16, torch.float16)),
    _plain("copy", torch.clone, dtypes=ALL),
    _plain("copy", lambda x: x.reshape(1, -1).flip(-1), "flip", dtypes=ALL),
    _plain("copy", lambda x: x.contiguous() + 0 if x.is_contiguous() else x.contiguous(), "dense",
           reaches="add"),
)  # fmt: skip


# Reductions ---------------------------------------------------------------------------------------


def _rows(inputs: Inputs) -> Cases:
    """2-D tensors reduced over the last axis."""
    special = inputs.special()
    ordinary = inputs.of(special.numel(), special.numel())
    with_special = torch.where(torch.eye(special.numel(), dtype=torch.bool), special, ordinary)
    return {
        "odd": (inputs.of(5, 33),),
        "special": (with_special,),
        "zeros": (inputs.of(3, 5) * 0,),
        "transposed": (inputs.of(17, 6).t(),),
        "strided": (inputs.of(6, 40)[::2, 1::3],),
        "expanded": (inputs.of(4, 1).expand(4, 9),),
        "one": (inputs.of(3, 1),),
        "empty": (inputs.of(0, 3),),
    }


# Products of these neither overflow nor leave a half type's range.
NEAR_ONE = Domain(low=0.5, high=1.5)


def _factors(inputs: Inputs) -> Cases:
    return {
        "odd": (inputs.of(5, 33, domain=NEAR_ONE),),
        "zero": (inputs.of(3, 7, domain=NEAR_ONE) * torch.eye(3, 7).to(inputs.dtype),),
        "transposed": (inputs.of(9, 6, domain=NEAR_ONE).t(),),
        "empty": (inputs.of(0, 3),),
    }


def _fold(kind: str, call: Callable[..., Any], label: str = "", **fields: Any) -> Sample:
    cases = fields.pop("cases", _rows)
    return Sample(kind, call, cases, label=label, elementwise=False, **fields)


_REDUCTIONS = (
    _fold("sum", lambda x: x.sum(-1), dtypes=ALL),
    _fold("sum", lambda x: x.sum(0, keepdim=True), "outer", cases=lambda i: _keys(_rows(i), "odd")),
    _fold("prod", lambda x: x.prod(-1), cases=_factors, dtypes=NUMBERS, gradient=False),
    _fold("amax", lambda x: x.amax(-1), dtypes=ALL),
    _fold("amin", lambda x: x.amin(-1), dtypes=ALL),
    _fold("any", lambda x: x.any(-1), dtypes=ALL, gradient=False),
    _fold("all", lambda x: x.all(-1), dtypes=ALL, gradient=False),
    _fold("argmax", lambda x: x.argmax(-1), dtypes=NUMBERS, gradient=False),
    _fold("argmin", lambda x: x.argmin(-1), dtypes=NUMBERS, gradient=False),
    _fold("amax", lambda x: x.max(-1), "with_index", dtypes=ALL, gradient=False),
)


# Borders, gathers, creations ----------------------------------------------------------------------


def _keys(cases: Cases, *names: str) -> Cases:
    return {name: cases[name] for name in names}


def _pairs(inputs: Inputs) -> Cases:
    special = inputs.special().reshape(1, -1)
    width = special.numel()
    return {
        "odd": (inputs.of(5, 33), inputs.of(5, 7)),
        "special": (special, inputs.of(1, width)),
        "transposed": (inputs.of(9, 5).t(), inputs.of(5, 2)),
        "expanded": (inputs.of(1, 3).expand(4, 3), inputs.of(4, 1)),
        "empty": (inputs.of(3, 0), inputs.of(3, 2)),
    }


def _planes(inputs: Inputs) -> Cases:
    return {
        "odd": (inputs.of(4, 9),),
        "transposed": (inputs.of(9, 4).t(),),
        "strided": (inputs.of(8, 18)[::2, ::2],),
    }


def _planes_and_source(*shape: int) -> Callable[[Inputs], Cases]:
    return lambda inputs: {k: (v[0], inputs.of(*shape)) for k, v in _planes(inputs).items()}


def _numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def _lookups(*shape: int, count: int, low: int = 0) -> Callable[[Inputs], Cases]:
    """Planes and an index tensor of this shape with values from `low` to `count`."""

    def cases(inputs: Inputs) -> Cases:
        made = {}
        for name, (plane,) in _planes(inputs).items():
            index = torch.randint(low, count, shape, generator=inputs.generator)
            made[name] = (plane, index)
        made["transposed_index"] = (inputs.of(4, 9), made["odd"][1].t().contiguous().t())
        return made

    return cases


def _moved(
    kind: str, call: Callable[..., Any], cases: Any, label: str = "", **fields: Any
) -> Sample:
    return Sample(kind, call, cases, fields.pop("dtypes", ALL), label=label, **fields)


_SCATTERED = ("aten.index_put.default",)
_BORDERS = (
    _moved("cat", lambda x, y: torch.cat([x, y], 1), _pairs),
    _moved("cat", lambda x, y: torch.stack([x[:, :1], y[:, :1]], 1),
           lambda i: _keys(_pairs(i), "odd", "transposed"), "stack"),
    _moved("pad", lambda x: F.pad(x, (1, 2, 0, 3), value=1), _planes),
    _moved("pad", lambda x: F.pad(x, (-1, 2)), _planes, "crop"),
    _moved("slice_scatter", lambda x, y: torch.slice_scatter(x, y, 1, 2, 6),
           _planes_and_source(4, 4)),
    _moved("select_scatter", lambda x, y: torch.select_scatter(x, y, 1, -2), _planes_and_source(4)),
)  # fmt: skip
_GATHERS = (
    _moved("embedding", lambda w, i: F.embedding(i, w), _lookups(5, 3, count=4), dtypes=FLOATS,
           backward_calls=("aten.embedding_dense_backward.default",)),
    _moved("index", lambda x, i: x[i], _lookups(5, 3, count=4, low=-4), backward_calls=_SCATTERED,
           **TRACED_LAYOUT),
    _moved("index", lambda x, i: x[:, i], _lookups(7, 2, count=9, low=-9), "inner",
           backward_calls=_SCATTERED, **TRACED_LAYOUT),
    _moved("index", lambda x, i: x[i, i], _lookups(4, 2, count=4, low=-4), "both",
           backward_calls=_SCATTERED, **TRACED_LAYOUT),
    _moved("index_select", lambda x, i: torch.index_select(x, 1, i[:, 0]), _lookups(6, 1, count=9),
           backward_calls=("aten.index_add.default",)),
    _moved("gather", lambda x, i: torch.gather(x, 1, i), _lookups(3, 5, count=9),
           backward_calls=("aten.scatter_add.default",)),
)  # fmt: skip
_CREATIONS = (
    _moved("full", lambda x: x.new_full((3, 5), 2), ONE, gradient=False),
    _moved("full", torch.full_like, lambda i: {k: (*v, 1) for k, v in ONE(i).items()}, "like",
           gradient=False),
    _moved("full", torch.zeros_like, ONE, "zeros", gradient=False),
    _moved("iota", lambda x: torch.arange(x.numel(), device=x.device) * 2, ONE, gradient=False,
           dtypes=(torch.float32,)),
    _moved("iota", lambda x: torch.arange(3, 20, 4, device=x.device, dtype=x.dtype), ONE, "step",
           gradient=False, dtypes=NUMBERS),
)  # fmt: skip

SAMPLES: tuple[Sample, ...] = (
    *_ARITHMETIC, *_FUNCTIONS, *_LOGIC, *_MOVES, *_REDUCTIONS, *_BORDERS, *_GATHERS, *_CREATIONS,
)  # fmt: skip
