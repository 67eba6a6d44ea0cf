"""The launch function of one kernel: straight-line Python, written for it once.

In: a kernel, one of its configurations, the graph's size symbols. Out: `launch(stream, *arguments,
*symbols)`, which reads addresses, picks the compiled variant for them and calls Triton's launcher.
Grid, index width and all that does not change between calls are in its text. A combination of
alignments, divisibilities and index width that was not seen before is a `Miss`, which is passed on;
neither it nor a new size is any business of the graph's.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuser.ir.dim import python_text
from fuser.ir.kernel import Configuration, GridAxis, KernelSpec
from fuser.runtime.direct import Grid, Variant, hook_holder

__all__ = [
    "ALONE",
    "WIDE_EXTENT",
    "Miss",
    "Place",
    "geometry_texts",
    "launch_function",
    "launch_text",
]

WIDE_EXTENT = 2**31
"""Element offsets, and sizes, from here on need 64 bits."""

ALIGNMENT = 16
"""Bytes. Triton compiles for addresses that are multiples of it, and for sizes that are."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a kernel stands among the launches of its region."""

    position: int = 0
    count: int = 1


ALONE = Place()


@dataclass(frozen=True, slots=True)
class Miss:
    """A launch for which no variant is there yet."""

    key: Any
    grid: Grid
    is_wide: bool
    stream: int
    arguments: tuple[Any, ...]
    symbols: tuple[int, ...]
    given: Sequence[tuple[Any, ...]]
    """The arguments of the region's launches in this call, up to this one."""


def launch_function(
    spec: KernelSpec,
    configuration: Configuration,
    symbols: Sequence[str],
    variants: Mapping[Any, Variant],
    missed: Callable[[Miss], None],
    device: torch.device,
    place: Place = ALONE,
    calls: Any = None,
) -> Callable[..., None]:
    """`launch(stream, *arguments, *symbols)` on `device`, which is the current one.

    `calls` is the storage in which the launches of one region's call meet; it belongs to a thread.
    """
    text = launch_text(spec, configuration, symbols, device, place)
    file = f"<launch of {spec.name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {
        "calls": calls,
        "current_device": torch.cuda.current_device,
        "hooks": hook_holder(),
        "missed": lambda *values: missed(Miss(*values)),
        "variant_of": variants.get,
    }
    exec(compile(text, file, "exec"), names)
    function: Callable[..., None] = names["launch"]
    return function


def launch_text(
    spec: KernelSpec,
    configuration: Configuration,
    symbols: Sequence[str],
    device: torch.device,
    place: Place = ALONE,
) -> str:
    """The source of the launch function."""
    count = len(spec.arguments)
    arguments = [f"argument_{k}" for k in range(count)]
    passed = list(arguments)
    addresses: list[str] = []
    lines: list[str] = list(_meeting(place, arguments))
    grid, is_wide = geometry_texts(spec, configuration)
    for axis, text in enumerate(grid):
        if not text.isdecimal():
            lines += [f"grid_{axis} = {text}", f"if grid_{axis} <= 0:", "    return"]
            grid[axis] = f"grid_{axis}"
        elif text == "0":
            return _defined(arguments, symbols, [*lines, "return"])
    for k, argument in enumerate(spec.arguments):
        if argument.kind != "size":
            passed[k] = f"address_{k}"
            addresses.append(passed[k])
            lines.append(f"address_{k} = argument_{k}.data_ptr()")
    written = [passed[k] for k, argument in enumerate(spec.arguments) if argument.is_output]
    if written:
        # A tensor without elements has no address.
        lines += [f"if not ({' or '.join(written)}):", "    return"]
    lines += _key_lines(spec, arguments, addresses, is_wide, device)
    seen = ", ".join([*arguments, ""]).strip()
    given = "given" if place.count > 1 else f"[({seen})]"
    lines += [
        "found = variant_of(key)",
        "if found is None:",
        f"    return missed(key, ({', '.join(grid)}), {is_wide}, stream, ({seen}),"
        f" ({''.join(f'{symbol}, ' for symbol in symbols)}), {given})",
        "run, function, metadata, constants, hooked = found",
        "try:",
        "    if hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls:",
        "        run = hooked",
        "except AttributeError:",
        "    run = hooked",
        f"run({', '.join(grid)}, stream, function, metadata, None, None, None,"
        f" {', '.join([*passed, '*constants'])})",
    ]
    return _defined(arguments, symbols, lines)


def _defined(arguments: Sequence[str], symbols: Sequence[str], lines: Sequence[str]) -> str:
    head = f"def launch({', '.join(['stream', *arguments, *symbols])}):\n"
    return head + "".join(f"    {line}\n" for line in lines)


def _meeting(place: Place, arguments: Sequence[str]) -> list[str]:
    """Lines that let a region's last launches know the arguments of its first ones.

    Needed where a later kernel does not compile: the region's ops take the place of all of them.
    """
    if place.count == 1:
        return []
    mine = f"({', '.join(arguments)},)"
    if place.position == 0:
        return [f"calls.given = given = [{mine}]"]
    last = ["del calls.given"] if place.position == place.count - 1 else []
    return ["given = calls.given", *last, f"given.append({mine})"]


def _key_lines(
    spec: KernelSpec,
    arguments: Sequence[str],
    addresses: Sequence[str],
    is_wide: str,
    device: torch.device,
) -> list[str]:
    """Lines that make the key of a variant: what Triton specialises a kernel by, and no more.

    Mostly all addresses are aligned: then they are one test, and their part of the key is empty.
    """
    lines = ["aligned = ()"]
    if addresses:
        flags = "".join(f"{address} % {ALIGNMENT} == 0, " for address in addresses)
        lines += [f"if ({' | '.join(addresses)}) % {ALIGNMENT}:", f"    aligned = ({flags})"]
    parts: list[str] = []
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
    key = f"(aligned, {', '.join(parts)})" if parts else "aligned"
    return [*lines, f"key = {key}"]


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
    block = 1 if axis.block is None else configuration.block(axis.block)
    if isinstance(axis.size, int):
        return str(-(-axis.size // block))
    size = python_text(axis.size)
    return f"({size})" if axis.block is None else f"-(-({size}) // {block})"
