"""The report on why values are fused or not: its order, its sums and its lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuser
from fuser.dump.to_explanation import Explanation, to_explanation
from fuser.dump.to_text import headline
from fuser.dump.words import WIDTH, byte_text, time_text
from fuser.ir.region import Reason, Verdict
from fuser.passes.pipeline import plan_graph
from support.plans import Sketch, small_plan

X = torch.randn(64, 48)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(48, 96)

    def forward(self, x: Tensor) -> Any:
        y = F.gelu(self.up(x).cumsum(-1))
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


def with_verdicts(*verdicts: Verdict) -> Explanation:
    """The small plan with these decisions, so that no gain depends on the cost model."""
    return Explanation(replace(small_plan(), verdicts=verdicts))


def test_the_largest_gain_that_was_left_comes_first() -> None:
    explanation = with_verdicts(
        Verdict("add", "tanh", True, Reason.FUSED),
        Verdict("mul", "tanh", False, Reason.OTHER_SPACE, "", 1.5),
        Verdict("mul", "amax", False, Reason.OTHER_REDUCTION, "", 0.5),
        Verdict("mul", "divide", False, Reason.NO_GAIN, "", 4.5),
    )
    assert [verdict.gain_us for verdict in explanation.edges] == [4.5, 1.5, 0.5, 0.0]
    lines = str(explanation).splitlines()
    places = [line.split()[0] for line in lines if line.startswith("model.py:")]
    assert places == ["model.py:15", "model.py:13", "model.py:14"]
    assert [line.split("mul")[0].strip() for line in lines if "mul ->" in line] == [
        "4.5 us", "1.5 us", "0.5 us",
    ]  # fmt: skip


def test_gains_are_left_by_refusals_only() -> None:
    explanation = explained()
    gains = [verdict.gain_us for verdict in explanation.edges]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 0
    assert all(not verdict.gain_us for verdict in explanation.edges if verdict.fused)


def test_the_gain_of_two_kernels_counts_once() -> None:
    explanation = with_verdicts(
        Verdict("mul", "tanh", False, Reason.OTHER_SPACE, "", 3.0),
        Verdict("mul", "amax", False, Reason.OTHER_SPACE, "", 2.0),
    )
    assert explanation.gain_left_us == 3.0
    assert "up to 3.0 us of predicted gain was left" in str(explanation)


def test_original_calls_are_counted_and_not_listed() -> None:
    lines = str(explained()).splitlines()
    start = lines.index("values to or from ops that run as their original calls")
    assert any("aten.cumsum.default: no generated form" in line for line in lines[start:])
    assert not any("cumsum ->" in line for line in lines)


def test_what_the_user_forbade_says_so() -> None:
    text = str(explained(rules=[fuser.no_fuse("flip", "sum")]))
    assert "because you asked not to fuse them" in text


def test_the_head_has_the_totals() -> None:
    explanation = explained()
    plan = explanation.plan
    first, second, third, fourth, *_ = str(explanation).splitlines()
    assert first == f"{headline(plan)}, for sm_90"
    moved, unfused = (
        byte_text(sum(getattr(region.cost, name) for region in plan.regions))
        for name in ("bytes", "unfused_bytes")
    )
    assert f"{moved} moved in place of {unfused}" in second
    assert "predicted in place of" in second
    assert "passed from op to op" in third
    assert f"up to {time_text(explanation.gain_left_us)} of predicted gain was left" in fourth


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
