"""Tensors that kernels are timed on lie as those of the program."""

from __future__ import annotations

import pytest
import torch

from fuser.runtime.stopwatch import zeros

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("shape", "stride"),
    [((3, 4), (4, 1)), ((3, 4), (1, 3)), ((5, 4), (0, 1)), ((2, 3), (1, 1)), ((), ())],
)
def test_a_layout_is_kept(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    found = zeros(shape, stride, torch.float32, CPU)
    assert (found.shape, found.stride()) == (shape, stride)
    assert not found.any()
    last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    assert found.untyped_storage().nbytes() == 4 * (last + 1)


def test_without_elements_there_is_still_an_address() -> None:
    assert zeros((0, 4), (4, 1), torch.float32, CPU).data_ptr()
