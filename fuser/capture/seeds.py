"""One seed a graph: what tracing leaves as a draw for each random op is drawn once.

In: a graph, before it is split into forward and backward. Out: the same with one seed for each
device, shared by all random ops, which are told apart by their numbers. For the split, the
seed is marked as saved and whatever is computed from it alone as recomputed, so that a backward
pass makes a dropout's mask again from eight bytes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from fuser import philox

__all__ = ["is_random", "recompute_from_seeds", "share_seeds"]

_RANDOM = (philox.uniform, philox.normal)
_KEPT = "recompute"
"""Where the partitioner looks for a node's policy."""

# Of what reads random numbers and nothing else, the calls that cost as little as the numbers do.
_CASTS = (torch.ops.prims.convert_element_type.default, torch.ops.aten._to_copy.default)


def is_random(module: fx.GraphModule) -> bool:
    """Whether the graph makes random numbers from a seed."""
    return any(node.target in _RANDOM for node in module.graph.nodes)


def share_seeds(module: fx.GraphModule) -> None:
    """Change the graph in place; see the module's docstring."""
    first: dict[torch.device, fx.Node] = {}
    readers = [node for node in module.graph.nodes if node.target in _RANDOM]
    for number, node in enumerate(readers):
        seed: Any = node.args[0]
        shared = first.setdefault(seed.meta["val"].device, seed)
        node.args = (shared, number, *node.args[2:])
        if shared is not seed:
            module.graph.erase_node(seed)
    for seed in first.values():
        seed.meta[_KEPT] = CheckpointPolicy.MUST_SAVE
        # It is no part of what eager does for the call that it was traced for.
        seed.meta.pop("original_aten", None)
    if readers:
        module.recompile()


def recompute_from_seeds(joint: fx.GraphModule) -> None:
    """Mark what is computed from a seed alone."""
    made: set[fx.Node] = set()
    for node in joint.graph.nodes:
        if node.target in _RANDOM:
            made.add(node)
        elif node.op == "call_function" and _is_cheap(node) and node.all_input_nodes:
            tensors = [
                x for x in node.all_input_nodes if isinstance(x.meta.get("val"), torch.Tensor)
            ]
            if tensors and made.issuperset(tensors):
                made.add(node)
    for node in made:
        # What a checkpoint asked for stays as it is.
        node.meta.setdefault(_KEPT, CheckpointPolicy.PREFER_RECOMPUTE)


def _is_cheap(node: fx.Node) -> bool:
    target: Any = node.target
    return target in _CASTS or torch.Tag.pointwise in getattr(target, "tags", ())
