"""Folds over rows and over columns: when they share a kernel, and what it is predicted to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser.device import DEVICES
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Reason, Region, Strategy
from fuser.passes.base import Limits
from fuser.passes.candidate import Refused, candidate_for
from fuser.passes.columns import column_folds, column_values
from fuser.runtime.offline import Resources, compile_many
from support.graphs import assert_plan_holds, graph_of, kernels_of, only_region, plan_of

Program = Callable[..., Any]
GPUS = [target for target in DEVICES if target != "cpu"]
HALF = torch.bfloat16


def layer_norm_backward(
    g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor
) -> Any:
    return torch.ops.aten.native_layer_norm_backward(
        g, x, weight.shape, mean, rstd, weight, bias, [True, True, True]
    )


def norm_args(rows: int, row: int, dtype: torch.dtype = HALF) -> list[Tensor]:
    matrix = torch.empty(rows, row, dtype=dtype)
    statistic, vector = torch.empty(rows, 1), torch.empty(row, dtype=dtype)
    return [matrix, torch.empty_like(matrix), statistic, statistic + 1, vector, vector + 1]


def norm_plan(rows: int, row: int, target: str = "sm_90", **how: Any) -> FusionPlan:
    return plan_of(layer_norm_backward, *norm_args(rows, row, **how), target=target)


def refusal(program: Program, *args: Tensor, dynamic: bool = False) -> tuple[Reason, str]:
    """Why all ops of the program are not one kernel."""
    graph = graph_of(program, *args, dynamic=dynamic)
    with pytest.raises(Refused) as caught:
        candidate_for(graph, graph.ops, graph.output_values, DEVICES["sm_90"], Limits())
    return caught.value.reason, caught.value.detail


# The backward pass of a norm --------------------------------------------------------------------


@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize(("rows", "row"), [(16384, 4096), (8192, 768), (4096, 1000), (65536, 128)])
def test_a_norms_gradients_read_everything_once(rows: int, row: int, target: str) -> None:
    plan = norm_plan(rows, row, target)
    region = only_region(plan)
    assert_plan_holds(plan)
    assert region.strategy is Strategy.ROWS_AND_COLUMNS
    assert plan.kernels_in((region.name,)) == 2
    parts = 2 * region.schedule.parts * row * 4
    # The statistics and vectors, and the parts once out and once in.
    least = 3 * rows * row * 2 + 2 * parts
    assert least < region.cost.bytes <= least + 2 * rows * 4 + 8 * row
    assert region.cost.time_us > 2 * DEVICES[target].launch_us


def test_an_estimate_has_one_reading_less_than_two_kernels_have() -> None:
    together = norm_plan(16384, 4096).regions[0].cost
    apart = [
        only_region(plan_of(lambda *a, k=k: layer_norm_backward(*a)[k], *norm_args(16384, 4096)))
        for k in (0, 1)
    ]
    assert together.time_us < 0.8 * sum(region.cost.time_us for region in apart)


def test_programs_are_few_and_each_has_several_rows() -> None:
    processors = DEVICES["sm_90"].processors
    parts = [norm_plan(rows, 4096).regions[0].schedule.parts for rows in (200, 800, 16384)]
    assert parts == [processors, 200, 2 * processors]


def test_rows_of_unknown_length_stay_apart() -> None:
    def program(x: Tensor) -> Any:
        return x.softmax(1), x.sum(0)

    graph = graph_of(program, torch.empty(64, 48), dynamic=True)
    rows, row = graph.values["x_1"].type.shape
    assert not isinstance(rows, int)
    assert not isinstance(row, int)
    assert refusal(program, torch.empty(64, 48), dynamic=True)[0] is Reason.OTHER_REDUCTION


# Which folds ------------------------------------------------------------------------------------


TOGETHER: dict[str, tuple[Program, int]] = {
    "two sums": (lambda x: (x.sum(0), x.sum(1)), 1),
    "whatever their order": (lambda x: (x.sum(1), x.sum(0)), 1),
    "rows that are read again": (lambda x: (x.sum(0), x / x.sum(1, keepdim=True)), 1),
    "columns of what waits for a row": (lambda x: x.softmax(1).sum(0), 1),
    "several": (lambda x: (x.amax(1), x.sum(0), x.exp().sum(0), x.amin(0)), 3),
    "what is made of columns": (lambda x: (x.sum(1), x.sum(0) * 2 + x.amax(0)), 2),
    "more than two axes": (lambda x: (lambda y: (y.sum((0, 1)), y.softmax(2)))(x.view(64, 64, 512)),
                           1),
}  # fmt: skip


@pytest.mark.parametrize("name", TOGETHER)
def test_folds_over_the_two_sides_share_a_kernel(name: str) -> None:
    program, columns = TOGETHER[name]
    plan = plan_of(program, torch.empty(4096, 512))
    region = only_region(plan)
    assert region.strategy is Strategy.ROWS_AND_COLUMNS
    ops = [plan.graph.by_name[op] for op in region.all_ops]
    found = column_folds(ops, region.space)
    assert len(found) == columns
    # What is read back by every element is a row's, else what lies along memory.
    fast = region.space.axes[-1].name
    assert {axis.name for axis in region.space.reduced} == {fast}
    after = column_values(ops, region.space)
    assert found <= after
    assert not any(
        reader.name not in after for name in after for reader in plan.graph.readers[name]
    )


APART: dict[str, tuple[Program, tuple[int, int], str]] = {
    "columns that are read back": (
        lambda x: x - x.sum(1, keepdim=True) - x.sum(0), (64, 64), "waits for all rows",
    ),
    "columns that are folded": (lambda x: (x.sum(1), x.sum(0).sum()), (512, 512), "over [512]"),
    "everything": (lambda x: (x.sum(), x.sum(0)), (512, 512), "over [512, 512]"),
    "a place in a column": (lambda x: (x.sum(1), x.argmax(0)), (512, 512), "looks for a place"),
    "rows that are too long": (
        lambda x: (x.softmax(1), x.sum(0)), (64, 1 << 15), "rows of 32768 elements"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_why_they_do_not(name: str) -> None:
    program, shape, detail = APART[name]
    reason, found = refusal(program, torch.empty(shape))
    assert reason is Reason.OTHER_REDUCTION
    assert detail in found
    plan = plan_of(program, torch.empty(shape))
    assert_plan_holds(plan)
    assert len(plan.regions) > 1


def test_rows_that_leave_no_registers_stay_apart() -> None:
    reason, _ = refusal(layer_norm_backward, *norm_args(4096, 16384))
    assert reason in (Reason.LOW_OCCUPANCY, Reason.TOO_MANY_REGISTERS)
    plan = norm_plan(4096, 16384)
    assert Strategy.ROWS_AND_COLUMNS not in {region.strategy for region in plan.regions}


@pytest.mark.parametrize("shape", [(4096, 512), (65536, 4096)], ids=str)
def test_columns_alone_are_folded_as_before(shape: tuple[int, int]) -> None:
    region = only_region(plan_of(lambda x: (x.sum(0), x.amax(0)), torch.empty(shape)))
    assert region.strategy in (Strategy.SPLIT, Strategy.LOOPED)


# What the compiler makes of it ------------------------------------------------------------------

COMPILED: dict[str, tuple[Program, list[Tensor]]] = {
    "layer norm": (layer_norm_backward, norm_args(16384, 4096)),
    "layer norm of rows in float32": (layer_norm_backward, norm_args(4096, 8192, torch.float32)),
    "layer norm of short rows": (layer_norm_backward, norm_args(4096, 100, torch.float16)),
    "softmax": (
        lambda g, y: (lambda d: (d, d.sum(0)))(torch.ops.aten._log_softmax_backward_data(
            g, y, 1, HALF)),
        [torch.empty(16384, 4096, dtype=HALF)] * 2,
    ),
    "random": (
        lambda x: (lambda y: (y.softmax(1), y.sum(0)))(F.dropout(x, 0.5)), [torch.empty(999, 130)]
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_kernels_have_a_tile_that_spills_nothing(target: str) -> None:
    """The preferred one, or the next, to which it gives way."""
    specs = [
        replace(spec, configurations=(tile,))
        for program, args in COMPILED.values()
        for spec in kernels_of(program, *args, target=target)
        for tile in spec.configurations[:2]
    ]
    spills: dict[str, list[int]] = {}
    for spec, found in zip(specs, compile_many(specs, target), strict=True):
        assert isinstance(found, Resources), found
        spills.setdefault(spec.key, []).append(found.spills)
    assert len(spills) > len(COMPILED)
    assert all(min(words) == 0 for words in spills.values()), spills
    assert sum(words[0] > 0 for words in spills.values()) <= 1


def region_needs(region: Region) -> tuple[int, int]:
    return region.cost.needs.registers, region.cost.needs.shared_bytes


@pytest.mark.slow
def test_predictions_are_near() -> None:
    region = norm_plan(16384, 4096).regions[0]
    (spec, _) = kernels_of(layer_norm_backward, *norm_args(16384, 4096))
    (found,) = compile_many([spec], "sm_90")
    assert isinstance(found, Resources)
    registers, shared = region_needs(region)
    assert abs(registers - found.registers) <= 0.15 * found.registers
    assert abs(shared - found.shared_bytes) <= 64
