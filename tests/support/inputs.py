"""Argument makers for the samples: domains, special values, shapes and layouts.

In: an element type. Out: named argument tuples. Every maker draws from its own seeded generator, on
the CPU, so that each device is given the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["ANY", "FLAG", "POSITIVE", "UNIT", "Cases", "Domain", "Inputs", "pointwise"]

Cases = dict[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Domain:
    """Where ordinary values lie, and which of the special ones go with them."""

    low: float = -4.0
    high: float = 4.0
    avoids: tuple[int, ...] = ()
    """Integers that eager refuses or crashes on."""
    special: tuple[float, ...] = ()
    """Further special values, such as the poles of the function at hand."""
    takes_special: bool = True
    leaves_out: tuple[str, ...] = ()
    """Special values that eager itself treats in more than one way."""
    dtype: torch.dtype | None = None
    """The element type, where it is not the sample's."""


def _special_floats(limits: torch.finfo) -> dict[str, float]:
    inf = float("inf")
    return {
        "nan": float("nan"), "inf": inf, "-inf": -inf, "zero": 0.0, "-zero": -0.0, "one": 1.0,
        "-one": -1.0, "half": 0.5, "tie": 1.5, "-tie": -2.5, "step": limits.eps,
        "largest": limits.max, "lowest": limits.min, "denormal": limits.smallest_normal / 4,
    }  # fmt: skip


ANY = Domain()
POSITIVE = Domain(low=0.0, high=9.0)
UNIT = Domain(low=-1.0, high=1.0)
FLAG = Domain(dtype=torch.bool)


@dataclass
class Inputs:
    """Makes tensors of one element type."""

    dtype: torch.dtype
    generator: torch.Generator = field(
        default_factory=lambda: torch.Generator().manual_seed(20261130)
    )

    def of(self, *shape: int, domain: Domain = ANY) -> torch.Tensor:
        """Ordinary values of the domain."""
        dtype = domain.dtype or self.dtype
        if dtype is torch.bool:
            return torch.rand(shape, generator=self.generator) < 0.5
        if dtype.is_floating_point:
            unit = torch.rand(shape, generator=self.generator, dtype=torch.float64)
            return (domain.low + (domain.high - domain.low) * unit).to(dtype)
        bounds = torch.iinfo(dtype)
        low, high = max(int(domain.low), bounds.min), min(int(domain.high), bounds.max)
        values = torch.randint(low, high + 1, shape, generator=self.generator)
        for number in domain.avoids:
            values = torch.where(values == number, high, values)
        return values.to(dtype)

    def special(self, domain: Domain = ANY) -> torch.Tensor:
        """The values on which implementations differ, as far as the domain allows them."""
        dtype = domain.dtype or self.dtype
        if not domain.takes_special:
            return self.of(5, domain=domain)
        if dtype is torch.bool:
            return torch.tensor([True, False])
        if dtype.is_floating_point:
            special = _special_floats(torch.finfo(dtype))
            values = [value for name, value in special.items() if name not in domain.leaves_out]
            return torch.tensor([*values, *domain.special], dtype=torch.float64).to(dtype)
        bounds = torch.iinfo(dtype)
        numbers = {bounds.min, bounds.max, 0, 1, 2, -1, -2, 7, *map(int, domain.special)}
        kept = [n for n in sorted(numbers) if bounds.min <= n <= bounds.max]
        kept = [n for n in kept if n not in domain.avoids]
        return torch.tensor(kept, dtype=dtype)


def pointwise(*domains: Domain, leaves_out: tuple[str, ...] = ()) -> Callable[[Inputs], Cases]:
    """Every shape and layout for an elementwise call on this many tensors."""

    def cases(inputs: Inputs) -> Cases:
        rank = len(domains)

        def each(*shapes: Sequence[int]) -> tuple[torch.Tensor, ...]:
            """One tensor an operand; the shapes are used in turn."""
            return tuple(
                inputs.of(*shapes[k % len(shapes)], domain=d) for k, d in enumerate(domains)
            )

        special = tuple(
            inputs.special(d).reshape([-1 if j == k else 1 for j in range(rank)])
            for k, d in enumerate(domains)
        )
        every: Cases = {
            "special": special,
            "odd": each((5, 33)),
            "broadcast": each((4, 1, 7), (3, 1), (7,)),
            "transposed": tuple(t.t() for t in each((7, 9))),
            "mixed": (each((7, 9))[0].t(), *each((9, 7))[1:]),
            "strided": tuple(t[::2, 1::3] for t in each((6, 17))),
            "expanded": tuple(t.expand(3, 6) for t in each((1, 6), (3, 1))),
            "one": each((1,)),
            "single": each(()),
            "empty": each((0, 3)),
        }
        return {name: made for name, made in every.items() if name not in leaves_out}

    return cases
