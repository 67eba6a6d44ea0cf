"""The benchmarks of this checkout, for tests."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> Any:
    """`benchmarks.NAME` of this checkout, whose root is not on the path of the tests."""
    if "benchmarks" not in sys.modules:
        place = ROOT / "benchmarks" / "__init__.py"
        spec = importlib.util.spec_from_file_location("benchmarks", place)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["benchmarks"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["benchmarks"])
    return importlib.import_module(f"benchmarks.{name}")
