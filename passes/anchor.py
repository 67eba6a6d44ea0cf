"""The op of a group whose domain lends its dimensions as loop axes.

In: a graph, ops by name in program order, and which of them are stored. Out: one of them: the
largest reduction, else the largest stored op. What it folds are the elements of a row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fuser.ir.dim import evaluate, product
from fuser.ir.graph import Graph, Op
from fuser.ir.index_map import Shape


def anchor_of(graph: Graph, ops: Mapping[str, Op], stored: Collection[str]) -> Op:
    """See the module's docstring. Of folds over as many elements, one whose results each of these
    needs again goes along rows; else one over the last axis, whose elements are likely to be
    neighbours in memory."""
    reductions = [op for op in ops.values() if op.reduced]
    if not reductions:
        candidates = [op for op in ops.values() if op.name in stored] or list(ops.values())
        return max(candidates, key=lambda op: _weight(graph, op.domain))
    most = max(_weight(graph, op.domain) for op in reductions)
    largest = [op for op in reductions if _weight(graph, op.domain) == most]
    if len({op.reduced for op in largest}) == 1:
        return largest[0]
    return max(
        largest,
        key=lambda op: (_comes_back(graph, ops, op), len(op.domain) - 1 in op.reduced),
    )


def _comes_back(graph: Graph, ops: Mapping[str, Op], fold: Op) -> bool:
    """Whether more elements than the fold has results wait for them."""
    results = _weight(graph, fold.type.shape)
    waiting, seen = [fold], {fold.name}
    while waiting:
        for reader in graph.readers[waiting.pop().name]:
            if reader.name in ops and reader.name not in seen:
                if _weight(graph, reader.domain) > results:
                    return True
                seen.add(reader.name)
                waiting.append(reader)
    return False


def _weight(graph: Graph, domain: Shape) -> int:
    return evaluate(product(domain), graph.hints)
