"""Triton with its last call played: what it would tell the driver is recorded, and nothing runs.

The kernels are objects of Triton's own classes, so the Python code around a launch is the installed
version's. Only compilation and the driver's function are replaced.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher
from triton.compiler.compiler import CompiledKernel

from fuser.runtime import direct, kernel

FUNCTION = 4711
PACKED_METADATA = (4, 1, 0)


class PlayedTriton:
    """Takes the place of every kernel's function: counts compilations and records launches."""

    def __init__(self) -> None:
        self.compiled: list[dict[str, Any]] = []
        self.launched: list[tuple[Any, ...]] = []
        """Grid and stream, then all arguments."""
        self.scratch_size = 0
        self.compiles = True

    def warmup(self, *values: Any, **options: Any) -> Any:
        if not self.compiles:
            raise RuntimeError("no such instruction")
        self.compiled.append({"values": values, **options})
        return self.kernel()

    def kernel(self) -> Any:
        launcher: Any = CudaLauncher.__new__(CudaLauncher)
        vars(launcher).update(
            num_ctas=1, launch_cooperative_grid=False, launch_pdl=False,
            global_scratch_size=self.scratch_size, global_scratch_align=1,
            profile_scratch_size=0, profile_scratch_align=1,
            arg_annotations=[], kernel_signature=b"", launch=self.driver_call,
        )  # fmt: skip
        made: Any = CompiledKernel.__new__(CompiledKernel)
        vars(made).update(
            name="played", src=None, hash="", metadata_group={}, module=object(),
            metadata=SimpleNamespace(shared=0), packed_metadata=PACKED_METADATA,
            function=FUNCTION, n_regs=32, n_spills=0, _run=launcher,
        )  # fmt: skip
        return made

    def driver_call(self, x: int, y: int, z: int, stream: int, function: int, *given: Any) -> None:
        assert function == FUNCTION
        assert PACKED_METADATA in given
        for hook in given[4:6] if direct.PACKS else given[6:8]:
            if hook is not None:
                hook(None)
        arguments = given[-1] if direct.PACKS else given[8:]
        self.launched.append(((x, y, z), stream, *arguments))


def play(monkeypatch: pytest.MonkeyPatch) -> PlayedTriton:
    """Let every kernel made from here on be compiled and launched by the object returned."""
    played = PlayedTriton()
    monkeypatch.setattr(kernel, "load", lambda spec: played)
    monkeypatch.setattr(kernel, "is_interpreting", lambda: False)
    driver = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
    )
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    return played
