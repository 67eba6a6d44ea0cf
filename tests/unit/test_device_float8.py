"""The bits that kernels work out for float8 where no instruction does, against torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from fuser.runtime import device_float8
from fuser.runtime.interpreter import is_interpreting

if not is_interpreting():
    pytest.skip(
        "a GPU may take the instruction: see the differential tests", allow_module_level=True
    )


@triton.jit
def convert(source, result, size, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < size
    value = FUNCTION(tl.load(source + offsets, mask=mask, other=0))
    tl.store(result + offsets, value, mask=mask)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_to_and_from(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The interpreter has no target to ask.
    monkeypatch.setattr(device_float8, "_has_instruction", lambda: False)
    dtype = getattr(torch, name)
    every = torch.arange(256, dtype=torch.uint8)
    wide = torch.empty(256)
    convert[(1,)](every, wide, 256, getattr(device_float8, f"from_{name}"), 256)
    assert torch.equal(wide.nan_to_num(1e9), every.view(dtype).float().nan_to_num(1e9))
    exact = wide[wide.isfinite()].unique()
    halves = (exact[1:] + exact[:-1]) / 2
    edges = [464.0, 465.0, 479.0, 480.0, 61439.0, 61440.0, 1e30, torch.inf, torch.nan, 1e-30, 0.0]
    x = torch.cat([wide, halves, halves * (1 + 2**-20), halves * (1 - 2**-20), torch.tensor(edges)])
    x = torch.cat([x, -x, torch.randn(2000) * torch.logspace(-8, 6, 2000)])
    bits = torch.empty(len(x), dtype=torch.uint8)
    with np.errstate(invalid="ignore"):  # NaN comes in with any bits
        convert[(1,)](x, bits, len(x), getattr(device_float8, f"to_{name}"), 8192)
    found, expected = bits.view(dtype).float(), x.to(dtype).float()
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(bits[~x.isnan()], x.to(dtype).view(torch.uint8)[~x.isnan()])
