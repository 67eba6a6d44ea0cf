"""The one table of settings, and the only module that reads environment variables.

In: the environment and `scope(...)` overrides, looked at each time a setting is asked for, so a
change takes effect without a restart. Out: typed values. A setting exists exactly when it has a
row in `KNOBS`; `fuserc env` and the documentation are printed from those rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from fuser.errors import InvalidArgument

__all__ = [
    "KNOBS",
    "Knob",
    "Setting",
    "cache_dir",
    "check",
    "current",
    "dump_dir",
    "keyed_values",
    "logs",
    "scope",
    "shadow",
    "table",
    "triton_interpret",
    "tune",
    "use_triton_interpreter",
]

Value = bool | str | Path | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting: a row of the table."""

    name: str
    """What `scope()` calls it."""
    env: str
    """The environment variable that sets it."""
    value_type: type[bool] | type[str] | type[Path]
    """What its text is read as. An empty text means the default."""
    default: Value
    doc: str
    keyed: bool
    """True when it changes the code that is generated or compiled, so caches must tell it apart."""
    foreign: bool = False
    """True when another project owns it and reads it from the environment by itself."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of `table()`: a knob, its value now, and who decided that value."""

    knob: Knob
    value: Value
    origin: str
    """`"scope"`, `"environment"` or `"default"`."""


KNOBS: tuple[Knob, ...] = (
    Knob(
        name="cache_dir",
        env="FUSER_CACHE_DIR",
        value_type=Path,
        default=Path("~/.cache/fuser"),
        doc="Folder for generated sources, compiled kernels and tuning results.",
        keyed=False,
    ),
    Knob(
        name="check",
        env="FUSER_CHECK",
        value_type=bool,
        default=False,
        doc="Check the rules of the graph and of the plan after every pass (slow; on in tests).",
        keyed=False,
    ),
    Knob(
        name="dump_dir",
        env="FUSER_DUMP",
        value_type=Path,
        default=None,
        doc="Folder that receives each pass's result, the plan and the kernels; empty: no dump.",
        keyed=False,
    ),
    Knob(
        name="logs",
        env="FUSER_LOGS",
        value_type=str,
        default="",
        doc="Modules that log to stderr, as '+passes.partition,codegen': '+' debug, none info, "
        "'-' errors only; 'all' names every module.",
        keyed=False,
    ),
    Knob(
        name="shadow",
        env="FUSER_SHADOW",
        value_type=bool,
        default=False,
        doc="Check every region against eager and float64 while the program runs (very slow).",
        keyed=False,
    ),
    Knob(
        name="tune",
        env="FUSER_TUNE",
        value_type=bool,
        default=True,
        doc="Time the tiles of each longer kernel on the GPU once and keep the fastest.",
        keyed=False,
    ),
    Knob(
        name="triton_interpret",
        env="TRITON_INTERPRET",
        value_type=bool,
        default=False,
        doc="Triton's own switch: run kernels on the CPU. Set it before Triton is imported.",
        keyed=True,
        foreign=True,
    ),
)

_BY_NAME: Mapping[str, Knob] = MappingProxyType({knob.name: knob for knob in KNOBS})
_TRUE_WORDS = frozenset({"1", "true", "yes", "on", "y"})
_FALSE_WORDS = frozenset({"0", "false", "no", "off", "n"})
_NO_OVERRIDES: Mapping[str, Value] = MappingProxyType({})

# A ContextVar and not a global: two threads or tasks can hold different scopes at once. A thread
# that is started inside a scope begins without it, unless it runs in `copy_context()`.
_overrides: ContextVar[Mapping[str, Value]] = ContextVar("fuser_overrides", default=_NO_OVERRIDES)


def cache_dir() -> Path:
    """Return the cache folder, with `~` expanded; the folder need not exist."""
    return _typed(Path, "cache_dir").expanduser()


def check() -> bool:
    """Return whether invariants are checked between passes."""
    return _typed(bool, "check")


def dump_dir() -> Path | None:
    """Return the folder for dumps, or None when nothing is dumped."""
    value = current(_BY_NAME["dump_dir"]).value
    return value.expanduser() if isinstance(value, Path) else None


def logs() -> str:
    """Return the text that says which modules log; `fuser.log` reads it."""
    return _typed(str, "logs")


def shadow() -> bool:
    """Return whether every region is checked while the program runs."""
    return _typed(bool, "shadow")


def tune() -> bool:
    """Return whether tiles are timed on the GPU."""
    return _typed(bool, "tune")


def triton_interpret() -> bool:
    """Return whether Triton was told to run kernels in its interpreter."""
    return _typed(bool, "triton_interpret")


def use_triton_interpreter() -> None:
    """Have Triton run kernels on the CPU: for a command, before anything imports Triton."""
    os.environ[_BY_NAME["triton_interpret"].env] = "1"


def keyed_values() -> tuple[tuple[str, str], ...]:
    """Return the settings that belong in the key of a cache of generated or compiled code."""
    return tuple((knob.name, str(current(knob).value)) for knob in KNOBS if knob.keyed)


def current(knob: Knob) -> Setting:
    """Return a setting with its value now and where that value came from."""
    overrides = _overrides.get()
    if knob.name in overrides:
        return Setting(knob, overrides[knob.name], "scope")
    text = os.environ.get(knob.env, "").strip()
    if not text:
        return Setting(knob, knob.default, "default")
    return Setting(knob, _parse(knob, text), "environment")


def table() -> tuple[Setting, ...]:
    """Return every setting with its value now and where that value came from."""
    return tuple(current(knob) for knob in KNOBS)


@contextmanager
def scope(**overrides: Value) -> Iterator[None]:
    """Override settings for the body of a `with` statement, in this thread or task only."""
    accepted = {name: _accept_override(name, value) for name, value in overrides.items()}
    token = _overrides.set(MappingProxyType({**_overrides.get(), **accepted}))
    try:
        yield
    finally:
        _overrides.reset(token)


def _accept_override(name: str, value: Value) -> Value:
    known = [knob.name for knob in KNOBS if not knob.foreign]
    if name not in known:
        raise InvalidArgument(
            function="fuser.config.scope",
            argument="name",
            value=name,
            expected=f"a setting that can be overridden ({', '.join(known)})",
            known=known,
        )
    knob = _BY_NAME[name]
    if knob.value_type is Path and isinstance(value, str):
        return Path(value) if value else knob.default
    if isinstance(value, knob.value_type) or (value is None and knob.default is None):
        return value
    raise InvalidArgument(
        function="fuser.config.scope",
        argument=name,
        value=value,
        expected=f"a value of type {knob.value_type.__name__}",
    )


def _parse(knob: Knob, text: str) -> Value:
    if knob.value_type is Path:
        return Path(text)
    if knob.value_type is str:
        return text
    if text.lower() in _TRUE_WORDS:
        return True
    if text.lower() in _FALSE_WORDS:
        return False
    raise InvalidArgument(
        function="environment",
        argument=knob.env,
        value=text,
        expected="1 or 0 (or true/false, yes/no, on/off)",
    )


def _typed(kind: type[T], name: str) -> T:
    value: Any = current(_BY_NAME[name]).value
    # `_parse` and `_accept_override` let nothing else in; this states it to the type checker.
    assert isinstance(value, kind)
    return value
