"""Find the region, and in it the op, whose kernel computes something else than its ops do.

In: a recorded graph. Out: a `Culprit` or None. Regions run one after another on the values there
were, each against its ops in eager and in float64. In a wrong one the ops are taken up one by one,
in program order, into kernels that store just the last of them: the first of these that is wrong
names the op. Where every region is right, the host program that launches them is compared last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from fuser.codegen.generate import generate
from fuser.codegen.host import host_program
from fuser.driver import Options, compile_graph, fit_plan, options_from
from fuser.ir.graph import Graph, Input, Output, whole
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region
from fuser.numerics import Comparison, compare
from fuser.passes.pipeline import plan_graph
from fuser.runtime.executable import Executable
from fuser.runtime.sizes import number_at, symbol_values
from fuser.runtime.unfused import run_ops
from fuser.verification.culprit import Culprit
from fuser.verification.recording import Recorded
from fuser.verification.regions import check_region, host_difference
from fuser.verification.report import RegionCheck

Tensors = Mapping[str, torch.Tensor]


def wrong_kernel(recorded: Recorded) -> Culprit | None:
    """The first region that is wrong, or the host program."""
    try:
        compiled = compile_graph(recorded.module, recorded.fresh_inputs(), recorded.context)
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
        return Culprit("code generation", recorded.name, "", "", "", detail=detail)
    executable, plan = compiled.executable, compiled.plan
    if executable is None or plan is None:
        return None  # it runs unfused
    inputs = recorded.fresh_inputs()
    symbols = symbol_values(plan.graph, inputs)
    found: list[Culprit] = []

    def observe(region: Region, before: Tensors, outputs: Tensors) -> None:
        if not found:
            checks = check_region(plan, region, before, outputs, symbols, recorded.context)
            wrong = [check for check in checks if not check.comparison.is_right]
            if wrong:
                options = options_from(recorded.context.options)
                found.append(_in_region(recorded, plan, region, before, symbols, options, wrong[0]))

    with torch.random.fork_rng():
        walked = executable.walk(inputs, observe)
    if not found:
        found += _unfit(recorded, executable)
    return found[0] if found else _in_host(recorded, plan, executable, walked)


def _unfit(recorded: Recorded, executable: Executable) -> list[Culprit]:
    """Regions whose kernels could not be compiled: right, but slow."""
    return [
        Culprit("compile", recorded.name, "", "", "", region=name, detail=str(error))
        for name, error in executable.fallbacks.items()
    ]


# Inside a region --------------------------------------------------------------------------------


def _in_region(
    recorded: Recorded,
    plan: FusionPlan,
    region: Region,
    before: Tensors,
    symbols: Mapping[str, int],
    options: Options,
    check: RegionCheck,
) -> Culprit:
    graph = plan.graph
    values = dict(before)
    run_ops(graph, region.all_ops, values, symbols)
    ops = graph.in_order(region.all_ops)
    for op in ops:
        together = _leading_to(graph, op.name, region.all_ops)
        comparison = _computed(plan, together, op.name, values, symbols, options)
        if comparison is None or comparison.is_right:
            continue
        alone = _computed(plan, {op.name}, op.name, values, symbols, options)
        is_alone = alone is not None and not alone.is_right
        others = sorted(together - {op.name}, key=graph.position.__getitem__)
        detail = "" if is_alone else f"right alone; wrong in one kernel with {', '.join(others)}"
        return Culprit(
            "kernel", recorded.name, op.name, op.kind, str(op.source), region.name, comparison,
            detail,
        )  # fmt: skip
    op = graph.producers[check.value]
    return Culprit(
        "kernel", recorded.name, op.name, op.kind, str(op.source), region.name, check.comparison,
        "every part of the region is right by itself",
    )  # fmt: skip


def _leading_to(graph: Graph, name: str, among: Iterable[str]) -> frozenset[str]:
    """The op and those of its region that it needs."""
    inside, found, waiting = set(among), {name}, [name]
    while waiting:
        reads = graph.by_name[waiting.pop()].reads
        new = {v for v in reads if v in inside} - found
        found |= new
        waiting += new
    return frozenset(found)


def _computed(
    plan: FusionPlan,
    names: Iterable[str],
    last: str,
    values: Tensors,
    symbols: Mapping[str, int],
    options: Options,
) -> Comparison | None:
    """The value of the last op, computed by generated kernels of these ops; None where they would
    run as calls."""
    part = _part(plan.graph, frozenset(names), last)
    is_eager = options.precision == "eager"
    smaller = plan_graph(part, plan.target, plan.phase, rounds_everywhere=is_eager)
    if not smaller.regions:
        return None
    kernels: Sequence[Any] = generate(smaller, rounds_everywhere=is_eager)
    if plan.target != "cpu":
        fitted = fit_plan(smaller, options)
        smaller, kernels = fitted.plan, fitted.kernels
    executable = Executable(smaller, kernels, host_program(smaller, kernels))
    inputs = [
        values[item.name].clone() if item.value is not None else number_at(item.number, symbols)
        for item in part.inputs
    ]
    exact = {item.name: values[item.name] for item in part.inputs if item.value is not None}
    run_ops(part, [op.name for op in part.ops], exact, symbols, precision=torch.float64)
    (made,) = executable(inputs)
    return compare(made, values[last], exact[last], len(part.ops) + 16)


def _part(graph: Graph, names: frozenset[str], last: str) -> Graph:
    """Some ops as a graph of their own that returns the last one's value."""
    ops = graph.in_order(names)
    made = {value.name for op in ops for value in op.results}
    reads = dict.fromkeys(value for op in ops for value in op.reads if value not in made)
    numbers = tuple(item for item in graph.inputs if item.value is None)
    return Graph(
        inputs=(*numbers, *(Input(name, graph.values[name]) for name in reads)),
        ops=tuple(ops),
        outputs=(Output(whole(graph.values[last])),),
        symbols=graph.symbols,
        name=graph.name,
    )


# Around the regions -----------------------------------------------------------------------------


def _in_host(
    recorded: Recorded, plan: FusionPlan, executable: Executable, walked: Sequence[Any]
) -> Culprit | None:
    found = host_difference(executable, recorded.fresh_inputs(), walked)
    if found is None:
        return None
    value, comparison = found
    op = plan.graph.producers.get(value)
    name, kind, source = (op.name, op.kind, str(op.source)) if op else (value, "input", "")
    return Culprit("host program", recorded.name, name, kind, source, comparison=comparison)
