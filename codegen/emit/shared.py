"""One kernel that does the work of several: its programs are those of all of them in a row.

In: the finished kernels of regions that run at once, of one number of warps. Out: a kernel with a
function for each different one of them. A program finds the region by comparing its number with
where the programs of each end. Branches and not pointers that are chosen: the compiler keeps what
it knows of each region's addresses and sizes, and registers are those of the largest region.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fuser.codegen.axes import SizeArguments
from fuser.codegen.emit.context import SharedContext
from fuser.codegen.emit.kernel import largest
from fuser.codegen.emit.program_order import ProgramOrder, program_order, programs_of
from fuser.codegen.names import Names
from fuser.codegen.source import checked_source, program_key
from fuser.ir.dim import total
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
    order = program_order(specs, arguments.sizes)
    for position, spec in enumerate(specs):
        what = (spec.key, spec.configurations[0], len(spec.grid))
        if what not in parts:
            parts[what] = f"part_{len(parts)}"
            texts.append(_function(spec, parts[what]))
        passed = [
            *order.numbers[position],
            *arguments.passed(spec),
            "INDEX_TYPE",
            *_constants(spec),
        ]
        calls.append([f"{parts[what]}({', '.join(passed)})  # {spec.name}"])
    sizes = [
        KernelArgument("size", text, size=size) for text, size in arguments.sizes.names.items()
    ]
    context = SharedContext(
        name=name,
        summary=(f"{name}: {', '.join(spec.name for spec in specs)}, side by side.",),
        parts=tuple(texts),
        parameters=(*arguments.parameters, *(f"{a.name},  # {a.size}" for a in sizes)),
        ends=order.lines,
        choice=tuple(_choice(calls, order)),
    )
    source = checked_source(name, render("shared.py.jinja", context))
    return KernelSpec(
        name=name,
        source=source,
        key=program_key(source),
        arguments=(*arguments.found, *sizes),
        grid=(GridAxis(total(map(programs_of, specs))),),
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


def _choice(calls: Sequence[Sequence[str]], order: ProgramOrder, first: int = 0) -> list[str]:
    """Halving, so that few comparisons find one of many; `first` is the number of the first."""
    if len(calls) == 1:
        return list(calls[0])
    half = len(calls) // 2
    return [
        f"if {order.number} < {order.ends[first + half - 1]}:",
        *(f"    {line}" for line in _choice(calls[:half], order, first)),
        "else:",
        *(f"    {line}" for line in _choice(calls[half:], order, first + half)),
    ]


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
