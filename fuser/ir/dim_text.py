"""Symbolic sizes as Python expressions.

In: a sympy expression over size symbols, with torch's own functions (FloorDiv, ModularIndexing and
so on) recognised by name. Out: text that Python evaluates to the same number, given the symbols and
`math`. A function without a Python form is an error here, not a wrong number later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import sympy

# How tightly an operator binds; operands that bind less tightly get parentheses.
_CHOICE, _OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _UNARY, _POWER, _ATOM = range(10)

Text = tuple[str, int]

_OPERATORS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "FloorDiv": ("//", _PRODUCT),
        "CleanDiv": ("//", _PRODUCT),
        "Mod": ("%", _PRODUCT),
        "PythonMod": ("%", _PRODUCT),
        "IntTrueDiv": ("/", _PRODUCT),
        "FloatTrueDiv": ("/", _PRODUCT),
        "PowByNatural": ("**", _POWER),
        "FloatPow": ("**", _POWER),
    }
)
_CALLS: Mapping[str, str] = MappingProxyType(
    {
        "Max": "max",
        "Min": "min",
        "Abs": "abs",
        "ToFloat": "float",
        "FloorToInt": "math.floor",
        "CeilToInt": "math.ceil",
        "TruncToInt": "math.trunc",
        "RoundToInt": "round",
        "RoundDecimal": "round",
    }
)
_CONSTANTS: Mapping[str, str] = MappingProxyType(
    {
        "BooleanTrue": "True",
        "BooleanFalse": "False",
        "Infinity": "math.inf",
        "NegativeInfinity": "-math.inf",
        "IntInfinity": "math.inf",
        "NegativeIntInfinity": "-math.inf",
        "NaN": "math.nan",
    }
)
_UNARY_PREFIX = "OpaqueUnaryFn_"


def expression_text(expression: Any) -> str:
    """The expression as Python text."""
    return _text(expression)[0]


def _text(expression: Any) -> Text:
    if isinstance(expression, sympy.Symbol):
        return str(expression.name), _ATOM
    if isinstance(expression, (sympy.Integer, int)):
        return str(expression), _ATOM if expression >= 0 else _UNARY
    if isinstance(expression, (sympy.Float, float)):
        return repr(float(expression)), _ATOM if expression >= 0 else _UNARY
    name = type(expression).__name__
    if name in _CONSTANTS:
        return _CONSTANTS[name], _UNARY
    if name in _FORMS:
        return _FORMS[name](expression)
    if name in _OPERATORS:
        return _operation(*_OPERATORS[name], expression.args)
    if name in _CALLS:
        return f"{_CALLS[name]}({_listed(expression.args)})", _ATOM
    if name.startswith(_UNARY_PREFIX):
        return f"math.{name.removeprefix(_UNARY_PREFIX)}({_listed(expression.args)})", _ATOM
    if isinstance(expression, sympy.core.relational.Relational):
        left, right = (_wrapped(side, _SUM) for side in expression.args)
        return f"{left} {expression.rel_op} {right}", _COMPARE
    raise NotImplementedError(f"{name} in the size {expression} has no Python form")


def _wrapped(expression: Any, level: int) -> str:
    text, own = _text(expression)
    return text if own >= level else f"({text})"


def _listed(arguments: Any) -> str:
    return ", ".join(_text(argument)[0] for argument in arguments)


def _operation(symbol: str, level: int, arguments: Any) -> Text:
    left, right = arguments
    # `**` groups to the right and the others to the left.
    left_level = level + 1 if symbol == "**" else level
    return f"{_wrapped(left, left_level)} {symbol} {_wrapped(right, level + 1)}", level


def _sum(expression: Any) -> Text:
    if any(sympy.fraction(term)[1] != 1 for term in expression.args):
        return _whole_fraction(expression)
    text = ""
    for term in expression.as_ordered_terms():
        part = _wrapped(term, _PRODUCT)
        if not text:
            text = part
        elif part.startswith("-") and isinstance(term, (sympy.Mul, sympy.Number)):
            text += f" - {part[1:]}"
        else:
            text += f" + {part}"
    return text, _SUM


def _product(expression: Any) -> Text:
    if sympy.fraction(expression)[1] != 1:
        return _whole_fraction(expression)
    coefficient, rest = expression.as_coeff_Mul()
    factors = [_wrapped(factor, _POWER) for factor in sympy.Mul(rest).as_ordered_factors()]
    if coefficient == -1:
        return "-" + "*".join(factors), _PRODUCT
    if coefficient != 1:
        factors.insert(0, _text(coefficient)[0])
    return "*".join(factors), _PRODUCT


def _whole_fraction(expression: Any) -> Text:
    """A size is a whole number, so its fraction divides evenly once it is on one bar."""
    return _operation("//", _PRODUCT, sympy.fraction(sympy.together(expression)))


def _power(expression: Any) -> Text:
    base, exponent = expression.args
    if exponent.is_negative:
        return _operation("/", _PRODUCT, (sympy.Integer(1), base**-exponent))
    return f"{_wrapped(base, _ATOM)}**{_wrapped(exponent, _ATOM)}", _POWER


def _rational(expression: Any) -> Text:
    return f"{expression.p} / {expression.q}", _PRODUCT


def _modular_indexing(expression: Any) -> Text:
    value, divisor, modulus = expression.args
    quotient = f"({_operation('//', _PRODUCT, (value, divisor))[0]})"
    digit = _wrapped(value, _PRODUCT) if divisor == 1 else quotient
    return f"{digit} % {_wrapped(modulus, _UNARY)}", _PRODUCT


def _floor(expression: Any) -> Text:
    return _operation("//", _PRODUCT, sympy.fraction(sympy.together(expression.args[0])))


def _ceiling(expression: Any) -> Text:
    above, below = sympy.fraction(sympy.together(expression.args[0]))
    return f"-({_operation('//', _PRODUCT, (-above, below))[0]})", _UNARY


def _truncated_float(expression: Any) -> Text:
    return f"float(math.trunc({_listed(expression.args)}))", _ATOM


def _choice(expression: Any) -> Text:
    condition, chosen, otherwise = (_wrapped(part, _OR) for part in expression.args)
    return f"{chosen} if {condition} else {otherwise}", _CHOICE


def _piecewise(expression: Any) -> Text:
    *cases, last = expression.args
    text = _wrapped(last[0], _OR)
    for value, condition in reversed(cases):
        text = f"({_wrapped(value, _OR)} if {_wrapped(condition, _OR)} else {text})"
    return text, _ATOM


def _connected(word: str, level: int) -> Callable[[Any], Text]:
    def form(expression: Any) -> Text:
        parts = (_wrapped(part, level + 1) for part in expression.args)
        return f" {word} ".join(parts), level

    return form


def _negated(expression: Any) -> Text:
    return f"not {_wrapped(expression.args[0], _NOT)}", _NOT


def _unwrapped(expression: Any) -> Text:
    return _text(expression.args[0])


_FORMS: Mapping[str, Callable[[Any], Text]] = MappingProxyType(
    {
        "Add": _sum,
        "Mul": _product,
        "Pow": _power,
        "Rational": _rational,
        "Half": _rational,
        "ModularIndexing": _modular_indexing,
        "TruncToFloat": _truncated_float,
        "floor": _floor,
        "ceiling": _ceiling,
        "Where": _choice,
        "Piecewise": _piecewise,
        "And": _connected("and", _AND),
        "Or": _connected("or", _OR),
        "Not": _negated,
        "Identity": _unwrapped,
    }
)
