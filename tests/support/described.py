"""Plans whose products read their operands by tensor descriptors wherever those can be."""

from __future__ import annotations

import pytest

from fuser.passes import candidate, product
from fuser.passes.product_tiles import DESCRIPTORS, POINTERS


def prefer_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans made from now on, for any target, have descriptors and prefer them."""
    monkeypatch.setattr(product, "families_of", lambda _: (POINTERS, DESCRIPTORS))
    monkeypatch.setattr(candidate, "fastest", lambda made: made[-1])
