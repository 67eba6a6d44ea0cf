"""Products that are left to the library: those that nothing is fused into.

In: a graph and its regions. Out: the graph with those products as their original calls. A generated
product gains by what it has around it; alone the library's, of which there are thousands, is at
least as fast.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from fuser.ir.graph import OPAQUE, Graph, Op
from fuser.ir.ops import is_contraction
from fuser.ir.region import Region

ALONE = "a product that nothing is fused into is the library's"


def lone_products(graph: Graph, regions: Sequence[Region]) -> frozenset[str]:
    """The products that are regions by themselves."""
    alone = (region.all_ops[0] for region in regions if len(region.all_ops) == 1)
    return frozenset(name for name in alone if is_contraction(graph.by_name[name]))


def as_calls(graph: Graph, names: Collection[str]) -> Graph:
    """The graph with the named ops as their original calls."""

    def called(op: Op) -> Op:
        if op.name not in names:
            return op
        return replace(
            op, kind=OPAQUE, operands=(), domain=(), reduced=(), attributes=(), reason=ALONE
        )

    return replace(graph, ops=tuple(map(called, graph.ops)))
