"""CUDA graphs without a GPU: what is refused and why, sizes, modes, and what a plan says of it."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx

import fuser
from fuser import log
from fuser.capture import registry
from fuser.capture.from_fx import from_fx
from fuser.driver import options_from
from fuser.errors import InvalidArgument
from fuser.ir.graph import Effect, Graph, Input, Output
from fuser.runtime import graphs
from fuser.runtime.graphs import Replay, refusal, replay
from support.graphs import traced
from support.runtime import needs_kernels

Captured = tuple[Graph, fx.GraphModule]


def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, int]:
    return torch.mm(x, w) + 1, x.shape[0]


def captured(device: str = "cuda:0", dynamic: bool = False) -> Captured:
    """A graph as it would be captured on a device."""
    module = traced(program, torch.randn(6, 8), torch.randn(8, 5), dynamic=dynamic)
    return moved(from_fx(module)[0], device), module


def moved(graph: Graph, device: str) -> Graph:
    def on(value: Any) -> Any:
        return None if value is None else replace(value, type=replace(value.type, device=device))

    return replace(
        graph,
        inputs=tuple(replace(item, value=on(item.value)) for item in graph.inputs),
        ops=tuple(replace(op, results=tuple(map(on, op.results))) for op in graph.ops),
    )


# **** refusals ****


def test_what_runs_on_one_gpu_is_recorded() -> None:
    assert refusal(*captured()) == ""
    assert refusal(*captured(dynamic=True)) == ""


def test_tensors_elsewhere() -> None:
    assert "not on a GPU (add, mm, w_1)" in refusal(*captured("cpu"))
    graph, module = captured()
    other = moved(graph, "cuda:1")
    mixed = replace(graph, ops=other.ops)
    assert refusal(mixed, module) == "it has tensors on 2 devices"


def test_writes_to_inputs() -> None:
    graph, module = captured()
    mm = replace(graph.by_name["mm"], effect=Effect.BARRIER)
    writing = replace(graph, ops=(mm, *graph.ops[1:]))
    assert refusal(writing, module) == "an original call writes to its input x_1"


def test_inputs_and_outputs_that_are_no_tensors() -> None:
    graph, module = captured()
    assert "neither a tensor" in refusal(
        replace(graph, inputs=(*graph.inputs, Input("nothing"))), module
    )
    assert refusal(replace(graph, outputs=(Output(number=0.5),)), module) == "it returns a float"


def test_calls_that_cannot_be_recorded() -> None:
    module = traced(lambda x: torch.nonzero_static(x, size=2), torch.ones(4))
    graph = moved(from_fx(module)[0], "cuda:0")
    node = next(node for node in module.graph.nodes if node.op == "call_function")
    node.meta["val"] = _unbacked(module)
    assert "cannot be recorded" in refusal(graph, module)


def _unbacked(module: fx.GraphModule) -> Any:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return ShapeEnv().create_unbacked_symint()


def test_a_backward_follows_its_forward() -> None:
    graph, module = captured()
    run: Callable[[list[Any]], Any] = tuple
    assert replay(run, graph, module, "backward").reason == "its forward is not replayed"
    on_cpu = replay(run, moved(graph, "cpu"), module, "backward", is_forward_replayed=True)
    assert "not on a GPU" in on_cpu.reason
    assert on_cpu.run is not run
    assert not on_cpu.is_replayed


# **** recording ****


class Trees:
    """In the place of PyTorch's CUDA graph trees."""

    def __init__(self) -> None:
        self.recorded: list[dict[str, Any]] = []

    def __call__(self, run: Any, inputs: list[Any], stable: Any, **facts: Any) -> Any:
        self.recorded.append({"inputs": list(inputs), "stable": stable, **facts})
        return run


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> Trees:
    from torch._inductor import cudagraph_trees

    made = Trees()
    monkeypatch.setattr(cudagraph_trees, "cudagraphify_impl", made)
    return made


def test_one_record_for_each_size(
    trees: Trees, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(graphs, "MOST_SIZES", 3)
    graph, module = captured("cuda:3", dynamic=True)
    assert len(graph.symbols) == 3
    made = replay(lambda inputs: inputs[0].shape, graph, module, "inference")
    assert made.is_replayed
    places = [item.value for item in graph.inputs]
    with caplog.at_level(logging.WARNING, "fuser"):
        for rows in (2, 3, 2, 4, 3, 5, 6, 5):
            tensors = iter((torch.empty(rows, 8), torch.empty(8, 5)))
            inputs: list[Any] = [rows if v is None else next(tensors) for v in places]
            assert rows in made.run(inputs)
    assert len(trees.recorded) == 3
    (message,) = [r.message for r in caplog.records if r.name == "fuser.runtime.graphs"]
    assert "3 sets of sizes" in message
    first = trees.recorded[0]
    assert (first["device_index"], first["is_inference"], first["is_backward"]) == (3, True, False)
    assert len(first["stack_traces"]) == len(graph.outputs)
    assert len(first["placeholders"]) == len(graph.inputs)


def test_what_a_backward_is_given_stays_where_the_forward_left_it(trees: Trees) -> None:
    graph, module = captured()
    for node, name in zip(
        module.graph.find_nodes(op="placeholder"), ("x", "tangents_1"), strict=True
    ):
        node.name = name
    made = replay(lambda inputs: inputs, graph, module, "backward", is_forward_replayed=True)
    made.run([torch.empty(6, 8), torch.empty(8, 5)])
    (recorded,) = trees.recorded
    assert list(recorded["stable"]) == [0]
    assert recorded["is_backward"]


def test_a_replay_takes_a_list_that_it_may_empty(trees: Trees) -> None:
    made = replay(lambda inputs: inputs, *captured(), "inference")
    assert getattr(made.run, "_boxed_call", False)


# **** the option ****


def test_modes() -> None:
    assert options_from({}).mode == options_from({"mode": None}).mode == "default"
    assert options_from({"mode": "reduce-overhead"}).mode == "reduce-overhead"
    with pytest.raises(InvalidArgument, match="'default' or 'reduce-overhead'") as caught:
        options_from({"mode": "max-autotune"})
    assert caught.value.fields["value"] == "max-autotune"


def relu_of_sum(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + 1)


@needs_kernels
@pytest.mark.parametrize("way", ["fuser", "mode", "options"])
def test_the_plan_says_that_it_is_not_replayed(
    way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log, "_warned", set())
    torch.compiler.reset()
    if way == "fuser":
        compiled = fuser.compile(relu_of_sum, mode="reduce-overhead")
    elif way == "mode":
        compiled = torch.compile(relu_of_sum, backend="fuser", mode="reduce-overhead")
    else:
        chosen = {"mode": "reduce-overhead"}
        compiled = torch.compile(relu_of_sum, backend="fuser", options=chosen)
    x = torch.randn(5)
    with caplog.at_level(logging.WARNING, "fuser"):
        torch.testing.assert_close(compiled(x), relu_of_sum(x))
    (graph,) = registry.plans(compiled)
    assert isinstance(graph.replay, Replay)
    assert not graph.replay.is_replayed
    (message,) = [r.message for r in caplog.records if "CUDA graph" in r.message]
    assert "not on a GPU" in message
    (plan,) = fuser.plans(compiled)
    assert plan.unreplayed == graph.replay.reason
    last = str(plan).splitlines()[-1]
    assert last.startswith("not replayed as a CUDA graph: it has tensors that are not on a GPU")
    shown = io.StringIO()
    plan.show(shown)
    assert shown.getvalue().splitlines()[-1] == last


@needs_kernels
def test_without_the_mode_nothing_is_said() -> None:
    torch.compiler.reset()
    compiled = fuser.compile(relu_of_sum)
    compiled(torch.randn(5))
    (plan,) = fuser.plans(compiled)
    assert plan.unreplayed == ""
    assert "CUDA graph" not in str(plan)
