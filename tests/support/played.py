"""Triton's part, played: kernels that compile to nothing and record how they are launched.

Its launchers are called like those of Triton 3.6 and 3.7, as read in their sources
(`triton/backends/nvidia/driver.py`, `CudaLauncher.__call__`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget

from fuser.runtime import launcher as launcher_module


class Launcher36:
    """`CompiledKernel.run` of Triton 3.6."""

    def __init__(self, launched: list[tuple[Any, ...]]) -> None:
        self.launched = launched

    def __call__(
        self, gridX: int, gridY: int, gridZ: int, stream: int, function: int, *args: Any
    ) -> None:
        metadata, launch_metadata, enter_hook, exit_hook, *arguments = args
        assert metadata == "metadata"
        if enter_hook is not None:
            enter_hook(launch_metadata)
        self.launched.append(((gridX, gridY, gridZ), *arguments))
        if exit_hook is not None:
            exit_hook(launch_metadata)


class Launcher37(Launcher36):
    """`CompiledKernel.run` of Triton 3.7."""

    def __call__(
        self, gridX: int, gridY: int, gridZ: int, stream: int, function: int,
        kernel_metadata: Any, launch_metadata: Any, launch_enter_hook: Any, launch_exit_hook: Any,
        *args: Any,
    ) -> None:  # fmt: skip
        four = (kernel_metadata, launch_metadata, launch_enter_hook, launch_exit_hook)
        super().__call__(gridX, gridY, gridZ, stream, function, *four, *args)


class CudaLauncher:
    """`CompiledKernel.run` of Triton 3.6 for NVIDIA, with the C function below it."""

    def __init__(self, launched: list[tuple[Any, ...]]) -> None:
        self.launch: Any = CFunction(launched)
        self.global_scratch_size = self.profile_scratch_size = 0
        self.launch_cooperative_grid, self.launch_pdl = False, True

    def __call__(
        self, gridX: int, gridY: int, gridZ: int, stream: int, function: int, *args: Any
    ) -> None:
        scratch = [1 if self.global_scratch_size else None, None]
        flags = (self.launch_cooperative_grid, self.launch_pdl)
        self.launch(gridX, gridY, gridZ, stream, function, *flags, *scratch, *args)


class CFunction:
    """What Triton 3.6 compiles for a signature."""

    def __init__(self, launched: list[tuple[Any, ...]]) -> None:
        self.launcher = Launcher36(launched)
        self.scratch: list[Any] = []
        """The scratch memory of each launch."""

    def __call__(self, x: int, y: int, z: int, stream: int, function: int, *args: Any) -> None:
        cooperative, pdl, scratch, profile, *rest = args
        assert (cooperative, pdl, profile) == (False, True, None)
        self.launcher(x, y, z, stream, function, *rest)
        self.scratch.append(scratch)


class PlayedFunction:
    """A `@triton.jit` function and the kernel that it compiles to: counts, and records launches."""

    def __init__(self, launcher: Callable[[list[tuple[Any, ...]]], Any] = Launcher37) -> None:
        self.compiled: list[dict[str, Any]] = []
        self.launched: list[tuple[Any, ...]] = []
        """Grid and arguments of each launch, on whichever way it was made."""
        self.through: list[int] = []
        """Where in `launched` those stand that went through Triton."""
        self.n_regs, self.n_spills = 32, 0
        self.asm: dict[str, str] = {}
        self.run: Any = launcher(self.launched)
        self.function: Any = 4711
        self.packed_metadata = "metadata"
        self.error: Exception | None = None
        """What compiling raises."""

    @property
    def metadata(self) -> Any:
        return type("Metadata", (), {"shared": 0})

    def warmup(self, *values: Any, **options: Any) -> PlayedFunction:
        if self.error is not None:
            raise self.error
        self.compiled.append({"values": values, **options})
        return self

    def launch_metadata(self, grid: tuple[int, ...], stream: int, *arguments: Any) -> Any:
        return {"grid": grid, "stream": stream}

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def runner(*values: Any, stream: int | None = None) -> None:
            if triton.knobs.runtime.launch_enter_hook is not None:
                triton.knobs.runtime.launch_enter_hook({"grid": grid, "stream": stream})
            self.through.append(len(self.launched))
            self.launched.append((grid, *values))

        return runner


def play(monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    """Have launchers load `function`, or what it returns for a kernel, and not interpret it."""
    find = (lambda spec: function) if isinstance(function, PlayedFunction) else function
    monkeypatch.setattr(launcher_module, "load", find)
    monkeypatch.setattr(launcher_module, "is_interpreting", lambda: False)
    driver = type("Driver", (), {})()
    driver.get_current_target = lambda: GPUTarget("cuda", 90, 32)
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
