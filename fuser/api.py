"""The public functions: compile, plan, plans, explain, verify.

Each checks its arguments, so that a mistake is one clear error here and not a traceback from the
middle of the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx, nn

from fuser import config
from fuser.capture import registry
from fuser.capture.backend import Backend, CompileContext
from fuser.capture.fake import capture_graph
from fuser.capture.wrapping import wrap
from fuser.device import device_spec, present_target
from fuser.driver import Compiled, compile_graph, options_from, plan_module
from fuser.dump.stages import Stages
from fuser.dump.to_explanation import Explanation
from fuser.errors import CaptureError, InvalidArgument
from fuser.ir.plan import FusionPlan
from fuser.ir.rules import FusionRule
from fuser.report import Calls, Plan
from fuser.runtime.executable import runs_kernels
from fuser.runtime.graphs import CudaGraphUse, refusal
from fuser.verification.differential import verify_program
from fuser.verification.report import Report
from fuser.verification.shadow import shadowed

Program = Callable[..., Any]

PROGRAM_EXPECTED = "a torch.nn.Module or a function on tensors"


def compile(  # noqa: A001 - the public name follows torch.compile
    model: Program, *, dynamic: bool | None = None, fullgraph: bool = False, **options: Any
) -> Any:
    """The model with its graphs fused: same call, same attributes, same state_dict.

    `dynamic` and `fullgraph` are torch.compile's. `options` are the fields of
    `fuser.driver.Options`; `mode="reduce-overhead"` is one of them. Compilation happens at the
    first call; later sizes do not recompile once a size has been seen to change. Raises
    `InvalidArgument` for anything that is not a model.
    """
    _check_program("compile", model)
    options_from(options)
    return wrap(model, new_backend(options), dynamic, fullgraph)


def plan(
    model: Program,
    *args: Any,
    target: str | None = None,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    rules: Sequence[FusionRule] | None = None,
    **kwargs: Any,
) -> Plan:
    """What would be fused if `model(*args, **kwargs)` ran without gradients on `target`.

    Nothing runs and no memory is allocated: tensors are traced as shapes. `target` is the GPU that
    is present, or one of `sm_80`, `sm_89`, `sm_90`, `h100`, `sm_100`, `gfx942`, `cpu`. `rules` are
    those of `options`. Raises `CaptureError` where the model cannot be traced as one graph.
    """
    _check_program("plan", model)
    chosen = present_target() if target is None else device_spec(target).target
    given = dict(options or {})
    settings = options_from(given if rules is None else given | {"rules": rules})
    graphs = capture_graph(model, args, kwargs, dynamic, given)
    if not graphs:
        raise CaptureError(reason="the call runs no tensor operation", problem="graph-break")
    module, _, context = graphs[0]
    fusion, kernels, _ = plan_module(
        module, chosen, context.phase, settings, Stages(config.dump_dir(), context.phase)
    )
    is_replayed = settings.mode == "reduce-overhead"
    replays = str(CudaGraphUse(refusal(module, fusion))) if is_replayed else ""
    return Plan(fusion, kernels, options=settings, cuda_graphs=replays)


def explain(
    model: Program,
    *args: Any,
    target: str | None = None,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    rules: Sequence[FusionRule] | None = None,
    **kwargs: Any,
) -> Explanation:
    """Why each value of `model(*args, **kwargs)` is fused with its reader or is not.

    `print` it: edges by line of the program, those that would have saved most time first, each
    with its reason. The arguments are those of `plan`.
    """
    _check_program("explain", model)
    found = plan(
        model, *args, target=target, dynamic=dynamic, options=options, rules=rules, **kwargs
    )
    return Explanation(found.fusion, notes=found.cuda_graphs)


def plans(compiled: Any) -> tuple[Plan, ...]:
    """The plans of the graphs that were really compiled for an object, in order of compilation.

    Works on what `fuser.compile` and `torch.compile(..., backend="fuser")` return; empty before the
    first call. Forward and backward graphs are separate plans: see `plan.fusion.phase`.
    """
    found = (item for item in registry.plans(compiled) if isinstance(item, Compiled))
    return tuple(_plan_of(item, item.plan) for item in found if item.plan is not None)


def _plan_of(compiled: Compiled, plan: FusionPlan) -> Plan:
    ran = compiled.executable
    return Plan(
        plan,
        compiled.kernels,
        cuda_graphs="" if compiled.cuda_graphs is None else str(compiled.cuda_graphs),
        calls=None
        if ran is None
        else Calls(
            direct=ran.counts.direct,
            indirect=dict(ran.counts.indirect),
            unfused={region: str(error) for region, error in ran.fallbacks.items()},
        ),
    )


def verify(model: Program, *args: Any, **kwargs: Any) -> Report:
    """Run the model fused and check every region against the unfused graph.

    Each region's outputs are compared with the same ops run by eager and in float64 on the same
    inputs, the whole model's outputs with eager's, and the gradients where there are any. Returns a
    report, or raises `FusionMismatch` that names the region, its ops and the worst element.
    """
    _check_program("verify", model)
    return verify_program(model, args, kwargs)


def new_backend(options: Mapping[str, Any] | None = None) -> Backend:
    """A torch.compile backend with these options; its plans are what `plans` finds."""
    return Backend(_compile_registered, options or {}, runs_kernels=runs_kernels)


def _compile_registered(
    module: fx.GraphModule, inputs: Sequence[Any], context: CompileContext
) -> Callable[..., Any]:
    compiled = compile_graph(module, inputs, context)
    context.register(compiled)
    return shadowed(module, compiled, context) if config.shadow() else compiled.run


def _check_program(function: str, model: Any) -> None:
    if isinstance(model, type) or not (isinstance(model, nn.Module) or callable(model)):
        raise InvalidArgument(
            function=function, argument="model", value=model, expected=PROGRAM_EXPECTED
        )


__all__ = [
    "Explanation",
    "Plan",
    "Report",
    "compile",
    "explain",
    "new_backend",
    "plan",
    "plans",
    "verify",
]
