"""Where an element of a random op stands in the sequence of numbers: its Philox block and lane.

In: the op, its index and the kernel's axes. Out: what `fn.uniform` and its like take after the
seed. The numbering is that of `fuser.random_ops` and depends on the op's shape alone: a new block
of four begins with each row. Which neighbours of the tile share a block is said where it is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuser.codegen.axes import AxisText, KernelAxis, SizeArguments
from fuser.ir.dim import Dim, divide
from fuser.ir.graph import Literal, Op
from fuser.ir.space import Affine, Index, linear_index

LANES = 4
"""Numbers in a block."""

TILE_AXES = {"x": 0, "r": 1}


@dataclass(frozen=True, slots=True)
class Place:
    """Texts of stream, block, lane and options, and the forms that block and lane vary with."""

    arguments: tuple[str, str, str, str]
    forms: tuple[Affine, ...]


def place_of(op: Op, index: Index, axes: AxisText, affine: Callable[[Affine], str]) -> Place:
    """`affine` writes a form and remembers it as an access."""
    stream = _stream_argument(op, axes.sizes)
    row: Dim = op.domain[-1] if index else 1
    is_even = divide(row, LANES) is not None
    if is_even:
        # Rows end where blocks do: the elements can be counted through.
        before, counted = Affine(), linear_index(index, op.domain)
        text = affine(counted)
        block = f"({text}) // {LANES}"
    else:
        before = linear_index(index[:-1], op.domain[:-1])
        counted = linear_index(index[-1:], op.domain[-1:])
        text = affine(counted)
        size = axes.sizes.text(row)
        blocks = str(-(-row // LANES)) if isinstance(row, int) else f"(({size} + 3) // {LANES})"
        block = f"{blocks} * ({affine(before)}) + ({text}) // {LANES}"
    lane = f"({text}) & {LANES - 1}"
    if not before.axes and not counted.axes:
        # A number alone has no type.
        block, lane = (f"tl.cast({number}, INDEX_TYPE)" for number in (block, lane))
    options = ""
    variable = _shared_along(before, counted, axes.axes)
    if variable:
        # Rows of another length begin at any address: a thread then holds single elements.
        options = f", {TILE_AXES[variable]}, {not is_even}"
    return Place((stream, block, lane, options), (before, counted))


def _stream_argument(op: Op, sizes: SizeArguments) -> str:
    """The name of the argument with the op's stream: kernels that differ in it are one."""
    _, stream = op.operands
    assert isinstance(stream, Literal)
    number = stream.value
    assert isinstance(number, int)
    named = (name for name, dim in sizes.names.items() if name[:6] == "stream" and dim == number)
    name = next(named, f"stream_{len(sizes.names)}")
    sizes.names[name] = number
    return name


def _shared_along(before: Affine, counted: Affine, axes: tuple[KernelAxis, ...]) -> str:
    """The tile variable of which each four neighbours, the first a multiple of four, are the four
    elements of a block in order."""
    for variable in TILE_AXES:
        own = [axis for axis in axes if axis.level == variable]
        if not own:
            continue
        *others, last = own
        parts = {part.name for part in last.parts}
        steps = dict(counted.terms)
        if steps.pop(last.parts[-1].name, 0) != 1 or before.axes & parts:
            continue
        if others and divide(last.size, LANES) is None:
            continue
        rest = [counted.offset, *(step for axis, step in steps.items() if axis not in parts)]
        if all(divide(number, LANES) is not None for number in rest):
            return variable
    return ""
