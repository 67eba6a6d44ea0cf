"""The whole compiler on one page: an FX graph goes in, an executable comes out.

    capture   Dynamo and AOTAutograd hand over an FX graph of aten calls     (capture.backend)
    import    FX to our own graph; what the op table lacks becomes opaque    (capture.from_fx)
    plan      merge equal ops, drop unused ones, partition by predicted time (passes.pipeline)
    generate  each region to Triton source through its template              (codegen.generate)
    fit       compile; what spills gets a smaller tile or is cut and replanned    (fit)
    tune      time the tiles of each longer kernel once, keep the fastest         (tune)
    choose    race generated products with the library's, keep the faster         (choice)
    run       a flat host program that allocates, launches and frees         (runtime.executable)
    replay    in mode "reduce-overhead": one CUDA graph for all of a call        (runtime.graphs)

Read `compile_graph` and `plan_module` and follow them down. Everything else in the package serves
one of their lines.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fuser import config
from fuser.capture.backend import CompileContext
from fuser.capture.from_fx import DataDependentSize, from_fx
from fuser.choice import choose
from fuser.codegen.generate import generate
from fuser.codegen.host import host_program
from fuser.device import device_spec, present_target
from fuser.dump.record import Peaks
from fuser.dump.stages import NO_STAGES, Stages
from fuser.errors import AssertFusedError, InvalidArgument, MustFuseError
from fuser.fit import Fitted, fit
from fuser.ir.kernel import KernelSpec, RegionKernels, Resources
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region, Schedule
from fuser.ir.rules import FusionRule, check_rules
from fuser.log import get_logger, warn_once
from fuser.passes.analysis import eager_peak_bytes, peak_bytes
from fuser.passes.base import NO_CUTS, Cuts
from fuser.passes.library import as_calls
from fuser.passes.pipeline import plan_graph
from fuser.passes.schedule import other_schedules
from fuser.runtime.executable import Executable, should_run_unfused
from fuser.runtime.graphs import CudaGraphUse, refused, with_cuda_graphs
from fuser.runtime.offline import compile_many
from fuser.runtime.race import race
from fuser.runtime.stopwatch import measure, tuning_memory
from fuser.tune import tune

PRECISIONS = ("fused", "eager")
RANDOM = ("fused", "eager")
MODES = ("default", "reduce-overhead")


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may choose; every field is a keyword of `fuser.compile`.

    `precision`: "fused" keeps float32 inside a region, "eager" rounds wherever eager rounds.
    `random`: "fused" computes random numbers in kernels, "eager" leaves every draw to eager, whose
    stream of numbers for a seed it then keeps.
    `rules`: what `fuser.must_fuse`, `fuser.no_fuse` and `fuser.assert_fused` return.
    `mode`: "reduce-overhead" replays CUDA graphs where inputs allow it, as torch.compile's does.
    """

    precision: str = "fused"
    random: str = "fused"
    rules: tuple[FusionRule, ...] = ()
    mode: str | None = None


@dataclass(frozen=True)
class Compiled:
    """One compiled graph: its plan, its kernels, and the callable that AOTAutograd calls.

    `executable` is None where the graph runs unfused; `reason` then says why.
    """

    plan: FusionPlan | None
    kernels: tuple[RegionKernels, ...]
    run: Callable[[list[Any]], Any]
    executable: Executable | None = None
    reason: str = ""
    cuda_graphs: CudaGraphUse | None = None
    """What became of `mode="reduce-overhead"`; None where it was not asked for."""


def compile_graph(
    module: fx.GraphModule, inputs: Sequence[Any], context: CompileContext
) -> Compiled:
    """Compile one graph for the device that its tensors are on."""
    options = options_from(context.options)
    compiled = _compiled_or_unfused(module, context, options)
    if options.mode != "reduce-overhead":
        return compiled
    earlier = context.record.plans if context.record is not None else []
    forward = earlier[0].cuda_graphs if context.phase == "backward" and earlier else None
    if compiled.executable is None or compiled.plan is None:
        use = CudaGraphUse(f"it runs unfused: {compiled.reason}")
        return dataclasses.replace(
            compiled, run=refused(compiled.run, use, forward), cuda_graphs=use
        )
    run, use = with_cuda_graphs(
        compiled.run, module, compiled.plan, compiled.executable.constants, forward
    )
    return dataclasses.replace(compiled, run=run, cuda_graphs=use)


def _compiled_or_unfused(
    module: fx.GraphModule, context: CompileContext, options: Options
) -> Compiled:
    stages = Stages(config.dump_dir(), context.phase)
    try:
        return _compiled(module, context.phase, options, stages)
    except DataDependentSize as reason:
        get_logger("driver").info("graph %s runs unfused: %s", context.compile_id, reason)
        return Compiled(None, (), unfused(module), reason=str(reason))
    except (MustFuseError, AssertFusedError):
        raise  # the user asked for what cannot be, and has to know
    except Exception as fault:
        if config.check():
            raise
        # A fault of ours must not stop the user's program: their graph runs as eager would.
        warn_once(
            ("driver", context.compile_id), f"graph {context.compile_id} runs unfused: {fault}"
        )
        return Compiled(None, (), unfused(module), reason=str(fault))


def _compiled(module: fx.GraphModule, phase: str, options: Options, stages: Stages) -> Compiled:
    target = target_of(module)
    plan, kernels, constants = plan_module(module, target, phase, options, stages)
    if should_run_unfused(plan.graph):
        return Compiled(plan, kernels, unfused(module), reason="no kernels on this device")
    if target != "cpu":
        fitted = fit_plan(plan, options)
        plan, kernels = fitted.plan, fitted.kernels
        if config.tune():
            plan, kernels = tune_plan(plan, kernels, options)
            plan, kernels = choose_products(plan, kernels, options)
    # A CUDA graph copies what it is given; its results must not be such a copy.
    program = host_program(plan, kernels, overwrites=options.mode != "reduce-overhead")
    stages.write("host.py", program.source)
    executable = Executable(plan, kernels, program, constants)
    return Compiled(plan, kernels, executable.call, executable)


def plan_module(
    module: fx.GraphModule, target: str, phase: str, options: Options, stages: Stages
) -> tuple[FusionPlan, tuple[RegionKernels, ...], tuple[Any, ...]]:
    """Plan and kernels of an FX graph for `target`, and the graph's constant tensors."""
    graph, constants = from_fx(module, name=phase)
    rounds_everywhere = options.precision == "eager"
    plan = plan_graph(
        graph, target, phase, stages, options.rules, rounds_everywhere=rounds_everywhere
    )
    kernels = generate(plan, rounds_everywhere=rounds_everywhere)
    if stages.folder is not None:
        peaks = Peaks(planned=peak_bytes(plan), eager=eager_peak_bytes(plan.graph))
        stages.plan(plan, kernels, peaks)
    return plan, kernels, constants


def fit_plan(
    plan: FusionPlan, options: Options, on_kernel: Callable[[str], None] | None = None
) -> Fitted:
    """The plan with kernels that the compiler fits into registers, for a GPU that need not be here.

    `on_kernel` is called with the name of each kernel that was compiled.
    """

    rounds_everywhere = options.precision == "eager"

    def compile_kernels(specs: Sequence[KernelSpec]) -> Sequence[Resources | str]:
        return compile_many(specs, plan.target, plan.graph.hints, on_result=on_kernel)

    def replan(cuts: Cuts, unshared: Collection[str]) -> FusionPlan:
        given = (plan.graph, plan.target, plan.phase, NO_STAGES, options.rules)
        return plan_graph(*given, cuts, rounds_everywhere, unshared)

    return fit(plan, compile_kernels, replan, rounds_everywhere, options.rules)


def tune_plan(
    plan: FusionPlan, kernels: Sequence[RegionKernels], options: Options
) -> tuple[FusionPlan, tuple[RegionKernels, ...]]:
    """The plan with the fastest tile of each kernel, timed on the GPU that is present."""
    types = {name: value.type for name, value in plan.graph.values.items()}

    def timed(specs: Sequence[KernelSpec]) -> Sequence[float | None]:
        return measure(specs, types, plan.graph.hints, plan.target)

    def others(region: Region) -> Sequence[Schedule]:
        return other_schedules(plan.graph, region, device)

    device = device_spec(plan.target)
    rounds_everywhere = options.precision == "eager"
    memory = tuning_memory()
    return tune(plan, kernels, timed, memory, device.launch_us, rounds_everywhere, others)


def choose_products(
    plan: FusionPlan, kernels: Sequence[RegionKernels], options: Options
) -> tuple[FusionPlan, tuple[RegionKernels, ...]]:
    """The plan with each product generated or the library's, whichever is faster with the rest of
    its region on the GPU that is present."""
    rounds_everywhere = options.precision == "eager"
    while True:
        chosen = choose(plan, kernels, race, tuning_memory(), rounds_everywhere)
        if not chosen.calls:
            return chosen.plan, tuple(kernels)
        graph = as_calls(plan.graph, chosen.calls)
        plan = plan_graph(
            graph, plan.target, plan.phase, NO_STAGES, options.rules, NO_CUTS, rounds_everywhere
        )
        fitted = fit_plan(plan, options)
        plan, kernels = tune_plan(fitted.plan, fitted.kernels, options)


def target_of(module: fx.GraphModule) -> str:
    """The GPU present where the graph has tensors on one, else `cpu`."""
    values = (node.meta.get("val") for node in module.graph.nodes)
    is_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in values)
    return present_target() if is_gpu else "cpu"


def unfused(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """The graph's own calls, in the calling convention that frees inputs early."""

    def run(inputs: list[Any]) -> Any:
        arguments = list(inputs)
        inputs.clear()
        return module(*arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def options_from(given: Mapping[str, Any]) -> Options:
    """Checked options, which are keywords of `fuser.compile` and of torch.compile's `options`."""
    known = tuple(field.name for field in dataclasses.fields(Options))
    for name, value in given.items():
        if name not in known:
            raise InvalidArgument(
                function="compile",
                argument=name,
                value=value,
                expected=f"one of the options {', '.join(known)}",
                known=known,
            )
    options = Options(**given)
    choices = {"precision": PRECISIONS, "random": RANDOM, "mode": (*MODES, None)}
    for name, choice in choices.items():
        if getattr(options, name) not in choice:
            named = tuple(filter(None, choice))
            raise InvalidArgument(
                function="compile", argument=name, value=getattr(options, name),
                expected=" or ".join(map(repr, named)), known=named,
            )  # fmt: skip
    return dataclasses.replace(options, rules=check_rules("compile", options.rules))
