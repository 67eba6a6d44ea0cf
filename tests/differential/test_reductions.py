"""Reductions and what is built on them: rows of every length, axes, norms, losses.

A program that should be one kernel is checked to be one, and each strategy is checked to be the one
that ran.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuser.ir.region import Strategy
from fuser.report import Plan
from support.compare import assert_matches_eager, generated_kinds
from support.rows import FLOAT_TYPES, strategies, values


def region_count(plans: Iterable[Plan]) -> int:
    return sum(len(plan.regions) for plan in plans)


# Rows ---------------------------------------------------------------------------------------------

ROWS: dict[str, Callable[[Tensor], Any]] = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "logsumexp": lambda x: x.logsumexp(-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "var_mean": lambda x: torch.var_mean(x, -1),
    "std": lambda x: x.std(-1, correction=0),
    "max": lambda x: x.max(-1),
    "argmin": lambda x: x.argmin(-1),
    "sum_any_all": lambda x: (x.sum(-1), (x > 3).any(-1), (x > -9).all(-1)),
    "vector_norms": lambda x: [torch.linalg.vector_norm(x, p, -1) for p in (0, 1, 2, 3, torch.inf)],
}  # fmt: skip
# The others are several folds with nothing in common but what they read.
ONE_KERNEL = [name for name in ROWS if name not in ("max", "sum_any_all", "vector_norms")]
LENGTHS = (1, 2, 33, 1000, 4097)
ROW_PROGRAMS = pytest.mark.parametrize("name", ROWS)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0:UserWarning")
@FLOAT_TYPES
@ROW_PROGRAMS
def test_row_lengths(name: str, dtype: torch.dtype, device: str) -> None:
    def program(rows: dict[int, Tensor]) -> Any:
        return {length: ROWS[name](row) for length, row in rows.items()}

    rows = {length: values(3, length, dtype=dtype) for length in LENGTHS}
    plans = assert_matches_eager(program, rows, device=device, expect_opaque=())
    assert strategies(plans) <= {Strategy.ROW_IN_REGISTERS, Strategy.FLAT}


@FLOAT_TYPES
@pytest.mark.parametrize("name", ONE_KERNEL)
def test_a_row_is_one_kernel_and_so_is_its_gradient(
    name: str, dtype: torch.dtype, device: str
) -> None:
    row = values(5, 33, dtype=dtype)
    (plan,) = assert_matches_eager(ROWS[name], row, device=device, expect_opaque=())
    assert len(plan.regions) == 1
    if name != "argmin":
        plans = assert_matches_eager(ROWS[name], row, grad=True, device=device, expect_opaque=())
        assert {plan.fusion.phase for plan in plans} == {"forward", "backward"}
        assert all(len(plan.regions) == 1 for plan in plans)


@FLOAT_TYPES
@ROW_PROGRAMS
def test_long_rows_are_looped(name: str, dtype: torch.dtype, device: str) -> None:
    # More rows than a split is for: only then are long rows folded by one program each.
    row = values(1, 40_000, dtype=dtype).expand(65, 40_000)
    plans = assert_matches_eager(ROWS[name], row, device=device, expect_opaque=())
    assert Strategy.LOOPED in strategies(plans)
    assert Strategy.ROW_IN_REGISTERS not in strategies(plans)


@ROW_PROGRAMS
def test_rows_of_unknown_length_are_looped(name: str, device: str) -> None:
    row = values(6, 70)
    plans = assert_matches_eager(ROWS[name], row, device=device, dynamic=True, expect_opaque=())
    assert Strategy.ROW_IN_REGISTERS not in strategies(plans)


SPLIT: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "several": lambda x: (x.amax(-1), x.amin(-1), (x * x).sum(-1)),
    "logic": lambda x: ((x > 4).any(-1), (x > -4).all(-1)),
    "product": lambda x: (1 + x / 1000).prod(-1),
    "prologue_and_epilogue": lambda x: F.gelu(x).sum(-1, keepdim=True) * 2 + 1,
    "everything": lambda x: x.sum(),
    "softmax": lambda x: x.softmax(-1),
    "std": lambda x: x.std(-1),
    "var_mean": lambda x: torch.var_mean(x, -1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "largest_and_logsumexp": lambda x: (x.amax(-1), x.logsumexp(-1), x.sum(-1)),
}


@FLOAT_TYPES
@pytest.mark.parametrize("shape", [(1, 100_000), (3, 70_001)], ids=str)
@pytest.mark.parametrize("name", SPLIT)
def test_few_long_rows(name: str, shape: tuple[int, int], dtype: torch.dtype, device: str) -> None:
    row = values(*shape, dtype=dtype)
    plans = assert_matches_eager(SPLIT[name], row, device=device, expect_opaque=())
    # What needs the row again after its fold cannot be split as a whole: it is looped, or cut into
    # kernels of which the folds are split, whichever is predicted to be faster.
    found = strategies(plans)
    if name == "softmax":
        assert found & {Strategy.LOOPED, Strategy.SPLIT}
    else:
        assert Strategy.SPLIT in found


# Axes ---------------------------------------------------------------------------------------------

AXES = [dims for count in (1, 2, 3) for dims in itertools.combinations((0, 1, -1), count)]
FOLDS: dict[str, Callable[..., Tensor]] = {
    "sum": torch.sum, "mean": torch.mean, "var": torch.var, "std": torch.std,
    "amax": torch.amax, "amin": torch.amin, "any": torch.any, "all": torch.all,
    "logsumexp": torch.logsumexp, "count_nonzero": lambda x, dims, keepdim: x.count_nonzero(dims),
}  # fmt: skip
ONE_AXIS: dict[str, Callable[..., Any]] = {
    "argmax": torch.argmax, "argmin": torch.argmin, "prod": torch.prod, "max": torch.max,
    "min": torch.min, "softmax": lambda x, dim, keepdim: x.softmax(dim),
}  # fmt: skip
LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: values(3, 5, 7),
    "permuted": lambda: values(7, 3, 5).permute(1, 2, 0),
    "strided": lambda: values(3, 10, 14)[:, ::2, 1::2],
    "expanded": lambda: values(3, 1, 7).expand(3, 5, 7),
}


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        (name, layout)
        for name in (*FOLDS, *ONE_AXIS)
        for layout in LAYOUTS
        # The spread of equal values has a test of its own.
        if (name, layout) not in (("var", "expanded"), ("std", "expanded"))
    ],
)
def test_every_combination_of_axes(name: str, layout: str, device: str) -> None:
    dims: list[Any] = AXES if name in FOLDS else [0, 1, -1]
    fold = (FOLDS | ONE_AXIS)[name]

    def program(x: Tensor) -> Any:
        return [fold(x, d, keepdim=keep) for d in dims for keep in (False, True)]

    assert_matches_eager(program, LAYOUTS[layout](), device=device, expect_opaque=())


def test_the_spread_of_equal_values_is_zero(device: str) -> None:
    equal = values(3, 1, 7).expand(3, 5, 7)
    assert_matches_eager(lambda x: (x.var(1), x.std(1)), equal, device=device)


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "argmax", "any", "prod", "softmax"])
def test_outer_axis(name: str, device: str) -> None:
    """Columns: neighbours in memory belong to different results."""
    fold = (FOLDS | ONE_AXIS)[name]
    tall = 1 + values(700, 65) / 100
    plans = assert_matches_eager(
        lambda x: fold(x, 0, keepdim=True), tall, device=device, expect_opaque=()
    )
    assert region_count(plans) == 1


def test_sums_of_whole_numbers_and_booleans(device: str) -> None:
    def program(n: Tensor, b: Tensor, f: Tensor) -> Any:
        return (
            n.sum(-1), n.sum(), b.sum(0), n.prod(-1), n.amax(0), n.sum(-1, dtype=torch.float32),
            f.sum(-1, dtype=torch.float64), f.mean(dtype=torch.float32), b.any(), b.all(),
        )  # fmt: skip

    whole = (values(5, 9) * 3).to(torch.int32)
    args = whole, whole > 1, values(5, 9, dtype=torch.bfloat16)
    assert_matches_eager(program, *args, device=device, expect_opaque=())


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.int32, torch.uint8, torch.bfloat16], ids=str
)
def test_the_first_of_equal_extremes_is_found(dtype: torch.dtype, device: str) -> None:
    def program(x: Tensor) -> Any:
        return x.argmax(), x.argmin(), x.argmax(0), x.argmin(1), x.max(1), x.min(0)

    ties = (values(40, 300) * 2).abs().round().to(dtype)
    if dtype.is_floating_point:
        ties[3, 200:] = ties[3, 100] = ties[30, 1] = torch.nan
    assert_matches_eager(program, ties, device=device, expect_opaque=())


def test_reductions_over_nothing(device: str) -> None:
    def program(x: Tensor) -> Any:
        return x.sum(-1), x.sum(0), x.mean(-1), x.prod(0), x.any(-1), x.all(-1), x.amax(0)

    assert_matches_eager(program, torch.empty(3, 0), device=device)
    assert_matches_eager(lambda x: x.sum(-1) + 1, torch.empty(0, 3), device=device)


# Norms --------------------------------------------------------------------------------------------


def image(dtype: torch.dtype, channels_last: bool = False) -> Tensor:
    made = values(2, 8, 5, 7, dtype=dtype)
    return made.contiguous(memory_format=torch.channels_last) if channels_last else made


@FLOAT_TYPES
@pytest.mark.parametrize("channels_last", [False, True], ids=["", "channels_last"])
@pytest.mark.parametrize("groups", [1, 4, 8])
def test_group_norm(groups: int, channels_last: bool, dtype: torch.dtype, device: str) -> None:
    norm = nn.GroupNorm(groups, 8).to(dtype)
    nn.init.normal_(norm.weight)
    assert_matches_eager(
        norm, image(dtype, channels_last), grad=True, device=device, expect_opaque=()
    )


@FLOAT_TYPES
@pytest.mark.parametrize("channels_last", [False, True], ids=["", "channels_last"])
@pytest.mark.parametrize("mode", ["train", "eval", "cumulative", "batch_statistics"])
def test_batch_norm(mode: str, channels_last: bool, dtype: torch.dtype, device: str) -> None:
    """With the running statistics after the call, which the helper compares as buffers."""
    momentum = None if mode == "cumulative" else 0.3
    norm = nn.BatchNorm2d(8, momentum=momentum, track_running_stats=mode != "batch_statistics")
    norm.train(mode != "eval").to(dtype)
    assert_matches_eager(
        norm, image(dtype, channels_last), grad=True, device=device, expect_opaque=()
    )


@FLOAT_TYPES
@pytest.mark.parametrize(
    "norm",
    [
        nn.LayerNorm((5, 7)), nn.LayerNorm(7, bias=False),
        nn.LayerNorm(7, elementwise_affine=False), nn.RMSNorm(7), nn.RMSNorm((5, 7), eps=1e-3),
        nn.InstanceNorm2d(8, affine=True),
    ],
    ids=str,
)  # fmt: skip
def test_norms_over_the_last_axes(norm: nn.Module, dtype: torch.dtype, device: str) -> None:
    assert_matches_eager(norm.to(dtype), image(dtype), grad=True, device=device, expect_opaque=())


# Losses -------------------------------------------------------------------------------------------

CLASSES = 9
TARGETS = torch.tensor([0, 8, -100, 3, 3, -100, 7])
Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
# Of predictions, values of their shape, classes and the classes' weights.
LOSSES: dict[str, Loss] = {
    "cross_entropy": lambda x, t, c, w: F.cross_entropy(x, c),
    "cross_entropy_sum": lambda x, t, c, w: F.cross_entropy(x, c, reduction="sum"),
    "cross_entropy_none": lambda x, t, c, w: F.cross_entropy(x, c, reduction="none"),
    "cross_entropy_ignored": lambda x, t, c, w: F.cross_entropy(x, c.abs() % 9, ignore_index=3),
    "cross_entropy_smooth": lambda x, t, c, w: F.cross_entropy(x, c, label_smoothing=0.1),
    "cross_entropy_weight": lambda x, t, c, w: F.cross_entropy(x, c, w),
    "cross_entropy_all": lambda x, t, c, w: F.cross_entropy(x, c, w, label_smoothing=0.2),
    "cross_entropy_soft": lambda x, t, c, w: F.cross_entropy(x, t.softmax(-1)),
    "nll": lambda x, t, c, w: F.nll_loss(x, c),
    "mse": lambda x, t, c, w: F.mse_loss(x, t),
    "mse_sum": lambda x, t, c, w: F.mse_loss(x, t, reduction="sum"),
    "l1": lambda x, t, c, w: F.l1_loss(x, t),
    "smooth_l1": lambda x, t, c, w: F.smooth_l1_loss(x, t, beta=0.7),
    "huber": lambda x, t, c, w: F.huber_loss(x, t, delta=0.7),
    "bce_with_logits": lambda x, t, c, w: F.binary_cross_entropy_with_logits(x, t.sigmoid()),
    "kl_div": lambda x, t, c, w: F.kl_div(x.log_softmax(-1), t.softmax(-1), reduction="batchmean"),
    "cosine_similarity": lambda x, t, c, w: F.cosine_similarity(x, t, dim=-1),
    "gaussian_nll": lambda x, t, c, w: F.gaussian_nll_loss(x, t, t * t),
}


@FLOAT_TYPES
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, dtype: torch.dtype, device: str) -> None:
    x, target = values(7, CLASSES, dtype=dtype), values(7, CLASSES, dtype=dtype, seed=1)
    # Weights without a gradient, as a loss has them.
    weights = torch.linspace(0.5, 2.0, CLASSES).to(dtype)
    plans = assert_matches_eager(
        lambda x, t, c, w: LOSSES[name](x, t, c, w.detach()),
        x, target, TARGETS, weights, grad=True, device=device, expect_opaque=(),
    )  # fmt: skip
    assert generated_kinds(plans)
