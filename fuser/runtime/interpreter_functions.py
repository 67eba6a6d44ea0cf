# ruff: noqa: A001 - the functions are called what torch calls them
"""The functions of `device_*` for Triton's interpreter: plain Python that hands tiles to torch.

In: tiles of the interpreter, or literals. Out: tiles with eager's CPU values. The interpreter has
no device library, is slow on custom reductions, and ignores how NaN should propagate. Divisions of
integers keep two divisors from torch: it refuses zero, and -1 can stop the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

# fmt: off
__all__ = [
    "abs", "accumulate_all", "accumulate_any", "accumulate_argmax", "accumulate_argmin",
    "accumulate_max", "accumulate_min", "accumulate_prod", "accumulate_sum", "acos", "acosh", "all",
    "any", "approximate_divide", "approximate_erfc", "approximate_exp", "approximate_exp2",
    "approximate_log", "approximate_log2", "approximate_log10", "approximate_reciprocal",
    "approximate_sigmoid", "approximate_sqrt", "approximate_tanh", "argmax", "argmin", "asin",
    "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "check_index", "convert", "copysign",
    "cos", "cosh",
    "divide", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "float_to_int", "floor",
    "floor_divide", "fmax", "fmin", "fmod", "frac", "from_float8_e4m3fn",
    "from_float8_e5m2", "hypot", "isfinite", "isinf", "isnan", "ldexp",
    "lgamma", "log", "log1p", "log2", "log10", "logical_and", "logical_not", "logical_or",
    "logical_xor", "max", "maximum", "min", "minimum", "neg", "nextafter", "pow", "prod",
    "reciprocal", "remainder", "round", "round_to", "rsqrt", "shift_left", "shift_right", "sigmoid",
    "sign", "signbit", "sin", "sinh", "sqrt", "sum", "tan", "tanh", "to_bool", "to_float8_e4m3fn",
    "to_float8_e5m2", "trunc",
    "trunc_divide", "where",
]
# fmt: on

Tile = Any  # tl.tensor: Triton ships no types
Array = np.ndarray[Any, np.dtype[Any]]
Function = Callable[..., torch.Tensor]

_TORCH_TYPES: dict[Any, torch.dtype] = {
    tl.int1: torch.bool,
    tl.uint8: torch.uint8,
    tl.int8: torch.int8,
    tl.int16: torch.int16,
    tl.int32: torch.int32,
    tl.int64: torch.int64,
    tl.uint16: torch.uint16,
    tl.uint32: torch.uint32,
    tl.uint64: torch.uint64,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float32: torch.float32,
    tl.float64: torch.float64,
}
_TRITON_TYPES = {torch_type: triton_type for triton_type, torch_type in _TORCH_TYPES.items()}


# **** between tiles and torch ****


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def _to_torch(tile: Tile) -> torch.Tensor:
    dtype = _TORCH_TYPES[tile.dtype]
    data: Array = tile.handle.data
    # The interpreter broadcasts by read-only views, about which torch would warn.
    data = np.require(data, requirements=["C", "W"]).reshape(data.shape)
    if dtype == torch.bfloat16:
        return torch.from_numpy(data.view(np.int16)).view(dtype)
    return torch.from_numpy(data).to(dtype)


def _to_tile(value: torch.Tensor, is_scalar: bool) -> Tile:
    dtype = _TRITON_TYPES[value.dtype]
    value = value.contiguous()
    if value.dtype == torch.bfloat16:
        data = value.view(torch.int16).numpy().view(np.uint16)
    else:
        data = value.numpy()
    if is_scalar:  # which the interpreter keeps as an array of one
        return tl.tensor(TensorHandle(data.reshape(1), dtype), dtype)
    return tl.tensor(TensorHandle(data, dtype), tl.block_type(dtype, list(data.shape)))


def _apply(function: Function, *operands: Any) -> Tile:
    """`function` of the operands; a literal takes the type of the first tile."""
    plain = [_plain(operand) for operand in operands]
    tiles = [operand for operand in plain if isinstance(operand, tl.tensor)]
    dtype = _TORCH_TYPES[tiles[0].dtype]
    tensors = [
        _to_torch(operand)
        if isinstance(operand, tl.tensor)
        else torch.tensor([operand], dtype=dtype)
        for operand in plain
    ]
    blocks = [tile for tile in tiles if tile.type.is_block()]
    return _to_tile(function(*tensors), is_scalar=not blocks)


def _unary(function: Function) -> Callable[[Tile], Tile]:
    def apply(x: Tile) -> Tile:
        return _apply(function, x)

    return apply


def _binary(function: Function) -> Callable[[Any, Any], Tile]:
    def apply(x: Any, y: Any) -> Tile:
        return _apply(function, x, y)

    return apply


class _OutOfRange(IndexError, RuntimeError):
    """Eager raises the one for `x[index]` and the other for `gather`; kernels do not know which."""


def check_index(is_inside: Tile, is_wanted: Tile) -> Tile:
    if not bool((_to_torch(is_inside).bool() | ~_to_torch(is_wanted).bool()).all()):
        raise _OutOfRange("index out of range")
    return to_bool(is_inside)


# **** real functions ****

acos = _unary(torch.acos)
acosh = _unary(torch.acosh)
asin = _unary(torch.asin)
asinh = _unary(torch.asinh)
atan = _unary(torch.atan)
atan2 = _binary(torch.atan2)
atanh = _unary(torch.atanh)
cos = _unary(torch.cos)
cosh = _unary(torch.cosh)
erf = _unary(torch.erf)
erfc = _unary(torch.erfc)
erfinv = _unary(torch.erfinv)
exp = _unary(torch.exp)
exp2 = _unary(torch.exp2)
expm1 = _unary(torch.expm1)
hypot = _binary(torch.hypot)
lgamma = _unary(torch.lgamma)
log = _unary(torch.log)
log1p = _unary(torch.log1p)
log2 = _unary(torch.log2)
log10 = _unary(torch.log10)
rsqrt = _unary(torch.rsqrt)
sigmoid = _unary(torch.sigmoid)
sin = _unary(torch.sin)
sinh = _unary(torch.sinh)
sqrt = _unary(torch.sqrt)
tan = _unary(torch.tan)
tanh = _unary(torch.tanh)


# **** arithmetic ****


def _rounding(function: Function) -> Callable[[Tile], Tile]:
    return _unary(lambda x: function(x) if x.is_floating_point() else x)


neg = _unary(torch.neg)
abs = _unary(lambda x: x if x.dtype == torch.bool else torch.abs(x))
sign = _unary(torch.sign)
signbit = _unary(torch.signbit)
copysign = _binary(torch.copysign)
floor = _rounding(torch.floor)
ceil = _rounding(torch.ceil)
trunc = _rounding(torch.trunc)
round = _rounding(torch.round)
frac = _unary(torch.frac)
isnan = _unary(torch.isnan)
isinf = _unary(torch.isinf)
isfinite = _unary(torch.isfinite)
nextafter = _binary(torch.nextafter)
reciprocal = _unary(torch.reciprocal)
divide = _binary(torch.true_divide)
fmax = _binary(torch.fmax)
fmin = _binary(torch.fmin)
ldexp = _binary(torch.ldexp)


def _integer_quotient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if not x.dtype.is_signed:
        return torch.div(x, y.masked_fill(y == 0, 1), rounding_mode="trunc")
    safe = y.masked_fill((y == 0) | (y == -1), 1)
    return torch.where(y == -1, -x, torch.div(x, safe, rounding_mode="trunc"))


def _trunc_divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.is_floating_point():
        return torch.div(x, y, rounding_mode="trunc")
    return _integer_quotient(x, y)


def _floor_divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.is_floating_point():
        return torch.floor_divide(x, y)
    whole = _integer_quotient(x, y)
    rest = x - whole * y
    return torch.where((rest != 0) & ((rest < 0) != (y < 0)), whole - 1, whole)


def _fmod(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.fmod(x, y) if x.is_floating_point() else x - _integer_quotient(x, y) * y


def _remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.remainder(x, y) if x.is_floating_point() else x - _floor_divide(x, y) * y


trunc_divide = _binary(_trunc_divide)
floor_divide = _binary(_floor_divide)
fmod = _binary(_fmod)
remainder = _binary(_remainder)


def _by_literal(tensor: Function, literal: Function) -> Callable[[Any, Any], Tile]:
    """A function for which eager takes another way when its second operand is a literal."""

    def apply(x: Any, y: Any) -> Tile:
        if isinstance(_plain(y), tl.tensor):
            return _apply(tensor, x, y)
        return _apply(lambda values: literal(values, _plain(y)), x)

    return apply


pow = _by_literal(torch.pow, torch.pow)
maximum = _by_literal(torch.maximum, torch.clamp_min)
minimum = _by_literal(torch.minimum, torch.clamp_max)


# **** what a GPU computes in fewer instructions where the result is a half type ****

approximate_divide = divide
approximate_erfc = erfc
approximate_exp = exp
approximate_exp2 = exp2
approximate_log = log
approximate_log2 = log2
approximate_log10 = log10
approximate_reciprocal = reciprocal
approximate_sigmoid = sigmoid
approximate_sqrt = sqrt
approximate_tanh = tanh


# **** bits, logic, casts ****

bitwise_not = _unary(torch.bitwise_not)
bitwise_and = _binary(torch.bitwise_and)
bitwise_or = _binary(torch.bitwise_or)
bitwise_xor = _binary(torch.bitwise_xor)
shift_left = _binary(torch.bitwise_left_shift)
shift_right = _binary(torch.bitwise_right_shift)
to_bool = _unary(lambda x: x.to(torch.bool))
logical_not = _unary(torch.logical_not)
logical_and = _binary(torch.logical_and)
logical_or = _binary(torch.logical_or)
logical_xor = _binary(torch.logical_xor)


def where(condition: Tile, x: Any, y: Any) -> Tile:
    chosen_type = _plain(x).dtype if isinstance(_plain(x), tl.tensor) else _plain(y).dtype
    dtype = _TORCH_TYPES[chosen_type]
    return _apply(lambda c, a, b: torch.where(c != 0, a.to(dtype), b.to(dtype)), condition, x, y)


def convert(x: Tile, dtype: Any) -> Tile:
    target = _TORCH_TYPES[_plain(dtype)]
    return _apply(lambda values: values.to(target), x)


float_to_int = convert


def round_to(x: Tile, dtype: Any) -> Tile:
    target = _TORCH_TYPES[_plain(dtype)]
    return _apply(lambda values: values.to(target).to(values.dtype), x)


def _to_float8(dtype: torch.dtype) -> Callable[[Tile], Tile]:
    return _unary(lambda values: values.float().to(dtype).view(torch.uint8))


def _from_float8(dtype: torch.dtype) -> Callable[[Tile], Tile]:
    return _unary(lambda bits: bits.contiguous().view(dtype).float())


to_float8_e4m3fn = _to_float8(torch.float8_e4m3fn)
to_float8_e5m2 = _to_float8(torch.float8_e5m2)
from_float8_e4m3fn = _from_float8(torch.float8_e4m3fn)
from_float8_e5m2 = _from_float8(torch.float8_e5m2)


# **** reductions ****


def _reduce(function: Function, axis: Any, keep_dims: Any, *tiles: Tile) -> Tile:
    """`function(tensors, axis)`, or of the flattened tensors where the axis is None."""
    axis = _plain(axis)
    tensors = [_to_torch(tile) for tile in tiles]
    shape = list(np.broadcast_shapes(*(tensor.shape for tensor in tensors)))
    tensors = [tensor.expand(shape) for tensor in tensors]
    if axis is None:
        result = function(*(tensor.flatten() for tensor in tensors), 0)
        kept = [1] * len(shape)
    else:
        result = function(*tensors, axis)
        kept = list(shape)
        kept[axis] = 1
    if _plain(keep_dims):
        return _to_tile(result.reshape(kept), is_scalar=False)
    return _to_tile(result, is_scalar=result.dim() == 0)


def sum(x: Tile, axis: Any, keep_dims: Any = False) -> Tile:
    return _reduce(lambda t, dim: torch.sum(t, dim, dtype=t.dtype), axis, keep_dims, x)


def prod(x: Tile, axis: Any, keep_dims: Any = False) -> Tile:
    return _reduce(lambda t, dim: torch.prod(t, dim, dtype=t.dtype), axis, keep_dims, x)


def max(x: Tile, axis: Any, keep_dims: Any = False) -> Tile:
    return _reduce(torch.amax, axis, keep_dims, x)


def min(x: Tile, axis: Any, keep_dims: Any = False) -> Tile:
    return _reduce(torch.amin, axis, keep_dims, x)


def any(x: Tile, axis: Any, keep_dims: Any = False) -> Tile:
    return _reduce(lambda t, dim: torch.any(t != 0, dim), axis, keep_dims, x)


def all(x: Tile, axis: Any, keep_dims: Any = False) -> Tile:
    return _reduce(lambda t, dim: torch.all(t != 0, dim), axis, keep_dims, x)


def _first_where_equal(extreme: Function) -> Function:
    def first(values: torch.Tensor, indices: torch.Tensor, axis: int) -> torch.Tensor:
        best = extreme(values, axis, keepdim=True)
        hits = (values == best) | torch.isnan(values)
        last = torch.iinfo(indices.dtype).max
        return torch.amin(indices.masked_fill(~hits, last), axis)

    return first


def argmax(value: Tile, index: Tile, axis: Any, keep_dims: Any = False) -> tuple[Tile, Tile]:
    where_first = _reduce(_first_where_equal(torch.amax), axis, keep_dims, value, index)
    return max(value, axis, keep_dims), where_first


def argmin(value: Tile, index: Tile, axis: Any, keep_dims: Any = False) -> tuple[Tile, Tile]:
    where_first = _reduce(_first_where_equal(torch.amin), axis, keep_dims, value, index)
    return min(value, axis, keep_dims), where_first


accumulate_sum = _binary(torch.add)
accumulate_prod = _binary(torch.mul)
accumulate_max = maximum
accumulate_min = minimum
accumulate_any = logical_or
accumulate_all = logical_and


def _accumulate(
    compare: Function, best: Tile, best_index: Tile, value: Tile, index: Tile
) -> tuple[Tile, Tile]:
    def is_taken(
        old: torch.Tensor, old_index: torch.Tensor, new: torch.Tensor, new_index: torch.Tensor
    ) -> torch.Tensor:
        is_better = compare(new, old) | (new.isnan() & ~old.isnan())
        is_tie = (new == old) | (new.isnan() & old.isnan())
        return is_better | (is_tie & (new_index < old_index))

    taken = _apply(is_taken, best, best_index, value, index)
    return where(taken, value, best), where(taken, index, best_index)


def accumulate_argmax(best: Tile, best_index: Tile, value: Tile, index: Tile) -> tuple[Tile, Tile]:
    return _accumulate(torch.gt, best, best_index, value, index)


def accumulate_argmin(best: Tile, best_index: Tile, value: Tile, index: Tile) -> tuple[Tile, Tile]:
    return _accumulate(torch.lt, best, best_index, value, index)
