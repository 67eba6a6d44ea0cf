"""One seed for all random numbers of a graph, and masks that the backward computes again.

In: a graph in which every random op draws a seed of its own. Out: the same graph with one draw for
each device, whose numbers are told apart by their streams. A draw in the backward stays there:
each backward through one forward has fresh noise, as in eager.

A random op is a function of a seed of eight bytes. `partition` saves the seed, and what is made of
it is computed again in the backward like any other cheap op.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch._functorch import partitioners
from torch.utils.checkpoint import CheckpointPolicy

from fuser.random_ops import SEED, UNIFORM, UNIFORM_POSITIVE

__all__ = ["draws", "partition", "share_seeds"]

_NUMBERS = (UNIFORM, UNIFORM_POSITIVE)


def share_seeds(module: fx.GraphModule) -> None:
    """Leave the first draw of each device, and number the streams of each."""
    graph = module.graph
    kept: dict[tuple[Any, bool], fx.Node] = {}
    for node in graph.find_nodes(op="call_function", target=SEED):
        first = kept.setdefault((node.args[0], _is_backward(node)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
    if not kept:
        return
    streams = dict.fromkeys(kept.values(), 0)
    for node in graph.nodes:
        if node.target in _NUMBERS and node.args[0] in streams:
            seed = node.args[0]
            node.update_arg(1, _stream(streams[seed]))
            streams[seed] += 1
    module.recompile()


def draws(module: fx.GraphModule) -> bool:
    """Whether the graph draws random numbers, and so gives others each time."""
    return any(
        torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        for node in module.graph.nodes
        if node.op == "call_function"
    )


def _stream(position: int) -> int:
    """Odd and not 1: kernels are compiled apart for the number 1 and for multiples of 16."""
    return 2 * position + 3


def _is_backward(node: fx.Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward"


def partition(module: fx.GraphModule, inputs: Any, **options: Any) -> tuple[Any, Any]:
    """torch's partition of a joint graph into forward and backward, with seeds shared and saved."""
    share_seeds(module)
    for node in module.graph.find_nodes(op="call_function", target=SEED):
        if not _is_backward(node):
            # Also where a checkpoint asks for everything to be computed again.
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    with _recomputable():
        return partitioners.min_cut_rematerialization_partition(module, inputs, **options)


_lock = threading.RLock()


# torch's partitioner recomputes only calls on a list of aten operations that it writes down anew
# each time, and takes no other. So it is given a list with two more while it runs. Without it
# everything still works, but masks are saved.
@contextlib.contextmanager
def _recomputable() -> Iterator[None]:
    with _lock:
        original = getattr(partitioners, "get_default_op_list", None)
        if original is None:
            yield
            return

        def extended() -> Any:
            found = original()
            for operation in _NUMBERS:
                found.recomputable_ops.add(operation.overloadpacket)
                found.fusible_ops.add(operation.overloadpacket)
            return found

        partitioners.get_default_op_list = extended
        try:
            yield
        finally:
            partitioners.get_default_op_list = original
