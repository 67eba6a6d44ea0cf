"""Random ops in kernels: against the same graphs run unfused, in every layout; dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fuser
from fuser.ir.region import Strategy
from support.compare import assert_matches_eager, opaque_calls
from support.random_programs import FLOATS, RANDOM, Program, compiled, values

SEED_CALLS = {"draw_seed"}


def sources(plans: Any) -> str:
    return "\n".join(s.source for plan in plans for entry in plan.kernels for s in entry.kernels)


# **** against the unfused graph ****

PROGRAMS: dict[str, Program] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout_layer_norm": lambda x: F.layer_norm(F.dropout(x, 0.1) + x, x.shape[-1:]),
    "dropout_channels": lambda x: F.dropout1d(x, 0.4),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.2, training=True),
    "rand": lambda x: torch.rand(x.shape, dtype=x.dtype, device=x.device) * x,
    "rand_like": lambda x: (torch.rand_like(x), torch.rand_like(x) * x),
    "randn": lambda x: torch.randn(x.shape, dtype=x.dtype, device=x.device) * x,
    "randn_like": lambda x: (torch.randn_like(x) * 0.1 + x).tanh(),
    "uniform_": lambda x: torch.empty_like(x).uniform_(-2, 3) * x,
    "normal_": lambda x: torch.empty_like(x).normal_(1.0, 0.5) * x,
    "normal": lambda x: torch.normal(x, x.abs()) + torch.normal(x, 2.0),
    "exponential_": lambda x: torch.empty_like(x).exponential_(0.5) + x,
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()) * x,
    "bernoulli_p": lambda x: torch.empty_like(x).bernoulli_(0.7) * x,
    "scalar": lambda x: x * torch.rand((), device=x.device) + torch.randn((), device=x.device),
    "gumbel": lambda x: F.gumbel_softmax(x, dim=-1),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_random_ops_are_those_of_the_unfused_graph(
    name: str, dtype: torch.dtype, device: str
) -> None:
    x = values(3, 21, dtype=dtype)
    plans = assert_matches_eager(PROGRAMS[name], x, grad=True, device=device, is_random=True)
    assert opaque_calls(plans) == SEED_CALLS


@pytest.mark.parametrize("shape", [(0, 5), (1,), (7,), (4, 4), (5, 1, 3), (33, 130), (2, 3, 4, 6)])
def test_shapes(shape: tuple[int, ...], device: str) -> None:
    def program(x: Tensor) -> Any:
        return F.dropout(x, 0.5), torch.rand_like(x) + x, torch.randn_like(x) * x

    assert_matches_eager(program, values(*shape), grad=True, device=device, is_random=True)


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "transposed": lambda: values(12, 20).t(),
    "channels_last": lambda: values(2, 8, 5, 4).to(memory_format=torch.channels_last),
    "sliced": lambda: values(9, 16)[1:, 2:14],
    "expanded": lambda: values(1, 8).expand(6, 8),
    "permuted": lambda: values(3, 4, 5, 8).permute(2, 0, 3, 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, device: str) -> None:
    def program(x: Tensor) -> Any:
        dropped = F.dropout(x, 0.25)
        return dropped, dropped.transpose(0, -1).contiguous(), torch.rand_like(x) * x

    x = LAYOUTS[layout]()
    assert_matches_eager(program, x, device=device, is_random=True)
    for found, expected in zip(compiled(program)(x.to(device)), program(x.to(device)), strict=True):
        assert found.stride() == expected.stride()


@pytest.mark.parametrize("columns", [64, 65, 66])
def test_one_op_in_kernels_of_every_kind(columns: int, device: str) -> None:
    """Whatever the tiles, the numbers are the same: sums over either axis are of what is stored."""

    def program(x: Tensor) -> Any:
        u = torch.rand_like(x)
        return (
            u,
            (u * x).sum(0),
            (u * x).sum(1),
            u.t() + x.t().contiguous(),
            (u + x).sum(),
            u[1:, 3:],
        )

    plans = assert_matches_eager(program, values(48, columns), device=device, is_random=True)
    assert len(plans[0].regions) > 1


STRATEGIES = {
    Strategy.FLAT: (lambda x: F.dropout(x, 0.5), (40, 64), "axis=0"),
    Strategy.ROW_IN_REGISTERS: (lambda x: F.dropout(x, 0.5).softmax(-1), (16, 64), "axis=1"),
    Strategy.SPLIT: (lambda x: F.dropout(x, 0.5).sum(), (64, 4096), "axis="),
}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.value)
def test_four_elements_share_a_call_where_they_lie_together(
    strategy: Strategy, device: str
) -> None:
    program, shape, shared = STRATEGIES[strategy]
    plans = assert_matches_eager(program, values(*shape), device=device, is_random=True)
    assert shared in sources(plans)


def test_rows_that_are_no_multiple_of_four_make_their_own(device: str) -> None:
    program = STRATEGIES[Strategy.ROW_IN_REGISTERS][0]
    plans = assert_matches_eager(program, values(6, 63), device=device, is_random=True)
    assert "axis=" not in sources(plans)


def test_sizes_that_change(device: str) -> None:
    program = compiled(lambda x: F.dropout(x.relu() + 1, 0.5).softmax(-1).sum(0), dynamic=True)
    reference = fuser.verification.differential.unfused(
        lambda x: F.dropout(x.relu() + 1, 0.5).softmax(-1).sum(0)
    )
    for rows, columns in ((5, 8), (6, 7), (31, 64), (2, 101)):
        x = values(rows, columns).to(device)
        torch.manual_seed(rows)
        found = program(x)
        torch.manual_seed(rows)
        torch.testing.assert_close(found, reference(x))
    assert len(fuser.plans(program)) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_numbers_stay_below_one(dtype: torch.dtype, device: str) -> None:
    x = torch.empty(512, 1024, dtype=dtype, device=device)
    for run in (torch.rand_like, lambda x: torch.empty_like(x).uniform_()):
        u = compiled(lambda x, run=run: run(x))(x).double()
        steps = 2.0 ** (11 if dtype is torch.float16 else 8)
        assert u.min().item() == 0
        assert u.max().item() == 1 - 1 / steps
        middle = 0.5 - 0.5 / steps
        assert abs(u.mean().item() - middle) < 6 * (12 * u.numel()) ** -0.5


# **** dropout ****


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_and_scales(dtype: torch.dtype, p: float, device: str) -> None:
    x = torch.ones(256, 400, dtype=dtype, device=device, requires_grad=True)
    out = compiled(lambda x: F.dropout(x, p))(x)
    out.sum().backward()
    kept = out != 0
    scale = torch.tensor(1 / (1 - p), dtype=torch.float64).to(dtype)
    assert set(out.unique().tolist()) == {0.0, scale.item()}
    assert abs(kept.double().mean().item() - (1 - p)) < 6 * (p * (1 - p) / x.numel()) ** 0.5
    # The backward pass makes the same mask again, without having stored it.
    assert x.grad is not None
    assert torch.equal(x.grad, out)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_dropout_of_nothing_and_of_everything(
    dtype: torch.dtype, training: bool, device: str
) -> None:
    x = torch.tensor([1.0, -2.0, 0.0, -0.0, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    for p in (0.0, 1.0):

        def program(x: Tensor, p: float = p) -> Tensor:
            return F.dropout(x * 1, p, training)

        assert_matches_eager(program, x, grad=True, device=device)


def test_what_is_lost_is_a_product_with_zero(device: str) -> None:
    x = torch.tensor([torch.inf, torch.nan, -1.0], device=device).repeat(200)
    out = compiled(lambda x: F.dropout(x, 0.5))(x).reshape(200, 3)
    assert bool(out[:, :2].isnan().any(0).all())
    assert bool((out[:, 2][out[:, 2] == 0].signbit()).all())


def test_the_mask_is_not_stored_for_the_backward(device: str) -> None:
    def program(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return F.layer_norm(F.dropout(x, 0.1) + y, (32,), weight)

    inputs = [values(16, 32).to(device).requires_grad_() for _ in range(2)]
    weight = values(32).to(device).requires_grad_()
    run = compiled(program)
    run(*inputs, weight).sum().backward()
    forward, backward = fuser.plans(run)
    assert len(forward.regions) == 1
    kept = {output.argument.value for output in forward.graph.outputs if output.argument}
    shapes = {forward.graph.values[name].type.dtype.value for name in kept}
    assert "bool" not in shapes
    assert "seed" in kept
    for plan in (forward, backward):
        kinds = [plan.graph.by_name[op].kind for region in plan.regions for op in region.ops]
        assert RANDOM & set(kinds)
    assert "uniform" in str(forward)
