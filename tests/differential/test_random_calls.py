"""What a user may rely on from call to call: seeds, checkpoints, modules, eager's own stream."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fuser
from support.compare import opaque_calls
from support.random_programs import RANDOM, Program, compiled, twice, values

# **** seeds ****


def draw(x: Tensor) -> Any:
    return F.dropout(x, 0.5), torch.rand_like(x), torch.rand_like(x), torch.randn_like(x)


def test_seeds_make_calls_repeatable(device: str) -> None:
    x = torch.ones(64, 33, device=device)
    run = compiled(draw)
    first, second = twice(run, x)
    third = run(x)
    for a, b, c in zip(first, second, third, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(b, c)
    assert not torch.equal(first[1], first[2])  # two ops of one graph
    assert not torch.equal(run(x)[1], twice(run, x, seed=12)[0][1])


def test_one_seed_serves_all_ops_of_a_graph(device: str) -> None:
    run = compiled(draw)
    run(torch.ones(4, 8, device=device))
    (plan,) = fuser.plans(run)
    assert [op.call.name for op in plan.opaque] == ["draw_seed"]
    numbers = [str(op.operands[1]) for op in plan.graph.ops if op.kind in RANDOM]
    assert sorted(numbers) == ["0", "1", "2", "3"]


def test_states_of_the_generator_are_kept_and_restored(device: str) -> None:
    x = torch.ones(8, 8, device=device)
    run = compiled(draw)
    torch.manual_seed(5)
    expected = run(x)[1]
    torch.manual_seed(5)
    with torch.random.fork_rng():
        inside = run(x)[1]
    assert torch.equal(inside, expected)
    assert torch.equal(run(x)[1], expected)  # as if the fork had not been


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("outside", [True, False])
def test_checkpoints_repeat_the_mask(reentrant: bool, outside: bool, device: str) -> None:
    def block(x: Tensor) -> Tensor:
        return F.dropout(x.sin() + 2, 0.5) * x

    x = (values(32, 33).abs() + 0.5).to(device).requires_grad_()
    if outside:
        run = compiled(block)
        out = checkpoint(run, x, use_reentrant=reentrant, preserve_rng_state=True)
    else:
        run = compiled(lambda x: checkpoint(block, x, use_reentrant=reentrant))
        out = run(x)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, out != 0)
    assert 0.3 < (out != 0).float().mean().item() < 0.7


def test_a_second_backward_sees_the_same_mask(device: str) -> None:
    x = torch.ones(64, 64, device=device, requires_grad=True)
    out = compiled(lambda x: F.dropout(x, 0.5))(x)
    (first,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
    torch.rand(3, device=device)
    (second,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(first, out)
    assert torch.equal(second, out)


def test_gradients_of_gradients_are_refused_and_not_of_another_mask(device: str) -> None:
    x = values(8, 8).to(device).requires_grad_()
    out = compiled(lambda x: F.dropout(x, 0.5).sin().sum())(x)
    (grad,) = torch.autograd.grad(out, x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        grad.sum().backward()


def test_modules_train_and_evaluate(device: str) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.LayerNorm(16)).to(device)
    x = values(6, 8).to(device)
    run = compiled(model)
    first, second = twice(run, x)
    assert torch.equal(first, second)
    assert not torch.equal(run(x), run(x))
    run.eval()
    torch.testing.assert_close(run(x), model(x))


def test_verification_of_random_programs(device: str) -> None:
    def program(x: Tensor) -> Tensor:
        noisy = F.dropout(x, 0.2) + torch.randn_like(x) * torch.rand_like(x)
        return (noisy * torch.bernoulli(x.sigmoid())).softmax(-1)

    for dtype in (torch.float32, torch.bfloat16):
        x = values(9, 35, dtype=dtype).to(device).requires_grad_()
        assert fuser.verify(program, x).is_right


# **** on a GPU ****


@pytest.mark.gpu
def test_a_cuda_graph_draws_anew_each_time(device: str) -> None:
    if device != "cuda":
        pytest.skip("needs CUDA graphs")
    x = torch.ones(64, 128, device=device)
    run = compiled(draw)
    run(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(x)[1]
    results = []
    for _ in range(3):
        graph.replay()
        results.append(out.clone())
    assert not torch.equal(results[0], results[1])
    assert not torch.equal(results[1], results[2])


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_nothing_waits_for_the_seed(device: str) -> None:
    if device != "cuda":
        pytest.skip("needs a GPU")
    x = torch.ones(64, 128, device=device)
    run = compiled(draw)
    run(x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


# **** eager's own stream ****


def test_eagers_stream_on_request(device: str) -> None:
    x = values(5, 9).to(device)
    run = compiled(draw, random="eager")
    torch.manual_seed(2)
    found = run(x)
    torch.manual_seed(2)
    expected = (torch.ops.aten.native_dropout(x, 0.5, True)[0], *draw_rest(x))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    assert {"aten.native_dropout.default", "aten.rand_like.default"} <= opaque_calls(
        fuser.plans(run)
    )


REFUSED: dict[str, Program] = {
    "bernoulli": lambda x: torch.empty_like(x).bernoulli_(1.5) + x,
    "uniform": lambda x: torch.empty_like(x).uniform_(2, 1) + x,
    "normal": lambda x: torch.empty_like(x).normal_(0, -1) + x,
    "exponential": lambda x: torch.empty_like(x).exponential_(-1) + x,
}


@pytest.mark.parametrize("name", REFUSED)
def test_numbers_out_of_range_raise_as_in_eager(name: str, device: str) -> None:
    x = values(3, 4).to(device)
    with pytest.raises(RuntimeError):
        REFUSED[name](x)
    with pytest.raises(RuntimeError):
        compiled(REFUSED[name])(x)


def draw_rest(x: Tensor) -> Any:
    return torch.rand_like(x), torch.rand_like(x), torch.randn_like(x)


def test_only_two_ways_of_making_random_numbers() -> None:
    with pytest.raises(fuser.FuserError, match="random"):
        fuser.compile(torch.relu, random="fast")
