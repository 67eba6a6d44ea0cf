"""The report on why values are fused or not: its order, its sums and its lines."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuser
from fuser.dump.to_explanation import WIDTH, Explanation, to_explanation
from fuser.ir.region import Reason
from fuser.passes.pipeline import plan_graph
from support.plans import Sketch, small_plan

X = torch.randn(64, 48)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(48, 96)

    def forward(self, x: Tensor) -> Any:
        y = F.gelu(self.up(x))
        z = F.softmax(y, -1).flip(0)
        return z, z.sum(0).amax(0)


def explained(**options: Any) -> Explanation:
    return fuser.explain(Net(), X, target="sm_90", **options)


def test_every_edge_is_in_the_report() -> None:
    explanation = explained()
    text = str(explanation)
    assert text == to_explanation(explanation.plan)
    for verdict in explanation.edges:
        if verdict.reason not in (Reason.OPAQUE_PRODUCER, Reason.OPAQUE_READER):
            assert f"{verdict.producer} -> {verdict.consumer}" in text
            assert verdict.reason.value.split()[0] in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_the_largest_gain_that_was_left_comes_first() -> None:
    explanation = explained()
    gains = [verdict.gain_us for verdict in explanation.edges]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 2.4
    lines = str(explanation).splitlines()
    places = [line for line in lines if line.startswith("test_explain.py:")]
    assert "F.softmax(y, -1).flip(0)" in places[0]
    assert "z.sum(0).amax(0)" in places[1]
    # What is fused has left nothing.
    assert all(not verdict.gain_us for verdict in explanation.edges if verdict.fused)


def test_the_gain_of_two_kernels_counts_once() -> None:
    explanation = explained()
    refused = [v for v in explanation.edges if v.gain_us]
    assert [v.reason for v in refused].count(Reason.OTHER_SPACE) == 2
    owners = explanation.plan.region_of
    pairs = {(owners[v.producer].name, owners[v.consumer].name): v.gain_us for v in refused}
    assert explanation.gain_left_us == sum(pairs.values())
    assert explanation.gain_left_us < sum(v.gain_us for v in refused)


def test_original_calls_are_counted_and_not_listed() -> None:
    lines = str(explained()).splitlines()
    start = lines.index("values to or from ops that run as their original calls")
    assert any("aten.addmm.default: no generated form" in line for line in lines[start:])
    assert not any("addmm ->" in line for line in lines)


def test_what_the_user_forbade_says_so() -> None:
    text = str(explained(rules=[fuser.no_fuse("flip", "sum")]))
    assert "because you asked not to fuse them" in text


def test_the_head_has_the_totals() -> None:
    first, second, third, fourth, *_ = str(explained()).splitlines()
    assert first == "14 ops in 3 kernels + 1 opaque call, for sm_90"
    assert "moved in place of" in second
    assert "predicted in place of" in second
    assert "passed from op to op" in third
    assert "of predicted gain was left" in fourth


def test_a_plan_without_edges() -> None:
    sketch = Sketch()
    graph = sketch.graph(sketch.pointwise("exp", sketch.input("x", 8)))
    text = to_explanation(plan_graph(graph, "sm_90"))
    assert text.splitlines()[-1].strip() == (
        "0 values passed from op to op: 0 fused, 0 not, 0 to or from an original call"
    )


def test_a_place_names_its_module() -> None:
    text = to_explanation(small_plan())
    assert "model.py:13 y = tanh(x)   in layers.0" in text


def test_what_nothing_would_save_has_no_gain() -> None:
    """On the interpreter's device a kernel costs so much that every merge would save time."""
    for target in ("sm_90", "cpu"):
        plan = small_plan(target)
        assert all(v.gain_us >= 0 for v in plan.verdicts)
        opaque = [v for v in plan.verdicts if "original" in v.text]
        assert opaque
        assert not any(v.gain_us for v in opaque)
