"""Products that are left to the library: those that nothing is fused into.

In: a graph and what was decided about it. Out: the graph with those products as their original
calls. A generated product gains by what it has around it, or by the launch that it shares; alone
the library's, of which there are thousands, is at least as fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fuser.ir.graph import OPAQUE, Graph, Input, Op, Output, whole
from fuser.ir.ops import is_contraction
from fuser.ir.region import Region
from fuser.passes.decide import Decisions
from fuser.passes.slices import joined

ALONE = "a product alone is the library's"


def lone_products(decided: Decisions, graph: Graph) -> Mapping[str, str]:
    """The products that are regions by themselves, whole or in slices, and why: what stood
    against the most that could have been fused into each."""
    alone = (region.all_ops for region in decided.regions if _is_one_product(graph, region))
    found: dict[str, str] = {}
    for names in alone:
        for name in sorted(names):
            refused = [v for v in decided.verdicts if name in (v.producer, v.consumer)]
            most = max(refused, key=lambda verdict: verdict.gain_us, default=None)
            found[name] = f"{ALONE}; {most.text}" if most is not None else ALONE
    return found


def _is_one_product(graph: Graph, region: Region) -> bool:
    """Whether a region is a product and nothing else, be it in slices."""
    ops = [graph.by_name[name] for name in region.all_ops]
    whole = {op.part.whole if op.part else op.name for op in ops}
    return len(whole) == 1 and all(map(is_contraction, ops))


def as_calls(graph: Graph, reasons: Mapping[str, str]) -> Graph:
    """The graph with the ops that there are reasons for as their original calls, those of which it
    has slices as one call."""
    named = [(graph.by_name[name], reason) for name, reason in reasons.items()]
    graph = joined(graph, reasons)
    reasons = {op.part.whole if op.part else op.name: reason for op, reason in named}

    def called(op: Op) -> Op:
        if op.name not in reasons:
            return op
        reason = reasons[op.name]
        return replace(
            op, kind=OPAQUE, operands=(), domain=(), reduced=(), attributes=(), reason=reason
        )

    return replace(graph, ops=tuple(map(called, graph.ops)))


def region_graph(graph: Graph, regions: Sequence[Region]) -> Graph:
    """What the regions of a launch compute, as a graph of its own. Its inputs are also what only
    the original calls of their products read, as a bias times zero."""
    ops = dict.fromkeys(name for region in regions for name in region.all_ops)
    products = [op for op in graph.in_order(ops) if is_contraction(op)]
    inputs = dict.fromkeys(name for region in regions for name in region.inputs)
    called = dict.fromkeys(argument.value for op in products for argument in op.arguments)
    inputs |= {name: None for name in called if name not in ops}
    outputs = [name for region in regions for name in region.outputs]
    return replace(
        graph,
        inputs=tuple(Input(name, graph.values[name]) for name in inputs),
        ops=tuple(graph.in_order(ops)),
        outputs=tuple(Output(whole(graph.values[name])) for name in outputs),
        constants=(),
    )
