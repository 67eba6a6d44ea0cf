"""fuser: a graph-level operator-fusion compiler for PyTorch that explains and verifies its plans.

Public names load on first use, so that `import fuser` and `fuserc --help` do not import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "assert_fused": "fuser.ir.rules",
    "compile": "fuser.api",
    "explain": "fuser.api",
    "must_fuse": "fuser.ir.rules",
    "no_fuse": "fuser.ir.rules",
    "plan": "fuser.api",
    "plans": "fuser.api",
    "verify": "fuser.api",
    "Plan": "fuser.report",
    "AssertFusedError": "fuser.errors",
    "FuserError": "fuser.errors",
    "MustFuseError": "fuser.errors",
    "FusionMismatch": "fuser.errors",
}

__all__ = [
    "AssertFusedError",
    "FuserError",
    "FusionMismatch",
    "MustFuseError",
    "Plan",
    "assert_fused",
    "compile",
    "explain",
    "must_fuse",
    "no_fuse",
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
