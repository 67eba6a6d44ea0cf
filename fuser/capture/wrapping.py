"""The compiled object that `fuser.compile` returns: torch.compile's, with the model's own keys.

torch.compile wraps a module in another one, whose state_dict names every tensor `_orig_mod.NAME`.
Checkpoints must not depend on whether a model is compiled, so here the keys are the model's, and
both forms load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

PREFIX = "_orig_mod."


def wrap(
    model: Callable[..., Any], backend: Callable[..., Any], dynamic: bool | None, fullgraph: bool
) -> Any:
    """`torch.compile(model, backend)`, with plain keys where the model is a module."""
    compiled = torch.compile(model, backend=backend, dynamic=dynamic, fullgraph=fullgraph)
    if isinstance(compiled, nn.Module):
        module: Any = compiled  # torch leaves these two methods untyped
        module.register_state_dict_post_hook(_plain_keys)
        module.register_load_state_dict_pre_hook(_wrapped_keys)
    return compiled


def _plain_keys(module: nn.Module, state: dict[str, Any], prefix: str, local_metadata: Any) -> None:
    start = prefix + PREFIX
    for key in [key for key in state if key.startswith(start)]:
        state[prefix + key.removeprefix(start)] = state.pop(key)


def _wrapped_keys(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    start = prefix + PREFIX
    for key in [key for key in state if key.startswith(prefix) and not key.startswith(start)]:
        state[start + key.removeprefix(prefix)] = state.pop(key)
