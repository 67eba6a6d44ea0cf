"""The device of the differential tests: a GPU, or the CPU where kernels are interpreted."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
import torch

from fuser import device as devices
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


@pytest.fixture
def slow_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be fused is: launches are as slow as the interpreter's on every device, and no
    kernel is measured. For tests of what kernels compute, at sizes that are small on a GPU."""
    slow = devices.device_spec("cpu").launch_us
    specs = {target: replace(spec, launch_us=slow) for target, spec in devices.DEVICES.items()}
    monkeypatch.setattr(devices, "DEVICES", MappingProxyType(specs))
    monkeypatch.setenv("FUSER_TUNE", "0")
