"""Loggers, one for each module, all under the standard logger `fuser`.

In: the FUSER_LOGS setting. Out: `get_logger(name)`, with levels set from that text. While the
setting is empty no handler is installed, so an application's own logging stays in charge.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable

from fuser import config
from fuser.errors import InvalidArgument

__all__ = ["apply_settings", "get_logger", "parse_levels", "warn_once"]

ROOT = "fuser"
EVERY_MODULE = "all"
_LEVELS = {"+": logging.DEBUG, "-": logging.ERROR}

_lock = threading.Lock()
_applied = ""
_levels: dict[str, int] = {}
_handler: logging.Handler | None = None
_warned: set[Hashable] = set()


def get_logger(module: str) -> logging.Logger:
    """Return the logger of a module, named without the leading `fuser.`."""
    apply_settings()
    return logging.getLogger(f"{ROOT}.{module}")


def warn_once(key: Hashable, message: str) -> None:
    """Log a warning the first time that `key` is seen in this process."""
    with _lock:
        if key in _warned:
            return
        _warned.add(key)
    get_logger("notice").warning(message)


def parse_levels(text: str) -> dict[str, int]:
    """Read `"+passes.partition,codegen,-runtime"` as a level for each named module."""
    levels: dict[str, int] = {}
    for item in (part.strip() for part in text.split(",")):
        if not item:
            continue
        name = item.lstrip("+-")
        sign = item[: len(item) - len(name)]
        if len(sign) > 1 or not all(word.isidentifier() for word in name.split(".")):
            raise InvalidArgument(
                function="environment",
                argument="FUSER_LOGS",
                value=item,
                expected="module names separated by commas, each with at most one leading + or -",
            )
        levels[name.removeprefix(f"{ROOT}.")] = _LEVELS.get(sign, logging.INFO)
    return levels


def apply_settings() -> None:
    """Bring the loggers in line with FUSER_LOGS; does nothing when the setting has not changed."""
    global _applied
    text = config.logs()
    with _lock:
        if text == _applied:
            return
        levels = parse_levels(text)
        for name in _levels:
            _logger_of(name).setLevel(logging.NOTSET)
        _levels.clear()
        for name, level in levels.items():
            _logger_of(name).setLevel(level)
        _levels.update(levels)
        _install_handler(bool(levels))
        _applied = text


def _logger_of(name: str) -> logging.Logger:
    return logging.getLogger(ROOT if name == EVERY_MODULE else f"{ROOT}.{name}")


def _install_handler(wanted: bool) -> None:
    global _handler
    root = logging.getLogger(ROOT)
    if wanted and _handler is None:
        _handler = logging.StreamHandler()
        _handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(_handler)
    elif not wanted and _handler is not None:
        root.removeHandler(_handler)
        _handler = None
    # With a handler of our own, passing records on would print them twice in an application
    # that configures the root logger.
    root.propagate = not wanted
