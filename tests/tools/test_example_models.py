"""The example models: a complete plan at their published sizes, and the same numbers as eager.

Planning runs at full size on shapes. What is run is the small form of each model.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import fuser
from fuser.ir.graph import OPAQUE, Argument
from fuser.passes.library import ALONE
from fuser.program_file import load_program
from fuser.report import Plan
from fuser.runtime.interpreter import is_interpreting
from support.compare import assert_matches_eager

EXAMPLES = Path(__file__).parents[2] / "examples"
MOST_LAUNCHES = {"llama_block": 8, "bert_layer": 7}
"""Kernels and calls of each model."""

HAS_GPU = torch.cuda.is_available() and not is_interpreting()
DEVICE = "cuda" if HAS_GPU else "cpu"
needs_kernels = pytest.mark.skipif(
    not HAS_GPU and not is_interpreting(),
    reason="generated kernels run on a GPU, or with TRITON_INTERPRET=1",
)

pytestmark = pytest.mark.usefixtures("restored_path")


@pytest.fixture(scope="module")
def restored_path() -> Iterator[None]:
    """Loading a program file puts its folder on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        yield


@pytest.fixture(scope="module", params=list(MOST_LAUNCHES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def plan(name: str, restored_path: None) -> Plan:
    """The model at its published sizes, planned for a GPU that need not be here."""
    program = load_program(str(EXAMPLES / f"{name}.py"), "cpu")
    return fuser.plan(program.model, *program.calls[0], target="sm_90")


def test_planning_takes_no_memory_for_the_weights(name: str) -> None:
    program = load_program(str(EXAMPLES / f"{name}.py"), "cpu")
    assert isinstance(program.model, nn.Module)
    tensors = [*program.model.parameters(), *program.model.buffers(), *program.calls[0]]
    assert all(isinstance(tensor, FakeTensor) for tensor in tensors)


def test_each_op_has_one_place(plan: Plan) -> None:
    places = Counter(op for region in plan.regions for op in region.ops)
    places.update(op.name for op in plan.opaque)
    assert places == Counter({op.name: 1 for op in plan.graph.ops})
    steps = [region.name for region in plan.regions] + [op.name for op in plan.opaque]
    assert sorted(plan.fusion.order) == sorted(steps)


def test_each_edge_has_one_verdict(plan: Plan) -> None:
    producers = plan.graph.producers
    edges = {
        (producers[argument.value].name, op.name)
        for op in plan.graph.ops
        for argument in (op.arguments if op.kind == OPAQUE else op.operands)
        if isinstance(argument, Argument) and argument.value in producers
    }
    assert edges
    decided = Counter((verdict.producer, verdict.consumer) for verdict in plan.edges)
    assert decided == Counter(dict.fromkeys(edges, 1))
    assert all(verdict.text for verdict in plan.edges)


def test_only_attention_and_lone_products_stay_calls(name: str, plan: Plan) -> None:
    assert len(plan.fusion.steps) <= MOST_LAUNCHES[name]
    assert all(launch.saved_us > 0 for launch in plan.fusion.launches)
    _check_calls(plan)


def _check_calls(plan: Plan) -> None:
    calls = [op.call.name for op in plan.opaque]
    assert sum("scaled_dot_product" in call for call in calls) == 1
    rest = {
        (op.call.name, op.reason.split(";")[0]) for op in plan.opaque if "scaled" not in op.name
    }
    assert rest <= {(f"aten.{name}.default", ALONE) for name in ("mm", "addmm")}


def test_fusing_moves_fewer_bytes(plan: Plan) -> None:
    totals = plan.record.totals
    assert 0 < totals.bytes < totals.unfused_bytes
    assert 0 < totals.predicted_us < totals.unfused_us


def test_no_more_memory_is_held_than_op_by_op(plan: Plan) -> None:
    assert 0 < plan.peaks.planned <= plan.peaks.eager


class Held(TorchDispatchMode):
    """Counts the bytes that are allocated at once while a program runs on fake tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        given = {_storage(x)._cdata for x in _tensors((args, kwargs))}
        for storage in map(_storage, _tensors(result)):
            if storage._cdata not in given:
                self.count(storage.nbytes())
                weakref.finalize(storage, self.count, -storage.nbytes())
        self.most = max(self.most, self.now)
        return result

    def count(self, size: int) -> None:
        self.now += size


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _storage(x: Tensor) -> torch.UntypedStorage:
    return x.untyped_storage()


def test_no_more_memory_is_held_than_by_eager(name: str, plan: Plan) -> None:
    """Eager's own calls, before any is taken apart: its SiLU, GELU and norms have no parts."""
    program = load_program(str(EXAMPLES / f"{name}.py"), "cpu")
    with torch.no_grad(), Held() as held:
        program.model(*program.calls[0])
    assert 0 < plan.peaks.planned <= held.most


@pytest.mark.slow
def test_the_kernels_compile_without_spills(plan: Plan) -> None:
    compiled = plan.with_resources()
    assert compiled.resources.keys() == compiled.sources().keys()
    spills = {key: item.spills for key, item in compiled.resources.items() if item.spills}
    assert spills == {}


@needs_kernels
def test_a_small_model_equals_eager(name: str) -> None:
    program = load_program(f"{EXAMPLES / name}.py:make_small", "cpu")
    plans = assert_matches_eager(program.model, *program.calls[0], device=DEVICE)
    assert len(plans) == 1
    _check_calls(plans[0])


@needs_kernels
def test_every_kernel_of_a_small_model_is_verified(name: str) -> None:
    program = load_program(f"{EXAMPLES / name}.py:make_small", DEVICE)
    report = fuser.verify(program.model, *program.calls[0])
    assert report.is_right
    assert len({check.region for check in report.regions}) == report.kernels > 0


def test_run_by_itself_an_example_prints_its_totals(
    name: str, plan: Plan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    load_program(str(EXAMPLES / f"{name}.py"), "cpu")
    sys.modules[f"fuser_program_{name}"].main()
    printed = capsys.readouterr().out
    assert f"{len(plan.graph.ops)} ops in {plan.record.totals.kernels} generated kernels" in printed
    assert f"{plan.peaks.planned / 1e6:.0f} MB held at most" in printed


@needs_kernels
def test_a_comparison_with_eager_is_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = load_program(f"{EXAMPLES / name}.py:make_small", DEVICE)
    module = sys.modules[f"fuser_program_{name}"]
    module.compare(program.model, program.calls[0])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("largest difference from eager")
    assert printed[1].startswith("verified")
    assert [line.split()[0] for line in printed[2:]] == ["eager", "fused"]
