"""Random numbers as torch operations: a draw of a seed, and pure functions of a seed.

    fuser::seed(device)                    one 64-bit seed from the device's default generator
    fuser::uniform(seed, stream, size)     numbers in [0, 1), equally spaced by 2**-24
    fuser::uniform_positive(seed, ...)     numbers in (0, 1], close together near zero

In: a seed, a stream (a number below 2**32 that tells the draws of one seed apart) and a shape. Out:
float32 numbers by Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
as 1, 2, 3", SC 2011). Only the first operation has a state. The others give the same bits here and
in generated kernels (`fuser.runtime.device_random`), whatever computes them, and however often.

Every row, that is everything but the last dimension, begins a new Philox block, and a block is four
neighbours of the row: element c of row r is word c % 4 of block r * ceil(row length / 4) + c // 4.
The counter is (block, low word first; stream; 0) and the key is the seed, low word first.
"""

# mypy: disable-error-code="no-any-return"
# (`torch.ops` is untyped, so a call of an operation is Any to the type checker)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["SEED", "UNIFORM", "UNIFORM_POSITIVE", "philox"]

Word = Any  # 32 bits as an integer, or as a tensor of int64

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
LANES = 4
"""Numbers that one block of Philox gives."""

_WORD = 0xFFFFFFFF


def philox(counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]) -> tuple[Word, ...]:
    """Four random words for a counter of four and a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _product(c0, MULTIPLIERS[0])
        high1, low1 = _product(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & _WORD, (k1 + WEYL[1]) & _WORD
    return c0, c1, c2, c3


def _product(x: Word, factor: int) -> tuple[Word, Word]:
    # The 64 bits of a product are right in an int64 too: as a sign is how the top one is read.
    wide = x * factor
    return (wide >> 32) & _WORD, wide & _WORD


def _words(seed: Tensor, stream: int, size: Sequence[int]) -> Tensor:
    """A random word for each element, as int64."""
    *rows, row = size if size else (1,)
    blocks = -(-row // LANES)
    count = blocks
    for length in rows:
        count *= length
    block = torch.arange(count, dtype=torch.int64, device=seed.device)
    counter = (block & _WORD, block >> 32, stream & _WORD, 0)
    found = philox(counter, (seed & _WORD, (seed >> 32) & _WORD))
    return torch.stack(found, -1).reshape(*rows, blocks * LANES)[..., :row].reshape(size)


def _seed(device: torch.device) -> Tensor:
    return torch.empty((), dtype=torch.int64, device=device).random_(-(2**63), None)


def _uniform(seed: Tensor, stream: int, size: Sequence[int]) -> Tensor:
    return (_words(seed, stream, size) >> 8).to(torch.float32) * 2.0**-24


def _uniform_positive(seed: Tensor, stream: int, size: Sequence[int]) -> Tensor:
    # The middle of the word's interval: next to 1 it rounds to 1, next to 0 it stays above 0.
    return _words(seed, stream, size).to(torch.float32) * 2.0**-32 + 2.0**-33


# **** registration ****


def _fake_seed(device: torch.device) -> Tensor:
    return torch.empty((), dtype=torch.int64, device=device)


def _fake_numbers(seed: Tensor, stream: int, size: Sequence[Any]) -> Tensor:
    return seed.new_empty(size, dtype=torch.float32)


def _register() -> Any:
    untyped: Any = torch.library
    library = untyped.Library("fuser", "DEF")
    compliant = torch.Tag.pt2_compliant_tag
    library.define(
        "seed(Device device) -> Tensor", tags=(compliant, torch.Tag.nondeterministic_seeded)
    )
    library.impl("seed", _seed, "CompositeExplicitAutograd")
    torch.library.register_fake("fuser::seed", _fake_seed, lib=library)
    for name, function in (("uniform", _uniform), ("uniform_positive", _uniform_positive)):
        library.define(f"{name}(Tensor seed, int stream, SymInt[] size) -> Tensor", tags=compliant)
        library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"fuser::{name}", _fake_numbers, lib=library)
    return library


_LIBRARY = _register()
"""Kept: the operations go when it does."""

SEED = torch.ops.fuser.seed.default
UNIFORM = torch.ops.fuser.uniform.default
UNIFORM_POSITIVE = torch.ops.fuser.uniform_positive.default
