"""Tiles of products that have whole rows: when they are taken, and what a program holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser.ir.plan import FusionPlan
from fuser.ir.region import Reason, Region, Strategy
from fuser.passes.access import accesses
from fuser.passes.contraction import roles_of
from fuser.passes.result_rows import MAX_ROW, MOST_OF_LANE, held_tiles, tiles_of_rows
from support.graphs import plan_of


def halves(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)


def layer_norm(x: Tensor, w: Tensor, b: Tensor, skip: Tensor) -> Tensor:
    return F.layer_norm(F.linear(x, w, b) + skip, (w.shape[0],))


def layer_norm_by_hand(x: Tensor, w: Tensor, b: Tensor, skip: Tensor) -> Tensor:
    row = skip + (b + x @ w.t())
    centred = row - row.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)


def layer_norm_beside_its_input(x: Tensor, w: Tensor, b: Tensor, skip: Tensor) -> Tensor:
    row = F.linear(x, w, b).tanh()
    return row + F.layer_norm(row, (w.shape[0],)) * skip


def largest(x: Tensor, w: Tensor, b: Tensor, skip: Tensor) -> Tensor:
    return (F.linear(x, w, b) + skip).amax(-1)


def planned(
    program: Callable[..., Any], rows: int, width: int, target: str = "sm_90"
) -> FusionPlan:
    args = halves(rows, width), halves(width, width), halves(width), halves(rows, width)
    return plan_of(program, *args, target=target)


def only_region(plan: FusionPlan) -> Region:
    assert not plan.opaque
    (region,) = plan.regions
    assert region.strategy is Strategy.PRODUCT
    return region


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
@pytest.mark.parametrize("program", [layer_norm, layer_norm_by_hand, largest])
def test_a_row_that_fits_is_folded_where_it_is_multiplied(
    program: Callable[..., Any], target: str
) -> None:
    region = only_region(planned(program, 131072, 256, target))
    for tile in region.schedule.candidates[0]:
        assert tile.block("NBLOCK") == 256


@pytest.mark.parametrize(
    ("program", "tiles"), [(largest, 1), (layer_norm, 1), (layer_norm_beside_its_input, 2)]
)
def test_what_waits_for_folds(program: Callable[..., Any], tiles: int) -> None:
    plan = planned(program, 131072, 128)
    region = only_region(plan)
    ops = plan.graph.in_order(region.all_ops)
    stored, space = frozenset(region.outputs), region.space
    roles = roles_of(plan.graph, ops, stored, space)
    found = accesses(plan.graph, ops, stored, space)
    assert held_tiles(ops, space, found, roles) == tiles


def test_nothing_waits_where_nothing_is_folded() -> None:
    plan = planned(lambda x, w, b, skip: F.linear(x, w, b) + skip, 131072, 128)
    region = only_region(plan)
    ops = plan.graph.in_order(region.all_ops)
    roles = roles_of(plan.graph, ops, frozenset(region.outputs), region.space)
    assert held_tiles(ops, region.space, (), roles) == 0


@pytest.mark.parametrize("columns", [16, 64, 256, MAX_ROW])
def test_a_lane_holds_no_more_than_half_of_its_registers(columns: int) -> None:
    for rows, wide, _, warps, _ in tiles_of_rows(columns):
        assert wide == columns
        assert rows * wide <= MOST_OF_LANE * 32 * warps


def test_a_row_that_is_too_wide_is_refused_with_its_width() -> None:
    plan = planned(layer_norm, 8192, 1024)
    assert len(plan.regions) == 2
    reasons = {(verdict.reason, verdict.detail) for verdict in plan.verdicts}
    assert (Reason.TOO_MANY_REGISTERS, "rows of 1024 sums, more than 512") in reasons
