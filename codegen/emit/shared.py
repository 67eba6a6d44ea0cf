"""One kernel that does the work of several: its programs are those of all of them in a row.

In: the finished kernels of regions that run at once, of one number of warps. Out: a kernel with a
function for each different one of them. A program finds the region by comparing its number with
where the programs of each end. Branches and not pointers that are chosen: the compiler keeps what
it knows of each region's addresses and sizes, and registers are those of the largest region.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch.utils._sympy.functions import FloorDiv

from fuser.codegen.axes import SizeArguments
from fuser.codegen.emit.context import SharedContext
from fuser.codegen.emit.kernel import largest
from fuser.codegen.names import Names
from fuser.codegen.source import checked_source, program_key
from fuser.ir.dim import Dim, add, as_dim, product, total
from fuser.ir.graph import Graph
from fuser.ir.kernel import Configuration, GridAxis, KernelArgument, KernelSpec
from fuser.templates import render

PROGRAM = re.compile(r"tl\.program_id\((\d)\)")


def shared_kernel(name: str, graph: Graph, specs: Sequence[KernelSpec]) -> KernelSpec:
    """The kernels as one, each with its first configuration."""
    (warps,) = {spec.configurations[0].num_warps for spec in specs}
    arguments = _Arguments(graph)
    parts: dict[tuple[str, Configuration, int], str] = {}
    texts: list[str] = []
    calls: list[list[str]] = []
    ends = _Ends(arguments.sizes)
    for spec in specs:
        what = (spec.key, spec.configurations[0], len(spec.grid))
        if what not in parts:
            parts[what] = f"part_{len(parts)}"
            texts.append(_function(spec, parts[what]))
        start = ends.last
        programs = _program_numbers(spec, start, arguments.sizes)
        passed = [*programs, *arguments.passed(spec), "INDEX_TYPE", *_constants(spec)]
        calls.append([f"{parts[what]}({', '.join(passed)})  # {spec.name}"])
        ends.count(spec)
    sizes = [
        KernelArgument("size", text, size=size) for text, size in arguments.sizes.names.items()
    ]
    context = SharedContext(
        name=name,
        summary=(f"{name}: {', '.join(spec.name for spec in specs)}, side by side.",),
        parts=tuple(texts),
        parameters=(*arguments.parameters, *(f"{a.name},  # {a.size}" for a in sizes)),
        ends=tuple(ends.lines),
        choice=tuple(_choice(calls, ends.texts)),
    )
    source = checked_source(name, render("shared.py.jinja", context))
    return KernelSpec(
        name=name,
        source=source,
        key=program_key(source),
        arguments=(*arguments.found, *sizes),
        grid=(GridAxis(total(map(_programs, specs))),),
        configurations=(Configuration((), warps, _stages(specs)),),
        extent=largest([spec.extent for spec in specs]),
        checks_indices=any(spec.checks_indices for spec in specs),
    )


def _stages(specs: Sequence[KernelSpec]) -> int:
    return max(spec.configurations[0].num_stages for spec in specs)


def _constants(spec: KernelSpec) -> list[str]:
    fixed = (*spec.constexprs, *spec.configurations[0].blocks)
    return [str(value) for _, value in fixed]


def _function(spec: KernelSpec, name: str) -> str:
    """The kernel's text as a function of its program numbers, which it takes first."""
    text = spec.source[spec.source.index("@triton.jit") :].rstrip()
    numbers = "".join(f"    program_{axis},\n" for axis in range(len(spec.grid)))
    text = text.replace(f"def {spec.name}(\n", f"def {name}(\n{numbers}", 1)
    return PROGRAM.sub(r"program_\1", text)


def _choice(calls: Sequence[Sequence[str]], ends: Sequence[str]) -> list[str]:
    """Halving, so that few comparisons find one of many."""
    if len(calls) == 1:
        return list(calls[0])
    half = len(calls) // 2
    return [
        f"if program < {ends[half - 1]}:",
        *(f"    {line}" for line in _choice(calls[:half], ends[:half])),
        "else:",
        *(f"    {line}" for line in _choice(calls[half:], ends[half:])),
    ]


# Programs -----------------------------------------------------------------------------------------


def _count(axis: GridAxis, configuration: Configuration) -> Dim:
    """The programs along one axis of a grid."""
    if axis.block is None:
        return axis.size
    block = configuration.block(axis.block)
    if isinstance(axis.size, int):
        return -(-axis.size // block)
    return as_dim(FloorDiv(add(axis.size, block - 1), block))


def _programs(spec: KernelSpec) -> Dim:
    return product(_count(axis, spec.configurations[0]) for axis in spec.grid)


def _count_text(axis: GridAxis, configuration: Configuration, sizes: SizeArguments) -> str:
    """The same as a kernel works it out from the sizes."""
    count = _count(axis, configuration)
    if isinstance(count, int) or axis.block is None:
        return sizes.text(count)
    return f"tl.cdiv({sizes.text(axis.size)}, {configuration.block(axis.block)})"


def _program_numbers(spec: KernelSpec, start: str, sizes: SizeArguments) -> list[str]:
    """The numbers of a program along each axis of its own kernel's grid."""
    own = "program" if start == "0" else f"program - {start}"
    numbers: list[str] = []
    for axis in spec.grid[:-1]:
        count = _count_text(axis, spec.configurations[0], sizes)
        numbers.append(f"({own}) % {count}")
        own = f"({own}) // {count}"
    return [*numbers, own]


class _Ends:
    """Where the programs of one region after the other end: numbers, or names that lines set."""

    def __init__(self, sizes: SizeArguments) -> None:
        self.sizes = sizes
        self.lines: list[str] = []
        self.texts: list[str] = []

    @property
    def last(self) -> str:
        return self.texts[-1] if self.texts else "0"

    def count(self, spec: KernelSpec) -> None:
        programs = _programs(spec)
        if isinstance(programs, int) and self.last.isdecimal():
            self.texts.append(str(int(self.last) + programs))
            return
        tile = spec.configurations[0]
        counts = " * ".join(_count_text(axis, tile, self.sizes) for axis in spec.grid)
        name = f"end_{len(self.texts)}"
        self.lines.append(f"{name} = {self.last} + {counts}")
        self.texts.append(name)


# Arguments ----------------------------------------------------------------------------------------


class _Arguments:
    """The arguments of all, each value and each size once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.sizes = SizeArguments()
        self.names = Names()
        self.found: list[KernelArgument] = []
        self.parameters: list[str] = []
        self.known: dict[tuple[str, str], str] = {}

    def passed(self, spec: KernelSpec) -> list[str]:
        """What the kernel's own arguments are called here, in its order."""
        return [
            self.sizes.text(a.size) if a.kind == "size" else self.pointer(a) for a in spec.arguments
        ]

    def pointer(self, argument: KernelArgument) -> str:
        what = (argument.kind, argument.name)
        if what not in self.known:
            end = "out" if argument.is_output else "ptr"
            name = self.known[what] = self.names.fresh(f"{argument.name}_{end}")
            self.found.append(argument)
            self.parameters.append(f"{name},  # {self.text(argument)}")
        return self.known[what]

    def text(self, argument: KernelArgument) -> str:
        if argument.kind == "workspace":
            return f"scratch {argument.dtype.short}[{argument.size}]"
        return str(self.graph.values[argument.name].type)
