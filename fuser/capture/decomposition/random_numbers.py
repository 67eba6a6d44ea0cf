"""Dropout and draws of random numbers as functions of a seed, which a kernel computes in place.

In: the arguments of the aten call. Out: `fuser::seed` and `fuser::uniform` or `fuser::normal`
(`fuser/philox.py`), and pointwise ops. Each call draws a seed of its own here, of which
`fuser/capture/seeds.py` leaves one a graph. Numbers are laid out in memory as eager lays out the
result, so that neighbours in memory share a Philox call. A call that names a generator is left
alone: its stream is the user's. So is one that eager refuses.
"""

# mypy: disable-error-code="no-any-return"
# (`torch.ops` is untyped, so a call of an aten op is Any to the type checker)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import compute_elementwise_output_logical_to_physical_perm

from fuser import philox
from fuser.capture.decomposition.common import (
    HALF_DTYPES,
    as_rules,
    aten,
    cast,
    constant,
    is_contiguous,
    wide,
)

Draw = Callable[..., Tensor]

_DIGITS = {torch.float16: 11, torch.bfloat16: 8}
"""Bits of a half type's fraction: so many can a number below 1 have without rounding up to it."""


def _drawn(draw: Draw, size: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers in float64, or in float32 for every other type."""
    is_double = dtype is torch.float64
    computed = torch.float64 if is_double else torch.float32
    seed = philox.seed(device)
    return draw(seed, 0, list(size), dtype=computed, is_double=is_double)


def _drawn_like(draw: Draw, x: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The same, laid out as eager lays out a result that is like `x`."""
    if is_contiguous(x):
        return _drawn(draw, x.shape, dtype, device)
    order = list(compute_elementwise_output_logical_to_physical_perm(x)[0])
    moved = _drawn(draw, [x.shape[d] for d in order], dtype, device)
    return aten.permute.default(moved, [order.index(d) for d in range(x.dim())])


def _uniform_in(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers in [0, 1) in another type, none of which rounds to 1."""
    if dtype in HALF_DTYPES:
        steps = 2.0 ** _DIGITS[dtype]
        numbers = aten.mul.Tensor(aten.floor.default(aten.mul.Tensor(numbers, steps)), 1 / steps)
    return cast(numbers, dtype)


# **** creation ****


def _creation(draw: Draw, finish: Callable[[Tensor, torch.dtype], Tensor]) -> Draw:
    def make(
        size: Sequence[Any],
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
    ) -> Tensor:
        out = dtype or torch.get_default_dtype()
        if layout not in (None, torch.strided) or pin_memory or not out.is_floating_point:
            return NotImplemented
        place = torch.device(device) if device is not None else torch.get_default_device()
        return finish(_drawn(draw, size, out, place), out)

    return make


def _creation_like(draw: Draw, finish: Callable[[Tensor, torch.dtype], Tensor]) -> Draw:
    def make(
        x: Tensor,
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> Tensor:
        out = dtype or x.dtype
        known = (None, torch.preserve_format, torch.contiguous_format)
        if x.layout is not torch.strided or layout not in (None, torch.strided) or pin_memory:
            return NotImplemented
        if memory_format not in known or not out.is_floating_point:
            return NotImplemented
        place = torch.device(device) if device is not None else x.device
        if memory_format is torch.contiguous_format:
            return finish(_drawn(draw, x.shape, out, place), out)
        return finish(_drawn_like(draw, x, out, place), out)

    return make


# **** distributions ****


def uniform(x: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Tensor:
    if generator is not None or not x.is_floating_point() or not low <= high:
        return NotImplemented
    numbers = _drawn_like(philox.uniform, x, x.dtype, x.device)
    if (low, high) == (0.0, 1.0):
        return _uniform_in(numbers, x.dtype)
    scaled = cast(aten.add.Tensor(aten.mul.Tensor(numbers, high - low), low), x.dtype)
    # What rounds up to the end, which is no part of the range, is where the range begins.
    return aten.where.self(aten.eq.Scalar(scaled, high), constant(low, scaled), scaled)


def _standard(x: Tensor) -> Tensor:
    return _drawn_like(philox.normal, x, x.dtype, x.device)


def normal_like(x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    if generator is not None or not x.is_floating_point() or not std >= 0:
        return NotImplemented
    return cast(aten.add.Tensor(aten.mul.Tensor(_standard(x), std), mean), x.dtype)


def normal_of(mean: Any, std: Any = 1.0, *, generator: Any = None) -> Tensor:
    """The mean, the deviation or both are tensors."""
    like, *others = [x for x in (mean, std) if isinstance(x, Tensor)]
    is_known = isinstance(std, Tensor) or std >= 0
    if generator is not None or not like.is_floating_point() or not is_known:
        return NotImplemented
    if any(x.dtype != like.dtype or x.shape != like.shape for x in others):
        return NotImplemented
    scaled = aten.mul.Tensor(_standard(like), wide(std) if isinstance(std, Tensor) else std)
    moved = aten.add.Tensor(scaled, wide(mean) if isinstance(mean, Tensor) else mean)
    return cast(moved, like.dtype)


def exponential(x: Tensor, rate: float = 1.0, *, generator: Any = None) -> Tensor:
    if generator is not None or not x.is_floating_point() or not rate > 0:
        return NotImplemented
    numbers = _drawn_like(philox.uniform, x, x.dtype, x.device)
    # 1 - u is in (0, 1], so that the logarithm is finite.
    logarithm = aten.log1p.default(aten.neg.default(numbers))
    return cast(aten.mul.Tensor(logarithm, -1.0 / rate), x.dtype)


def _below(x: Tensor, p: Any) -> Tensor:
    """True with probability `p`, laid out like `x`. 24 digits decide, whatever the type of x."""
    numbers = _drawn_like(philox.uniform, x, torch.float32, x.device)
    compare = aten.lt.Tensor if isinstance(p, Tensor) else aten.lt.Scalar
    return compare(numbers, p)


def bernoulli(x: Tensor, *, generator: Any = None) -> Tensor:
    if generator is not None or not x.is_floating_point():
        return NotImplemented
    return cast(_below(x, wide(x)), x.dtype)


def bernoulli_of(x: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    """With a number or a tensor of probabilities; of `x` only the type and shape matter."""
    if generator is not None or x.is_complex():
        return NotImplemented
    if isinstance(p, Tensor):
        p = wide(p)
    elif not 0 <= p <= 1:
        return NotImplemented
    return cast(_below(x, p), x.dtype)


# **** dropout ****


def dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """The result and which elements are kept. A lost element is a product with zero, as in eager:
    infinities become NaN and zeros keep their sign."""
    if not x.is_floating_point() or not 0 <= p <= 1:
        return NotImplemented
    if train is False or p == 0:
        kept = aten.full_like.default(x, True, dtype=torch.bool)
        return aten.clone.default(x), kept
    if p == 1:
        lost = aten.full_like.default(x, False, dtype=torch.bool)
        return aten.mul.Tensor(x, 0.0), lost
    numbers = _drawn_like(philox.uniform, x, torch.float32, x.device)
    kept = aten.ge.Scalar(numbers, p)
    values = wide(x)
    scaled = aten.mul.Tensor(aten.mul.Tensor(values, cast(kept, values.dtype)), 1.0 / (1.0 - p))
    return cast(scaled, x.dtype), kept


RULES = as_rules(
    {
        aten.native_dropout.default: dropout,
        aten.rand.default: _creation(philox.uniform, _uniform_in),
        aten.rand_like.default: _creation_like(philox.uniform, _uniform_in),
        aten.randn.default: _creation(philox.normal, cast),
        aten.randn_like.default: _creation_like(philox.normal, cast),
        aten.uniform.default: uniform,
        aten.normal_functional.default: normal_like,
        aten.normal.Tensor_float: normal_of,
        aten.normal.float_Tensor: normal_of,
        aten.normal.Tensor_Tensor: normal_of,
        aten.exponential.default: exponential,
        aten.bernoulli.default: bernoulli,
        aten.bernoulli.p: bernoulli_of,
        aten.bernoulli.Tensor: bernoulli_of,
    }
)
