"""Make a program that compiles wrongly smaller, for as long as it still does.

In: a model or function and the arguments of one call. Out: the smallest graph found of which a
compiled run still differs from eager, or still fails, with its inputs. The search is PyTorch's own
minimiser of FX graphs (delta debugging; Zeller and Hildebrandt, "Simplifying and isolating
failure-inducing input", 2002). It works on the graphs that Dynamo makes of the program, so what is
left reads like the program did.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._functorch.fx_minifier import minifier

from fuser import config
from fuser.errors import FusionMismatch
from fuser.verification.differential import need_kernels, verify_program
from fuser.verification.program_text import random_inputs, write_program
from fuser.verification.recording import copied
from fuser.verification.runs import itself, run_program

OnTrial = Callable[[int, int], None]
"""Told how many smaller programs were tried, and how many calls the last one has."""


@dataclass(frozen=True)
class Minified:
    """A small program that fails, and how. With `is_random` any inputs of the kind do."""

    module: fx.GraphModule
    inputs: tuple[Any, ...]
    failure: str
    calls_before: int
    is_random: bool

    @property
    def calls(self) -> int:
        return calls_of(self.module)

    def write(self, path: Path) -> None:
        """As a program file; inputs that matter are saved beside it."""
        about = f"Fails when compiled, with {self.calls} of {self.calls_before} calls left.\n"
        about += self.failure
        write_program(self.module, self.inputs, path, about, self.is_random)


def minify(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    on_trial: OnTrial = lambda *_: None,
) -> Minified | None:
    """None where no graph of the program fails."""
    need_kernels("minify", model, args, kwargs)
    for module, inputs in _dynamo_graphs(model, args, kwargs):
        if failure_of(module, inputs, options):
            return _smaller(module, inputs, options, on_trial)
    return None


def failure_of(
    program: Callable[..., Any], inputs: Sequence[Any], options: Mapping[str, Any] | None = None
) -> str:
    """How a compiled run differs from eager; empty where it does not, or eager fails too."""
    try:
        run_program(program, inputs, {}, itself)
    except Exception:
        return ""
    torch._dynamo.reset()
    try:
        with config.scope(check=True):
            verify_program(program, inputs, {}, options)
    except FusionMismatch as mismatch:
        return str(mismatch)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def calls_of(module: fx.GraphModule) -> int:
    return sum(node.op.startswith("call_") for node in module.graph.nodes)


def _dynamo_graphs(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[fx.GraphModule, list[Any]]]:
    found: list[tuple[fx.GraphModule, list[Any]]] = []

    def record(module: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            needs = [isinstance(x, torch.Tensor) and x.requires_grad for x in inputs]
            fresh = [
                copied(x).requires_grad_() if need else copied(x)
                for x, need in zip(inputs, needs, strict=True)
            ]
            found.append((module, fresh))
            return module(*inputs)

        return run

    torch._dynamo.reset()
    run_program(model, args, kwargs, lambda program: torch.compile(program, backend=record))
    return found


def _smaller(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    options: Mapping[str, Any] | None,
    on_trial: OnTrial,
) -> Minified:
    trials = 0

    def fails(smaller: fx.GraphModule, given: Sequence[Any]) -> bool:
        nonlocal trials
        trials += 1
        on_trial(trials, calls_of(smaller))
        return bool(failure_of(smaller, given, options))

    # It prints each of its steps, and would write each to a file.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        found, given = minifier(module, list(inputs), fails, dump_state=lambda *_: None)
    any_inputs = random_inputs(given)
    is_random = bool(failure_of(found, any_inputs, options))
    final = any_inputs if is_random else list(given)
    failure = failure_of(found, final, options)
    return Minified(found, tuple(final), failure, calls_of(module), is_random)
