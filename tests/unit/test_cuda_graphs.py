"""When CUDA graphs are used and when not; PyTorch's part is played, as there is no GPU."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import fuser
from fuser.api import new_backend
from fuser.capture.backend import Backend
from fuser.capture.from_fx import from_fx
from fuser.errors import InvalidArgument
from fuser.ir.plan import FusionPlan
from fuser.passes.pipeline import plan_graph
from fuser.runtime import graphs
from fuser.runtime.graphs import (
    LARGEST_NUMBER_OF_SIZES,
    TOO_MANY,
    UNSEEN,
    CudaGraphUse,
    refusal,
    with_cuda_graphs,
)
from support.graphs import traced


@torch.library.custom_op("fuser_tests::waits", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def waits(x: Tensor) -> Tensor:
    return x.clone()


@waits.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def made(
    fn: Callable[..., Any], *args: Any, phase: str = "inference", dynamic: bool = False
) -> tuple[fx.GraphModule, FusionPlan]:
    """A graph and its plan for a GPU that is absent."""
    module = traced(fn, *args, dynamic=dynamic)
    graph, _ = from_fx(module)
    return module, plan_graph(graph, "sm_90", phase)


def pair() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 6), torch.randn(4, 6)


# **** reasons ****


def test_nothing_against_it() -> None:
    assert refusal(*made(lambda x, y: torch.mm(x * y, y.t()).relu(), *pair())) == ""
    assert refusal(*made(lambda x, y: torch.sort(x)[0], *pair())) == ""


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x, y: waits(x) + y, "fuser_tests.waits.default waits for the GPU"),
        (lambda x, y: x.add_(y), "writes to its input x_1"),
        (lambda x, y: x.t(), "launches nothing"),
        (lambda x, y: torch.empty_like(x), "launches nothing"),
        (lambda x, y: x.view(torch.int32), "launches nothing"),
        (lambda x, y: x[:0] + y[:0], "launches nothing"),
        (lambda x, y: torch.sort(x[:0])[0], "launches nothing"),
    ],
)
def test_reasons_against_it(fn: Callable[..., Any], reason: str) -> None:
    assert reason in refusal(*made(fn, *pair()))


def test_devices() -> None:
    module, plan = made(lambda x, y: torch.sort(x + y)[0], *pair())
    assert "on the CPU" in refusal(module, replace(plan, target="cpu"))
    first, *others = plan.graph.inputs
    assert first.value is not None
    far = replace(first.value, type=replace(first.value.type, device="cuda:1"))
    graph = replace(plan.graph, inputs=(replace(first, value=far), *others))
    assert "several devices: cpu, cuda:1" in refusal(module, replace(plan, graph=graph))


def test_changing_sizes() -> None:
    hidden = made(lambda x, y: x + y, *pair(), dynamic=True)
    assert "not an input by itself" in refusal(*hidden)
    training = made(lambda x, y: x + y, *pair(), phase="forward", dynamic=True)
    assert "has a backward pass" in refusal(*training)


def test_another_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo.backends.cudagraphs", None)
    assert "other CUDA graphs" in refusal(*made(lambda x, y: x + y, *pair()))


# **** what is called ****


class Played:
    """PyTorch's CUDA graphs: calls what it is given, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[dict[str, Any]] = []
        self.calls = 0
        monkeypatch.setattr(graphs, "_through_trees", self.through_trees)
        # So that graphs on the CPU are not refused for it.
        monkeypatch.setattr(graphs, "_other_devices", lambda plan: "")

    def through_trees(self, run: Any, module: fx.GraphModule, plan: Any, constants: Any) -> Any:
        static = graphs._static_inputs(module, plan.phase)
        self.given.append({"phase": plan.phase, "static": list(static)})

        def graphed(inputs: list[Any]) -> Any:
            self.calls += 1
            return run(inputs)

        return graphed


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


def test_pytorch_has_what_is_used_of_it() -> None:
    """Up to the first call, which needs a GPU."""
    module, plan = made(lambda x, y: x + y, *pair())
    run, use = with_cuda_graphs(lambda inputs: inputs, module, plan, ())
    assert use.refusal == ""
    assert callable(run)


def test_every_call_is_handed_over(played: Played) -> None:
    module, plan = made(lambda x, y: x + y, *pair())
    run, use = with_cuda_graphs(lambda inputs: inputs.copy(), module, plan, ())
    assert run._boxed_call  # type: ignore[attr-defined]
    assert str(use) == "CUDA graphs: replayed"
    for _ in range(3):
        assert run([1, 2]) == [1, 2]
    assert (use.handed_over, played.calls) == (3, 3)
    assert str(use) == "CUDA graphs: replayed: 3 calls so far"


def test_a_refusal_leaves_the_call_as_it_is(
    played: Played, caplog: pytest.LogCaptureFixture
) -> None:
    module, plan = made(lambda x, y: x.t(), *pair())

    def run(inputs: list[Any]) -> Any:
        return inputs

    with caplog.at_level(logging.WARNING, "fuser"):
        found, use = with_cuda_graphs(run, module, plan, ())
    assert found is run
    assert str(use) == "CUDA graphs: none, it launches nothing"
    assert "it launches nothing" in caplog.text
    assert played.given == []


def sized() -> tuple[fx.GraphModule, FusionPlan]:
    """A graph whose first input is the size of its second."""
    found: list[tuple[fx.GraphModule, FusionPlan]] = []

    def keep(module: fx.GraphModule, inputs: Any, context: Any) -> Any:
        graph, _ = from_fx(module)
        found.append((module, plan_graph(graph, "sm_90", context.phase)))
        return module

    torch.compiler.reset()
    with torch.no_grad():
        backend = Backend(keep)
        torch.compile(lambda x: x + 1, backend=backend, dynamic=True)(torch.randn(5))
    return found[0]


def test_sizes_are_recorded_when_they_come_again(played: Played) -> None:
    module, plan = sized()
    assert refusal(module, plan) == ""
    run, use = with_cuda_graphs(lambda inputs: None, module, plan, ())
    for size in (5, 6, 5, 5, 7):
        run([size, torch.randn(size)])
    assert (use.handed_over, dict(use.plain)) == (2, {UNSEEN: 3})
    assert str(use) == f"CUDA graphs: replayed: 2 calls so far, 3 without for {UNSEEN}"
    for size in range(100, 101 + LARGEST_NUMBER_OF_SIZES):
        for _ in range(2):
            run([size, torch.randn(size)])
    assert use.plain[TOO_MANY] == 2  # one of the sixteen was 5
    assert use.handed_over == 2 + LARGEST_NUMBER_OF_SIZES - 1


@pytest.mark.parametrize("forward", [None, CudaGraphUse("it writes to its input")])
def test_a_backward_follows_its_forward(played: Played, forward: CudaGraphUse | None) -> None:
    module, plan = made(lambda x, y: x + y, *pair(), phase="backward")
    _, use = with_cuda_graphs(lambda inputs: None, module, plan, (), forward)
    assert "its forward pass" in use.refusal
    _, use = with_cuda_graphs(lambda inputs: None, module, plan, (), CudaGraphUse())
    assert use.refusal == ""


def test_a_refused_backward_tells_the_trees(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    manager = SimpleNamespace(set_to_running_backward=lambda: told.append(1))
    trees = SimpleNamespace(get_manager=lambda device, create_if_none_exists: manager)
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", trees)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    module, plan = made(lambda x, y: waits(x) + y, *pair(), phase="backward")
    run, _ = with_cuda_graphs(lambda inputs: inputs[0], module, plan, (), CudaGraphUse())
    assert run([3]) == 3
    assert told == [1]


# **** as a user asks for it ****


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(8, 16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(nn.functional.gelu(self.up(x)))  # type: ignore[no-any-return]


def test_a_training_step(played: Played) -> None:
    torch.compiler.reset()
    model, x = Net(), torch.randn(4, 8, requires_grad=True)
    wide, wide_x = copy.deepcopy(model).double(), x.detach().double().requires_grad_()
    exact = torch.autograd.grad(wide(wide_x).square().sum(), [wide_x, *wide.parameters()])
    compiled = fuser.compile(model, mode="reduce-overhead")
    for _ in range(2):
        wanted = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
        found = torch.autograd.grad(compiled(x).square().sum(), [x, *model.parameters()])
        for a, b, c in zip(found, wanted, exact, strict=True):
            # As far from float64 as eager is, a few roundings of float32 aside.
            assert (a - c).norm() <= 4 * (b - c).norm() + 1e-6 * c.norm()
    forward, backward = played.given
    assert (forward["phase"], backward["phase"]) == ("forward", "backward")
    assert len(forward["static"]) == len(list(model.parameters()))
    assert backward["static"] == list(range(len(backward["static"])))
    assert played.calls == 4
    for plan in fuser.plans(compiled):
        assert plan.cuda_graphs == "CUDA graphs: replayed: 2 calls so far"
        assert plan.cuda_graphs in str(plan)


@pytest.mark.parametrize("way", ["mode", "options"])
def test_both_ways_of_torch_compile(played: Played, way: str) -> None:
    torch.compiler.reset()
    chosen: dict[str, Any] = {"mode": "reduce-overhead"}
    compiled = torch.compile(
        Net(), backend=new_backend(), **(chosen if way == "mode" else {"options": chosen})
    )
    with torch.no_grad():
        compiled(torch.randn(4, 8))
    (plan,) = fuser.plans(compiled)
    assert "1 calls so far" in plan.cuda_graphs


def test_on_the_cpu_the_reason_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    torch.compiler.reset()
    compiled = fuser.compile(Net(), mode="reduce-overhead")
    with torch.no_grad():
        compiled(torch.randn(4, 8))
    (plan,) = fuser.plans(compiled)
    reason = "CUDA graphs: none, its tensors are on the CPU"
    assert reason in str(plan)
    plan.show()
    assert reason in capsys.readouterr().out
    options = {"mode": "reduce-overhead"}
    x = torch.randn(4, 8)
    assert reason in str(fuser.explain(Net(), x, target="cpu", options=options))
    assert "CUDA graphs: replayed" in str(fuser.explain(Net(), x, target="sm_90", options=options))
    assert "CUDA graphs" not in str(fuser.explain(Net(), x, target="sm_90"))


def test_other_modes() -> None:
    with pytest.raises(InvalidArgument, match="reduce-overhead"):
        fuser.compile(Net(), mode="max-autotune")
    fuser.compile(Net(), mode="default")
