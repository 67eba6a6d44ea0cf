"""Capture: the backend around AOTAutograd, and the capture of a model without running it."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.checkpoint import checkpoint

from fuser.capture import backend as backend_module
from fuser.capture.backend import Backend, CompileContext
from fuser.capture.fake import capture_graph, fake_program
from fuser.capture.registry import plans
from fuser.errors import CaptureError
from support.capture import Net, Other, Recorder, phases

pytestmark = [
    # Dynamo silences it by replacing `showwarning`, which a filter set to "error" comes before.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    # On a machine with a GPU, Dynamo's reset imports modules of torch that raise it.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def test_training_gives_a_forward_and_a_backward_plan() -> None:
    ours, theirs = Net(), Net()
    theirs.load_state_dict(ours.state_dict())
    compiled = Recorder().compile(ours)
    x = torch.randn(5, 4)
    for _ in range(2):
        got, expected = compiled(x, scale=2.0), theirs(x, scale=2.0)
        assert got["size"] == 5
        assert got["out"][1] is None
        torch.testing.assert_close(got["out"][0], expected["out"][0])
        got["out"][0].square().sum().backward()
        expected["out"][0].square().sum().backward()
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    assert phases(compiled) == [("forward", 0), ("backward", 0)]


def test_inference_is_one_plan_and_knows_its_compilation() -> None:
    compiled = Recorder(options={"precision": "fast", "level": 1}).compile(
        Net().eval(), options={"precision": "eager"}, dynamic=False
    )
    assert plans(compiled) == []
    with torch.no_grad():
        compiled(torch.randn(3, 4))
    (context,) = plans(compiled)
    assert (context.phase, context.graph_index) == ("inference", 0)
    assert context.compile_id == "0/0"
    assert dict(context.options) == {"precision": "eager", "level": 1}


def test_graph_breaks_give_several_plans() -> None:
    model = Net(broken=True)
    compiled = Recorder().compile(model)
    compiled(torch.randn(5, 4))["out"][0].sum().backward()
    assert sorted(phases(compiled)) == [
        ("backward", 0), ("backward", 1), ("forward", 0), ("forward", 1),
    ]  # fmt: skip
    assert len({context.compile_id for context in plans(compiled)}) == 2


def test_changing_sizes_become_symbols() -> None:
    compiled = Recorder().compile(lambda x: F.softmax(x, 1) * x.shape[0])
    for rows in (3, 5, 9, 1, 0):
        x = torch.randn(rows, 7)
        torch.testing.assert_close(compiled(x), F.softmax(x, 1) * rows)
    assert len(plans(compiled)) == 4  # three rows, any number, one, none


def test_writes_to_inputs_and_views_come_back() -> None:
    def update(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        y[1:].add_(1)
        return x + 0, y.t()

    compiled = Recorder().compile(update)
    ours, theirs = [[torch.ones(3), torch.ones(2, 3)] for _ in range(2)]
    torch.testing.assert_close(compiled(*ours), update(*theirs))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("fixed", [False, True])
def test_inputs_that_begin_to_overlap_run_as_eager(fixed: bool) -> None:
    buffer = nn.Buffer(torch.zeros(10))

    def update(target: Tensor, other: Tensor) -> Tensor:
        target.add_(5)
        return other * target

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.state = buffer

        def forward(self, other: Tensor) -> Tensor:
            return update(self.state, other)

    compiled = Recorder().compile(Holder() if fixed else update)
    apart = (torch.ones(10),) if fixed else (torch.zeros(10), torch.ones(10))
    compiled(*apart)
    shared = buffer if fixed else torch.arange(12.0)
    expected = shared.clone()
    arguments = (shared.view(10),) if fixed else (shared[:10], shared[2:])
    result = compiled(*arguments)
    if fixed:
        torch.testing.assert_close(result, update(expected, expected))
    else:
        torch.testing.assert_close(result, update(expected[:10], expected[2:]))
    torch.testing.assert_close(shared, expected)
    assert len(plans(compiled)) == 1


def test_second_derivatives() -> None:
    layer = nn.Linear(4, 4)

    def penalty(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        layer.zero_grad()
        (slope.norm() - 1).square().backward()
        return layer.weight.grad

    x = torch.randn(3, 4, requires_grad=True)
    compiled = Recorder().compile(lambda x: layer(x).tanh())
    torch.testing.assert_close(
        penalty(compiled, x).clone(), penalty(lambda x: layer(x).tanh(), x).clone()
    )


def test_autocast_regions() -> None:
    layer = nn.Linear(4, 4)

    def forward(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x) + 1

    recorder = Recorder()
    x = torch.randn(3, 4)
    torch.testing.assert_close(recorder.compile(forward)(x), forward(x))
    assert "aten._to_copy.default" in recorder.targets()


def test_higher_order_operators_stay_in_the_graph() -> None:
    def choose(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    recorder = Recorder()
    compiled = recorder.compile(choose, fullgraph=True)
    with torch.no_grad():
        for x in (torch.ones(3), -torch.ones(3)):
            torch.testing.assert_close(compiled(x), choose(x))
    assert "cond" in recorder.targets()


def test_checkpoints_repeat_the_dropout_of_the_forward() -> None:
    def block(x: Tensor) -> Tensor:
        return F.dropout(x.sin(), 0.5)

    def forward(x: Tensor) -> Tensor:
        return checkpoint(block, x, use_reentrant=False)

    x = torch.rand(64, 64, requires_grad=True)
    out = Recorder().compile(forward)(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad != 0, out != 0)
    assert 0.3 < (out != 0).float().mean().item() < 0.7


def test_threads() -> None:
    recorder = Recorder()
    failures: list[BaseException] = []
    # Before torch 2.13, a call of compiled code fails while another thread compiles.
    compiling, compiled_all = threading.Lock(), threading.Barrier(4)

    def work(k: int) -> None:
        try:
            compiled = recorder.compile(lambda x: (x * k).relu())
            with compiling:
                compiled(torch.randn(4))
            compiled_all.wait(timeout=60)
            for _ in range(20):
                x = torch.randn(4)
                torch.testing.assert_close(compiled(x), (x * k).relu())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_runners_take_a_list_and_modules_run_as_they_are() -> None:
    seen: list[int] = []

    def boxed(module: fx.GraphModule, inputs: Sequence[Any], context: CompileContext) -> Any:
        def run(arguments: list[Any]) -> Any:
            seen.append(len(arguments))
            result = module(*arguments)
            arguments.clear()
            return result

        return run

    compiled = torch.compile(lambda x, y: x + y, backend=Backend(boxed))
    torch.testing.assert_close(compiled(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))
    assert seen == [2]


def keep(module: fx.GraphModule, inputs: Sequence[Any], context: CompileContext) -> Any:
    return module


def test_compiled_modules_can_be_copied_and_pickled() -> None:
    compiled = torch.compile(Other(), backend=Backend(keep, {"precision": "eager"}))
    x = torch.randn(2, 4)
    expected = compiled(x)
    for twin in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        torch.testing.assert_close(twin(x), expected)
        assert twin.weight is not compiled.weight


def test_what_aotautograd_refuses_runs_as_eager(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("aot: not supported")

    monkeypatch.setattr(backend_module, "aot_module_simplified", refuse)
    compiled = Recorder().compile(lambda x: x + 1)
    assert compiled(torch.zeros(2)).tolist() == [1.0, 1.0]
    assert "not supported" in caplog.text
    assert plans(compiled) == []
    with pytest.raises(Exception, match="not supported"):
        Recorder(fall_back=False).compile(lambda x: x + 2)(torch.zeros(2))


def test_errors_of_the_compile_function_are_not_hidden() -> None:
    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError("in the compiler")

    with pytest.raises(Exception, match="in the compiler"):
        torch.compile(lambda x: x + 1, backend=Backend(fail))(torch.zeros(2))


# Capture without running.


def test_fakes_keep_devices_types_and_ties() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.plain, self.listed = torch.ones(4), [torch.ones(4).bfloat16()]

    model = Tied()
    fake, (x,), options, mode = fake_program(model, (torch.ones(2, 4),), {"y": [torch.ones(3)]})
    assert fake.first.weight is fake.second.weight
    assert isinstance(fake.first.weight, nn.Parameter)
    tensors = [fake.first.weight, fake.plain, fake.listed[0], x, options["y"][0]]
    assert all(isinstance(t, FakeTensor) and t.fake_mode is mode for t in tensors)
    assert fake.listed[0].dtype == torch.bfloat16
    assert not isinstance(model.first.weight, FakeTensor)


def test_capture_changes_nothing() -> None:
    class Counting(Net):
        calls = 0

        def forward(self, x: Tensor, **options: Any) -> Any:
            self.calls += 1
            return super().forward(x, **options)

    model = Counting()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    attributes = set(vars(model))
    for rows in (3, 7, 7):
        ((graph, inputs, context),) = capture_graph(model, (torch.randn(rows, 4),), {"scale": 3.0})
        assert context.phase == "inference"
        assert all(isinstance(x, FakeTensor) for x in inputs)
        assert any(tuple(x.shape) == (rows, 4) for x in inputs)
        assert "aten.addmm.default" in {str(node.target) for node in graph.graph.nodes}
    assert (model.calls, set(vars(model))) == (0, attributes)
    torch.testing.assert_close(model.state_dict(), before)


def test_capture_leaves_other_compilations_alone() -> None:
    model, recorder = Net(), Recorder()
    compiled = recorder.compile(model)
    capture_graph(model, (torch.randn(7, 4),))
    compiled(torch.randn(3, 4))  # not a second size, so not a symbol
    sizes = {n.meta["val"].shape for n in recorder.graphs[0].graph.find_nodes(op="placeholder")}
    assert torch.Size([3, 4]) in sizes
    code = Net.forward.__code__
    entries = len(_debug_get_cache_entry_list(code))
    capture_graph(model, (torch.randn(9, 4),))
    assert len(_debug_get_cache_entry_list(code)) == entries
    compiled(torch.randn(3, 4))
    assert len(plans(compiled)) == 1


GLOBAL_NET = Net()


def test_functions_are_captured_over_copies_of_what_they_use() -> None:
    local = Net()

    def forward(x: Tensor) -> Tensor:
        return local(x)["out"][0] + GLOBAL_NET(x)["out"][0]

    ((graph, _, _),) = capture_graph(forward, (torch.randn(3, 4),))
    products = [n for n in graph.graph.nodes if str(n.target) == "aten.addmm.default"]
    assert len(products) == 2
    for model in (local, GLOBAL_NET):
        assert model.norm.num_batches_tracked == 0
        assert not any(isinstance(t, FakeTensor) for t in model.state_dict().values())
    assert len(capture_graph(torch.relu, (torch.ones(3),))) == 1
    assert len(capture_graph(torch.compile(nn.ReLU(), backend="eager"), (torch.ones(3),))) == 1


def test_capture_with_symbolic_sizes() -> None:
    x = torch.randn(5, 4)
    ((_, inputs, _),) = capture_graph(Other(), (x,), dynamic=True)
    assert any(isinstance(value, torch.SymInt) for value in inputs)
    ((_, inputs, _),) = capture_graph(Other(), (x,))
    assert not any(isinstance(value, torch.SymInt) for value in inputs)
    torch._dynamo.mark_dynamic(x, 0)
    ((_, inputs, _),) = capture_graph(Other(), (x,))
    assert any(isinstance(value, torch.SymInt) for value in inputs)


def test_a_graph_break_is_an_error_with_its_line() -> None:
    def branch(x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(CaptureError) as caught:
        capture_graph(branch, (torch.ones(3),))
    text = str(caught.value)
    assert "one graph" in text
    assert "if x.sum() > 0" in text
    assert "fix:" in text
    assert caught.value.fields["problem"] == "graph-break"


def test_what_the_model_raises_is_reported_as_its_own() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no such mode")

    with pytest.raises(CaptureError, match="ValueError: no such mode") as caught:
        capture_graph(Failing(), (torch.ones(3),))
    assert caught.value.fields["problem"] == "model-raised"
    assert "test_capture.py" in str(caught.value)
    with pytest.raises(CaptureError, match="RuntimeError"):
        capture_graph(nn.Linear(3, 3), (torch.ones(2, 5),))
