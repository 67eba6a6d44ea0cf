"""Gradients of gradients, which AOTAutograd's compiled backward refuses.

In: a graph as Dynamo captured it, and the outputs of its compiled forward. Out: a hook on their
gradient node. When a gradient is taken with `create_graph=True`, the hook differentiates the
captured graph itself, in eager, so that the result can be differentiated again. First-order
training pays for the hook and nothing else: its inputs are held weakly.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import fx

Function = TypeVar("Function", bound=Callable[..., Any])


def untraced(function: Function) -> Function:
    """`function` and what it calls, kept from Dynamo also inside of compiled Python."""
    wrapped: Any = torch.compiler.disable  # untyped
    return wrapped(function, reason="part of fuser")  # type: ignore[no-any-return]


def can_differentiate_again(module: fx.GraphModule, metadata: Any) -> bool:
    """Whether running the graph a second time, on the same inputs, gives the same outputs.

    Not if it draws random numbers or writes to inputs; nor is it done where AOTAutograd rebuilds
    views outside of its own gradient node, whose edges then are not the graph's.
    """
    if metadata is None or any(info.mutates_data for info in metadata.input_info):
        return False
    if any(info.output_type.name != "non_alias" for info in metadata.output_info):
        return False
    return not any(_is_random(node) for node in module.graph.nodes)


def _is_random(node: fx.Node) -> bool:
    if node.op != "call_function":
        return node.op == "call_module"
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def attach(
    eager: Callable[..., Any],
    inputs: Sequence[Any],
    passing: Sequence[int],
    outputs: Sequence[Any],
) -> None:
    """Let the gradient node of `outputs` be differentiated in turn.

    `passing` are the positions of the tensors that may die before the backward, which is not to
    keep them: all but parameters and buffers.
    """
    for output in outputs:
        node = getattr(output, "grad_fn", None)
        if node is not None:
            held = list(inputs)
            for k in passing:
                held[k] = _Held(inputs[k])
            count = sum(isinstance(x, torch.Tensor) for x in outputs)
            node.register_hook(functools.partial(_hook, eager, held, count))
            return


class _Held:
    """A weak reference to a tensor, void once the tensor is changed in place."""

    __slots__ = ("reference", "version")

    def __init__(self, x: torch.Tensor) -> None:
        self.reference = weakref.ref(x)
        self.version = x._version

    def get(self) -> torch.Tensor | None:
        x = self.reference()
        return x if x is not None and x._version == self.version else None


def _hook(
    eager: Callable[..., Any],
    held: Sequence[Any],
    count: int,
    grad_inputs: tuple[Any, ...],
    grad_outputs: tuple[Any, ...],
) -> Any:
    """The gradients of the inputs, with a history; None leaves AOTAutograd's in place."""
    if not torch.is_grad_enabled():  # the usual case: no create_graph
        return None
    return _differentiate(eager, held, count, grad_inputs, grad_outputs)


@untraced
def _differentiate(
    eager: Callable[..., Any],
    held: Sequence[Any],
    count: int,
    grad_inputs: tuple[Any, ...],
    grad_outputs: tuple[Any, ...],
) -> Any:
    actual = [x.get() if isinstance(x, _Held) else x for x in held]
    tensors = [x for x in actual if isinstance(x, torch.Tensor)]
    lost = any(x is None and isinstance(h, _Held) for x, h in zip(actual, held, strict=True))
    if lost or len(grad_inputs) != len(tensors) or len(grad_outputs) < count:
        return None
    results = [x for x in eager(*actual) if isinstance(x, torch.Tensor)]
    pairs = [
        (result, grad)
        for result, grad in zip(results, grad_outputs[:count], strict=True)
        if result.requires_grad and grad is not None
    ]
    wanted = [
        k
        for k, (x, grad) in enumerate(zip(tensors, grad_inputs, strict=True))
        if x.requires_grad and grad is not None
    ]
    if not pairs or not wanted:
        return None
    found = torch.autograd.grad(
        [result for result, _ in pairs],
        [tensors[k] for k in wanted],
        [grad for _, grad in pairs],
        create_graph=True,
        allow_unused=True,
    )
    replaced = list(grad_inputs)
    for k, grad in zip(wanted, found, strict=True):
        if grad is not None:
            replaced[k] = grad
    return tuple(replaced)
