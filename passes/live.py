"""How many tile values a kernel holds at once.

In: a graph, ops in program order, and which are stored. Out: the most values that are alive between
two ops, in the order in which kernels are written: from each stored value back to what it reads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fuser.ir.graph import Graph, Op
from fuser.ir.ops import BY_KIND, Group


def live_values(graph: Graph, ops: Sequence[Op], stored: Collection[str]) -> int:
    """The most tile values held at once when the ops run in program order.

    Constants cost nothing; a value lives from its op to its last reader in the group.
    """
    last: dict[str, int] = {}
    for position, op in enumerate(ops):
        for value in op.reads:
            last[value] = position
    live: set[str] = set()
    most = 0
    for position, op in enumerate(ops):
        if BY_KIND[op.kind].group is not Group.CREATION:
            live |= {op.name, *op.reads}
        most = max(most, len(live))
        live = {value for value in live if last.get(value, -1) > position}
    return most
