"""Capture a model as one graph without running or allocating anything.

In: a module or function and the arguments of one call. Out: a copy of it on fake tensors, and the
functional, decomposed graph that the compiler would be given for that call. The model is not
changed. Dynamo keeps state by code object and by function name, so each capture goes through a
function of its own: neither the user's compilations nor other captures are touched.
"""

from __future__ import annotations

import copy
import functools
import itertools
import traceback
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo import exc
from torch._dynamo.eval_frame import OptimizedModule
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.utils import _pytree as pytree

from fuser.capture.backend import Backend, CompileContext
from fuser.errors import CaptureError, FuserError

__all__ = ["Captured", "capture_graph", "fake_program"]

Captured = tuple[fx.GraphModule, list[Any], CompileContext]

_serial = itertools.count()
_NO_OPTIONS: Mapping[str, Any] = types.MappingProxyType({})


def fake_program(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> tuple[Any, tuple[Any, ...], dict[str, Any], FakeTensorMode]:
    """`model` and its arguments with every tensor replaced by a fake one on the same device.

    Tensors that were one (tied weights) or shared storage are and do so in the copy.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    copier = _Copier(mode)
    try:
        fake_model = copier.copy(model)
        fake_args = copier.tree(tuple(args))
        fake_kwargs = copier.tree(dict(kwargs or {}))
    except FuserError:
        raise
    except Exception as error:
        raise CaptureError(
            reason=f"the model cannot be copied ({type(error).__name__}: {error})",
            problem="model-raised",
        ) from error
    return fake_model, fake_args, fake_kwargs, mode


class _Copier:
    """Deep copies that share one memo, into which each tensor goes as its fake."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self.memo: dict[int, Any] = {}
        # A memo is by identity, so what it has entries for has to stay alive.
        self.alive: list[Any] = []

    def copy(self, target: Any) -> Any:
        if id(target) in self.memo:
            return self.memo[id(target)]
        if isinstance(target, OptimizedModule):
            return self.copy(target._orig_mod)
        target = getattr(target, "_torchdynamo_orig_callable", target)
        if isinstance(target, torch.Tensor):
            return self.fake(target)
        if isinstance(target, types.MethodType):
            return types.MethodType(target.__func__, self.copy(target.__self__))
        if isinstance(target, functools.partial):
            inner = self.copy(target.func)
            return functools.partial(inner, *self.tree(target.args), **self.tree(target.keywords))
        if isinstance(target, types.FunctionType):
            return self.function(target)
        for module in target.modules() if isinstance(target, torch.nn.Module) else [target]:
            self.remember(getattr(module, "__dict__", {}))
        return copy.deepcopy(target, self.memo)

    def function(self, target: types.FunctionType) -> Any:
        """The function over copies of the models and tensors it refers to; itself without any."""
        cells = target.__closure__ or ()
        held = [cell.cell_contents if cell != types.CellType() else None for cell in cells]
        names = target.__code__.co_names
        known = target.__globals__
        named = {n: known[n] for n in names if isinstance(known.get(n), _STATEFUL)}
        if not named and not any(isinstance(x, _COPIED) for x in held):
            return target
        self.memo[id(target)] = target  # a recursive function refers to itself
        scope = known
        if named:
            # Without a name, Dynamo reads these globals and not those of the module so named.
            scope = {n: x for n, x in known.items() if n != "__name__"}
            scope.update({n: self.copy(x) for n, x in named.items()})
        replaced = types.FunctionType(
            target.__code__,
            scope,
            target.__name__,
            target.__defaults__,
            tuple(
                types.CellType(self.copy(x)) if isinstance(x, _COPIED) else cell
                for x, cell in zip(held, cells, strict=True)
            ),
        )
        replaced.__kwdefaults__ = target.__kwdefaults__
        replaced.__dict__.update(target.__dict__)
        self.memo[id(target)] = replaced
        return replaced

    def remember(self, tree: Any) -> None:
        """Enter the tensors of an object's attributes, also those inside its containers."""
        for leaf in pytree.tree_leaves(tree):
            if isinstance(leaf, torch.Tensor) and id(leaf) not in self.memo:
                self.memo[id(leaf)] = self.fake(leaf)
                self.alive.append(leaf)

    def tree(self, tree: Any) -> Any:
        return pytree.tree_map(lambda x: self.copy(x) if isinstance(x, _COPIED) else x, tree)

    def fake(self, x: torch.Tensor) -> torch.Tensor:
        if id(x) in self.memo:
            return self.memo[id(x)]  # type: ignore[no-any-return]
        if isinstance(x, FakeTensor):
            return x
        result = self.mode.from_tensor(x, static_shapes=True)
        for name, value in getattr(x, "__dict__", {}).items():
            if name.startswith("_dynamo_"):  # what mark_dynamic and its kin wrote
                setattr(result, name, value)
        self.memo[id(x)] = result
        self.alive.append(x)
        return result


_STATEFUL = (torch.Tensor, torch.nn.Module)
_COPIED = (*_STATEFUL, types.FunctionType, types.MethodType, functools.partial)


def capture_graph(
    model: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    options: Mapping[str, Any] = _NO_OPTIONS,
) -> list[Captured]:
    """The graph of one call without gradients: `[(graph, example inputs, context)]`.

    Empty when there is nothing to compile. `dynamic` is that of `torch.compile`, `options` are the
    backend's.
    """
    captured: list[Captured] = []

    def record(module: fx.GraphModule, inputs: Sequence[Any], context: CompileContext) -> Any:
        captured.append((module, list(inputs), context))
        return module

    fake_model, fake_args, fake_kwargs, mode = fake_program(model, args, kwargs)
    compiled: Any = torch.compile(
        _own_function(fake_model),
        backend=Backend(record, options, name="fuser_capture", fall_back=False),
        fullgraph=True,
        dynamic=dynamic,
    )
    try:
        with mode, torch.no_grad():
            compiled(*fake_args, **fake_kwargs)
    except FuserError:
        raise
    except Exception as error:
        raised = _raised_by_itself(fake_model, fake_args, fake_kwargs, mode)
        raise _capture_error(error, raised) from (raised or error)
    return captured


def _own_function(self: Any) -> Any:
    """A call of `self` in a function whose code and name no other function has.

    The closed-over variable is named as a method's first parameter, so that Dynamo's paths of
    submodules read as they do when it compiles the module's own `forward`.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=f"fuser_capture_{next(_serial)}")
    return call


def _raised_by_itself(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], mode: FakeTensorMode
) -> Exception | None:
    """What the model raises on fake tensors without Dynamo, unless that is for their fakeness."""
    try:
        with mode, torch.no_grad():
            model(*args, **kwargs)
    except (fake_tensor.DynamicOutputShapeException, GuardOnDataDependentSymNode):
        return None
    except (fake_tensor.DataDependentOutputException, fake_tensor.UnsupportedFakeTensorException):
        return None
    except Exception as error:
        return error
    return None


def _capture_error(error: Exception, raised: Exception | None) -> CaptureError:
    if raised is not None:
        reason = f"{type(raised).__name__}: {raised}"
        return CaptureError(reason=reason, problem="model-raised", source_line=_source_line(raised))
    # Dynamo's message goes on with an explanation, which helps, and advice on its own switches.
    head = str(error).partition("Developer debug context")[0].partition("Hint:")[0]
    reason = ". ".join(line.strip().rstrip(".") for line in head.splitlines() if line.strip())
    return CaptureError(
        reason=reason.replace("Explanation: ", "") or type(error).__name__,
        problem="graph-break" if isinstance(error, exc.Unsupported) else "model-raised",
        source_line=_source_line(error),
    )


def _source_line(error: BaseException) -> str:
    """The innermost line of the user's program that Dynamo was tracing."""
    stack = getattr(error, "real_stack", None) or traceback.extract_tb(error.__traceback__)
    inside = (torch.__file__.removesuffix("__init__.py"), __file__)
    for entry in reversed(list(stack)):
        if not entry.filename.startswith(inside):
            return f"{entry.filename}:{entry.lineno}: {entry.line or ''}".rstrip(": ")
    return ""
