"""Find the step of the compiler, the region, the op and the line where a result becomes wrong.

In: a model or function and the arguments of one call. Out: a `Culprit`, or None where every step
is right. The steps are walked in the order in which a program goes through them, each compared with
the one before on the same tensors, so the first difference is the fault's own and not one that it
causes further on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx

from fuser import config
from fuser.capture.from_fx import DataDependentSize, from_fx
from fuser.driver import options_from, plan_module, target_of
from fuser.dump.stages import Stages
from fuser.ir.graph import Graph, Op
from fuser.numerics import Comparison, compare
from fuser.passes import pipeline
from fuser.runtime.sizes import symbol_values
from fuser.runtime.unfused import initial_values, outputs_of, run_ops
from fuser.verification.culprit import Culprit
from fuser.verification.decomposed import wrong_call
from fuser.verification.differential import need_kernels
from fuser.verification.kernels import wrong_kernel
from fuser.verification.recording import Recorded, recorded_graphs
from fuser.verification.runs import seeded

STEPS = 64
"""Roundings in a row that two ways to compute the same value may differ by."""

OnStep = Callable[[str], None]


def find_culprit(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    on_step: OnStep = lambda _: None,
) -> Culprit | None:
    """The first step that is wrong; `on_step` is told what is looked at."""
    need_kernels("bisect", model, args, kwargs)
    on_step("capture")
    found = wrong_call(model, args, kwargs, options or {})
    if found is not None:
        return found
    for recorded in recorded_graphs(model, args, kwargs, options):
        for search in (wrong_import, wrong_pass, wrong_kernel):
            on_step(f"{search.__name__.removeprefix('wrong_')} of {recorded.name}")
            with seeded(), config.scope(check=True):
                found = search(recorded)
            if found is not None:
                return found
    return None


# Import -----------------------------------------------------------------------------------------


def wrong_import(recorded: Recorded) -> Culprit | None:
    """The first op of the imported graph whose value is not that of the call it came from."""
    try:
        graph, constants = from_fx(recorded.module, name=recorded.context.phase)
    except DataDependentSize:
        return None  # it runs unfused, as it is
    expected = _Values(recorded.module)
    with seeded():
        expected.run(*recorded.fresh_inputs())
    inputs = recorded.fresh_inputs()
    symbols = symbol_values(graph, inputs)
    environment = initial_values(graph, inputs, constants, symbols)
    with seeded():
        for op in graph.ops:
            run_ops(graph, [op.name], environment, symbols)
            given = expected.found.get(op.name)
            for value in op.results:
                part = given if value.position is None or given is None else given[value.position]
                comparison = difference(environment.get(value.name), part)
                if comparison is not None:
                    return culprit("import", recorded, op, comparison)
    return None


class _Values(fx.Interpreter):
    """Runs a module and keeps a copy of what each call returned."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function":
            self.found[n.name] = torch.utils._pytree.tree_map_only(
                torch.Tensor, lambda tensor: tensor.detach().clone(), result
            )
        return result


# Passes -----------------------------------------------------------------------------------------


def wrong_pass(recorded: Recorded) -> Culprit | None:
    """The first pass after which the graph computes something else."""
    seen = _Seen()
    target, options = target_of(recorded.module), options_from(recorded.context.options)
    try:
        plan, _, constants = plan_module(
            recorded.module, target, recorded.context.phase, options, seen
        )
    except DataDependentSize:
        return None
    except Exception as error:
        return Culprit(
            seen.next, recorded.name, "", "", "", detail=f"{type(error).__name__}: {error}"
        )
    runs = [_Run(name, graph, constants, recorded) for name, graph in seen.graphs]
    runs.append(_Run("partition", plan.graph, constants, recorded))
    for before, after in itertools.pairwise(runs):
        if before.graph is not after.graph:
            found = _first_difference(before, after)
            if found is not None:
                return found
    return None


class _Seen(Stages):
    """Keeps the graph after each pass."""

    def __init__(self) -> None:
        super().__init__(None, "")
        self.graphs: list[tuple[str, Graph]] = []

    def graph(self, step: str, graph: Graph) -> None:
        self.graphs.append((step, graph))

    @property
    def next(self) -> str:
        """What comes after the last pass that was done."""
        rewrites = (*pipeline.REWRITES, *pipeline.APPROXIMATIONS)
        names = ["import", *(rewrite.__name__ for rewrite in rewrites)]
        done = len(self.graphs)
        return names[done] if done < len(names) else "partition or code generation"


@dataclass(frozen=True)
class _Run:
    """A graph after a pass, run op by op in float64."""

    name: str
    graph: Graph
    constants: Sequence[torch.Tensor]
    recorded: Recorded

    @cached_property
    def symbols(self) -> Mapping[str, int]:
        return symbol_values(self.graph, self.recorded.inputs)

    @cached_property
    def values(self) -> Mapping[str, torch.Tensor]:
        inputs = self.recorded.fresh_inputs()
        found = initial_values(self.graph, inputs, self.constants, self.symbols)
        names = [op.name for op in self.graph.ops]
        with seeded():
            run_ops(self.graph, names, found, self.symbols, precision=torch.float64)
        return found

    @property
    def outputs(self) -> tuple[Any, ...]:
        return outputs_of(self.graph, self.values, self.symbols)


def _first_difference(before: _Run, after: _Run) -> Culprit | None:
    """The op of the later graph where its results part from those of the earlier one."""
    outputs = zip(after.outputs, before.outputs, after.graph.outputs, strict=True)
    wrong = [
        (output, comparison)
        for mine, theirs, output in outputs
        if (comparison := difference(mine, theirs)) is not None
    ]
    if not wrong:
        return None
    for op in after.graph.ops:
        for value in op.results:
            comparison = difference(after.values.get(value.name), before.values.get(value.name))
            if comparison is not None:
                return culprit(after.name, after.recorded, op, comparison)
    # Every value that both graphs name is the same, so what returns it changed.
    output, comparison = wrong[0]
    name = output.argument.value if output.argument is not None else ""
    producer = after.graph.producers.get(name)
    if producer is None:
        return Culprit(after.name, after.recorded.name, name, "input", "", comparison=comparison)
    return culprit(after.name, after.recorded, producer, comparison)


# What both share --------------------------------------------------------------------------------


def difference(mine: Any, theirs: Any) -> Comparison | None:
    """How two values differ that should be one, None where they do not, or one is not there."""
    if not isinstance(mine, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return None
    found = compare(mine, theirs, theirs.double() if theirs.is_floating_point() else theirs, STEPS)
    return None if found.is_right else found


def culprit(stage: str, recorded: Recorded, op: Op, comparison: Comparison) -> Culprit:
    return Culprit(stage, recorded.name, op.name, op.kind, str(op.source), comparison=comparison)
