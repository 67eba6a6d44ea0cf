"""The object that people hold: every form of a plan, on the screen and in files."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest

from fuser.dump.to_text import to_text
from fuser.report import Plan
from support.plans import kernels, small_plan

KERNELS = (kernels("region_0", "scale"), kernels("region_1", "ratio"))


@pytest.fixture
def plan() -> Plan:
    return Plan(small_plan(), KERNELS)


def test_its_text_is_the_plan_and_its_representation_is_short(plan: Plan) -> None:
    assert str(plan) == to_text(plan.fusion, KERNELS)
    assert repr(plan) == "<fuser plan for sm_90: 6 ops in 2 kernels + 1 opaque call>"


def test_it_cannot_be_changed(plan: Plan) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.kernels = ()  # type: ignore[misc]


def test_its_parts_are_at_hand(plan: Plan) -> None:
    assert plan.target == "sm_90"
    assert plan.graph.name == "small"
    assert [region.name for region in plan.regions] == ["region_0", "region_1"]
    assert [op.name for op in plan.opaque] == ["mm"]
    assert plan.sources() == {
        "scale": "# source of scale\n",
        "ratio": "# source of ratio\n",
    }
    assert set(plan.to_networkx()) >= {"x", "mul", "mm"}
    assert Plan(plan.fusion).sources() == {}


def test_it_explains_each_edge_on_a_line(plan: Plan) -> None:
    lines = plan.explain_edges().splitlines()
    assert len(lines) == len(plan.edges) == 6
    assert lines[0] == "mul -> mm: the reader runs as its original call (no generated form)"


def test_it_writes_json_and_dot_to_files(plan: Plan, tmp_path: Path) -> None:
    text = plan.to_json(tmp_path / "plan.json")
    assert (tmp_path / "plan.json").read_text() == text == plan.to_json()
    assert json.loads(text)["regions"][0]["kernels"] == ["scale"]
    drawing = plan.to_dot(str(tmp_path / "plan.dot"))
    assert (tmp_path / "plan.dot").read_text() == drawing
    assert drawing.startswith('digraph "small" {')


def test_it_shows_itself_where_it_is_told(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    plan.show(stream)
    plan.show(verbose=True)
    assert stream.getvalue() == f"{plan}\n"
    assert "passes:" in capsys.readouterr().out
