"""Ops needed at many indices: the planner counts each, so kernels stay of a bounded length."""

from __future__ import annotations

import torch

from fuser.passes.base import Limits
from support.graphs import kernels_of, plan_of


def stencil(x: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        x = (x[1:] + x[:-1]).sin()
    return x


def test_a_long_stencil_is_cut_where_it_would_recompute_too_much() -> None:
    plan = plan_of(stencil, torch.randn(100))
    assert len(plan.regions) > 1
    for spec in kernels_of(stencil, torch.randn(100)):
        assert spec.source.count("fn.sin") <= Limits().ops


def test_a_short_stencil_is_one_kernel() -> None:
    plan = plan_of(lambda x: (x[1:] + x[:-1]).sin()[2:] * 2, torch.randn(100))
    assert len(plan.regions) == 1
