"""What verification found: one line for each region and for each tensor that the model returns."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.numerics import Comparison


@dataclass(frozen=True, slots=True)
class RegionCheck:
    """A stored value of a region, or what a fallback left of it, against eager and float64."""

    graph: int
    phase: str
    region: str
    value: str
    operations: tuple[str, ...]
    source: str
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class TensorCheck:
    """A tensor of the whole model: an output, an argument after the call, a gradient, a buffer."""

    name: str
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of one call. `notes` says what could not be compared, and why."""

    regions: tuple[RegionCheck, ...]
    tensors: tuple[TensorCheck, ...]
    kernels: int
    ops: int
    notes: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        comparisons = [check.comparison for check in self.regions]
        comparisons += [check.comparison for check in self.tensors]
        return all(comparison.is_right for comparison in comparisons)

    def __str__(self) -> str:
        lines = [f"{'region':<34} {'value':<24} {'fused error':>12} {'eager error':>12}  verdict"]
        for check in self.regions:
            name = f"{check.phase} {check.graph} {check.region}"
            lines.append(f"{name:<34} {check.value:<24} {_errors(check.comparison)}")
        for tensor in self.tensors:
            lines.append(f"{'whole model':<34} {tensor.name:<24} {_errors(tensor.comparison)}")
        lines += [f"note: {note}" for note in self.notes]
        verdict = "verified" if self.is_right else "NOT equal"
        lines.append(
            f"{verdict}: {len(self.regions)} stored values of {self.kernels} regions"
            f" ({self.ops} ops) and {len(self.tensors)} tensors of the whole model"
            " against eager and float64"
        )
        return "\n".join(lines)


def _errors(comparison: Comparison) -> str:
    verdict = comparison.reason or "ok"
    return f"{comparison.fused_error:>12.2e} {comparison.eager_error:>12.2e}  {verdict}"
