"""A backend that records, for tests of capture.

Its compile function runs each graph as it is and registers the graph's context as its plan, so
that a compiled object's plans say which graphs were made for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from fuser.capture.backend import Backend, CompileContext
from fuser.capture.registry import plans


class Recorder:
    """A backend, and every graph that it compiled."""

    def __init__(self, **options: Any) -> None:
        self.graphs: list[fx.GraphModule] = []
        self.backend = Backend(self.compile_graph, **options)

    def compile_graph(
        self, module: fx.GraphModule, inputs: Sequence[Any], context: CompileContext
    ) -> fx.GraphModule:
        context.register(context)
        self.graphs.append(module)
        return module

    def compile(self, model: Any, **options: Any) -> Any:
        return torch.compile(model, backend=self.backend, **options)

    def targets(self) -> set[str]:
        nodes = [node for graph in self.graphs for node in graph.graph.nodes]
        return {str(node.target) for node in nodes if node.op == "call_function"}


def phases(compiled: Any) -> list[tuple[str, int]]:
    return [(context.phase, context.graph_index) for context in plans(compiled)]


class Net(nn.Module):
    """A linear layer and a batch norm, with a graph break between them if asked for."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.broken = broken

    def forward(self, x: Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        hidden = self.linear(x)
        if self.broken:
            torch._dynamo.graph_break()
        return {"out": [self.norm(hidden).relu() * scale, None], "size": x.shape[0]}


class Other(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).exp()
