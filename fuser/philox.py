# mypy: disable-error-code="no-untyped-call"
# (`torch.library` has no types)
"""Random numbers as functions of a seed and a place: Philox 4x32 with ten rounds.

In: a seed (an int64 tensor without dimensions), the number of the op in its graph, and a shape.
Element `i` of the result, counted in row-major order, is word `i % 4` of Philox with the seed as
its key and `(i // 4, op, 0)` as its counter. Whoever computes an element, in whatever tile, gets
the same number. float64 takes its lower bits from word `i % 4` of the counter `(i // 4, op, 1)`, so
that it agrees with float32 in the leading 24.

Out: the torch ops `fuser::seed`, `fuser::uniform` and `fuser::normal`. What they do when called
is the reference that kernels are compared with (`fuser/runtime/device_random.py` is the same in
Triton), in integer arithmetic that is exact on every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["draw_seed", "normal", "scrambled", "seed", "uniform", "words"]

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
LOW_WORD = 0xFFFFFFFF

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

_library = torch.library.Library("fuser", "DEF")
# The tag says that two calls differ: it keeps its place among what draws random numbers.
_library.define("seed(Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_PARAMETERS = "(Tensor seed, int number, SymInt[] size, *, ScalarType dtype, bool is_double=False)"
_library.define(f"uniform{_PARAMETERS} -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_library.define(f"normal{_PARAMETERS} -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))


def draw_seed(device: torch.device) -> torch.Tensor:
    """A seed from the device's default generator: int64 [], drawn on the device.

    Nothing waits for it, and a CUDA graph that is replayed draws another one each time.
    """
    return torch.empty((), dtype=torch.int64, device=device).random_()


def _uniform(
    seed: torch.Tensor,
    number: int,
    size: Sequence[int],
    *,
    dtype: torch.dtype,
    is_double: bool = False,
) -> torch.Tensor:
    high = words(seed, number, math.prod(size))
    if not is_double:
        return ((high >> 8).to(torch.float32) * 2.0**-24).to(dtype).reshape(size)
    low = words(seed, number, math.prod(size), stream=1)
    return (_leading(high, low).to(torch.float64) * 2.0**-53).to(dtype).reshape(size)


def _normal(
    seed: torch.Tensor,
    number: int,
    size: Sequence[int],
    *,
    dtype: torch.dtype,
    is_double: bool = False,
) -> torch.Tensor:
    count = math.prod(size)
    even = -(-count // 4) * 4
    high = words(seed, number, even).reshape(-1, 2)
    if is_double:
        low = words(seed, number, even, stream=1).reshape(-1, 2)
        units = _leading(high, low).to(torch.float64) * 2.0**-53
        first = units[:, 0] + 2.0**-54
    else:
        # Rounded to float32 before anything else: in whatever type the rest is computed, it is a
        # function of the same numbers.
        first = (high[:, 0].to(torch.float32) * 2.0**-32 + 2.0**-33).to(dtype)
        units = ((high >> 8).to(torch.float32) * 2.0**-24).to(dtype)
    radius = torch.sqrt(-2.0 * torch.log(first))
    angle = units[:, 1] * (2 * math.pi)
    pairs = torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), 1)
    return pairs.reshape(-1)[:count].to(dtype).reshape(size)


def _leading(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """The upper 53 of 64 bits, as int64."""
    return (high << 21) | (low >> 11)


def words(
    seed: torch.Tensor, number: int, count: int, stream: int = 0, first: int = 0
) -> torch.Tensor:
    """`count` words of an op from word `first`, a multiple of 4, on: int64, each in [0, 2**32)."""
    quarters = torch.arange(-(-count // 4), dtype=torch.int64, device=seed.device) + first // 4
    counter = (
        quarters & LOW_WORD,
        quarters >> 32,
        torch.full_like(quarters, number),
        torch.full_like(quarters, stream),
    )
    return torch.stack(scrambled(counter, seed), 1).reshape(-1)[:count]


def scrambled(counter: Words, key: torch.Tensor) -> Words:
    """Philox 4x32 of counters, four words each, under a key of 64 bits; all are int64."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & LOW_WORD, (key >> 32) & LOW_WORD
    for _ in range(ROUNDS):
        # A product of two words wraps around in int64, which loses none of its 64 bits.
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1 = ((second >> 32) & LOW_WORD) ^ c1 ^ k0, second & LOW_WORD
        c2, c3 = ((first >> 32) & LOW_WORD) ^ c3 ^ k1, first & LOW_WORD
        k0, k1 = (k0 + KEY_STEPS[0]) & LOW_WORD, (k1 + KEY_STEPS[1]) & LOW_WORD
    return c0, c1, c2, c3


def _fake_seed(device: torch.device) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64, device=device)


def _fake_numbers(
    seed: torch.Tensor,
    number: int,
    size: Sequence[int],
    *,
    dtype: torch.dtype,
    is_double: bool = False,
) -> torch.Tensor:
    return seed.new_empty(size, dtype=dtype)


_library.impl("seed", draw_seed, "CompositeExplicitAutograd")
_library.impl("uniform", _uniform, "CompositeExplicitAutograd")
_library.impl("normal", _normal, "CompositeExplicitAutograd")
torch.library.register_fake("fuser::seed", _fake_seed)
torch.library.register_fake("fuser::uniform", _fake_numbers)
torch.library.register_fake("fuser::normal", _fake_numbers)

seed: Any = torch.ops.fuser.seed.default
uniform: Any = torch.ops.fuser.uniform.default
normal: Any = torch.ops.fuser.normal.default
