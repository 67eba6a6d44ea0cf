"""Random numbers: aten's draws as pure functions of a seed, which kernels compute where they are
needed.

In: aten calls that draw from the default generator. Out: the same distributions made of
`fuser::uniform`, whose numbers differ from eager's for the same `torch.manual_seed`. A call with a
generator of its own stays as it is, and so do draws of integers, permutations and gammas. Each draw
asks for a seed; `fuser.capture.seeds` then leaves one for each device in a graph.

Eager's kernels are followed in the corners: what is kept with probability 1 is always kept, an
exponential is never zero, a half type's number below 1 is below 1.
"""

# mypy: disable-error-code="no-any-return"
# (`torch.ops` is untyped, so a call of an aten op is Any to the type checker)

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import compute_elementwise_output_logical_to_physical_perm

from fuser.capture.decomposition.common import HALF_DTYPES, as_rules, aten, cast, wide, wide_dtype
from fuser.random_ops import LANES, SEED, UNIFORM, UNIFORM_POSITIVE

__all__ = ["RULES"]

STEP = 2.0**-24
"""The distance between neighbouring uniform numbers."""

SHORT_ROW = 64
"""Shorter rows that are no multiple of four are drawn together with the next dimension."""

_DIGITS = {torch.float16: 11, torch.bfloat16: 8}

Draw = Callable[[Sequence[Any], Tensor | torch.device], Tensor]


# **** numbers ****


def _numbers(operation: Any, shape: Sequence[Any], device: torch.device) -> Tensor:
    """Contiguous float32 numbers of a draw of their own."""
    rows = list(shape)
    # Blocks of four begin with each row; that is a waste where rows are short.
    while len(rows) > 1 and isinstance(rows[-1], int) and rows[-1] % LANES and rows[-1] < SHORT_ROW:
        last = rows.pop()
        rows[-1] = rows[-1] * last
    # The stream is given when the graph is complete.
    found = operation(SEED(device), 0, rows)
    return found if len(rows) == len(shape) else aten.view.default(found, list(shape))


def _like(operation: Any, x: Tensor) -> Tensor:
    """Numbers of x's shape whose neighbours in memory are those of x."""
    order, _ = compute_elementwise_output_logical_to_physical_perm(x)
    if order == list(range(x.dim())):
        return _numbers(operation, x.shape, x.device)
    found = _numbers(operation, [x.shape[d] for d in order], x.device)
    return aten.permute.default(found, [order.index(d) for d in range(x.dim())])


class _Source:
    """Where numbers are drawn for: a shape on a device, or something like a tensor."""

    def __init__(self, shape: Sequence[Any] | Tensor, dtype: torch.dtype, device: Any = None):
        self.shape = shape
        self.dtype = dtype
        self.device = device

    def draw(self, operation: Any) -> Tensor:
        if isinstance(self.shape, Tensor):
            return _like(operation, self.shape)
        return _numbers(operation, self.shape, self.device)

    def uniform(self) -> Tensor:
        """In [0, 1): float32, and float64 where that is wanted, with twice as many digits."""
        found = self.draw(UNIFORM)
        if self.dtype != torch.float64:
            return found
        finer = cast(self.draw(UNIFORM), torch.float64)
        return aten.add.Tensor(cast(found, torch.float64), aten.mul.Tensor(finer, STEP))

    def positive(self) -> Tensor:
        """In (0, 1], in float32 or float64."""
        found = self.draw(UNIFORM_POSITIVE)
        if self.dtype != torch.float64:
            return found
        # Between a number and the next lower one.
        lower = aten.mul.Tensor(cast(self.draw(UNIFORM), torch.float64), -STEP)
        return aten.mul.Tensor(cast(found, torch.float64), aten.add.Tensor(lower, 1.0))

    def normal(self) -> Tensor:
        """Box and Muller's transform (1958), of which the sine is not used."""
        radius = aten.sqrt.default(aten.mul.Tensor(aten.log.default(self.positive()), -2.0))
        angle = aten.mul.Tensor(self.uniform(), 2.0 * math.pi)
        return aten.mul.Tensor(radius, aten.cos.default(angle))

    def exponential(self) -> Tensor:
        """Of rate 1. Never zero: its logarithm is taken, to choose among categories."""
        return aten.clamp_min.default(aten.neg.default(aten.log.default(self.positive())), STEP)

    def rounded(self, x: Tensor) -> Tensor:
        return cast(x, self.dtype)


def _threshold(p: float) -> float:
    """The number of steps that comes nearest to p, as a multiple of them."""
    return round(float(p) / STEP) * STEP


# **** dropout ****


def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if not x.is_floating_point():
        return NotImplemented
    if train is False or p == 0:
        return aten.clone.default(x), aten.full_like.default(x, True, dtype=torch.bool)
    if p == 1:
        return aten.full_like.default(x, 0), aten.full_like.default(x, False, dtype=torch.bool)
    kept = aten.ge.Scalar(_like(UNIFORM, x), _threshold(p))
    return _masked(x, kept, 1.0 / (1.0 - p)), kept


def _native_dropout_backward(gradient: Tensor, mask: Tensor, scale: float) -> Tensor:
    if not gradient.is_floating_point():
        return NotImplemented
    return _masked(gradient, mask, scale)


def _masked(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    """In eager's order, which decides what becomes of infinities."""
    kept = aten.mul.Tensor(wide(x), cast(mask, wide_dtype(x.dtype)))
    return cast(aten.mul.Tensor(kept, scale), x.dtype)


# **** Bernoulli ****


def _bernoulli_p(x: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    if generator is not None or x.is_complex():
        return NotImplemented
    return cast(aten.lt.Scalar(_like(UNIFORM, x), _threshold(p)), x.dtype)


def _bernoulli_tensor(x: Tensor, p: Tensor, *, generator: Any = None) -> Tensor:
    if generator is not None or x.is_complex() or p.device != x.device:
        return NotImplemented
    return cast(aten.lt.Tensor(_like(UNIFORM, x), wide(p)), x.dtype)


def _bernoulli(x: Tensor, *, generator: Any = None) -> Tensor:
    return _bernoulli_tensor(x, x, generator=generator)


# **** tensors of random numbers ****


def _rand(source: _Source) -> Tensor:
    found = source.uniform()
    if source.dtype in HALF_DTYPES:
        # As many digits as the type has, since rounding could give 1.
        scale = 2.0 ** _DIGITS[source.dtype]
        found = aten.mul.Tensor(aten.floor.default(aten.mul.Tensor(found, scale)), 1.0 / scale)
    return source.rounded(found)


def _randn(source: _Source) -> Tensor:
    return source.rounded(source.normal())


def _factory(make: Callable[[_Source], Tensor]) -> Callable[..., Tensor]:
    def create(
        size: Sequence[Any],
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: Any = None,
        pin_memory: bool | None = None,
    ) -> Tensor:
        dtype = dtype or torch.get_default_dtype()
        if layout not in (None, torch.strided) or pin_memory or not dtype.is_floating_point:
            return NotImplemented
        where = torch.get_default_device() if device is None else torch.device(device)
        return make(_Source(size, dtype, where))

    return create


def _factory_like(make: Callable[[_Source], Tensor]) -> Callable[..., Tensor]:
    def create(
        x: Tensor,
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: Any = None,
        pin_memory: bool | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> Tensor:
        dtype = dtype or x.dtype
        elsewhere = device is not None and torch.device(device) != x.device
        if layout not in (None, torch.strided) or pin_memory or elsewhere:
            return NotImplemented
        if not dtype.is_floating_point:
            return NotImplemented
        found = make(_Source(x, dtype))
        if memory_format in (None, torch.preserve_format):
            return found
        return aten.clone.default(found, memory_format=memory_format)

    return create


# **** distributions that replace a tensor's values ****


def _in_place_of(distribution: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`distribution(source, ...)` as what a method like `x.normal_(...)` leaves in x."""

    def draw(x: Tensor, *parameters: Any, generator: Any = None, **named: Any) -> Tensor:
        if generator is not None or not x.is_floating_point():
            return NotImplemented
        source = _Source(x, x.dtype)
        return source.rounded(distribution(source, *parameters, **named))

    return draw


def _scaled(x: Tensor, scale: Any, start: Any) -> Tensor:
    return aten.add.Tensor(aten.mul.Tensor(x, scale), start)


def _uniform(source: _Source, low: float = 0.0, high: float = 1.0) -> Tensor:
    found = source.rounded(_scaled(source.uniform(), high - low, low))
    # Rounding can give the upper limit, which does not belong to the interval.
    return aten.where.ScalarSelf(aten.eq.Scalar(found, high), low, found)


def _normal(source: _Source, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return _scaled(source.normal(), std, mean)


def _log_normal(source: _Source, mean: float = 1.0, std: float = 2.0) -> Tensor:
    return aten.exp.default(_normal(source, mean, std))


def _exponential(source: _Source, lambd: float = 1.0) -> Tensor:
    return aten.div.Tensor(source.exponential(), lambd)


def _geometric(source: _Source, p: float) -> Tensor:
    trials = aten.div.Tensor(source.exponential(), -math.log1p(-p)) if p < 1 else None
    if trials is None:
        return aten.full_like.default(source.uniform(), 1.0)
    return aten.ceil.default(trials)


def _cauchy(source: _Source, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    angle = aten.mul.Tensor(aten.sub.Tensor(source.uniform(), 0.5), math.pi)
    return _scaled(aten.tan.default(angle), sigma, median)


def _normal_of_tensors(
    mean: Tensor | float, std: Tensor | float = 1.0, *, generator: Any = None
) -> Tensor:
    given = [x for x in (mean, std) if isinstance(x, Tensor)]
    if generator is not None or not all(x.is_floating_point() for x in given):
        return NotImplemented
    if len({x.device for x in given}) > 1:
        return NotImplemented
    shape = aten.broadcast_tensors.default(given)[0].shape
    source = _Source(shape, given[0].dtype, given[0].device)
    mean, std = (wide(x) if isinstance(x, Tensor) else x for x in (mean, std))
    return source.rounded(_scaled(source.normal(), std, mean))


def _normal_of_numbers(
    mean: float, std: float, size: Sequence[Any], *, generator: Any = None, **options: Any
) -> Tensor:
    if generator is not None:
        return NotImplemented
    return _factory(lambda source: source.rounded(_normal(source, mean, std)))(size, **options)


RULES: Mapping[Any, Callable[..., Any]] = as_rules(
    {
        aten.native_dropout.default: _native_dropout,
        aten.native_dropout_backward.default: _native_dropout_backward,
        aten.bernoulli.default: _bernoulli,
        aten.bernoulli.p: _bernoulli_p,
        aten.bernoulli.Tensor: _bernoulli_tensor,
        aten.rand.default: _factory(_rand),
        aten.rand_like.default: _factory_like(_rand),
        aten.randn.default: _factory(_randn),
        aten.randn_like.default: _factory_like(_randn),
        aten.uniform.default: _in_place_of(_uniform),
        aten.normal_functional.default: _in_place_of(_normal),
        aten.log_normal.default: _in_place_of(_log_normal),
        aten.exponential.default: _in_place_of(_exponential),
        aten.geometric.default: _in_place_of(_geometric),
        aten.cauchy.default: _in_place_of(_cauchy),
        aten.normal.Tensor_float: _normal_of_tensors,
        aten.normal.float_Tensor: _normal_of_tensors,
        aten.normal.Tensor_Tensor: _normal_of_tensors,
        aten.normal.float_float: _normal_of_numbers,
    }
)
