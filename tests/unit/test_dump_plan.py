"""The object that people hold: every form of a plan, on the screen and in files."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from fuser import driver
from fuser.dump.diff import diff
from fuser.dump.record import Tile
from fuser.dump.to_text import to_text
from fuser.dump.words import byte_text
from fuser.errors import InvalidArgument, InvalidPlan, KernelCompilationError
from fuser.ir.kernel import KernelSpec, Resources
from fuser.passes.analysis import eager_peak_bytes, peak_bytes
from fuser.report import Plan
from support.plans import kernels, small_plan

KERNELS = (kernels("region_0", "scale"), kernels("region_1", "ratio"))


@pytest.fixture
def plan() -> Plan:
    return Plan(small_plan(), KERNELS)


def test_its_text_is_the_plan_and_its_representation_is_short(plan: Plan) -> None:
    assert set(to_text(plan.fusion, KERNELS).splitlines()) <= set(str(plan).splitlines())
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


def test_its_json_loads_back_to_its_record(plan: Plan, tmp_path: Path) -> None:
    text = plan.to_json(tmp_path / "plan.json")
    assert Plan.from_json(text) == plan.record
    assert Plan.from_json(tmp_path / "plan.json") == plan.record
    assert Plan.from_json(str(tmp_path / "plan.json")) == plan.record
    with pytest.raises(InvalidPlan, match="no such"):
        Plan.from_json("no such file.json")


def test_its_record_knows_the_memory_that_it_needs(plan: Plan) -> None:
    totals = plan.record.totals
    assert totals.peak_bytes == peak_bytes(plan.fusion)
    assert totals.eager_peak_bytes == eager_peak_bytes(plan.graph)
    assert 0 < totals.peak_bytes <= totals.eager_peak_bytes


class Compiler:
    """Stands for the offline compiler: gives each kernel its answers in turn, notes the questions.

    The small plan's generated kernels have the names of their regions.
    """

    def __init__(self, *answers: tuple[str, Resources | str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[list[str], str, dict[str, int]]] = []

    def __call__(
        self, specs: Sequence[KernelSpec], target: str, hints: Mapping[str, int],
        on_result: Callable[[str], None] | None = None,
    ) -> list[Resources | str]:  # fmt: skip
        self.asked.append(([spec.name for spec in specs], target, dict(hints)))
        found = []
        for spec in specs:
            name, answer = self.answers.pop(0)
            assert name == spec.name
            found.append(answer)
            if on_result is not None:
                on_result(name)
        return found


def test_its_kernels_are_compiled_for_its_target(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(("region_0", Resources(24, 0, 0)), ("region_1", Resources(48, 0, 256)))
    monkeypatch.setattr(driver, "compile_many", compiler)
    done: list[str] = []
    compiled = plan.with_resources(done.append)
    assert compiler.asked == [(["region_0", "region_1"], "sm_90", {})]
    assert done == ["region_0", "region_1"]
    assert plan.resources == {}
    assert compiled.resources == {
        "region_0": Resources(24, 0, 0), "region_1": Resources(48, 0, 256),
    }  # fmt: skip
    needs = compiled.regions[1].cost.needs
    shared = byte_text(needs.shared_bytes)
    assert f"registers {needs.registers} predicted, 48 compiled, 0 spilled" in str(compiled)
    assert f"shared memory {shared} predicted, 256 B compiled" in str(compiled)
    assert json.loads(compiled.to_json())["regions"][1]["compiled"]["registers"] == 48
    assert "predicted, 48 compiled, 0 spilled" in compiled.to_dot()
    assert Plan.from_json(compiled.to_json()) == compiled.record != plan.record


def test_a_kernel_that_spills_gets_another_tile_and_the_plan_says_so(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(
        ("region_0", Resources(24, 0, 0)),
        ("region_1", Resources(255, 8, 256)),
        ("region_1", Resources(64, 0, 128)),
    )
    monkeypatch.setattr(driver, "compile_many", compiler)
    compiled = plan.with_resources()
    first, second = plan.regions[1].schedule.candidates[0][:2]
    assert compiled.resources["region_1"] == Resources(64, 0, 128)
    (note,) = compiled.record.regions[1].notes
    assert "spilled 8 registers" in note
    assert compiled.record.regions[1].tiles == (Tile(dict(second.blocks), second.num_warps),)
    assert first != second
    for text in (str(compiled), compiled.to_dot(), compiled.to_json(), compiled.to_html()):
        assert "spilled 8 registers" in " ".join(text.replace("\\n", " ").split())
    assert "tile" in {
        change.field for change in diff(plan.record, compiled.record).regions[0].changes
    }


def test_a_kernel_that_does_not_compile_is_an_error(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(("region_0", Resources(24, 0, 0)), ("region_1", "no such name"))
    monkeypatch.setattr(driver, "compile_many", compiler)
    with pytest.raises(KernelCompilationError, match="region_1 does not compile: no such name"):
        plan.with_resources()


def test_a_plan_for_the_cpu_has_nothing_to_compile() -> None:
    with pytest.raises(InvalidArgument, match="a plan for a GPU"):
        Plan(small_plan("cpu"), KERNELS).with_resources()


def test_it_shows_itself_where_it_is_told(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    plan.show(stream)
    plan.show(verbose=True)
    assert stream.getvalue() == f"{plan}\n"
    assert "passes:" in capsys.readouterr().out
