"""Compiling and calling one kernel: tensors and sizes in, a launch on the current stream out.

The launch function of `fuser.runtime.kernel` does what every call needs; a launcher compiles the
variants that it asks for. In Triton's interpreter there is nothing to compile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import triton
import triton.language as tl

from fuser.errors import KernelCompilationError
from fuser.ir.dim import python_text
from fuser.ir.kernel import ALIGNMENT, Configuration, KernelArgument, KernelSpec
from fuser.log import get_logger
from fuser.runtime.assembly import check_assembly
from fuser.runtime.cache import triton_cache
from fuser.runtime.descriptors import Descriptors
from fuser.runtime.direct import Grid, LaunchCounts, Variant, first_launch, has_hooks
from fuser.runtime.interpreter import is_interpreting, repair
from fuser.runtime.kernel import (
    WIDE_EXTENT,
    Miss,
    choosing_function,
    geometry_texts,
    launch_function,
)
from fuser.runtime.loader import load, source_path
from fuser.runtime.sizes import function_of

__all__ = [
    "WIDE_EXTENT",
    "Choose",
    "Launcher",
    "choose",
    "compile_options",
    "constants_of",
    "current_stream",
]

Choose: TypeAlias = Callable[[KernelSpec], Configuration]

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


def _current_stream(device: int) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


current_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _current_stream
)
"""The handle of the stream on which work for a GPU is enqueued now."""


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
        counts: LaunchCounts | None = None,
    ) -> None:
        self.spec = spec
        self.device = torch.device(device)
        self.configuration = choose(spec)
        self.symbols = tuple(symbols)
        self.counts = counts if counts is not None else LaunchCounts()
        self.buffers = tuple(k for k, a in enumerate(spec.arguments) if a.kind != "size")
        self.described = {
            k: Described.of(argument, self.configuration, symbols)
            for k, argument in enumerate(spec.arguments)
            if argument.window is not None
        }
        self.outputs = tuple(k for k, a in enumerate(spec.arguments) if a.is_output)
        self.geometry = _geometry(spec, self.configuration, symbols)
        self.variants: dict[Any, Variant] = {}
        self.hooked: dict[Any, Variant] = {}
        """The same ones where Triton has hooks."""
        self.is_interpreted = is_interpreting()
        if self.is_interpreted:
            repair()
        self.otherwise: Launcher | None = None
        if spec.otherwise is not None:
            self.otherwise = Launcher(spec.otherwise, device, symbols, choose, self.counts)
        self.launch, self.launch_hooked = self.launches(self.miss)

    def __call__(self, *values: Any) -> None:
        self.finding_stream(self.launch, self.launch_hooked)(*values)

    def finding_stream(
        self, launch: Callable[..., None], hooked: Callable[..., None]
    ) -> Callable[..., None]:
        """This launcher's launch functions, called without stream and addresses: on the kernel's
        device, whichever is the current one, and on the stream that is current there."""
        count = len(self.spec.arguments)

        def found(*values: Any) -> None:
            arguments, rest = values[:count], values[count:]
            if self.writes_nothing(arguments):
                return None
            addresses = [arguments[k].data_ptr() for k in self.buffers]
            misaligned = any(address % ALIGNMENT for address in addresses)
            function = hooked if has_hooks() else launch
            if self.device.type != "cuda":
                return function(None, misaligned, *arguments, *addresses, *rest)
            with torch.cuda.device(self.device):
                stream = current_stream(torch.cuda.current_device())
                return function(stream, misaligned, *arguments, *addresses, *rest)

        return found

    def launches(
        self, missed: Callable[[Miss], None], handed_on: int = 0
    ) -> tuple[Callable[..., None], Callable[..., None]]:
        """The launch function as `fuser.runtime.kernel` has it, and the one that calls hooks.

        What they have no variant for goes to `missed`.
        """
        own = self.own_launches(missed, handed_on)
        if self.otherwise is None:
            return own
        pairs = zip(own, self.otherwise.launches(missed, handed_on), strict=True)
        first, second = (
            choosing_function(self.spec, self.symbols, launch, otherwise, handed_on)
            for launch, otherwise in pairs
        )
        return first, second

    def own_launches(
        self, missed: Callable[[Miss], None], handed_on: int
    ) -> tuple[Callable[..., None], Callable[..., None]]:
        """The same of this kernel itself, whatever it has otherwise."""
        if self.is_interpreted:
            launch = self.interpreted(missed)
            return launch, launch
        direct, hooked = (
            launch_function(
                *(self.spec, self.configuration, self.symbols, variants, missed),
                *(self.device, handed_on),
            )
            for variants in (self.variants, self.hooked)
        )
        return direct, hooked

    def interpreted(self, missed: Callable[[Miss], None]) -> Callable[..., None]:
        """A launch function in which every launch is a miss."""
        count = len(self.spec.arguments)
        first = count + len(self.buffers)
        end = first + len(self.symbols)

        def launch(stream: Any, misaligned: Any, *values: Any) -> None:
            arguments, symbols = values[:count], values[first:end]
            grid, is_wide = self.geometry(*symbols)
            if 0 not in grid and not self.writes_nothing(arguments):
                missed(Miss(self.spec, None, grid, is_wide, 0, arguments, symbols, values[end:]))

        return launch

    def writes_nothing(self, arguments: Sequence[Any]) -> bool:
        for position in self.outputs:
            if arguments[position].numel():
                return False
        return bool(self.outputs)

    def miss(self, miss: Miss) -> None:
        """Make the variant that a launch needs and launch it, on the current device."""
        if self.otherwise is not None and miss.spec is self.otherwise.spec:
            return self.otherwise.miss(miss)
        if self.is_interpreted:
            return self.interpret(miss)
        constants = constants_of(self.spec, self.configuration, miss.is_wide)
        given = self.given(miss)
        compiled = self.compile(miss.arguments, given, constants)
        addresses = [
            argument.data_ptr() if isinstance(argument, torch.Tensor) else argument
            for argument in given
        ]
        self.variants[miss.key], self.hooked[miss.key] = first_launch(
            compiled, constants, self.counts, miss.grid, miss.stream, addresses
        )

    def forget(self) -> None:
        """Make every launch a miss."""
        self.variants.clear()
        self.hooked.clear()
        if self.otherwise is not None:
            self.otherwise.forget()

    def given(self, miss: Miss) -> list[Any]:
        """What the kernel is given for the arguments of a launch."""
        found = [_as_in_kernels(argument) for argument in miss.arguments]
        for position, described in self.described.items():
            found[position] = described(found[position], miss.symbols)
        return found

    def compile(
        self, arguments: Sequence[Any], given: Sequence[Any], constants: Sequence[Any]
    ) -> Any:
        """Compile and load the kernel for arguments like these."""
        self.check_devices(arguments)
        function = load(self.spec)
        try:
            target = triton.runtime.driver.active.get_current_target()
            options = compile_options(self.spec, self.configuration, target)
            with triton_cache():
                compiled = function.warmup(*given, *constants, grid=(1,), **options)
                check_assembly(compiled)
                # Loads it, which is where a kernel that needs too much shared memory fails.
                compiled[(1, 1, 1)]
        except Exception as error:
            raise self.failure(error) from error
        get_logger("runtime.launcher").debug(
            "%s: %s registers, %s spilled, %s bytes shared",
            *(self.spec.name, compiled.n_regs, compiled.n_spills, compiled.metadata.shared),
        )
        return compiled

    def check_devices(self, arguments: Sequence[Any]) -> None:
        """Refuse addresses that the kernel cannot reach; alike arguments are alike in this too."""
        for position in self.buffers:
            found = arguments[position].device
            if found.type != self.device.type:
                name = self.spec.arguments[position].name
                cause = f"argument {name} is on {found} and the kernel runs on {self.device}"
                raise KernelCompilationError(kernel=self.spec.name, cause=cause)

    def interpret(self, miss: Miss) -> None:
        """Run the kernel in Triton's interpreter, where an unfit kernel fails only as it runs."""
        constants = constants_of(self.spec, self.configuration, miss.is_wide)
        function = load(self.spec)
        try:
            function[miss.grid](*self.given(miss), *constants)
        except Exception as error:
            if isinstance(error.__cause__, IndexError):
                # The program's own mistake, found by `check_index`: eager raises the same.
                raise error.__cause__ from None
            raise self.failure(error) from error

    def failure(self, error: Exception) -> KernelCompilationError:
        return KernelCompilationError(
            kernel=self.spec.name, cause=error, source_path=source_path(self.spec)
        )


@dataclass(frozen=True)
class Described:
    """An argument that a kernel is given the descriptor of."""

    descriptors: Descriptors
    sizes: Callable[..., tuple[int, ...]]
    """Of the window, from the symbols' values."""

    @staticmethod
    def of(
        argument: KernelArgument, configuration: Configuration, symbols: Sequence[str]
    ) -> Described:
        assert argument.window is not None
        sizes = ", ".join(map(python_text, argument.window.sizes))
        return Described(Descriptors(argument, configuration), function_of(symbols, f"({sizes})"))

    def __call__(self, tensor: torch.Tensor, symbols: Sequence[int]) -> Any:
        return self.descriptors.of_tensor(tensor, self.sizes(*symbols))


def _as_in_kernels(argument: Any) -> Any:
    """The argument, a float8 tensor as the bytes that kernels know it as."""
    is_float8 = isinstance(argument, torch.Tensor) and argument.dtype in _FLOAT8
    return argument.view(torch.uint8) if is_float8 else argument


def _geometry(
    spec: KernelSpec, configuration: Configuration, symbols: Sequence[str]
) -> Callable[..., tuple[Grid, bool]]:
    """A function from the symbols' values to the grid and whether indices are wide."""
    grid, is_wide = geometry_texts(spec, configuration)
    return function_of(symbols, f"(({', '.join(grid)}), {is_wide})")
