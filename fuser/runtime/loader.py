"""From a kernel's source text to the Triton function that it defines.

In: a `KernelSpec`. Out: the function object, one for each key in a process. Python runs the text
that code generation wrote, never what a file holds; the stored file is where tracebacks,
debuggers and profilers find that same text again.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import linecache
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fuser.errors import KernelCompilationError
from fuser.ir.kernel import KernelSpec
from fuser.runtime.cache import store_source

__all__ = ["load", "source_path"]

_lock = threading.RLock()
_functions: dict[str, Any] = {}
_paths: dict[str, str] = {}


def load(spec: KernelSpec) -> Any:
    """The `@triton.jit` function that the source defines under the kernel's name.

    Specifications with one key are one program under different names: they share the function of
    the one that was loaded first.
    """
    with _lock:
        function = _functions.get(spec.key)
        if function is None:
            try:
                function = _functions[spec.key] = getattr(_execute(spec), spec.name)
            except Exception as error:
                raise KernelCompilationError(kernel=spec.name, cause=error) from error
    return function


def source_path(spec: KernelSpec) -> str:
    """The file that holds the source of a loaded kernel, or nothing before it is loaded."""
    return _paths.get(spec.key, "")


def _execute(spec: KernelSpec) -> ModuleType:
    path = str(store_source(spec.name, spec.source))
    _paths[spec.key] = path
    # Triton reads a kernel's text back through `linecache`. This entry has no time stamp, so it
    # is never exchanged for what the file holds by then.
    lines = spec.source.splitlines(keepends=True)
    linecache.cache[path] = (len(spec.source), None, lines, path)
    name = f"fuser_kernel_{spec.key}"
    module_spec = ModuleSpec(name, _TextLoader(path, spec.source), origin=path)
    module_spec.has_location = True
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        assert module_spec.loader is not None
        module_spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


class _TextLoader(importlib.abc.InspectLoader):
    """Runs a text under a file's name; leaves no bytecode beside the file."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text

    def get_source(self, fullname: str) -> str:
        return self.text

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.text, self.path)
