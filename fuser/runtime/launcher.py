"""The launches of a region as one function: tensors and sizes in, kernels on a stream out.

The function is made as text for the kernels at hand, so that a call does only what can differ
between calls: it reads addresses, works out sizes that are symbolic, and looks up the compiled
kernels by what Triton compiles apart, which is the alignment of inputs and whether a size is 1 or
a multiple of 16. Arguments like none before go to `Launch.prepare`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeAlias

import torch

from fuser.errors import KernelCompilationError
from fuser.ir.dim import Dim, python_text
from fuser.ir.kernel import KernelSpec, RegionKernels
from fuser.runtime.direct import ENTER, HOOKS, LEAVE, PACKS, Bound
from fuser.runtime.kernel import WIDE_EXTENT, Choose, Kernel, choose, constants_of
from fuser.runtime.sizes import function_from

__all__ = ["Instead", "Launch", "Launcher", "on_device", "stream_of"]

Tensors: TypeAlias = Sequence[torch.Tensor]
Instead: TypeAlias = Callable[[KernelCompilationError, Tensors, Sequence[int]], None]
"""What to do in the place of kernels that do not compile."""

_IS_HIP = torch.version.hip is not None


def stream_of(device: torch.device) -> int | None:
    """The current stream of a GPU as Triton takes it."""
    if device.type != "cuda":
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch._C._cuda_getCurrentRawStream(index)


def on_device(run: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """`run`, called with `device` as the current one; itself where there is no other."""
    index = device.index
    if device.type != "cuda" or index is None or torch.cuda.device_count() < 2:
        return run

    def switched(*values: Any) -> Any:
        if torch.cuda.current_device() == index:
            return run(*values)
        with torch.cuda.device(index):
            return run(*values)

    return switched


def _raise(error: KernelCompilationError, tensors: Tensors, symbols: Sequence[int]) -> None:
    raise error


class Launch:
    """`launch.run(stream, *tensors, *symbols)`: the tensors of `entry.tensors`, then the values of
    the graph's size symbols."""

    def __init__(
        self,
        entry: RegionKernels,
        device: str | torch.device,
        symbols: Sequence[str] = (),
        aligned: Collection[str] = (),
        may_be_empty: bool = True,
        instead: Instead = _raise,
        choose: Choose = choose,
    ) -> None:
        """`aligned` are tensors whose addresses are multiples of 16. `may_be_empty` says that a
        call may have outputs without elements: then a kernel that writes nothing is left out."""
        self.kernels = tuple(Kernel(spec, device, choose) for spec in entry.kernels)
        self.tensors = tuple(argument.name for argument in entry.tensors)
        self.symbols = tuple(symbols)
        self.instead = instead
        self.failure: KernelCompilationError | None = None
        # By what Triton compiles apart: the values of each kernel's `Bound`, one after the other.
        self.ready: dict[int, tuple[Any, ...]] = {}
        self.watched: dict[int, tuple[Any, ...]] = {}
        text = _Writer(self.kernels, self.tensors, self.symbols, aligned, may_be_empty).text()
        names = {
            "HOOKS": HOOKS, "ENTER": ENTER, "LEAVE": LEAVE, "KernelError": KernelCompilationError,
            "ready": self.ready, "watched": self.watched,
            "prepare": self.prepare, "fail": self.fail,
        }  # fmt: skip
        self.text = text
        self.run: Callable[..., None] = function_from(
            text, "launch", names, title=f"launch of {entry.region}"
        )

    def prepare(self, key: int, stream: Any, tensors: Tensors, symbols: Sequence[int]) -> None:
        """Compile for arguments like these, and launch."""
        if self.failure is not None:
            return self.instead(self.failure, tensors, symbols)
        named = dict(zip(self.tensors, tensors, strict=True))
        sizes = dict(zip(self.symbols, symbols, strict=True))
        try:
            found = [kernel.bound(named, sizes) for kernel in self.kernels]
        except KernelCompilationError as error:
            return self.fail(error, tensors, symbols)
        self.ready[key] = _in_a_row(bound for bound, _ in found)
        self.watched[key] = _in_a_row(bound for _, bound in found)
        return self.run(stream, *tensors, *symbols)

    def fail(self, error: KernelCompilationError, tensors: Tensors, symbols: Sequence[int]) -> None:
        """Do without these kernels from now on."""
        self.failure = error
        self.ready.clear()
        self.watched.clear()
        self.instead(error, tensors, symbols)


def _in_a_row(found: Iterable[Bound]) -> tuple[Any, ...]:
    return tuple(value for bound in found for value in bound)


class Launcher:
    """`launcher(*arguments, *symbols)` launches one kernel on the current stream: the arguments in
    the order of `spec.arguments`, sizes among them, then the values of the size symbols."""

    def __init__(
        self,
        spec: KernelSpec,
        device: str | torch.device,
        symbols: Sequence[str] = (),
        choose: Choose = choose,
    ) -> None:
        self.spec = spec
        self.device = torch.device(device)
        entry = RegionKernels(spec.name, (spec,))
        self.launch = Launch(entry, device, symbols, choose=choose)
        self.run = on_device(self.launch.run, self.device)

    def __call__(self, *values: Any) -> None:
        count = len(self.spec.arguments)
        given = dict(zip((a.name for a in self.spec.arguments), values, strict=False))
        tensors = [given[name] for name in self.launch.tensors]
        self.run(stream_of(self.device), *tensors, *values[count:])


class _Writer:
    """The text of a launch function."""

    def __init__(
        self,
        kernels: Sequence[Kernel],
        tensors: Sequence[str],
        symbols: Sequence[str],
        aligned: Collection[str],
        may_be_empty: bool,
    ) -> None:
        self.kernels = kernels
        self.tensors = {name: f"tensor_{k}" for k, name in enumerate(tensors)}
        self.addresses = {name: f"address_{k}" for k, name in enumerate(tensors)}
        self.symbols = symbols
        self.aligned = aligned
        self.may_be_empty = may_be_empty
        self.is_interpreted = any(kernel.is_interpreted for kernel in kernels)
        self.numbers: dict[str, str] = {}

    def text(self) -> str:
        tensors, symbols = (_tuple(names) for names in (self.tensors.values(), self.symbols))
        conditions = [self.condition(kernel) for kernel in self.kernels]
        launches = [self.launch_lines(*item) for item in enumerate(conditions)]
        key = self.key()
        lines = [f"{name} = {text}" for text, name in self.numbers.items()]
        if all(conditions):
            lines += [f"if not ({' or '.join(map(str, conditions))}):", "    return"]
        for name, address in self.addresses.items():
            tensor = self.tensors[name]
            # The interpreter takes tensors, a GPU addresses.
            lines.append(f"{address} = {tensor}" + ("" if self.is_interpreted else ".data_ptr()"))
        lines += [
            f"key = {key}",
            f"found = {self.known_kernels()}.get(key)",
            "if found is None:",
            f"    return prepare(key, stream, {tensors}, {symbols})",
            f"{self.bound_names()} = found",
            "try:",
            *(f"    {line}" for part in launches for line in part),
            "except KernelError as error:",
            f"    fail(error, {tensors}, {symbols})",
        ]
        passed = ", ".join(["stream", *self.tensors.values(), *self.symbols])
        return "\n    ".join([f"def launch({passed}):", *lines]) + "\n"

    def known_kernels(self) -> str:
        if self.is_interpreted:
            return "ready"
        unwatched = " and ".join(
            f"HOOKS.{hook} is {name} and not {name}.calls"
            for hook, name in (("launch_enter_hook", "ENTER"), ("launch_exit_hook", "LEAVE"))
        )
        return f"(ready if {unwatched} else watched)"

    def bound_names(self) -> str:
        names = [f"{name}_{k}" for k in range(len(self.kernels)) for name in Bound._fields]
        return ", ".join(names)

    def number(self, dim: Dim | str) -> str:
        """A number as it stands in the text, where an expression has a name."""
        text = dim if isinstance(dim, str) else python_text(dim)
        if text.isdigit() or text in self.symbols:
            return text
        if text not in self.numbers:
            self.numbers[text] = f"number_{len(self.numbers)}"
        return self.numbers[text]

    # **** what differs between calls ****

    def condition(self, kernel: Kernel) -> str:
        """When there is something to launch; nothing where there always is."""
        axes = [self.number(text) for text in kernel.grid]
        wanted = [axis for axis in axes if axis == "0" or not axis.isdigit()]
        outputs = [a.name for a in kernel.spec.arguments if a.is_output]
        if outputs and self.may_be_empty:
            counts = [f"{self.tensors[name]}.numel()" for name in outputs]
            wanted.append(f"({' or '.join(counts)})")
        return f"({' and '.join(wanted)})" if wanted else ""

    def key(self) -> str:
        """A number for each set of arguments that is compiled apart."""
        parts = self.wide_bits()
        if not self.is_interpreted:
            parts += self.size_bits()
            parts += self.alignment_bits()
        text, width = "0", 0
        for part, bits in parts:
            text = part if not width else f"({text}) << {bits} | {part}"
            width += bits
        return text

    def wide_bits(self) -> list[tuple[str, int]]:
        extents = [kernel.spec.extent for kernel in self.kernels]
        numbers = dict.fromkeys(self.number(dim) for dim in extents if not isinstance(dim, int))
        return [(f"({number} >= {WIDE_EXTENT})", 1) for number in numbers]

    def size_bits(self) -> list[tuple[str, int]]:
        arguments = [a for kernel in self.kernels for a in kernel.spec.arguments]
        sizes = [a.size for a in arguments if a.kind == "size" and not isinstance(a.size, int)]
        return [
            (f"(({n} == 1) << 2 | ({n} % 16 == 0) << 1 | ({n} >= {WIDE_EXTENT}))", 3)
            for n in dict.fromkeys(map(self.number, sizes))
        ]

    def alignment_bits(self) -> list[tuple[str, int]]:
        checked = [text for name, text in self.addresses.items() if name not in self.aligned]
        bits = [f"({text} & 15 != 0) << {k}" for k, text in enumerate(checked)]
        parts: list[tuple[str, int]] = []
        if checked:
            quick = f"({' | '.join(checked)}) & 15"
            parts.append((f"(({' | '.join(bits)}) if {quick} else 0)", len(checked)))
        if _IS_HIP:
            # AMD's compiler also makes use of allocations under 2 GiB.
            for tensor in self.tensors.values():
                parts.append((f"({tensor}.untyped_storage().nbytes() < {WIDE_EXTENT})", 1))
        return parts

    # **** launches ****

    def launch_lines(self, position: int, condition: str) -> list[str]:
        kernel = self.kernels[position]
        launch, before = (f"{name}_{position}" for name in Bound._fields)
        passed = [
            self.number(a.size) if a.kind == "size" else self.addresses[a.name]
            for a in kernel.spec.arguments
        ]
        # A compiled kernel takes compile-time arguments and makes no use of them.
        passed += ["None"] * len(constants_of(kernel.spec, kernel.configuration, False))
        if PACKS and not self.is_interpreted:
            passed = [_tuple(passed)]
        values = [*map(self.number, kernel.grid), "stream", f"*{before}", *passed]
        call = f"{launch}({', '.join(values)})"
        return [f"if {condition}:", f"    {call}"] if condition else [call]


def _tuple(names: Iterable[str]) -> str:
    return "(" + "".join(f"{name}, " for name in names).rstrip(" ") + ")"
