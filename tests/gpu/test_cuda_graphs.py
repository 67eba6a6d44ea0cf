"""CUDA graphs on a real GPU: results, training, memory that is used again, and refusals."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuser

pytestmark = pytest.mark.gpu

MODE = "reduce-overhead"


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(3):
            layers += [nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()]
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)  # type: ignore[no-any-return]


def is_replaying() -> bool:
    """Whether PyTorch's last call of a CUDA graph was a replay."""
    from torch._inductor.cudagraph_trees import ExecutionState, get_manager

    manager = get_manager(0, create_if_none_exists=False)
    return manager is not None and manager.path_state == ExecutionState.EXECUTION


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_inference() -> None:
    model = Net().cuda()
    compiled = fuser.compile(model, mode=MODE)
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(7, 64, device="cuda")
            close(compiled(x), model(x))
        assert is_replaying()
        for parameter in model.parameters():  # in place: the recording reads the same memory
            parameter.mul_(0.5)
        x = torch.randn(7, 64, device="cuda")
        close(compiled(x), model(x))
        assert is_replaying()
    (plan,) = fuser.plans(compiled)
    assert plan.cuda_graphs == "CUDA graphs: replayed: 6 calls so far"
    assert plan.calls is not None
    assert plan.calls.unfused == {}


def test_a_result_that_was_overwritten_cannot_be_read() -> None:
    model = Net().cuda()
    compiled = fuser.compile(model, mode=MODE)
    x = torch.randn(7, 64, device="cuda")
    with torch.no_grad():
        warmed_up, recorded = compiled(x), compiled(x)
        compiled(x)
        for result in (warmed_up, recorded):
            with pytest.raises(RuntimeError, match="overwritten"):
                result + 1
        # From then on PyTorch watches no longer: a result shows what the last call left there.
        kept, replayed = compiled(x).clone(), compiled(x)
        compiled(x + 1)
        close(kept, model(x))
        close(replayed, model(x + 1))


def test_unaligned_inputs() -> None:
    compiled = fuser.compile(lambda x: torch.softmax(x, -1) * 2, mode=MODE)
    memory = torch.randn(10 * 64 + 8, device="cuda")
    with torch.no_grad():
        for offset in (0, 1, 1, 1, 4, 0):
            x = memory[offset : offset + 640].view(10, 64)
            close(compiled(x), torch.softmax(x, -1) * 2)


def test_training() -> None:
    model = Net().cuda()
    reference = copy.deepcopy(model)
    compiled = fuser.compile(model, mode=MODE)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference)]
    for _ in range(8):
        x = torch.randn(16, 64, device="cuda", requires_grad=True)
        gradients = []
        for run, optimizer in zip((compiled, reference), optimizers, strict=True):
            optimizer.zero_grad(set_to_none=True)
            loss = run(x).square().mean()
            loss.backward()
            assert x.grad is not None
            gradients.append(x.grad.clone())
            x.grad = None
            optimizer.step()
        close(gradients[0], gradients[1])
        for a, b in zip(model.parameters(), reference.parameters(), strict=True):
            close(a, b)
    assert is_replaying()
    assert [plan.cuda_graphs for plan in fuser.plans(compiled)] == [
        "CUDA graphs: replayed: 8 calls so far"
    ] * 2


def test_statistics_that_a_module_keeps() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.GELU()).cuda()
    reference = copy.deepcopy(model)
    compiled = fuser.compile(model, mode=MODE)
    for _ in range(5):
        x = torch.randn(16, 64, device="cuda")
        for module in (model, reference):
            # A gradient of a recording may not be added to once the next call has overwritten it.
            module.zero_grad(set_to_none=True)
        found, wanted = compiled(x), reference(x)
        close(found.detach(), wanted.detach())
        found.sum().backward()
        wanted.sum().backward()
        for a, b in zip(model.buffers(), reference.buffers(), strict=True):
            close(a, b)


def test_random_numbers_are_new_in_each_replay() -> None:
    compiled = fuser.compile(lambda x: torch.dropout(x, 0.5, True) + 1, mode=MODE)
    x = torch.ones(4096, device="cuda")
    with torch.no_grad():
        found = [compiled(x).clone() for _ in range(5)]
    for k, one in enumerate(found):
        assert set(one.unique().tolist()) == {1.0, 3.0}
        assert not any(torch.equal(one, other) for other in found[:k])


def test_changing_sizes() -> None:
    compiled = fuser.compile(lambda x: torch.softmax(x, -1) * 2, mode=MODE, dynamic=True)
    with torch.no_grad():
        for rows in (5, 6, 5, 6, 5, 6, 5, 9):
            x = torch.randn(rows, 64, device="cuda")
            close(compiled(x), torch.softmax(x, -1) * 2)
    (plan,) = fuser.plans(compiled)
    assert plan.cuda_graphs.startswith("CUDA graphs: replayed: 5 calls so far, 3 without")


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: x.t(), "launches nothing"),
        (lambda x: x + torch.ones(64).to(x.device), "several devices"),
    ],
)
def test_refusals(fn: Any, reason: str) -> None:
    """Warnings are errors here, so that an empty recording would fail."""
    compiled = fuser.compile(fn, mode=MODE)
    x = torch.randn(64, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            close(compiled(x), fn(x))
    assert all(reason in plan.cuda_graphs for plan in fuser.plans(compiled))


# Dynamo looks for a gradient at the first model's result, which autograd warns of.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_models_one_after_the_other() -> None:
    first, second = Net().cuda(), Net().cuda()
    compiled = [fuser.compile(model, mode=MODE) for model in (first, second)]
    for _ in range(5):
        x = torch.randn(7, 64, device="cuda", requires_grad=True)
        loss = compiled[1](compiled[0](x)).sum()
        (found,) = torch.autograd.grad(loss, x)
        (wanted,) = torch.autograd.grad(second(first(x)).sum(), x)
        close(found, wanted)
