# ruff: noqa: A001 - the functions are called what torch calls them
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# (a kernel's arguments are tiles, for which Triton has no types)
"""Reductions for use inside kernels: of a tile along an axis, and of tile into accumulator.

In: tiles whose masked lanes hold the identity, put there by the caller with `tl.where`. Out: tiles
of the same type (torch widens integers in `sum` and `prod`: widen before). NaN wins where it wins
in torch, and the first of equal extremes is the one whose index is smallest.
"""

import triton
import triton.language as tl

from fuser.runtime.device_arithmetic import maximum, minimum
from fuser.runtime.device_logic import to_bool

__all__ = [
    "accumulate_all",
    "accumulate_any",
    "accumulate_argmax",
    "accumulate_argmin",
    "accumulate_max",
    "accumulate_min",
    "accumulate_prod",
    "accumulate_sum",
    "all",
    "any",
    "argmax",
    "argmin",
    "max",
    "min",
    "prod",
    "sum",
]


@triton.jit
def _widen(x):
    # Lanes exchange words: narrower integers, and bool, travel as int32.
    if x.dtype.is_int() and x.dtype.primitive_bitwidth < 32:
        return x.to(tl.int32)
    else:
        return x


@triton.jit
def accumulate_sum(accumulator, value):
    """accumulator + value"""
    return accumulator + value


@triton.jit
def accumulate_prod(accumulator, value):
    """accumulator * value"""
    return accumulator * value


@triton.jit
def accumulate_max(accumulator, value):
    """torch.maximum"""
    return maximum(accumulator, value)


@triton.jit
def accumulate_min(accumulator, value):
    """torch.minimum"""
    return minimum(accumulator, value)


@triton.jit
def accumulate_any(accumulator, value):
    """torch.logical_or"""
    return to_bool(accumulator) | to_bool(value)


@triton.jit
def accumulate_all(accumulator, value):
    """torch.logical_and"""
    return to_bool(accumulator) & to_bool(value)


@triton.jit
def accumulate_argmax(best, best_index, value, index):
    """The larger of two with its index, as torch.max(dim) would choose; returns both"""
    is_better = (value > best) | ((value != value) & (best == best))
    is_tie = (value == best) | ((value != value) & (best != best))
    is_taken = is_better | (is_tie & (index < best_index))
    return tl.where(is_taken, value, best), tl.where(is_taken, index, best_index)


@triton.jit
def accumulate_argmin(best, best_index, value, index):
    """The smaller of two with its index, as torch.min(dim) would choose; returns both"""
    is_better = (value < best) | ((value != value) & (best == best))
    is_tie = (value == best) | ((value != value) & (best != best))
    is_taken = is_better | (is_tie & (index < best_index))
    return tl.where(is_taken, value, best), tl.where(is_taken, index, best_index)


@triton.jit
def sum(x, axis, keep_dims: tl.constexpr = False):
    """torch.sum, in the type of x"""
    return tl.sum(_widen(x), axis, keep_dims=keep_dims).to(x.dtype)


@triton.jit
def prod(x, axis, keep_dims: tl.constexpr = False):
    """torch.prod, in the type of x"""
    return tl.reduce(_widen(x), axis, accumulate_prod, keep_dims=keep_dims).to(x.dtype)


@triton.jit
def max(x, axis, keep_dims: tl.constexpr = False):
    """torch.amax"""
    return tl.reduce(_widen(x), axis, accumulate_max, keep_dims=keep_dims).to(x.dtype)


@triton.jit
def min(x, axis, keep_dims: tl.constexpr = False):
    """torch.amin"""
    return tl.reduce(_widen(x), axis, accumulate_min, keep_dims=keep_dims).to(x.dtype)


@triton.jit
def any(x, axis, keep_dims: tl.constexpr = False):
    """torch.any"""
    return tl.reduce(to_bool(x).to(tl.int32), axis, accumulate_max, keep_dims=keep_dims) != 0


@triton.jit
def all(x, axis, keep_dims: tl.constexpr = False):
    """torch.all"""
    return tl.reduce(to_bool(x).to(tl.int32), axis, accumulate_min, keep_dims=keep_dims) != 0


@triton.jit
def argmax(value, index, axis, keep_dims: tl.constexpr = False):
    """torch.max(dim): the largest value and its entry of the index tile"""
    value, index = tl.broadcast(value, index)
    best, first = tl.reduce((_widen(value), index), axis, accumulate_argmax, keep_dims=keep_dims)
    return best.to(value.dtype), first


@triton.jit
def argmin(value, index, axis, keep_dims: tl.constexpr = False):
    """torch.min(dim): the smallest value and its entry of the index tile"""
    value, index = tl.broadcast(value, index)
    best, first = tl.reduce((_widen(value), index), axis, accumulate_argmin, keep_dims=keep_dims)
    return best.to(value.dtype), first
