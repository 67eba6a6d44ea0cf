"""fuser: a graph-level operator-fusion compiler for PyTorch that explains and verifies its plans.

Public names load on first use, so that `import fuser` and `fuserc --help` do not import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "compile": "fuser.api",
    "plan": "fuser.api",
    "plans": "fuser.api",
    "verify": "fuser.api",
    "Plan": "fuser.report",
    "FuserError": "fuser.errors",
    "FusionMismatch": "fuser.errors",
}

__all__ = [
    "FuserError",
    "FusionMismatch",
    "Plan",
    "compile",
    "plan",
    "plans",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fuser' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
