"""All workloads by name."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.memory_bound import memory_bound
from benchmarks.optimisers import optimisers
from benchmarks.products import products
from benchmarks.workload import Workload

__all__ = ["Workload", "workloads"]


def workloads(divisor: int = 1) -> Mapping[str, Workload]:
    """Name to workload, with `1 / divisor` of the rows; what compiles longest comes last."""
    parts = (memory_bound, products, optimisers)
    return {item.name: item for part in parts for item in part(divisor)}
