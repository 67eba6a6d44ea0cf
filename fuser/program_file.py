"""Program files: the model and the calls that a user's Python file gives to `fuserc`.

In: `FILE` or `FILE:NAME`, and a device. Out: a model or function and the arguments of its calls, or
an error that says what is wrong with the file. The file is imported like any module.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import sys
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fuser import config
from fuser.errors import ProgramFileError, UsageError, did_you_mean

__all__ = ["Program", "load_program"]

DEFAULT_FUNCTION = "make"


@dataclass(frozen=True, slots=True)
class Program:
    """A model or function, and the arguments of each of its calls."""

    model: Callable[..., Any]
    calls: tuple[tuple[Any, ...], ...]


def load_program(text: str, device: str | None = None, *, will_run: bool = False) -> Program:
    """The program that `FILE` or `FILE:NAME` names, with its tensors on `device`.

    Without a device that is the GPU where there is one. For a program that will be run on the CPU
    and not only planned, Triton is told to interpret its kernels.
    """
    path, name = _split(text)
    if not path.is_file():
        raise ProgramFileError(path=str(path), problem="missing")
    device = _device(device)
    if will_run and not device.startswith("cuda"):
        # Triton looks at this when it is imported, which the program's own imports may do.
        config.use_triton_interpreter()
    module = _import(path)
    make = getattr(module, name, None)
    if not callable(make):
        if name == DEFAULT_FUNCTION:
            raise ProgramFileError(path=str(path), problem="no-make")
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise UsageError(
            message=f"{path} does not define a function {name!r}.{did_you_mean(name, functions)}"
        )
    try:
        result = make(device) if _takes_device(make) else make()
    except (Exception, SystemExit) as error:
        raise ProgramFileError(
            path=str(path), problem="make-failed", detail=_describe(error, path)
        ) from error
    return _checked(result, path)


def _split(text: str) -> tuple[Path, str]:
    path, colon, name = text.rpartition(":")
    if colon and name.isidentifier() and not Path(text).is_file():
        return Path(path), name
    return Path(text), DEFAULT_FUNCTION


def _device(wanted: str | None) -> str:
    import torch

    if wanted is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(wanted).type
    except RuntimeError:
        kind = ""
    if kind not in ("cuda", "cpu") or (kind == "cuda" and not torch.cuda.is_available()):
        reason = "torch sees no such device here" if kind else "there is no such device"
        raise UsageError(message=f"--device {wanted}: {reason}; use cpu or cuda.")
    return wanted


def _import(path: Path) -> ModuleType:
    # Registered like any module: tracing and pickling look modules up by name.
    name = f"fuser_program_{path.stem}"
    loader = importlib.machinery.SourceFileLoader(name, str(path.resolve()))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ProgramFileError(
            path=str(path), problem="import-failed", detail=_describe(error, path)
        ) from error
    return module


def _takes_device(make: Callable[..., Any]) -> bool:
    try:
        inspect.signature(make).bind("cpu")
    except (TypeError, ValueError):
        return False
    return True


def _checked(result: Any, path: Path) -> Program:
    """The program that `make` returned, or the error that names what it returned instead."""
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise _wrong(path, f"it returned {_kind(result)}")
    model, calls = result
    if not callable(model):
        raise _wrong(path, f"the first part is {_kind(model)} and cannot be called")
    if isinstance(calls, tuple):
        calls = [calls]
    if not isinstance(calls, list):
        raise _wrong(path, f"the second part is {_kind(calls)}")
    if not calls:
        raise _wrong(path, "the list of calls is empty")
    strangers = [call for call in calls if not isinstance(call, tuple)]
    if strangers:
        raise _wrong(path, f"the list of calls holds {_kind(strangers[0])}")
    return Program(model, tuple(calls))


def _wrong(path: Path, detail: str) -> ProgramFileError:
    return ProgramFileError(path=str(path), problem="wrong-result", detail=detail)


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    size = f" of {len(value)}" if isinstance(value, (tuple, list, dict)) else ""
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}{size}"


def _describe(error: BaseException, path: Path) -> str:
    """An error of the user's file on one line, with the line of the file where it came from."""
    text = textwrap.shorten(str(error), 300, placeholder="...")
    described = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path.resolve()]
    return f"{described} (line {lines[-1]})" if lines else described
