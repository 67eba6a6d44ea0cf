"""The calls of a program against what capture makes of each: functional and decomposed.

In: a model or function and the arguments of one call. Out: the first call of which the captured
graph, run unfused, gives another result or another gradient than eager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fuser.capture.from_fx import source_of
from fuser.capture.seeds import is_random
from fuser.verification.culprit import Culprit
from fuser.verification.differential import compare_runs
from fuser.verification.recording import copied, recorded_graphs
from fuser.verification.report import TensorCheck
from fuser.verification.runs import itself, run_program, run_wide, unfused


def wrong_call(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Culprit | None:
    """The call that capture changes; random ones are left out, whose numbers are not eager's."""
    graphs = recorded_graphs(model, args, kwargs, options)
    if any(is_random(recorded.module) for recorded in graphs):
        return None
    wrong = _wrong(model, args, kwargs)
    if wrong is None:
        return None
    found: list[Culprit] = []

    def look(module: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        return _Calls(module, found).run

    torch._dynamo.reset()
    run_program(model, args, kwargs, lambda program: torch.compile(program, backend=look))
    # No call by itself may be wrong: then it is how they follow each other.
    whole = Culprit("capture", "", "", "", "the whole model", comparison=wrong.comparison)
    return next(iter(found), whole)


def _wrong(
    program: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> TensorCheck | None:
    """What a call leaves that is not as eager leaves it."""
    captured = run_program(program, args, kwargs, unfused)
    eager = run_program(program, args, kwargs, itself)
    exact, _ = run_wide(program, args, kwargs, itself)
    checks, _ = compare_runs(captured, eager, exact)
    return next((check for check in checks if not check.comparison.is_right), None)


class _Calls(fx.Interpreter):
    """Runs a program's graph and compares each call, until one is wrong."""

    def __init__(self, module: fx.GraphModule, found: list[Culprit]) -> None:
        super().__init__(module)
        self.culprits = found

    def run_node(self, n: fx.Node) -> Any:
        if n.op in ("call_function", "call_method") and not self.culprits:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            program, tensors = _one_call(n, args, kwargs)
            wrong = _wrong(program, tensors, {}) if tensors else None
            if wrong is not None:
                name = n.target if isinstance(n.target, str) else torch.typename(n.target)
                detail = f"{wrong.name} of the call"
                self.culprits.append(
                    Culprit(
                        "capture", "", n.name, str(name), str(source_of(n)),
                        comparison=wrong.comparison, detail=detail,
                    )
                )  # fmt: skip
        return super().run_node(n)


def _one_call(
    node: fx.Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """A call as a program of its own, and the tensors to give it."""
    graph = fx.Graph()
    tensors: list[torch.Tensor] = []

    def placed(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        tensors.append(copied(leaf).requires_grad_(leaf.requires_grad))
        return graph.placeholder(f"tensor_{len(tensors)}")

    given_args, given_kwargs = pytree.tree_map(placed, (args, dict(kwargs)))
    result = graph.create_node(node.op, node.target, given_args, given_kwargs, node.name)
    graph.output(result)
    return fx.GraphModule(torch.nn.Module(), graph), tensors
