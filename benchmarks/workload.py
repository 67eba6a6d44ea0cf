"""One thing to measure: a program in plain PyTorch, its arguments, and the least it has to do.

In: a function on tensors and counts of the bytes and operations of a perfect run. Out: the floor
under its time, and the call that is timed. Nothing here touches a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

Program = Callable[..., Any]


@dataclass(frozen=True)
class Workload:
    """`make(device)` gives the arguments of `run`.

    `read` and `written` are the bytes of a perfect kernel: every input read once, every output
    written once, whatever lies between them kept in registers. `flops` counts the products alone.
    A training workload is one forward and one backward call; its arguments say what needs a
    gradient.
    """

    name: str
    run: Program
    make: Callable[[str], tuple[Any, ...]]
    read: int
    written: int
    flops: int = 0
    is_training: bool = False

    @property
    def bytes(self) -> int:
        return self.read + self.written

    def floor_ms(self, copy_rate: float, product_rate: float) -> float:
        """The longer of the time of its bytes and of its products, at rates in units a second."""
        return max(self.bytes / copy_rate, self.flops / product_rate) * 1e3

    def bound(self, copy_rate: float, product_rate: float) -> str:
        """Which of the two the floor comes from."""
        is_memory = self.bytes / copy_rate >= self.flops / product_rate
        return "memory" if is_memory else "products"

    def call(self, program: Program, arguments: tuple[Any, ...]) -> Callable[[], Any]:
        """`program`, which is `run` or a compiled form of it, as a call without arguments.

        For training the call ends with the gradients, from a fixed gradient of each output.
        """
        if not self.is_training:
            return lambda: program(*arguments)
        leaves = pytree.tree_leaves(arguments)
        inputs = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
        outputs = _tensors(self.run(*arguments))
        upstream = [torch.randn_like(y) if y.dim() else torch.ones_like(y) for y in outputs]
        del outputs

        def forward_and_backward() -> Any:
            return torch.autograd.grad(_tensors(program(*arguments)), inputs, upstream)

        return forward_and_backward


def _tensors(output: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def random(
    *shapes: tuple[int, ...],
    dtype: torch.dtype = torch.bfloat16,
    deviation: float = 1.0,
    needs_gradient: bool = False,
) -> Callable[[str], tuple[torch.Tensor, ...]]:
    """A `make` that draws one normally distributed tensor for each shape."""

    def make(device: str) -> tuple[torch.Tensor, ...]:
        drawn = (torch.randn(shape, device=device, dtype=dtype) for shape in shapes)
        return tuple(x.mul_(deviation).requires_grad_(needs_gradient) for x in drawn)

    return make
