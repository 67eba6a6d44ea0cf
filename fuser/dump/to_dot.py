"""A plan as a drawing: DOT text for Graphviz.

Each region is a box in the colour of its kind, with what its kernels compiled to where that is
known; opaque calls are grey, graph inputs are plain names. Fused edges are black, refused ones red
and labelled with the reason, loads of inputs grey.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

import networkx

from fuser.dump.facts import NOT_COMPILED, CompiledKernels, kernel_names, most
from fuser.dump.to_networkx import to_networkx
from fuser.ir.kernel import RegionKernels
from fuser.ir.plan import FusionPlan

KIND_COLOURS: Mapping[str, str] = {"pointwise": "#dbe9f9", "reduction": "#dff2d8"}
OTHER_KIND = "#f6ead2"
OPAQUE = "#d9d9d9"
FUSED = "black"
REFUSED = "#c62828"
LOADED = "#9e9e9e"

LABEL_WIDTH = 32
"""Columns at which a label is broken: a long reason would push the drawing apart."""


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
        title = [f"{region.name}: {region.kind.value}, {region.strategy.value}"]
        found = [resources[name] for name in names.get(region.name, ()) if name in resources]
        needs = most(found)
        if needs is not None:
            title.append(
                f"{needs.registers} registers, {needs.spills} spilled, "
                f"{needs.shared_bytes} B shared memory"
            )
        colour = KIND_COLOURS.get(region.kind.value, OTHER_KIND)
        yield f"  subgraph {_quoted(f'cluster_{region.name}')} {{"
        yield f'    graph [label={_quoted(*title)}, style="filled", fillcolor="{colour}"];'
        for name in region.ops:
            yield f"    {_node(name, flow.nodes[name])}"
        yield "  }"


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
