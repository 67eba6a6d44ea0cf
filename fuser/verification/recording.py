"""The graphs of a program's call, with the tensors that each was given.

In: a model or function and the arguments of one call. Out: the graphs as the compiler would get
them, in the order in which they ran, with copies of their inputs. Nothing is compiled: they run
call by call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fuser.capture.backend import Backend, CompileContext
from fuser.verification.runs import run_program


@dataclass(frozen=True)
class Recorded:
    """A graph, what it is, and what it was called with first."""

    module: fx.GraphModule
    context: CompileContext
    inputs: tuple[Any, ...]

    @property
    def name(self) -> str:
        return f"{self.context.phase} graph {self.context.graph_index}"

    def fresh_inputs(self) -> list[Any]:
        """Copies, because a graph may write to its inputs, and empties the list."""
        return [copied(value) for value in self.inputs]


def recorded_graphs(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
) -> list[Recorded]:
    """The graphs of the call and, where it has gradients, of the backward pass."""
    found: list[Recorded] = []

    def record(
        module: fx.GraphModule, _: Sequence[Any], context: CompileContext
    ) -> Callable[[list[Any]], Any]:
        is_first = True

        def run(inputs: list[Any]) -> Any:
            nonlocal is_first
            if is_first:
                is_first = False
                found.append(Recorded(module, context, tuple(map(copied, inputs))))
            return module(*inputs)

        return run

    backend = Backend(record, options or {}, name="fuser_recorder")
    run_program(model, args, kwargs, lambda program: torch.compile(program, backend=backend))
    return found


def copied(value: Any) -> Any:
    """A tensor's copy with the same layout, numbers as they are."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
