"""What the backward pass computes again instead of keeping it: normalised rows.

In: AOTAutograd's joint graph. Out: the same with nodes marked for the partitioner, which keeps what
it believes is cheapest to keep, and counts a log-softmax as no dearer than the logits that it is
made of. But the logits are in memory in any case: keeping them and a number a row saves the forward
pass from writing another tensor of their size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.utils.checkpoint import CheckpointPolicy

from fuser.ir.ops import BY_TARGET, Group

ROW = 16
"""Elements of a row from which one number for each is little to keep beside it."""

_SAME = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


def recompute_normalised_rows(joint: fx.GraphModule) -> None:
    """Mark what `normalised_rows` finds."""
    for node in normalised_rows(joint.graph):
        node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        node.meta["ac_graph_id"] = 0


def normalised_rows(graph: fx.Graph) -> Iterator[fx.Node]:
    """Elementwise values of one stored tensor and of numbers that are one a row of it, which only
    generated kernels read."""
    backward = _made_of_tangents(graph)
    for node in graph.nodes:
        if node in backward or not _is_elementwise(node):
            continue
        if not any(user in backward for user in _through_aliases(node)):
            continue
        chain: set[fx.Node] = set()
        leaves: set[fx.Node] = set()
        has_statistics = _walk(node, _numel(node), chain, leaves)
        if has_statistics and len(leaves) == 1 and all(_is_kept_inside(n, backward) for n in chain):
            yield from chain


def _made_of_tangents(graph: fx.Graph) -> set[fx.Node]:
    found: set[fx.Node] = set()
    for node in graph.nodes:
        is_tangent = node.op == "placeholder" and "tangents" in str(node.target)
        if is_tangent or (node.op != "output" and found.intersection(node.all_input_nodes)):
            found.add(node)
    return found


def _walk(node: fx.Node, numel: Any, chain: set[fx.Node], leaves: set[fx.Node]) -> bool:
    """Collects the elementwise ops of whole tensors and the tensors they start from. Returns
    whether a number a row is among what they read."""
    chain.add(node)
    found = False
    for source in node.all_input_nodes:
        size = _numel(source)
        if size is None or guard_or_false(size * ROW <= numel):
            found = found or (size is not None and source.op != "placeholder")
        elif _is_elementwise(source):
            found = _walk(source, numel, chain, leaves) or found
        else:
            leaves.add(source)
    return found


def _is_kept_inside(node: fx.Node, backward: Collection[fx.Node]) -> bool:
    """Whether no call outside of generated kernels reads the value in the forward pass."""
    return all(
        user in backward or (user.op == "call_function" and bool(BY_TARGET.get(str(user.target))))
        for user in _through_aliases(node)
    )


def _through_aliases(node: fx.Node) -> Iterator[fx.Node]:
    for user in node.users:
        if user.target in _SAME:
            yield from _through_aliases(user)
        else:
            yield user


def _is_elementwise(node: fx.Node) -> bool:
    if node.target in _SAME:
        return True
    rows = BY_TARGET.get(str(node.target)) if node.op == "call_function" else None
    return bool(rows) and all(row.group is Group.POINTWISE for row in rows or ())


def _numel(node: fx.Node) -> Any:
    value = node.meta.get("val")
    return value.numel() if isinstance(value, torch.Tensor) else None
