"""Indices out of range raise what eager raises; on a GPU both are assertions that end a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fuser
from fuser.runtime.interpreter import is_interpreting

CALLS: dict[str, Callable[..., Any]] = {
    "index": lambda x, i: x[i] * 2,
    "gather": lambda x, i: torch.gather(x, 1, i.view(1, -1)) * 2,
    "index_select": lambda x, i: torch.index_select(x, 0, i) * 2,
    "embedding": lambda x, i: F.embedding(i, x) * 2,
}


@pytest.mark.skipif(not is_interpreting(), reason="TRITON_INTERPRET is not set")
@pytest.mark.parametrize("name", CALLS)
def test_an_index_out_of_range_raises_as_in_eager(name: str) -> None:
    given = torch.randn(3, 4), torch.tensor([1, 0, 2])
    wrong = given[0], torch.tensor([1, 0, 7])
    compiled = fuser.compile(CALLS[name])
    compiled(*given)
    with pytest.raises((IndexError, RuntimeError)) as eager:
        CALLS[name](*wrong)
    with pytest.raises(eager.type):
        compiled(*wrong)
