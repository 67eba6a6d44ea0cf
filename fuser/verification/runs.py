"""A whole program run once, on copies: fused, unfused, in eager or in float64.

In: a model or function, the arguments of one call, and how to run it. Out: every tensor that the
call leaves, by name: outputs, arguments afterwards, buffers, and gradients where there are any.
Every run starts from the same seed.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from fuser.capture.backend import Backend, CompileContext

SEED = 20_261_130

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""From a program to what is run in its place."""


def itself(program: Callable[..., Any]) -> Callable[..., Any]:
    """Eager."""
    return program


def unfused(program: Callable[..., Any]) -> Callable[..., Any]:
    """The program with its graphs run call by call, random numbers the same functions of the seed
    as in kernels: what a fused random program is compared with."""
    return torch.compile(program, backend=Backend(as_captured, name="fuser_unfused"))


def as_captured(module: fx.GraphModule, _: Sequence[Any], __: CompileContext) -> fx.GraphModule:
    """The graph itself, as AOTAutograd and the decompositions made it."""
    return module


def run_program(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    wrap: Wrap = itself,
    is_wide: bool = False,
) -> dict[str, torch.Tensor]:
    """One call on copies: outputs, changed arguments, gradients and buffers by name."""
    program = copy.deepcopy(model) if isinstance(model, nn.Module) else model
    if is_wide and isinstance(program, nn.Module):
        program = program.double()
    call_args, call_kwargs = pytree.tree_map(
        functools.partial(_copied, is_wide=is_wide), (tuple(args), dict(kwargs))
    )
    with seeded():
        outputs = wrap(program)(*call_args, **call_kwargs)
        leaves = pytree.tree_leaves(outputs)
        found = {
            f"output {k}": leaf for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)
        }
        run_backward(list(found.values()))
    inputs = pytree.tree_leaves((call_args, call_kwargs))
    for position, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            found[f"argument {position}"] = value
            if value.is_leaf and value.grad is not None:
                found[f"gradient of argument {position}"] = value.grad
    if isinstance(program, nn.Module):
        found |= {f"buffer {name}": buffer for name, buffer in program.named_buffers()}
        found |= {
            f"gradient of {name}": parameter.grad
            for name, parameter in program.named_parameters()
            if parameter.grad is not None
        }
    return {name: value.detach() for name, value in found.items()}


def _copied(value: Any, is_wide: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    fresh = value.detach().clone()
    if is_wide and fresh.is_floating_point():
        fresh = fresh.double()
    return fresh.requires_grad_(value.requires_grad)


def run_backward(outputs: Sequence[torch.Tensor]) -> None:
    """Gradients of a fixed, uneven weighting of every output that has a history."""
    total: torch.Tensor | None = None
    for output in outputs:
        if output.requires_grad and output.is_floating_point():
            steps = torch.arange(output.numel(), device=output.device) % 7
            weights = (1.0 + steps).reshape(output.shape).to(output.dtype)
            part = (output * weights).sum()
            total = part if total is None else total + part
    if total is not None:
        total.backward()  # type: ignore[no-untyped-call]


def run_wide(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], wrap: Wrap
) -> tuple[dict[str, torch.Tensor], str]:
    """The model in float64, or nothing where it does not run in it."""
    try:
        return run_program(model, args, kwargs, wrap, is_wide=True), ""
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return {}, f"the whole model does not run in float64 ({reason}): only regions were compared"


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        yield
