"""From a torch function to our graph, plan and kernels, without running anything.

In: a function and example tensors. Out: what the compiler makes of them. `graph_of` traces aten
calls directly and takes milliseconds; `captured_graph` goes through Dynamo and AOTAutograd, so that
writes are functional and every op knows its line of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from fuser.capture.decomposition.table import decompositions
from fuser.capture.from_fx import from_fx
from fuser.codegen import generate
from fuser.device import device_spec
from fuser.ir.graph import Argument, Effect, Graph, Input, Op, Operand, Output, Value
from fuser.ir.index_map import IndexMap, Shape, Strided
from fuser.ir.kernel import KernelSpec
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Reason, Region, Verdict
from fuser.ir.space import Space
from fuser.passes.base import Limits, dependencies
from fuser.passes.decide import decide
from fuser.passes.pipeline import plan_graph

Rename = Callable[[str], str]


def traced(fn: Callable[..., Any], *args: Any, dynamic: bool = False) -> fx.GraphModule:
    """The aten calls of `fn`; `dynamic` makes every size symbolic except 0 and 1."""
    mode: Literal["symbolic", "fake"] = "symbolic" if dynamic else "fake"
    module = make_fx(fn, decomposition_table=decompositions(), tracing_mode=mode)(*args)
    output = next(node for node in module.graph.nodes if node.op == "output")
    output.args = (tuple(pytree.tree_leaves(output.args[0])),)
    return module


def graph_of(fn: Callable[..., Any], *args: Any, dynamic: bool = False) -> Graph:
    return from_fx(traced(fn, *args, dynamic=dynamic))[0]


def captured_graph(fn: Callable[..., Any], *args: Any, dynamic: bool = False) -> Graph:
    """The graph that `torch.compile` would hand to the compiler."""
    found: list[Graph] = []

    def keep(module: fx.GraphModule, _: Any) -> Any:
        found.append(from_fx(module)[0])
        return module.forward

    torch.compiler.reset()
    backend = aot_autograd(fw_compiler=keep, decompositions=decompositions())
    with torch.no_grad():
        torch.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)(*args)
    (graph,) = found
    return graph


def plan_of(
    fn: Callable[..., Any], *args: Any, target: str = "sm_90", dynamic: bool = False
) -> FusionPlan:
    return plan_graph(graph_of(fn, *args, dynamic=dynamic), target)


def kernels_of(
    fn: Callable[..., Any], *args: Any, target: str = "sm_90", dynamic: bool = False
) -> tuple[KernelSpec, ...]:
    """Every region's own kernels in launch order, also where it shares a launch."""
    plan = plan_of(fn, *args, target=target, dynamic=dynamic)
    entries = (generate.kernels_of(plan.graph, region) for region in plan.regions)
    return tuple(kernel for entry in entries for kernel in entry.kernels)


def partitioned(
    graph: Graph, limits: Limits = Limits(), target: str = "sm_90", launch_us: float | None = None
) -> FusionPlan:
    """The plan without any rewrite before it, under these limits."""
    device = device_spec(target)
    if launch_us is not None:
        device = replace(device, launch_us=launch_us)
    decided = decide(graph, device, limits)
    return FusionPlan(
        graph, target, decided.regions, decided.order, decided.verdicts, siblings=decided.siblings
    )


# Looking into plans -----------------------------------------------------------------------------


def only_region(plan: FusionPlan) -> Region:
    (region,) = plan.regions
    return region


def op_of(graph: Graph, kind: str) -> Op:
    """The only op of this kind."""
    (op,) = [op for op in graph.ops if op.kind == kind]
    return op


def reasons(plan: FusionPlan) -> set[Reason]:
    return {verdict.reason for verdict in plan.verdicts}


def verdict_on(plan: FusionPlan, producer: str, consumer: str) -> Verdict:
    """The decision on the edge between two ops, named by their kinds."""
    kinds = {op.name: op.kind for op in plan.graph.ops}
    (found,) = [
        verdict
        for verdict in plan.verdicts
        if kinds[verdict.producer] == producer and kinds[verdict.consumer] == consumer
    ]
    return found


def axis_sizes(space: Space) -> dict[str, Any]:
    return {axis.name: axis.size for axis in space.axes}


def assert_plan_holds(plan: FusionPlan) -> None:
    """What every plan keeps, worked out from the graph alone.

    Each op is in one region or is an original call, steps run after what they need and do not
    compute themselves (constants are made wherever they are read), calls that write run after every
    copy of what they wait for, every value that a step reads has been stored by then, and a region
    computes nothing that it neither stores nor needs for what it stores.
    """
    graph = plan.graph
    owned = [name for region in plan.regions for name in region.ops]
    assert sorted([*owned, *plan.opaque]) == sorted(op.name for op in graph.ops)
    assert sorted(plan.order) == sorted([*(region.name for region in plan.regions), *plan.opaque])
    runs: dict[str, list[int]] = {}
    owner: dict[str, int] = {}
    assert tuple(step for steps in plan.steps for step in steps) == plan.order
    for position, steps in enumerate(plan.steps):
        for step in steps:
            region = plan.by_name.get(step)
            owner |= dict.fromkeys(region.ops if region else (step,), position)
            for name in region.all_ops if region else (step,):
                runs.setdefault(name, []).append(position)
    anywhere = {op.name for op in graph.ops if not op.is_opaque and not op.reads}
    for name, earlier in dependencies(graph).items():
        for before in set(earlier) - anywhere:
            if graph.by_name[name].effect is Effect.BARRIER:
                assert max(runs[before]) < owner[name]
            else:
                assert all(at in runs[before] or owner[before] < at for at in runs[name])
    there = {item.value.name for item in graph.inputs if item.value}
    there |= {value.name for value in graph.constants}
    made: set[str] = set()
    for step in plan.order:
        if step not in plan.launch_of or step == plan.launch_of[step].regions[0]:
            # What runs at once reads nothing of each other.
            there |= made
            made = set()
        region = plan.by_name.get(step)
        if region is None:
            op = graph.by_name[step]
            assert there.issuperset(op.reads)
            made |= {value.name for value in op.results}
            continue
        inside = set(region.all_ops)
        outside = {value for name in inside for value in graph.by_name[name].reads} - inside
        assert set(region.inputs) == outside
        assert there.issuperset(region.inputs)
        assert set(region.outputs) <= set(region.ops)
        used = set(region.outputs)
        for name in reversed([op.name for op in graph.ops if op.name in inside]):
            used |= set(graph.by_name[name].reads) if name in used else set()
        assert inside <= used
        assert set(region.space.index) == inside
        made |= set(region.outputs)
    assert (there | made).issuperset(graph.output_values)


# The same graph under other names ---------------------------------------------------------------


def renamed(graph: Graph, rename: Rename) -> Graph:
    """The graph with every value and op named anew; calls keep their slots."""
    return replace(
        graph,
        inputs=tuple(_input(item, rename) for item in graph.inputs),
        constants=tuple(_value(value, rename) for value in graph.constants),
        ops=tuple(_op(op, rename) for op in graph.ops),
        outputs=tuple(
            Output(
                _argument(output.argument, rename),
                output.number,
                output.into and rename(output.into),
            )
            for output in graph.outputs
        ),
    )


def _input(item: Input, rename: Rename) -> Input:
    value = _value(item.value, rename) if item.value else None
    return replace(item, name=rename(item.name), value=value)


def _value(value: Value, rename: Rename) -> Value:
    return replace(value, name=rename(value.name))


def _op(op: Op, rename: Rename) -> Op:
    arguments = tuple(replace(a, value=rename(a.value)) for a in op.arguments)
    operands: tuple[Operand, ...] = tuple(
        replace(o, value=rename(o.value)) if isinstance(o, Argument) else o for o in op.operands
    )
    results = tuple(_value(value, rename) for value in op.results)
    return replace(
        op, name=rename(op.name), arguments=arguments, operands=operands, results=results
    )


def _argument(argument: Argument | None, rename: Rename) -> Argument | None:
    return None if argument is None else replace(argument, value=rename(argument.value))


# Index maps on numbers --------------------------------------------------------------------------


def follow(index_map: IndexMap, index: Sequence[int]) -> tuple[int, ...]:
    """Where the map leads from one index of the reader; all its sizes are numbers."""
    for step in index_map.steps:
        if isinstance(step, Strided):
            index = [
                axis.offset
                if axis.reader_axis is None
                else axis.offset + axis.step * index[axis.reader_axis]
                for axis in step.axes
            ]
        else:
            index = unravel(ravel(index, step.reader_shape), step.producer_shape)
    return tuple(index)


def ravel(index: Sequence[int], shape: Shape) -> int:
    """The row-major number of an element."""
    number = 0
    for position, size in zip(index, shape, strict=True):
        number = number * int(size) + position
    return number


def unravel(number: int, shape: Shape) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(shape):
        number, position = divmod(number, int(size))
        index.append(position)
    return tuple(reversed(index))
