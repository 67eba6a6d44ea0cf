"""Which plans belong to a compiled object.

In: a record for every graph that a backend was given: the `torch.compile` call that asked for it,
the function or module on whose call it was compiled, and the parameters it has run with. Out:
`plans(compiled)`, the plans that compilation registered for those graphs, in order. Records live
as long as the compiled code.
"""

# A graph belongs to `compiled` if it was compiled during a call of it, or if it has run with its
# parameters. The second is needed because Dynamo lets another module of the same class reuse the
# code of the first: then no compilation takes place that could be told apart.

from __future__ import annotations

import itertools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo import eval_frame

from fuser.errors import InvalidArgument

__all__ = ["Caller", "GraphRecord", "current_caller", "plans"]

_serial = itertools.count()
_lock = threading.Lock()
_records: weakref.WeakSet[GraphRecord] = weakref.WeakSet()

Reference = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """A `torch.compile` call, and what it wraps."""

    backend: Any
    """The wrapped backend; equal for calls with the same backend, mode and options."""
    function: Reference
    """A weak reference to the function that runs uncompiled, or None when unknown."""
    kind: Any
    """The module's class or the function's code: what Dynamo shares compiled code by."""


class GraphRecord:
    """One graph: who asked for it, what it ran with, and the plans made for it."""

    def __init__(self, caller: Caller | None, owned: Sequence[int]) -> None:
        self.serial = next(_serial)
        self.caller = caller
        self.owned = tuple(owned)
        self.plans: list[Any] = []
        # By the identity of the first parameter: weak references to all of one call's.
        self.seen: dict[int, tuple[Reference, ...]] = {}
        with _lock:
            _records.add(self)

    def note(self, inputs: Sequence[Any]) -> None:
        """Remember the parameters of a call whose first parameter was not seen before."""
        key = id(inputs[self.owned[0]])
        forget = weakref.ref(inputs[self.owned[0]], lambda _: self.seen.pop(key, None))
        rest = (weakref.ref(inputs[k]) for k in self.owned[1:])
        self.seen[key] = (forget, *rest)

    def ran_with(self, tensors: set[int]) -> bool:
        return any(
            all(id(reference()) in tensors for reference in references)
            for references in list(self.seen.values())
        )


def current_caller() -> Caller | None:
    """The innermost `torch.compile` wrapper on this thread's stack, while it compiles.

    Dynamo does not tell a backend for whom it compiles. The wrapper's own frame does, whatever
    graph breaks and resumptions lie in between. None if a later torch has no such frame.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == eval_frame.__file__:
            names = frame.f_locals
            if "fn" in names and "callback" in names:
                return _caller(names["fn"], names["callback"])
        frame = frame.f_back
    return None


def _caller(function: Any, callback: Any) -> Caller:
    reference: Reference
    try:
        method = isinstance(function, types.MethodType)
        reference = weakref.WeakMethod(function) if method else weakref.ref(function)
    except TypeError:  # a builtin
        reference = types.MethodType(_itself, function)
    return Caller(eval_frame.innermost_backend(callback), reference, _kind(function))


def _itself(function: Any) -> Any:
    return function


def _kind(function: Any) -> Any:
    module = getattr(function, "__self__", None)
    if module is None and (cells := _cells(function)):
        module = cells.get("fn")  # torch's frame around a module that is called by itself
    if isinstance(module, torch.nn.Module):
        return type(module)
    return getattr(function, "__code__", None)


def _cells(function: Any) -> dict[str, Any]:
    """The variables that a nested function closes over, by name."""
    code, closure = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or not closure:
        return {}
    return {
        name: cell.cell_contents
        for name, cell in zip(code.co_freevars, closure, strict=True)
        if cell != types.CellType()
    }


def plans(compiled: Any) -> list[Any]:
    """The plans of a compiled module or function, in the order in which they were made.

    Empty before the first call. A plan of a backward pass exists after the first backward.
    """
    found = list(_handles(compiled))
    if not found:
        raise InvalidArgument(
            function="fuser.plans",
            argument="compiled",
            value=compiled,
            expected="what fuser.compile(model) or torch.compile(model, backend='fuser') returned",
        )
    chosen: dict[int, GraphRecord] = {}
    for caller, module in found:
        for record in _records_of(caller, module):
            chosen[record.serial] = record
    return [plan for serial in sorted(chosen) for plan in chosen[serial].plans]


def _handles(compiled: Any) -> Iterator[tuple[Caller, torch.nn.Module | None]]:
    """The `torch.compile` wrappers in `compiled`, with the modules they wrap."""
    if isinstance(compiled, torch.nn.Module):
        for module in compiled.modules():
            if isinstance(module, eval_frame.OptimizedModule):
                wrapper = getattr(module, "_forward", None) or module.forward
                target = module._orig_mod
            else:
                wrapper, target = getattr(module, "_compiled_call_impl", None), module
            if (caller := _wrapped(wrapper)) is not None:
                yield caller, target
    elif (caller := _wrapped(compiled)) is not None:
        owner = getattr(caller.function(), "__self__", None)
        yield caller, owner if isinstance(owner, torch.nn.Module) else None


def _wrapped(wrapper: Any) -> Caller | None:
    function = getattr(wrapper, "_torchdynamo_orig_callable", None)
    cells = _cells(wrapper)
    callback = cells.get("callback") or getattr(cells.get("self"), "callback", None)
    if function is None or callback is None:
        return None
    return _caller(function, callback)


def _records_of(caller: Caller, module: torch.nn.Module | None) -> list[GraphRecord]:
    with _lock:
        candidates = [
            record
            for record in _records
            if record.caller is None or record.caller.backend == caller.backend
        ]
    function = caller.function()
    owned: set[int] = set()
    if module is not None:
        owned = {id(t) for t in itertools.chain(module.parameters(), module.buffers())}
    exact = [
        record
        for record in candidates
        if (record.caller is not None and record.caller.function() == function)
        or record.ran_with(owned)
    ]
    if exact:
        return exact
    # Code without parameters leaves no trace of who runs it. Dynamo shares it by class and code.
    return [
        record
        for record in candidates
        if record.caller is not None and not record.owned and record.caller.kind is caller.kind
    ]
