"""Symbolic sizes as Python text: it evaluates to what the expression stands for."""

from __future__ import annotations

import math
from typing import Any

import pytest
import sympy
from torch.utils._sympy import functions as torch_functions

from fuser.ir.dim import python_text

a, b, c = sympy.symbols("s0 s1 s2", integer=True, positive=True)
VALUES = {"s0": 37, "s1": 6, "s2": 4}

FloorDiv = torch_functions.FloorDiv
ToFloat = torch_functions.ToFloat

WHOLE = [
    (a, "s0"),
    (a - 1, "s0 - 1"),
    (2 - 6 * a, "2 - 6*s0"),
    (-(a + b) * c, "s2*(-s0 - s1)"),
    ((a + 1) ** 2, "(s0 + 1)**2"),
    (a * (a + 1) / 2, "s0*(s0 + 1) // 2"),
    (sympy.expand(a * (a + 1) / 2), "s0*(s0 + 1) // 2"),
    (FloorDiv(a, b), "s0 // s1"),
    (2 * FloorDiv(a, b) + 1, "2*(s0 // s1) + 1"),
    (FloorDiv(FloorDiv(a, b) * 3 + a, c), "(s0 + 3*(s0 // s1)) // s2"),
    (FloorDiv(a, FloorDiv(b, c)), "s0 // (s1 // s2)"),
    (FloorDiv(-a, b), "-s0 // s1"),
    (a + FloorDiv(-a, b), "s0 + -s0 // s1"),
    (-FloorDiv(a, b), "-(s0 // s1)"),
    (torch_functions.CeilDiv(a, b), "(s0 + s1 - 1) // s1"),
    (torch_functions.CleanDiv(a * b, 4), "s0*s1 // 4"),
    (torch_functions.Mod(a, b) * 2, "2*(s0 % s1)"),
    (torch_functions.PythonMod(-a, b), "-s0 % s1"),
    (torch_functions.ModularIndexing(a, b, c), "(s0 // s1) % s2"),
    (torch_functions.ModularIndexing(a * 3 + 1, 1, c) * 5, "5*((3*s0 + 1) % s2)"),
    (torch_functions.Max(a, b, 3), "max(3, s0, s1)"),
    (torch_functions.Min(a, b) * 2, "2*min(s0, s1)"),
    (torch_functions.PowByNatural(a, b), "s0 ** s1"),
    (torch_functions.CeilToInt(torch_functions.IntTrueDiv(a, b)), "math.ceil(s0 / s1)"),
    (torch_functions.FloorToInt(torch_functions.IntTrueDiv(a, b)), "math.floor(s0 / s1)"),
    (
        torch_functions.TruncToInt(torch_functions.FloatTrueDiv(ToFloat(a), ToFloat(b))),
        "math.trunc(float(s0) / float(s1))",
    ),
    (torch_functions.RoundToInt(ToFloat(a) * 0.5), "round(0.5*float(s0))"),
    (torch_functions.Where(a > b, a, b) * 2, "2*(s0 if s0 > s1 else s1)"),
    (sympy.floor(a / b), "s0 // s1"),
    (3 * sympy.ceiling(a / 2), "3*(-(-s0 // 2))"),
    (sympy.Abs(b - a), "abs(s0 - s1)"),
]
OTHER = [
    (torch_functions.OpaqueUnaryFn_sqrt(ToFloat(a)), "math.sqrt(float(s0))"),
    (torch_functions.FloatPow(ToFloat(a), 2.0), "float(s0) ** 2.0"),
    (torch_functions.TruncToFloat(ToFloat(a)), "float(math.trunc(float(s0)))"),
    (sympy.Eq(a, b), "s0 == s1"),
    (sympy.Not(sympy.And(a > 3, b > 9)), "not (s0 > 3 and s1 > 9)"),
    (sympy.And(a > b, sympy.Or(a < 3, b < 7)), "s0 > s1 and (s0 < 3 or s1 < 7)"),
    (sympy.Piecewise((a, a > 50), (b, True)), "(s0 if s0 > 50 else s1)"),
]


@pytest.mark.parametrize(("expression", "text"), [*WHOLE, *OTHER], ids=lambda value: str(value))
def test_text_and_value(expression: Any, text: str) -> None:
    assert python_text(expression) == text
    value = eval(text, {"math": math}, dict(VALUES))
    wanted = expression.subs({a: 37, b: 6, c: 4})
    assert value == (bool(wanted) if wanted.is_Boolean else pytest.approx(float(wanted)))


@pytest.mark.parametrize("expression", [e for e, _ in WHOLE], ids=str)
def test_sizes_are_whole_numbers(expression: Any) -> None:
    assert type(eval(python_text(expression), {"math": math}, dict(VALUES))) is int


def test_plain_numbers() -> None:
    assert python_text(12) == "12"
    assert python_text(sympy.Integer(-3)) == "-3"


def test_what_has_no_python_form_is_an_error() -> None:
    with pytest.raises(NotImplementedError, match="no Python form"):
        python_text(sympy.Function("mystery")(a))
