"""Making, splitting, copying and filling tensors, and arithmetic that eager treats specially.

In: the arguments of the aten call. Out: views (slice, select, expand), borders (cat), `full`,
and pointwise ops, so that none of these calls remains as work of its own.
"""

# mypy: disable-error-code="no-any-return"
# (`torch.ops` is untyped, so a call of an aten op is Any to the type checker)

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from fuser.capture.decomposition.common import (
    Rule,
    as_rules,
    aten,
    cast,
    constant,
    contiguous,
    is_contiguous,
    is_empty,
    prims,
    unsqueeze_to,
    user_cast,
    wide,
)


# The view table knows slices and selections; these return several views at once.
def split_sizes(x: Tensor, sizes: Sequence[Any], dim: int = 0) -> list[Tensor]:
    pieces = []
    start: Any = 0
    for size in sizes:
        pieces.append(aten.slice.Tensor(x, dim, start, start + size))
        start = start + size
    return pieces


def split(x: Tensor, size: Any, dim: int = 0) -> list[Tensor]:
    length = x.shape[dim]
    if size == 0:
        return [aten.slice.Tensor(x, dim, 0, 0)]
    number = max(1, int((length + size - 1) // size))
    last = length - size * (number - 1)
    return split_sizes(x, [size] * (number - 1) + [last], dim)


def unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    return [aten.select.int(x, dim, k) for k in range(x.shape[dim])]


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    place = dim % (tensors[0].dim() + 1)
    return aten.cat.default([aten.unsqueeze.default(x, place) for x in tensors], place)


# An expanded copy: the index map of the expansion is free, the library's repeat is not.
def repeat(x: Tensor, repeats: Sequence[Any]) -> Tensor:
    sizes = [1] * (len(repeats) - x.dim()) + list(x.shape)
    apart: list[Any] = []
    grown: list[Any] = []
    for times, size in zip(repeats, sizes, strict=True):
        apart += [1, size]
        grown += [times, size]
    expanded = aten.expand.default(aten.reshape.default(x, apart), grown)
    copied = aten.clone.default(expanded, memory_format=torch.contiguous_format)
    merged = [times * size for times, size in zip(repeats, sizes, strict=True)]
    return aten.view.default(copied, merged)


# torch's entry gathers through an index tensor; two slices next to each other say the same.
def roll(x: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Tensor:
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    places = [dims] if isinstance(dims, int) else list(dims)
    if is_empty(x):
        return aten.clone.default(x)
    if not places:
        flat = aten.reshape.default(x, [-1])
        return aten.view.default(roll(flat, moves, [0]), list(x.shape))
    result = x
    for shift, dim in zip(moves, places, strict=True):
        size = x.shape[dim]
        cut = -shift if shift < 0 else size - shift
        if not 0 <= cut < size:
            cut = cut % size
        ends = [(cut, size), (0, cut)]
        result = aten.cat.default([aten.slice.Tensor(result, dim, a, b) for a, b in ends], dim)
    return result


# One creation op, with an explicit element type, instead of seven. A tensor "like" another keeps
# that tensor alive and waits for it; only a layout that is not contiguous needs it.
def _filled(value: Any) -> Rule:
    def make(
        size: Sequence[Any],
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
    ) -> Tensor:
        if layout not in (None, torch.strided) or pin_memory:
            return NotImplemented
        out = dtype or torch.get_default_dtype()
        return aten.full.default(list(size), value, dtype=out, device=device)

    return make


def new_full(
    x: Tensor,
    size: Sequence[Any],
    value: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    if layout not in (None, torch.strided) or pin_memory:
        return NotImplemented
    return aten.full.default(list(size), value, dtype=dtype or x.dtype, device=device or x.device)


def _new_filled(value: Any) -> Rule:
    def make(x: Tensor, size: Sequence[Any], **options: Any) -> Tensor:
        return new_full(x, size, value, **options)

    return make


def full_like(
    x: Tensor, value: Any, *, memory_format: torch.memory_format | None = None, **options: Any
) -> Tensor:
    if memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        return NotImplemented
    if x.layout is not torch.strided:
        return NotImplemented
    if memory_format is not torch.contiguous_format and not is_contiguous(x):
        return NotImplemented
    return new_full(x, x.shape, value, **options)


def _filled_like(value: Any) -> Rule:
    def make(x: Tensor, **options: Any) -> Tensor:
        return aten.full_like.default(x, value, **options)

    return make


def fill(x: Tensor, value: Any) -> Tensor:
    return aten.full_like.default(x, value)


def zero(x: Tensor) -> Tensor:
    return aten.full_like.default(x, 0)


# What functionalisation makes of `copy_`: the cast was written by the user, so it rounds.
def copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if x.device != source.device:
        return NotImplemented
    converted = user_cast(source, x.dtype)
    if tuple(converted.shape) != tuple(x.shape):
        converted = aten.expand.default(converted, list(x.shape))
    elif converted is not source:
        return converted
    return aten.clone.default(converted)


def fill_tensor(x: Tensor, value: Tensor) -> Tensor:
    return copy(x, value)


def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        if value.device != x.device:
            return NotImplemented
        filler = cast(value, x.dtype)
    else:
        filler = constant(value, x)
    return contiguous(aten.where.self(mask, filler, x))


# Writing one element a row, as the gradients of max and gather do, is a comparison with the
# position: pointwise, where a scatter is a fill and a kernel of its own.
def _hits(x: Tensor, dim: int, index: Tensor) -> Tensor | None:
    if index.dim() != x.dim():
        return None
    if x.dim() == 0:
        return aten.eq.Scalar(index, 0)
    dim = dim % x.dim()
    for k, (size, given) in enumerate(zip(x.shape, index.shape, strict=True)):
        if not guard_or_false(given == (1 if k == dim else size)):
            return None
    places = prims.iota.default(
        x.shape[dim], start=0, step=1, dtype=index.dtype, device=x.device, requires_grad=False
    )
    return aten.eq.Tensor(unsqueeze_to(places, x.dim(), dim), index)


def scatter(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    hits = _hits(x, dim, index)
    if hits is None or source.shape != index.shape:
        return NotImplemented
    return contiguous(aten.where.self(hits, source, x))


def scatter_value(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    hits = _hits(x, dim, index)
    if hits is None:
        return NotImplemented
    return contiguous(aten.where.self(hits, constant(value, x), x))


def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    hits = _hits(x, dim, index)
    if hits is None or source.shape != index.shape:
        return NotImplemented
    return contiguous(aten.add.Tensor(x, aten.where.self(hits, source, constant(0, source))))


def reverse_subtract(x: Tensor, other: Any, alpha: Any = 1) -> Tensor:
    return aten.sub.Tensor(other, x, alpha=alpha)


def floor_divide(x: Tensor, other: Any) -> Tensor:
    return aten.div.Tensor_mode(x, other, rounding_mode="floor")


# Eager computes these exponents with products and roots; a general power is less exact and slow.
def power(x: Tensor, exponent: Any) -> Tensor:
    if not isinstance(exponent, (int, float)) or isinstance(exponent, bool):
        return NotImplemented
    whole = not (x.is_floating_point() or x.is_complex())
    if x.dtype is torch.bool or (whole and (isinstance(exponent, float) or exponent < 0)):
        return NotImplemented
    values = wide(x)
    actions: Mapping[float, Callable[[], Tensor]] = {
        0.5: lambda: aten.sqrt.default(values),
        -0.5: lambda: aten.rsqrt.default(values),
        1: lambda: aten.clone.default(x),
        2: lambda: aten.mul.Tensor(values, values),
        3: lambda: aten.mul.Tensor(aten.mul.Tensor(values, values), values),
        -1: lambda: aten.reciprocal.default(values),
        -2: lambda: aten.reciprocal.default(aten.mul.Tensor(values, values)),
    }
    action = actions.get(exponent)
    return NotImplemented if action is None else cast(action(), x.dtype)


# As eager: a power of ten, and the nearest whole number between. For half types eager rounds the
# product, too, which a decomposition does not see.
def round_decimals(x: Tensor, *, decimals: int) -> Tensor:
    if x.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    scale = 10.0 ** abs(decimals)
    there, back = aten.mul.Scalar, aten.div.Scalar
    if decimals < 0:
        there, back = back, there
    return back(aten.round.default(there(x, scale)), scale)


def view_copy(x: Tensor, size: Sequence[Any]) -> Tensor:
    viewed = aten.reshape.default(x, list(size))
    return aten.clone.default(viewed, memory_format=torch.contiguous_format)


def dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    g = wide(grad)
    return cast(aten.mul.Tensor(aten.mul.Tensor(g, cast(mask, g.dtype)), scale), grad.dtype)


def multiply_add(a: Tensor, b: Any, c: Tensor) -> Tensor:
    """What Dynamo makes of an in-place `addcmul_` or `addcdiv_`: eager's own form of it."""
    return aten.add.Tensor(aten.mul.Tensor(a, b), c)


def _multiply_adds() -> dict[Any, Rule]:
    """For the call that newer releases of torch have for it, none in others."""
    importlib.import_module("torch._inductor.inductor_prims")  # which registers the call
    target = getattr(prims, "fma", None)
    return {} if target is None else {target.default: multiply_add}


RULES = as_rules(
    {
        **_multiply_adds(),
        aten.split.Tensor: split,
        aten.split_with_sizes.default: split_sizes,
        aten.unsafe_split.Tensor: split,
        aten.unsafe_split_with_sizes.default: split_sizes,
        aten.unbind.int: unbind,
        aten.stack.default: stack,
        aten.repeat.default: repeat,
        aten.roll.default: roll,
        aten.zeros.default: _filled(0),
        aten.ones.default: _filled(1),
        aten.new_zeros.default: _new_filled(0),
        aten.new_ones.default: _new_filled(1),
        aten.new_full.default: new_full,
        aten.full_like.default: full_like,
        aten.zeros_like.default: _filled_like(0),
        aten.ones_like.default: _filled_like(1),
        aten.fill.Scalar: fill,
        aten.fill.Tensor: fill_tensor,
        aten.zero.default: zero,
        aten.copy.default: copy,
        aten.masked_fill.Scalar: masked_fill,
        aten.masked_fill.Tensor: masked_fill,
        aten.scatter.src: scatter,
        aten.scatter.value: scatter_value,
        aten.scatter_add.default: scatter_add,
        aten.rsub.Scalar: reverse_subtract,
        aten.rsub.Tensor: reverse_subtract,
        aten.floor_divide.default: floor_divide,
        aten.floor_divide.Scalar: floor_divide,
        aten.pow.Tensor_Scalar: power,
        aten.round.decimals: round_decimals,
        aten.view_copy.default: view_copy,
        aten.native_dropout_backward.default: dropout_backward,
    }
)
