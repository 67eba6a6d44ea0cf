"""Kernels and plans written by hand, for tests of what runs them.

Kernels run on the CPU where Triton interprets, on a GPU otherwise, and the tests that need either
are skipped where there is neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fuser import config
from fuser.capture.from_fx import from_fx
from fuser.ir.dim import Dim
from fuser.ir.dtype import DType
from fuser.ir.graph import Graph
from fuser.ir.kernel import Configuration, GridAxis, KernelArgument, KernelSpec, RegionKernels
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region, RegionKind, Schedule, Strategy
from fuser.ir.space import Space
from fuser.runtime.interpreter import is_interpreting
from support.graphs import traced

DEVICE = "cpu" if is_interpreting() else "cuda"
needs_kernels = pytest.mark.skipif(
    not is_interpreting() and not torch.cuda.is_available(), reason="kernels can run nowhere here"
)

HEADER = """\
import triton
import triton.language as tl

from fuser.runtime import device_functions as fn


@triton.jit
"""

ELEMENTWISE = """\
def {name}({pointers}, size, INDEX_TYPE: tl.constexpr, XBLOCK: tl.constexpr):
    index = tl.program_id(0).to(INDEX_TYPE) * XBLOCK + tl.arange(0, XBLOCK)
    mask = index < size
    tl.store(result + index, {expression}, mask=mask)
"""

PARTIAL = """\
def {name}(x, parts, size, INDEX_TYPE: tl.constexpr, XBLOCK: tl.constexpr):
    index = tl.program_id(0).to(INDEX_TYPE) * XBLOCK + tl.arange(0, XBLOCK)
    part = tl.load(x + index, mask=index < size, other=0.0)
    tl.store(parts + tl.program_id(0), tl.sum(part, 0))
"""

COMBINE = """\
def {name}(parts, result, count, INDEX_TYPE: tl.constexpr, XBLOCK: tl.constexpr):
    index = tl.arange(0, XBLOCK)
    part = tl.load(parts + index, mask=index < count, other=0.0)
    tl.store(result, tl.sum(part, 0))
"""

BLOCK = 256


@contextmanager
def cache_in(path: Path) -> Iterator[Path]:
    """Keep fuser's files in a folder that only this user can write to."""
    with config.scope(cache_dir=path):
        yield path


def buffer(name: str, is_output: bool = False, dtype: DType = DType.FLOAT32) -> KernelArgument:
    return KernelArgument("buffer", name, dtype, is_output=is_output)


def spec_of(
    name: str,
    text: str,
    arguments: Sequence[KernelArgument],
    size: Dim,
    extent: Dim | None = None,
    block: int = BLOCK,
) -> KernelSpec:
    """A kernel over `size` elements in blocks."""
    source = HEADER + text
    return KernelSpec(
        name=name,
        source=source,
        key=hashlib.sha256(source.encode()).hexdigest()[:16],
        arguments=tuple(arguments),
        grid=(GridAxis(size, "XBLOCK"),),
        configurations=(Configuration((("XBLOCK", block),)),),
        extent=size if extent is None else extent,
    )


def elementwise(
    name: str, inputs: Sequence[str], output: str, size: Dim, expression: str, **fields: Any
) -> KernelSpec:
    """One kernel that computes `expression`, in which `{x}` is the element of input x."""
    loads = {value: f"tl.load({value} + index, mask=mask)" for value in inputs}
    text = ELEMENTWISE.format(
        name=name,
        pointers=", ".join([*inputs, "result"]),
        expression=expression.format(**loads),
    )
    arguments = [*map(buffer, inputs), buffer(output, True)]
    return spec_of(
        name, text, [*arguments, KernelArgument("size", "size", size=size)], size, **fields
    )


def total_in_parts(region: str, source: str, result: str, size: Dim) -> tuple[KernelSpec, ...]:
    """Two kernels with a workspace between them: the sum of all elements."""
    parts = KernelArgument("workspace", "parts", DType.FLOAT32, size=16)
    partial = spec_of(
        f"{region}_partial",
        PARTIAL.format(name=f"{region}_partial"),
        (buffer(source), parts, KernelArgument("size", "size", size=size)),
        size,
    )
    combine = spec_of(
        f"{region}_combine",
        COMBINE.format(name=f"{region}_combine"),
        (parts, buffer(result, True), KernelArgument("size", "count", size=-(-size // BLOCK))),
        1,
    )
    return partial, combine


@dataclass(frozen=True)
class Planned:
    """A plan with its kernels, and the constants of its graph."""

    plan: FusionPlan
    kernels: tuple[RegionKernels, ...]
    constants: tuple[Any, ...] = ()


def planned(
    graph: Graph, *regions: tuple[Sequence[str], Sequence[KernelSpec]], constants: Any = ()
) -> Planned:
    """A plan in program order with the given ops as regions; all others must be opaque."""
    made: list[Region] = []
    entries: list[RegionKernels] = []
    for number, (ops, specs) in enumerate(regions):
        given = [a for spec in specs for a in spec.arguments if a.kind == "buffer"]
        made.append(
            Region(
                name=f"region_{number}",
                kind=RegionKind.POINTWISE,
                schedule=Schedule(Strategy.FLAT),
                ops=tuple(ops),
                inputs=tuple(dict.fromkeys(a.name for a in given if not a.is_output)),
                outputs=tuple(dict.fromkeys(a.name for a in given if a.is_output)),
                space=Space((), {}),
            )
        )
        entries.append(RegionKernels((f"region_{number}",), tuple(specs)))
    owner = {op: region.name for region in made for op in region.ops}
    order = tuple(dict.fromkeys(owner.get(op.name, op.name) for op in graph.ops))
    return Planned(FusionPlan(graph, "cpu", tuple(made), order, ()), tuple(entries), constants)


def traced_graph(
    fn: Callable[..., Any], *args: Any, dynamic: bool = False
) -> tuple[Graph, tuple[Any, ...]]:
    return from_fx(traced(fn, *args, dynamic=dynamic))


def on_gpu(graph: Graph, device: str = "cuda:0") -> Graph:
    """The graph with every value on a GPU."""

    def moved(item: Any) -> Any:
        return item and replace(item, type=replace(item.type, device=device))

    inputs = tuple(replace(item, value=moved(item.value)) for item in graph.inputs)
    outputs = tuple(replace(item, argument=moved(item.argument)) for item in graph.outputs)
    ops = tuple(
        replace(
            op,
            results=tuple(map(moved, op.results)),
            arguments=tuple(map(moved, op.arguments)),
        )
        for op in graph.ops
    )
    return replace(graph, inputs=inputs, ops=ops, outputs=outputs)
