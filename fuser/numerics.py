"""When a fused result is right: the tolerance model that verification and tests share.

The reference is the unfused graph run in float64. A fused result may be as far from it as eager's
own result is, times a small factor, plus what rounding must be allowed: one rounding of the output
type at each element, and the growth of one rounding a step in the computation's type, relative to
the largest value (the normwise forward bound of a backward-stable algorithm; Higham, Accuracy and
Stability of Numerical Algorithms, chapters 3 and 4). Integer and boolean results must be equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

EAGER_FACTOR = 2.0
"""How many times eager's largest error a fused result may have."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one fused tensor compares with eager and with float64.

    Errors are absolute; `index` is the worst element. `reason` is empty when the result is right.
    """

    fused_error: float
    eager_error: float
    allowed: float
    index: tuple[int, ...]
    fused_value: float
    eager_value: float
    reference_value: float
    reason: str = ""

    @property
    def is_right(self) -> bool:
        return not self.reason


EXACT = Comparison(0.0, 0.0, 0.0, (), 0.0, 0.0, 0.0)


def compare(
    fused: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor, steps: int = 1
) -> Comparison:
    """Compare tensors of one shape; `steps` counts roundings from input to output.

    `reference` is eager's computation in float64 (for integers and booleans it is not looked at).
    """
    if fused.dtype != eager.dtype or fused.shape != eager.shape:
        return _wrong(
            f"{fused.dtype}{list(fused.shape)} where eager has {eager.dtype}{list(eager.shape)}"
        )
    if fused.numel() == 0:
        return EXACT
    if not (fused.is_floating_point() or fused.is_complex()):
        return _compare_exact(fused, eager)
    if fused.is_complex():
        return compare(
            torch.view_as_real(fused.resolve_conj()),
            torch.view_as_real(eager.resolve_conj()),
            torch.view_as_real(reference.resolve_conj()),
            steps,
        )
    return _compare_floats(fused.detach(), eager.detach(), reference.detach(), steps)


def _compare_exact(fused: torch.Tensor, eager: torch.Tensor) -> Comparison:
    different = fused != eager
    if not bool(different.any()):
        return EXACT
    index = _first(different)
    values = float(fused[index]), float(eager[index])
    reason = f"{int(different.sum())} of {fused.numel()} elements differ"
    return Comparison(abs(values[0] - values[1]), 0.0, 0.0, index, *values, values[1], reason)


def _compare_floats(
    fused: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor, steps: int
) -> Comparison:
    wide_fused, wide_eager, exact = (t.to(torch.float64) for t in (fused, eager, reference))
    usual = torch.isfinite(wide_eager) & torch.isfinite(exact)
    eager_error = torch.where(usual, (wide_eager - exact).abs(), 0.0)
    fused_error = torch.where(usual, (wide_fused - exact).abs(), 0.0)
    fused_error = torch.where(torch.isnan(fused_error), math.inf, fused_error)
    scale = float(torch.where(usual, exact.abs(), 0.0).max())
    compute = torch.finfo(torch.float64 if fused.dtype == torch.float64 else torch.float32)
    output = torch.finfo(fused.dtype)
    worst_eager = float(eager_error.max())
    common = EAGER_FACTOR * worst_eager + steps * compute.eps * scale + output.smallest_normal
    allowed = common + output.eps * exact.abs()
    excess = torch.where(usual, fused_error - allowed, -math.inf)
    # Where eager is not finite the fused value must be the same NaN or infinity, or the finite
    # value that a wider intermediate kept.
    kept = (wide_fused - exact).abs() <= allowed
    same = (wide_fused == wide_eager) | (torch.isnan(wide_fused) & torch.isnan(wide_eager))
    odd = ~usual & ~same & ~kept
    if bool(odd.any()):
        return _report(odd, fused_error, eager_error, allowed, fused, eager, exact, "not finite")
    index = _largest(excess)
    reason = "" if float(excess[index]) <= 0 else "error beyond the tolerance"
    return Comparison(
        float(fused_error.max()), worst_eager, float(allowed[index]), index,
        float(fused[index]), float(eager[index]), float(exact[index]), reason,
    )  # fmt: skip


def _report(
    where: torch.Tensor,
    fused_error: torch.Tensor,
    eager_error: torch.Tensor,
    allowed: torch.Tensor,
    fused: torch.Tensor,
    eager: torch.Tensor,
    exact: torch.Tensor,
    reason: str,
) -> Comparison:
    index = _first(where)
    return Comparison(
        float(fused_error[index]), float(eager_error[index]), float(allowed[index]), index,
        float(fused[index]), float(eager[index]), float(exact[index]), reason,
    )  # fmt: skip


def _wrong(reason: str) -> Comparison:
    return Comparison(math.inf, 0.0, 0.0, (), math.nan, math.nan, math.nan, reason)


def _first(where: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(k) for k in where.nonzero()[0])


def _largest(values: torch.Tensor) -> tuple[int, ...]:
    flat = int(values.reshape(-1).argmax())
    return tuple(int(k) for k in torch.unravel_index(torch.tensor(flat), values.shape))
