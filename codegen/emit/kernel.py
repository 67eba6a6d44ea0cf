"""What the emitters share: a region with its axes merged, and the spec around rendered text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fuser.codegen.axes import AxisText, KernelAxis, SizeArguments, merge_axes
from fuser.codegen.body import Body, Rounding
from fuser.codegen.source import checked_source, program_key
from fuser.codegen.tiles import Tiles, quartered
from fuser.ir.dim import Dim, add, multiply, product, total
from fuser.ir.dtype import DType
from fuser.ir.graph import Argument, Graph, Op
from fuser.ir.kernel import Configuration, GridAxis, KernelArgument, KernelSpec, Window
from fuser.ir.ops import BY_KIND, Group
from fuser.ir.region import Region
from fuser.ir.space import LoopAxis, Space
from fuser.passes.access import accesses, is_column, order_axes, primary_access
from fuser.passes.kernel_model import VECTOR_BYTES
from fuser.passes.unify import is_gather

NO_WINDOWS: Mapping[tuple[str, Window], str] = MappingProxyType({})

MakeBody = Callable[[Graph, Space, Rounding, AxisText, SizeArguments], Any]


@dataclass(frozen=True)
class Work:
    """A region ready to be written: ordered ops, axes in memory order, hints resolved."""

    graph: Graph
    region: Region
    rounding: Rounding
    ops: tuple[Op, ...]
    parallel: tuple[LoopAxis, ...]
    reduced: tuple[LoopAxis, ...]

    @property
    def stored(self) -> tuple[Op, ...]:
        return tuple(op for op in self.ops if op.name in self.region.outputs)


def work_of(graph: Graph, region: Region, rounds_everywhere: bool = False) -> Work:
    ops = tuple(graph.in_order(region.all_ops))
    primary = primary_access(accesses(graph, ops, region.outputs, region.space))
    return Work(
        graph,
        region,
        Rounding(rounded_values(ops, region.outputs), rounds_everywhere),
        ops,
        order_axes(region.space.parallel, primary),
        order_axes(region.space.reduced, primary),
    )


def rounded_values(ops: Sequence[Op], outputs: Sequence[str]) -> frozenset[str]:
    """Stored values, and those that a stored one only moves: a reader of either sees one value."""
    found = set(outputs)
    for op in reversed(ops):
        if op.name in found and (op.kind == "copy" or BY_KIND[op.kind].group is Group.BORDER):
            found |= {operand.value for operand in op.operands if isinstance(operand, Argument)}
    return frozenset(found)


Groups = Mapping[str, tuple[LoopAxis, ...]]
"""Tile variable to the loop axes that it runs over: `x` and `r`, and `o` for plain numbers."""


@dataclass(frozen=True)
class Built:
    """A finished body with the axes and sizes that its text uses."""

    body: Any
    result: Any
    sizes: SizeArguments
    groups: Groups
    axes: Mapping[str, tuple[KernelAxis, ...]]
    text: AxisText

    def lines(self, variable: str) -> tuple[str, ...]:
        """What sets the axes of a tile variable from it."""
        return tuple(self.text.decomposition(variable, self.axes[variable]))

    def x_lines(self) -> tuple[str, ...]:
        return self.lines("x")

    def r_lines(self) -> tuple[str, ...]:
        return self.lines("r")


def build(
    work: Work,
    make_body: MakeBody,
    write: Callable[[Any], Any],
    tiles: Tiles,
    configurations: Sequence[Configuration],
    groups: Groups | None = None,
) -> Built:
    """Write the body twice: once to see its accesses, then over the axes they allow to merge."""
    if groups is None:
        groups = {"x": work.parallel, "r": work.reduced}
    separate = SizeArguments()
    axes = {
        name: tuple(KernelAxis(f"{name}{k}", a.size, (a,)) for k, a in enumerate(group))
        for name, group in groups.items()
    }
    trial = make_body(
        work.graph,
        work.region.space,
        work.rounding,
        AxisText([axis for group in axes.values() for axis in group], separate),
        separate,
    )
    write(trial)
    axes = {name: merge_axes(group, trial.accesses, name) for name, group in groups.items()}
    sizes = SizeArguments()
    text = AxisText([axis for group in axes.values() for axis in group], sizes)
    body: Body = make_body(work.graph, work.region.space, work.rounding, text, sizes)
    body.tiles = quartered(tiles, configurations)
    return Built(body, write(body), sizes, groups, axes, text)


def kernel_spec(
    work: Work,
    built: Built,
    name: str,
    render: Callable[[tuple[str, ...]], str],
    grid: tuple[GridAxis, ...],
    configurations: tuple[Configuration, ...],
    extra: Sequence[KernelArgument] = (),
    overshoot: int = 0,
    counted: Dim | None = None,
    windows: Mapping[tuple[str, Window], str] = NO_WINDOWS,
) -> KernelSpec:
    """Arguments in call order (described inputs, inputs, workspaces, outputs, sizes), checked
    source, extent.

    `overshoot` is how far masked lanes may count past the last element, `counted` the largest
    number that the kernel counts to: that of its elements, if it is not given. `windows` has the
    parameters of those that descriptors describe.
    """
    pointers: dict[str, str] = built.body.pointers
    outputs = set(work.region.outputs)
    arguments: list[KernelArgument] = []
    parameters: list[str] = []
    for (value, window), parameter in windows.items():
        kind = work.graph.values[value].type
        arguments.append(KernelArgument("buffer", value, kind.dtype, window=window))
        parameters.append(f"{parameter},  # descriptor of {kind}")
    for value, parameter in pointers.items():
        workspace = next((a for a in extra if a.name == value), None)
        if workspace is not None:
            arguments.append(workspace)
            parameters.append(f"{parameter},  # scratch {workspace.dtype.short}[{workspace.size}]")
            continue
        kind = work.graph.values[value].type
        arguments.append(KernelArgument("buffer", value, kind.dtype, is_output=value in outputs))
        parameters.append(f"{parameter},  # {kind}")
    text = render_with_sizes(render, parameters, built.sizes)
    for size_name, size in built.sizes.names.items():
        arguments.append(KernelArgument("size", size_name, size=size))
    source = checked_source(name, text)
    return KernelSpec(
        name=name,
        source=source,
        key=program_key(source),
        arguments=tuple(arguments),
        grid=grid,
        configurations=configurations,
        extent=add(extent(work, pointers, extra, counted), overshoot),
        checks_indices=any(is_gather(op) for op in work.ops),
    )


def render_with_sizes(
    render: Callable[[tuple[str, ...]], str], parameters: list[str], sizes: SizeArguments
) -> str:
    """The text with the size arguments in its signature (rendering may ask for more of them)."""
    render(tuple(parameters))
    return render((*parameters, *(f"{name},  # {size}" for name, size in sizes.names.items())))


def extent(
    work: Work,
    pointers: Mapping[str, str],
    extra: Sequence[KernelArgument],
    counted: Dim | None = None,
) -> Dim:
    """The largest element offset of any tensor: the last element's, the highest among them."""
    scratch = {argument.name for argument in extra}
    offsets: list[Dim] = []
    for value in pointers:
        if value not in scratch:
            kind = work.graph.values[value].type
            offsets.append(
                total(multiply(s, n) for s, n in zip(kind.stride, kind.shape, strict=True))
            )
    if counted is None:
        counted = product(axis.size for axis in (*work.parallel, *work.reduced))
    offsets.append(counted)
    return largest(offsets)


def largest(offsets: Sequence[Dim]) -> Dim:
    """A bound of all: where sizes are symbolic their sum, which errs towards 64-bit indices."""
    numbers = [offset for offset in offsets if isinstance(offset, int)]
    symbolic = [offset for offset in offsets if not isinstance(offset, int)]
    return total([max(numbers, default=0), *dict.fromkeys(symbolic)])


def summary_of(work: Work, what: str) -> tuple[str, ...]:
    """The docstring of a generated module."""
    region = work.region
    axes = ", ".join(f"{a.name}={a.size}" for a in (*work.parallel, *work.reduced))
    ops = " ".join(op.kind for op in work.ops)
    return (f"{region.name}: {what} over {axes or 'one element'}.", "", f"Computes {ops}.")


def chunk_of(work: Work) -> int:
    """How many neighbours of a row one instruction loads, for every tile of the schedule."""
    found = accesses(work.graph, work.ops, work.region.outputs, work.region.space)
    primary = primary_access(found)
    if primary is None or is_column(primary, work.region.space) or not work.reduced:
        return 1
    fast = work.reduced[-1].name
    most = VECTOR_BYTES // primary.width if primary.steps.get(fast) == 1 else 1
    for axis, step in primary.steps.items():
        while axis != fast and step % most:
            most //= 2
    blocks = (tile.block("RBLOCK") for tile in work.region.schedule.candidates[0])
    return max(1, min(most, *blocks))


def scratch(name: str, dtype: DType, size: Dim) -> KernelArgument:
    """A workspace of `size` elements that the host allocates for the region's launches."""
    return KernelArgument("workspace", name, dtype, size)
