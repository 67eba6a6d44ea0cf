"""`mode="reduce-overhead"` on a GPU: replayed calls give what eager gives, or are not replayed.

Results are compared before the next call, which overwrites them.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuser
from fuser.capture import registry
from fuser.runtime.interpreter import is_interpreting

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(is_interpreting(), reason="CUDA graphs hold no interpreted kernels"),
]

CALLS = 6
"""The first warms up, the second records, the others replay."""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    from torch._inductor.cudagraph_trees import reset_cudagraph_trees

    torch.compiler.reset()
    reset_cudagraph_trees()
    yield
    torch.compiler.reset()
    reset_cudagraph_trees()


def replaying(program: Callable[..., Any], **options: Any) -> Any:
    return fuser.compile(program, mode="reduce-overhead", **options)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda")


def recorded() -> int:
    """How many records there are."""
    from torch._inductor.cudagraph_trees import get_manager

    manager = get_manager(torch.cuda.current_device(), create_if_none_exists=False)
    if manager is None:
        return 0
    roots = [node for nodes in manager.roots.values() for node in nodes]
    return sum(1 + node.num_descendants() for node in roots)


def reasons(compiled: Any) -> list[str]:
    """Why graphs are not replayed; an empty text for each that is."""
    return [plan.unreplayed for plan in fuser.plans(compiled)]


def assert_close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)


def model() -> nn.Module:
    layers = nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)
    return nn.Sequential(*layers).cuda()


def scores(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = F.softmax(x * a + b, -1)
    return y, (y * x).sum(0)


# **** inference ****


def test_new_inputs_in_each_call() -> None:
    compiled = replaying(scores)
    with torch.no_grad():
        for _ in range(CALLS):
            arguments = random(40, 33), random(33), random(40, 1)
            assert_close(compiled(*arguments), scores(*arguments))
    assert reasons(compiled) == [""]
    assert recorded() == 1


def test_the_same_through_torch_compile() -> None:
    for keywords in ({"mode": "reduce-overhead"}, {"options": {"mode": "reduce-overhead"}}):
        torch.compiler.reset()
        compiled = torch.compile(scores, backend="fuser", **keywords)  # type: ignore[call-overload]
        with torch.no_grad():
            for _ in range(CALLS):
                arguments = random(40, 33), random(33), random(40, 1)
                assert_close(compiled(*arguments), scores(*arguments))
        assert reasons(compiled) == [""]


def test_inputs_that_lie_otherwise() -> None:
    compiled = replaying(scores)
    memory = random(40 * 33 + 1)
    with torch.no_grad():
        for _ in range(CALLS):
            memory.normal_()
            # Not aligned to 16 bytes, as nothing that was recorded is.
            arguments = memory[1:].view(40, 33), random(33), random(40, 1)
            assert_close(compiled(*arguments), scores(*arguments))


def test_weights_that_change_in_place() -> None:
    eager = model()
    compiled = replaying(eager)
    with torch.no_grad():
        for _ in range(CALLS):
            x = random(16, 32)
            assert_close(compiled(x), eager(x))
            for weight in eager.parameters():
                weight.mul_(0.9).add_(0.01)
    assert reasons(compiled) == [""]
    assert recorded() == 1


def test_weights_that_move() -> None:
    eager = model()
    compiled = replaying(eager)
    with torch.no_grad():
        for call in range(2 * CALLS):
            if call == CALLS:
                for weight in eager.parameters():
                    weight.data = weight.data.clone() * 1.1
            x = random(16, 32)
            assert_close(compiled(x), eager(x))


def test_two_streams() -> None:
    compiled = replaying(scores)
    current = torch.cuda.current_stream()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    with torch.no_grad():
        for call in range(2 * CALLS):
            stream = streams[call % 2]
            arguments = random(40, 33), random(33), random(40, 1)
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                found = [tensor.clone() for tensor in compiled(*arguments)]
            current.wait_stream(stream)
            assert_close(tuple(found), scores(*arguments))


def test_sizes_that_change() -> None:
    compiled = replaying(scores, dynamic=True)
    with torch.no_grad():
        for rows in (40, 24, 40, 24, 40, 24, 17, 40, 17, 17, 24):
            arguments = random(rows, 33), random(33), random(rows, 1)
            assert_close(compiled(*arguments), scores(*arguments))
    assert set(reasons(compiled)) == {""}
    assert recorded() == 3


def test_sizes_that_compile_again() -> None:
    compiled = replaying(scores, dynamic=False)
    with torch.no_grad():
        for rows in (40, 24, 40, 24, 40, 24):
            arguments = random(rows, 33), random(33), random(rows, 1)
            assert_close(compiled(*arguments), scores(*arguments))
    assert reasons(compiled) == ["", ""]


def test_a_break_in_the_graph() -> None:
    def program(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        y = F.softmax(x * a, -1)
        torch._dynamo.graph_break()
        return y, (y + 1).sum(0)

    compiled = replaying(program)
    with torch.no_grad():
        for _ in range(2 * CALLS):
            arguments = random(40, 33), random(33)
            assert_close(compiled(*arguments), program(*arguments))
    assert reasons(compiled) == ["", ""]


def test_two_functions_in_one_step() -> None:
    def first(x: Tensor) -> Tensor:
        return F.softmax(x * 2, -1)

    def second(y: Tensor) -> Tensor:
        return (y + 1).sum(0)

    fast_first, fast_second = replaying(first), replaying(second)
    with torch.no_grad():
        for _ in range(2 * CALLS):
            torch.compiler.cudagraph_mark_step_begin()
            x = random(40, 33)
            assert_close(fast_second(fast_first(x)), second(first(x)))


def test_random_numbers_are_drawn_anew() -> None:
    def program(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5) + 1

    compiled = replaying(program)
    x = torch.ones(64, 64, device="cuda")
    seen: list[Tensor] = []
    with torch.no_grad():
        for _ in range(CALLS):
            kept = compiled(x) == 3
            assert 0.4 < kept.float().mean().item() < 0.6
            seen.append(kept)
    for earlier, later in itertools.pairwise(seen):
        assert not torch.equal(earlier, later)


# **** training ****


def train(program: Callable[..., Any], weights: nn.Module, steps: int, rows: int = 16) -> list[Any]:
    """Losses of a few steps on fixed data, then the weights."""
    optimizer = torch.optim.SGD(weights.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(3)
    found: list[Any] = []
    for _ in range(steps):
        x = torch.randn(rows, 32, generator=generator).cuda()
        target = torch.randn(rows, 8, generator=generator).cuda()
        optimizer.zero_grad()
        loss = F.mse_loss(program(x), target)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return [*found, *(weight.detach().clone() for weight in weights.parameters())]


def test_training() -> None:
    eager = model()
    other = copy.deepcopy(eager)
    compiled = replaying(other)
    expected = train(eager, eager, 2 * CALLS)
    assert_close(train(compiled, other, 2 * CALLS), expected)
    assert reasons(compiled) == ["", ""]
    assert [graph.plan.phase for graph in registry.plans(compiled)] == ["forward", "backward"]
    assert recorded() >= 2


def test_training_with_statistics_in_buffers() -> None:
    layers = nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 8)
    eager = nn.Sequential(*layers).cuda()
    other = copy.deepcopy(eager)
    compiled = replaying(other)
    assert_close(train(compiled, other, CALLS), train(eager, eager, CALLS))
    assert_close(dict(other.named_buffers()), dict(eager.named_buffers()))


def test_training_and_inference_in_turn() -> None:
    eager = model()
    other = copy.deepcopy(eager)
    compiled = replaying(other)
    for _ in range(3):
        assert_close(train(compiled, other, CALLS), train(eager, eager, CALLS))
        with torch.no_grad():
            x = random(16, 32)
            assert_close(compiled(x), eager(x))


def test_gradients_of_inputs() -> None:
    eager = model()
    compiled = replaying(eager)
    for _ in range(CALLS):
        x = random(16, 32).requires_grad_()
        (found,) = torch.autograd.grad(compiled(x).square().sum(), [x])
        found = found.clone()
        (expected,) = torch.autograd.grad(eager(x).square().sum(), [x])
        assert_close(found, expected)


# **** what is not replayed ****


def test_a_tensor_on_the_cpu() -> None:
    def program(x: Tensor, scale: Tensor) -> Tensor:
        return F.softmax(x * scale, -1)

    compiled = replaying(program)
    with torch.no_grad():
        for _ in range(CALLS):
            arguments = random(40, 33), torch.rand(())
            assert_close(compiled(*arguments), program(*arguments))
    (reason,) = reasons(compiled)
    assert "not on a GPU" in reason
    assert recorded() == 0


def test_inputs_that_are_written_to() -> None:
    def program(x: Tensor, total: Tensor) -> Tensor:
        total.add_(x.sum(0))
        return x * total

    compiled = replaying(program)
    total, other = random(33), random(33)
    other.copy_(total)
    with torch.no_grad():
        for _ in range(CALLS):
            x = random(40, 33)
            assert_close(compiled(x, total), program(x, other))
            assert_close(total, other)


def test_a_size_that_depends_on_data() -> None:
    def program(x: Tensor) -> Tensor:
        return (x[x > 0] * 2).sum()

    compiled = replaying(program)
    with torch.no_grad():
        for _ in range(CALLS):
            x = random(40, 33)
            assert_close(compiled(x), program(x))
