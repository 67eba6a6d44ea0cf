"""The device of the differential tests: a GPU, or the CPU where kernels are interpreted."""

from __future__ import annotations

import pytest
import torch

from fuser.runtime.interpreter import is_interpreting

HAS_GPU = torch.cuda.is_available() and not is_interpreting()
DEVICE = pytest.param("cuda", marks=pytest.mark.gpu) if HAS_GPU else "cpu"


@pytest.fixture(params=[DEVICE])
def device(request: pytest.FixtureRequest) -> str:
    """Where the program under test and its arguments are put."""
    if not HAS_GPU and not is_interpreting():
        pytest.skip("generated kernels run on a GPU, or with TRITON_INTERPRET=1")
    chosen: str = request.param
    return chosen
