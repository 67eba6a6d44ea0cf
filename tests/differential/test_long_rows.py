"""Long rows in as few passes as algebra allows: special values, large means, parts of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser.ir.region import Strategy
from support.compare import assert_matches_eager
from support.rows import FLOAT_TYPES, strategies, values


@pytest.mark.parametrize("length", [1000, 33_001])
def test_the_spread_of_values_far_from_zero(length: int, device: str) -> None:
    """In registers and in a loop: large means, a first value far from all others, equal values,
    overflow of the squares, infinities and NaN."""
    x = values(66, length) + 1e4
    x[5:9, 0] = 0
    x[0], x[1], x[2] = 3.3, 1e30, 1e-30
    x[3, 7], x[4, -1] = torch.inf, torch.nan

    def program(x: Tensor) -> Any:
        return x.var(-1), x.std(-1), F.layer_norm(x, x.shape[-1:])

    plans = assert_matches_eager(program, x, device=device, expect_opaque=())
    assert (Strategy.LOOPED in strategies(plans)) == (length > 32768)


ONLINE: dict[str, Callable[[Tensor], Any]] = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "weighed": lambda x: (
        lambda e: (e * (x / 3)).sum(-1) / e.sum(-1)
    )(torch.exp(x * 2 - (x * 2).amax(-1, keepdim=True))),
}  # fmt: skip


@FLOAT_TYPES
@pytest.mark.parametrize("length", [33_001, 40_000])
@pytest.mark.parametrize("name", ONLINE)
def test_long_rows_of_exponentials(name: str, length: int, dtype: torch.dtype, device: str) -> None:
    """Rising and falling rows, rows of infinities and of NaN, single values among infinities."""
    x = 3 * values(66, length)
    x[0], x[1], x[2], x[3] = -torch.inf, torch.inf, torch.nan, -3e38
    x[4, 7:], x[5, :-1], x[6, : length // 2] = -torch.inf, -torch.inf, -torch.inf
    x[7, 9], x[8, -1], x[9, 0] = torch.inf, torch.nan, -torch.inf
    x[10], x[11] = torch.linspace(-80, 80, length), torch.linspace(80, -80, length)
    x[12, 3], x[13, 0], x[13, 1] = 1e4, torch.nan, torch.inf
    plans = assert_matches_eager(ONLINE[name], x.to(dtype), device=device, expect_opaque=())
    assert Strategy.LOOPED in strategies(plans)


@FLOAT_TYPES
@pytest.mark.parametrize("classes", [9, 33_001])
def test_a_cross_entropy_reads_its_logits_twice(
    classes: int, dtype: torch.dtype, device: str
) -> None:
    """Once forward and once backward, where the gradient is elementwise; nothing of their size is
    kept beside them."""
    logits, targets = values(66, classes, dtype=dtype), torch.arange(66) % classes
    targets[3] = targets[7] = -100
    plans = assert_matches_eager(
        F.cross_entropy, logits, targets, grad=True, device=device, expect_opaque=()
    )
    by_phase = {plan.fusion.phase: plan.fusion for plan in plans}
    assert not any(op.reduced for op in by_phase["backward"].graph.ops)
    if classes > 9:
        values_of = by_phase["forward"].graph.values
        stored = [n for region in by_phase["forward"].regions for n in region.outputs]
        assert all(values_of[name].type.numel <= 66 for name in stored)


FEW: dict[str, Callable[[Tensor], Tensor]] = {
    "std": lambda x: x.std(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "softmax": lambda x: x.softmax(-1),
}


@pytest.mark.parametrize("name", FEW)
def test_few_long_rows_of_special_values(name: str, device: str) -> None:
    """Parts of nothing but infinities, and one value that all others are far from."""
    x = values(9, 70_001)
    x[0], x[1], x[2, 5], x[3, -1] = -torch.inf, torch.inf, torch.nan, torch.inf
    x[4, 10:], x[5, :-10], x[6] = -torch.inf, -torch.inf, 3.3
    x[7] += 1e4
    x[7, 0], x[8, 0] = 0, 1e4
    if name == "std":
        x[4:6] = 1e30
    plans = assert_matches_eager(FEW[name], x, device=device, expect_opaque=())
    assert Strategy.SPLIT in strategies(plans) or name == "softmax"


@FLOAT_TYPES
def test_statistics_of_few_long_columns(dtype: torch.dtype, device: str) -> None:
    tall = values(5000, 12, dtype=dtype) + 50
    plans = assert_matches_eager(
        lambda x: torch.var_mean(x, 0), tall, device=device, expect_opaque=()
    )
    assert strategies(plans) == {Strategy.SPLIT}


@FLOAT_TYPES
def test_groups_of_channels_in_long_rows(dtype: torch.dtype, device: str) -> None:
    """Channels last: rows of short runs, too long for registers."""
    x = (values(2, 8, 130, 133, dtype=dtype) + 3).contiguous(memory_format=torch.channels_last)
    weight = torch.linspace(0.5, 2, 8).to(dtype)
    assert_matches_eager(
        lambda x, w: F.silu(F.group_norm(x, 2, w)), x, weight, device=device, expect_opaque=()
    )
