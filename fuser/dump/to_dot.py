"""A plan as a drawing: DOT text for Graphviz.

Each region is a box in the colour of what bounds it, with its time and what its kernels need:
predicted, and compiled where that is known. Opaque calls are grey, graph inputs are plain names.
Fused edges are black, refused ones red and labelled with the reason, loads of inputs grey.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

import networkx

from fuser.dump.facts import (
    NOT_COMPILED,
    CompiledKernels,
    compiled_of,
    has_registers,
    kernel_names,
    tiles,
)
from fuser.dump.looks import FILL, LINE
from fuser.dump.to_networkx import to_networkx
from fuser.dump.words import byte_text, needs_text, tiles_text, time_text
from fuser.ir.kernel import RegionKernels
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region

OPAQUE = "#d9d9d9"
FUSED = "black"
REFUSED = "#c62828"
LOADED = "#9e9e9e"

LABEL_WIDTH = 32
"""Columns at which a label is broken: a long reason would push the drawing apart."""
NOTE_WIDTH = 56
"""Columns of a note in the label of a box, which is as wide as its other lines."""


def to_dot(
    plan: FusionPlan,
    kernels: Sequence[RegionKernels] = (),
    resources: CompiledKernels = NOT_COMPILED,
) -> str:
    """The plan as DOT text; `dot -Tsvg` draws it."""
    flow = to_networkx(plan)
    lines = [
        f"digraph {_quoted(plan.graph.name)} {{",
        '  graph [rankdir="TB", fontname="Helvetica", labeljust="l"];',
        '  node [shape="box", style="filled", fillcolor="white", fontname="Helvetica"];',
        '  edge [fontname="Helvetica", fontsize="9"];',
    ]
    lines += _regions(plan, flow, kernels, resources)
    lines += _outside(flow)
    lines += _edges(flow)
    lines.append("}")
    return "\n".join(lines) + "\n"


def _regions(
    plan: FusionPlan,
    flow: networkx.MultiDiGraph,
    kernels: Sequence[RegionKernels],
    resources: CompiledKernels,
) -> Iterator[str]:
    names = kernel_names(kernels)
    for region in plan.regions:
        title = _title(plan.target, region, names.get(region.name, ()), resources)
        bound = region.cost.bound
        look = f'style="filled", fillcolor="{FILL[bound]}", color="{LINE[bound]}"'
        yield f"  subgraph {_quoted(f'cluster_{region.name}')} {{"
        yield f"    graph [label={_quoted(*title)}, {look}];"
        for name in region.ops:
            yield f"    {_node(name, flow.nodes[name])}"
        yield "  }"


def _title(
    target: str, region: Region, names: Sequence[str], resources: CompiledKernels
) -> list[str]:
    cost = region.cost
    lines = [
        f"{region.name}: {region.kind.value}, {region.strategy.value}",
        f"{byte_text(cost.bytes)}, {time_text(cost.time_us)}, bound by {cost.bound}",
    ]
    if has_registers(target):
        lines += needs_text(cost.needs, compiled_of(names, resources))
    if tiles(region):
        lines.append(f"tile {tiles_text(tiles(region))}")
    for note in region.notes:
        lines += textwrap.wrap(f"note: {note}", NOTE_WIDTH)
    return lines


def _outside(flow: networkx.MultiDiGraph) -> Iterator[str]:
    """The nodes that belong to no region."""
    for name, fields in flow.nodes(data=True):
        if not fields["region"]:
            yield f"  {_node(name, fields)}"


def _node(name: str, fields: Mapping[str, str]) -> str:
    label = [f"{name}: {fields['op']}" if fields["op"] else name, fields["type"]]
    look = ""
    if fields["opaque"]:
        label += textwrap.wrap(fields["reason"], LABEL_WIDTH)
        look = f', fillcolor="{OPAQUE}"'
    elif not fields["op"]:
        look = ', shape="plaintext", style=""'
    if fields["is_output"]:
        look += ', peripheries="2"'
    return f"{_quoted(name)} [label={_quoted(*label)}{look}];"


def _edges(flow: networkx.MultiDiGraph) -> Iterator[str]:
    for source, reader, fields in flow.edges(data=True):
        label = textwrap.wrap(fields["view"], LABEL_WIDTH)
        if fields["fused"]:
            colour = FUSED
        elif fields["code"]:
            colour = REFUSED
            label += textwrap.wrap(fields["reason"], LABEL_WIDTH)
        else:
            colour = LOADED
        look = f'color="{colour}"'
        if label:
            look += f', fontcolor="{colour}", label={_quoted(*label)}'
        yield f"  {_quoted(source)} -> {_quoted(reader)} [{look}];"


def _quoted(*lines: str) -> str:
    """A DOT string of these lines. In one, a backslash starts an escape and `"` ends the text."""
    escaped = (
        " ".join(line.splitlines()).replace("\\", "\\\\").replace('"', '\\"') for line in lines
    )
    return '"' + "\\n".join(escaped) + '"'
