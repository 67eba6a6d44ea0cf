"""Calling one kernel: tensors and sizes in, a launch on the current stream out.

Everything that does not change between calls is worked out once: constants, grid, index width and,
for each alignment of the arguments, the compiled kernel. A call like an earlier one only reads
addresses and looks up a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import triton
import triton.language as tl

from fuser.errors import KernelCompilationError
from fuser.ir.dim import Dim, python_text
from fuser.ir.kernel import Configuration, GridAxis, KernelSpec
from fuser.log import get_logger
from fuser.runtime.cache import triton_cache
from fuser.runtime.interpreter import is_interpreting, repair
from fuser.runtime.loader import load, source_path
from fuser.runtime.sizes import function_of

__all__ = ["Choose", "Launcher", "choose", "compile_options", "constants_of"]

Choose: TypeAlias = Callable[[KernelSpec], Configuration]

WIDE_EXTENT = 2**31
"""Element offsets from here on need 64-bit indices."""

_IS_HIP = torch.version.hip is not None

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


_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


class Launcher:
    """`launcher(*arguments, *symbols)`: the kernel's arguments in the order of `spec.arguments`,
    then the values of the graph's size symbols in the order in which they were named here."""

    def __init__(
        self,
        spec: KernelSpec,
        device: str | torch.device,
        symbols: Sequence[str] = (),
        choose: Choose = choose,
    ) -> None:
        self.spec = spec
        self.device = torch.device(device)
        self.configuration = choose(spec)
        self.argument_count = len(spec.arguments)
        self.buffers = tuple(k for k, a in enumerate(spec.arguments) if a.kind != "size")
        self.sizes = tuple(k for k, a in enumerate(spec.arguments) if a.kind == "size")
        self.outputs = tuple(k for k, a in enumerate(spec.arguments) if a.is_output)
        self.geometry = _geometry(spec, self.configuration, symbols)
        self.variants: dict[int, Callable[..., None]] = {}
        self.is_interpreted = is_interpreting()
        if self.is_interpreted:
            repair()

    def __call__(self, *values: Any) -> None:
        arguments = values[: self.argument_count]
        grid, is_wide = self.geometry(*values[self.argument_count :])
        if 0 in grid or self.writes_nothing(arguments):
            return
        if self.is_interpreted:
            self.interpret(arguments, grid, is_wide)
        elif self.device.index is None or torch.cuda.current_device() == self.device.index:
            self.launch(arguments, grid, is_wide)
        else:
            with torch.cuda.device(self.device):
                self.launch(arguments, grid, is_wide)

    def writes_nothing(self, arguments: Sequence[Any]) -> bool:
        for position in self.outputs:
            if arguments[position].numel():
                return False
        return bool(self.outputs)

    def launch(self, arguments: Sequence[Any], grid: tuple[int, int, int], is_wide: bool) -> None:
        """Launch the variant for these arguments, on the current device."""
        passed = list(arguments)
        key = int(is_wide)
        for position in self.buffers:
            address = passed[position].data_ptr()
            passed[position] = address
            key = key << 1 | (address & 15 == 0)
        for position in self.sizes:
            size = passed[position]
            key = key << 3 | (size == 1) << 2 | (size % 16 == 0) << 1 | (size >= WIDE_EXTENT)
        if _IS_HIP:
            # AMD's compiler also makes use of allocations under 2 GiB.
            for position in self.buffers:
                key = key << 1 | (arguments[position].untyped_storage().nbytes() < WIDE_EXTENT)
        variant = self.variants.get(key)
        if variant is None:
            variant = self.variants[key] = self.compile(arguments, is_wide)
        variant(grid, passed)

    def compile(self, arguments: Sequence[Any], is_wide: bool) -> Callable[..., None]:
        """Compile and load the kernel for arguments like these."""
        self.check_devices(arguments)
        constants = constants_of(self.spec, self.configuration, is_wide)
        function = load(self.spec)
        try:
            target = triton.runtime.driver.active.get_current_target()
            options = compile_options(self.spec, self.configuration, target)
            with triton_cache():
                typed = map(_as_in_kernels, arguments)
                compiled = function.warmup(*typed, *constants, grid=(1,), **options)
                # Loads it, which is where a kernel that needs too much shared memory fails.
                compiled[(1, 1, 1)]
        except Exception as error:
            raise self.failure(error) from error
        get_logger("runtime.launcher").debug(
            "%s: %s registers, %s spilled, %s bytes shared",
            *(self.spec.name, compiled.n_regs, compiled.n_spills, compiled.metadata.shared),
        )

        def run(grid: tuple[int, int, int], passed: list[Any]) -> None:
            compiled[grid](*passed, *constants)

        return run

    def check_devices(self, arguments: Sequence[Any]) -> None:
        """Refuse addresses that the kernel cannot reach; alike arguments are alike in this too."""
        for position in self.buffers:
            found = arguments[position].device
            if found.type != self.device.type:
                name = self.spec.arguments[position].name
                cause = f"argument {name} is on {found} and the kernel runs on {self.device}"
                raise KernelCompilationError(kernel=self.spec.name, cause=cause)

    def interpret(self, arguments: Sequence[Any], grid: tuple[int, ...], is_wide: bool) -> None:
        """Run the kernel in Triton's interpreter, where an unfit kernel fails only as it runs."""
        constants = constants_of(self.spec, self.configuration, is_wide)
        function = load(self.spec)
        try:
            function[grid](*map(_as_in_kernels, arguments), *constants)
        except Exception as error:
            if isinstance(error.__cause__, IndexError):
                # The program's own mistake, found by `check_index`: eager raises the same.
                raise error.__cause__ from None
            raise self.failure(error) from error

    def failure(self, error: Exception) -> KernelCompilationError:
        return KernelCompilationError(
            kernel=self.spec.name, cause=error, source_path=source_path(self.spec)
        )


def _as_in_kernels(argument: Any) -> Any:
    """The argument, a float8 tensor as the bytes that kernels know it as."""
    is_float8 = isinstance(argument, torch.Tensor) and argument.dtype in _FLOAT8
    return argument.view(torch.uint8) if is_float8 else argument


def _geometry(
    spec: KernelSpec, configuration: Configuration, symbols: Sequence[str]
) -> Callable[..., tuple[tuple[int, int, int], bool]]:
    """A function from the symbols' values to the grid and whether indices are wide."""
    axes = [_programs(axis, configuration) for axis in spec.grid]
    axes += ["1"] * (3 - len(axes))
    is_wide = f"({python_text(spec.extent)}) >= {WIDE_EXTENT}"
    dims: list[Dim] = [spec.extent, *(axis.size for axis in spec.grid)]
    text = f"(({', '.join(axes)}), {is_wide})"
    if not all(isinstance(dim, int) for dim in dims):
        return function_of(symbols, text)
    fixed = function_of((), text)()
    return lambda *_: fixed


def _programs(axis: GridAxis, configuration: Configuration) -> str:
    size = python_text(axis.size)
    if axis.block is None:
        return size
    return f"-(-({size}) // {configuration.block(axis.block)})"
