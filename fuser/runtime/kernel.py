"""The launch function of one kernel: straight-line Python, written for it once.

In: a kernel, one of its configurations, the graph's size symbols. Out: `launch(stream, misaligned,
*arguments, *addresses, *symbols, *handed_on)`, which picks the compiled variant for these addresses
and sizes and calls Triton's launcher. `misaligned` is 0 where all addresses are multiples of
`ALIGNMENT`. Grid, index width and all that does not change between calls are in its text. A
combination of alignments, divisibilities and index width that was not seen before is a `Miss`,
which is passed on; neither it nor a new size is any business of the graph's.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from fuser.ir.dim import python_text
from fuser.ir.kernel import ALIGNMENT, Configuration, GridAxis, KernelArgument, KernelSpec
from fuser.runtime.descriptors import Descriptors
from fuser.runtime.direct import Grid, Variant

__all__ = [
    "WIDE_EXTENT",
    "Miss",
    "geometry_texts",
    "launch_function",
    "launch_text",
]

WIDE_EXTENT = 2**31
"""Element offsets, and sizes, from here on need 64 bits."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A launch for which no variant is there yet."""

    spec: KernelSpec
    key: Any
    grid: Grid
    is_wide: bool
    stream: int
    arguments: tuple[Any, ...]
    symbols: tuple[int, ...]
    handed_on: tuple[Any, ...]
    """What the region's earlier kernels were given, for the last one of several."""


def launch_function(
    spec: KernelSpec,
    configuration: Configuration,
    symbols: Sequence[str],
    variants: Mapping[Any, Variant],
    missed: Callable[[Miss], None],
    device: torch.device,
    handed_on: int = 0,
) -> Callable[..., None]:
    """The launch function on `device`, which is the current one."""
    text = launch_text(spec, configuration, symbols, device, handed_on)
    file = f"<launch of {spec.name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {
        "current_device": torch.cuda.current_device,
        "missed": lambda *values: missed(Miss(spec, *values)),
        "variant_of": variants.get,
    }
    for position, argument in enumerate(spec.arguments):
        if argument.window is not None:
            names[f"describe_{position}"] = Descriptors(argument, configuration)
    exec(compile(text, file, "exec"), names)
    function: Callable[..., None] = names["launch"]
    return function


def launch_text(
    spec: KernelSpec,
    configuration: Configuration,
    symbols: Sequence[str],
    device: torch.device,
    handed_on: int = 0,
) -> str:
    """The source of the launch function."""
    arguments = [f"argument_{k}" for k in range(len(spec.arguments))]
    buffers = [k for k, argument in enumerate(spec.arguments) if argument.kind != "size"]
    addresses = [f"address_{k}" for k in buffers]
    others = [f"other_{k}" for k in range(handed_on)]
    parameters = ["stream", "misaligned", *arguments, *addresses, *symbols, *others]
    head = f"def launch({', '.join(parameters)}):\n"
    lines: list[str] = []
    grid, is_wide = geometry_texts(spec, configuration)
    for axis, text in enumerate(grid):
        if not text.isdecimal():
            lines += [f"grid_{axis} = {text}", f"if grid_{axis} <= 0:", "    return"]
            grid[axis] = f"grid_{axis}"
        elif text == "0":
            return f"{head}    return\n"
    passed = list(arguments)
    for k, address in zip(buffers, addresses, strict=True):
        passed[k] = address
        window = spec.arguments[k].window
        if window is not None:
            sizes = ", ".join(map(python_text, window.sizes))
            passed[k] = f"describe_{k}({address}, ({sizes}))"
    written = [passed[k] for k in buffers if spec.arguments[k].is_output]
    if written and lines:
        # A tensor without elements has no address.
        lines += [f"if not ({' or '.join(written)}):", "    return"]
    given = (
        f"({''.join(f'{name}, ' for name in names)})" for names in (arguments, symbols, others)
    )
    lines += [
        f"key = {_key_text(spec, arguments, addresses, is_wide, device)}",
        "found = variant_of(key)",
        "if found is None:",
        f"    return missed(key, ({', '.join(grid)}), {is_wide}, stream, {', '.join(given)})",
        "run, head, tail = found",
        f"run({', '.join(grid)}, stream, *head, {', '.join(passed)}, *tail)",
    ]
    return head + "".join(f"    {line}\n" for line in lines)


def choosing_function(
    spec: KernelSpec,
    symbols: Sequence[str],
    launch: Callable[..., None],
    otherwise: Callable[..., None],
    handed_on: int = 0,
) -> Callable[..., None]:
    """A launch function that calls one of two: `launch`, or that of `spec.otherwise` where what
    descriptors describe is not aligned or has no elements."""
    text = choosing_text(spec, symbols, handed_on)
    names: dict[str, Any] = {"launch": launch, "otherwise": otherwise}
    exec(compile(text, f"<choice for {spec.name}>", "exec"), names)
    function: Callable[..., None] = names["choose"]
    return function


def choosing_text(spec: KernelSpec, symbols: Sequence[str], handed_on: int = 0) -> str:
    """The source of that function."""
    assert spec.otherwise is not None
    place = {(a.kind, a.name): k for k, a in enumerate(spec.arguments)}
    described = [f"address_{k}" for k, a in enumerate(spec.arguments) if a.window is not None]
    others = [f"other_{k}" for k in range(handed_on)]

    def values(arguments: Sequence[KernelArgument], places: Sequence[int]) -> str:
        pairs = list(zip(arguments, places, strict=True))
        given = [python_text(a.size) if a.kind == "size" else f"argument_{k}" for a, k in pairs]
        known = [f"address_{k}" for a, k in pairs if a.kind != "size"]
        return ", ".join([*given, *known, *symbols, *others])

    taken = spec.otherwise.arguments
    own = [f"argument_{k}" for k in range(len(spec.arguments))]
    own += [f"address_{k}" for k, a in enumerate(spec.arguments) if a.kind != "size"]
    parameters = ", ".join(["stream", "misaligned", *own, *symbols, *others])
    is_odd = f"misaligned and ({' | '.join(described)}) % {ALIGNMENT}"
    has_all = " and ".join(described)
    instead = values(taken, [place.get((a.kind, a.name), 0) for a in taken])
    return (
        f"def choose({parameters}):\n"
        f"    if {is_odd} or not ({has_all}):\n"
        f"        return otherwise(stream, misaligned, {instead})\n"
        f"    return launch({parameters})\n"
    )


def _key_text(
    spec: KernelSpec,
    arguments: Sequence[str],
    addresses: Sequence[str],
    is_wide: str,
    device: torch.device,
) -> str:
    """The key of a variant: what Triton specialises a kernel by, and no more.

    Mostly no address is misaligned: then that part of the key is 0, else a flag for each.
    """
    together = " | ".join(addresses)
    flags = "".join(f"{address} % {ALIGNMENT} == 0, " for address in addresses)
    parts = [f"misaligned and ({together}) % {ALIGNMENT} and ({flags})"]
    if is_wide not in ("True", "False"):
        parts.append(is_wide)
    for name, argument in zip(arguments, spec.arguments, strict=True):
        if argument.kind == "size" and not isinstance(argument.size, int):
            parts += [f"{name} == 1", f"{name} % {ALIGNMENT} == 0", f"{name} >= {WIDE_EXTENT}"]
        elif argument.kind != "size" and torch.version.hip is not None:
            # AMD's compiler also makes use of allocations under 2 GiB.
            parts.append(f"{name}.untyped_storage().nbytes() < {WIDE_EXTENT}")
    if device.type == "cuda" and device.index is None:
        parts.append("current_device()")
    return f"({', '.join(parts)})" if len(parts) > 1 else parts[0]


def geometry_texts(spec: KernelSpec, configuration: Configuration) -> tuple[list[str], str]:
    """Expressions for the three grid sizes and for whether indices are wide.

    Sizes that do not change are numbers already, and the latter is `True` or `False` then.
    """
    grid = [_programs(axis, configuration) for axis in spec.grid]
    grid += ["1"] * (3 - len(grid))
    if isinstance(spec.extent, int):
        return grid, str(spec.extent >= WIDE_EXTENT)
    return grid, f"({python_text(spec.extent)}) >= {WIDE_EXTENT}"


def _programs(axis: GridAxis, configuration: Configuration) -> str:
    texts = [_own_programs(each, configuration) for each in (axis, *axis.times)]
    number = prod(int(text) for text in texts if text.isdigit())
    rest = [text for text in texts if not text.isdigit()]
    most = number if axis.most is None else configuration.block(axis.most)
    if not rest:
        return str(min(number, most))
    every = " * ".join([*rest, str(number)])
    return every if axis.most is None else f"min({every}, {most})"


def _own_programs(axis: GridAxis, configuration: Configuration) -> str:
    block = 1 if axis.block is None else configuration.block(axis.block)
    if isinstance(axis.size, int):
        return str(-(-axis.size // block))
    size = python_text(axis.size)
    return f"({size})" if axis.block is None else f"(-(-({size}) // {block}))"
