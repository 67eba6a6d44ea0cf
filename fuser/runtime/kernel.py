"""One kernel on one device: its grid, its compile-time arguments, and how it is compiled for
arguments like those of a call.

In: a specification, and arguments. Out: what `fuser.runtime.launcher` calls to launch the kernel.
Nothing here runs once every variant of a kernel that a program needs is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import triton
import triton.language as tl

from fuser.errors import KernelCompilationError
from fuser.ir.dim import python_text
from fuser.ir.kernel import Configuration, GridAxis, KernelSpec
from fuser.log import get_logger
from fuser.runtime.cache import triton_cache
from fuser.runtime.direct import Bound, direct, through_triton
from fuser.runtime.interpreter import is_interpreting, repair
from fuser.runtime.loader import load, source_path
from fuser.runtime.sizes import number_at

__all__ = ["WIDE_EXTENT", "Choose", "Kernel", "choose", "compile_options", "constants_of"]

Choose: TypeAlias = Callable[[KernelSpec], Configuration]

WIDE_EXTENT = 2**31
"""Element offsets from here on need 64-bit indices."""

# What Triton would do faster but not as eager does: contract a multiplication and an addition into
# one rounding, and let library functions treat numbers below the smallest normal one as zero.
_EAGER_ROUNDING = {"enable_fp_fusion": False, "enable_reflect_ftz": False}


def choose(spec: KernelSpec) -> Configuration:
    """The configuration to compile."""
    return spec.configurations[0]


def constants_of(spec: KernelSpec, configuration: Configuration, is_wide: bool) -> tuple[Any, ...]:
    """The compile-time arguments: they follow the others, in this order."""
    index_type = tl.int64 if is_wide else tl.int32
    fixed = (value for _, value in spec.constexprs)
    blocks = (value for _, value in configuration.blocks)
    return (index_type, *fixed, *blocks)


def compile_options(spec: KernelSpec, configuration: Configuration, target: Any) -> dict[str, Any]:
    """Triton's options for a target; those that its code generator does not have are left out."""
    known = triton.compiler.make_backend(target).parse_options({})
    wanted = {
        "num_warps": configuration.num_warps,
        "num_stages": configuration.num_stages,
        **_EAGER_ROUNDING,
        # Assertions on indices, without Triton's own on every integer operation.
        "debug": spec.checks_indices,
        "sanitize_overflow": False,
    }
    return {name: value for name, value in wanted.items() if hasattr(known, name)}


class Kernel:
    """A kernel as it is compiled for one device, with one of its configurations."""

    def __init__(
        self, spec: KernelSpec, device: str | torch.device, choose: Choose = choose
    ) -> None:
        self.spec = spec
        self.device = torch.device(device)
        self.configuration = choose(spec)
        self.is_interpreted = is_interpreting()
        if self.is_interpreted:
            repair()

    @property
    def grid(self) -> tuple[str, str, str]:
        """The number of programs along each axis, as Python text over the size symbols."""
        axes = [_programs(axis, self.configuration) for axis in self.spec.grid]
        first, second, third = axes + ["1"] * (3 - len(axes))
        return first, second, third

    def bound(
        self, tensors: Mapping[str, torch.Tensor], symbols: Mapping[str, int]
    ) -> tuple[Bound, Bound]:
        """What launches the kernel for arguments like these, and what does it while a profiler
        listens to launches; raises `KernelCompilationError`."""
        is_wide = int(number_at(self.spec.extent, symbols)) >= WIDE_EXTENT
        constants = constants_of(self.spec, self.configuration, is_wide)
        if self.is_interpreted:
            return (self.interpreted(constants),) * 2
        arguments = self.arguments(tensors, symbols)
        compiled = self.compiled(arguments, constants)
        passed = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments]
        return direct(compiled, passed, constants), through_triton(compiled, constants)

    def arguments(
        self, tensors: Mapping[str, torch.Tensor], symbols: Mapping[str, int]
    ) -> list[Any]:
        """What the kernel is given but its compile-time arguments."""
        return [
            number_at(argument.size, symbols) if argument.kind == "size" else tensors[argument.name]
            for argument in self.spec.arguments
        ]

    def compiled(self, arguments: Sequence[Any], constants: Sequence[Any]) -> Any:
        """Triton's compiled kernel, loaded."""
        self.check_devices(arguments)
        function = load(self.spec)
        try:
            target = triton.runtime.driver.active.get_current_target()
            options = compile_options(self.spec, self.configuration, target)
            with triton_cache():
                compiled = function.warmup(*arguments, *constants, grid=(1,), **options)
                # Loads it, which is where a kernel that needs too much shared memory fails.
                compiled[(1, 1, 1)]
        except Exception as error:
            raise self.failure(error) from error
        get_logger("runtime.kernel").debug(
            "%s: %s registers, %s spilled, %s bytes shared",
            *(self.spec.name, compiled.n_regs, compiled.n_spills, compiled.metadata.shared),
        )
        return compiled

    def check_devices(self, arguments: Sequence[Any]) -> None:
        """Refuse addresses that the kernel cannot reach; alike arguments are alike in this too."""
        for argument, given in zip(self.spec.arguments, arguments, strict=True):
            if argument.kind != "size" and given.device.type != self.device.type:
                cause = (
                    f"argument {argument.name} is on {given.device} and the kernel runs on "
                    f"{self.device}"
                )
                raise KernelCompilationError(kernel=self.spec.name, cause=cause)

    def interpreted(self, constants: Sequence[Any]) -> Bound:
        """The kernel in Triton's interpreter, where an unfit one fails only as it runs."""
        function = load(self.spec)
        count = len(self.spec.arguments)

        def launch(x: int, y: int, z: int, stream: Any, *given: Any) -> None:
            try:
                function[(x, y, z)](*given[:count], *constants)
            except Exception as error:
                if isinstance(error.__cause__, IndexError):
                    # The program's own mistake, found by `check_index`: eager raises the same.
                    raise error.__cause__ from None
                raise self.failure(error) from error

        return Bound(launch)

    def failure(self, error: Exception) -> KernelCompilationError:
        return KernelCompilationError(
            kernel=self.spec.name, cause=error, source_path=source_path(self.spec)
        )


def _programs(axis: GridAxis, configuration: Configuration) -> str:
    if axis.block is None:
        return python_text(axis.size)
    block = configuration.block(axis.block)
    if isinstance(axis.size, int):
        return str(-(-axis.size // block))
    return f"-(-({python_text(axis.size)}) // {block})"
