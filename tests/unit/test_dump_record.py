"""A plan as an artefact: what is saved loads back to an equal record, and other data does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuser.dump.record import (
    Compiled,
    CompiledKernel,
    EdgeRecord,
    OpaqueRecord,
    PassTime,
    Peaks,
    PlanRecord,
    Predicted,
    RegionRecord,
    Tile,
    Totals,
    ValueRecord,
)
from fuser.dump.recording import record_of
from fuser.dump.to_json import dumps, load, loads, to_json
from fuser.errors import InvalidPlan
from fuser.ir.kernel import Resources
from fuser.ir.plan import SCHEMA
from fuser.passes.pipeline import plan_graph
from support.plans import Sketch, kernels, small_graph, small_plan

KERNELS = (kernels("region_0", "scale"), kernels("region_1", "partial", "combine"))
RESOURCES = {
    "scale": Resources(24, 0, 0),
    "partial": Resources(64, 2, 1024),
    "combine": Resources(32, 0, 2048),
}
PEAKS = Peaks(planned=1000, eager=3000)


def full_record() -> PlanRecord:
    return record_of(small_plan(), KERNELS, RESOURCES, PEAKS)


# There and back ---------------------------------------------------------------------------------

finite = st.floats(allow_nan=False, allow_infinity=False)
predicted = st.builds(Predicted, occupancy=finite, time_us=finite, unfused_us=finite)
tiles = st.builds(Tile, blocks=st.dictionaries(st.text(max_size=3), st.integers(), max_size=2))


def few(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=2).map(tuple)


records = st.builds(
    PlanRecord,
    schema=st.just(SCHEMA),
    totals=st.builds(Totals, predicted_us=finite, unfused_us=finite),
    regions=few(st.builds(RegionRecord, predicted=predicted, tiles=few(tiles))),
    opaque=few(st.builds(OpaqueRecord)),
    edges=few(st.builds(EdgeRecord, gain_us=finite)),
    values=st.dictionaries(st.text(max_size=3), st.builds(ValueRecord), max_size=2),
    passes=few(st.builds(PassTime, ms=finite)),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(records)
def test_any_record_goes_to_data_and_back(record: PlanRecord) -> None:
    assert PlanRecord.from_dict(record.to_dict()) == record
    assert loads(dumps(record)) == record
    assert dumps(loads(dumps(record))) == dumps(record)


def test_a_plan_is_saved_and_loaded(tmp_path: Path) -> None:
    text = to_json(small_plan(), KERNELS, RESOURCES, PEAKS)
    (tmp_path / "plan.json").write_text(text)
    assert load(tmp_path / "plan.json") == loads(text) == full_record()


def test_symbolic_sizes_stay_texts() -> None:
    sketch = Sketch()
    x = sketch.input("x", sketch.symbol("s0", 8), 16)
    record = record_of(plan_graph(sketch.graph(sketch.pointwise("exp", x)), "sm_90"))
    assert record.values["x"].shape == ("s0", 16)
    assert loads(dumps(record)) == record


def test_equal_plans_are_equal_whatever_the_time_that_they_took() -> None:
    first, second = record_of(small_plan()), record_of(plan_graph(small_graph(), "sm_90"))
    slower = replace(first, passes=tuple(replace(item, ms=1e9) for item in first.passes))
    assert first == second == slower
    assert first != record_of(small_plan("sm_80"))


def test_the_gain_of_an_edge_is_kept_and_not_compared() -> None:
    plan = small_plan()
    gained = replace(
        plan, verdicts=tuple(replace(verdict, gain_us=1.5) for verdict in plan.verdicts)
    )
    record = record_of(gained)
    assert record == record_of(plan)
    assert {edge.gain_us for edge in loads(dumps(record)).edges} == {1.5}
    assert dumps(loads(dumps(record))) == dumps(record)


def test_what_the_compiler_s_answer_changed_makes_another_plan() -> None:
    plan = small_plan()
    first, second = plan.regions
    noted = record_of(replace(plan, regions=(first, replace(second, notes=("split",)))))
    assert noted != record_of(plan)
    assert loads(dumps(noted)) == noted


def test_records_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        full_record().target = "sm_80"  # type: ignore[misc]


# What is known ----------------------------------------------------------------------------------


def test_a_region_needs_what_its_greediest_kernels_need() -> None:
    first, _ = full_record().regions
    assert first.compiled == Compiled(24, 0, 0, (CompiledKernel("scale", 24, 0, 0),))
    assert full_record().to_dict()["regions"][1]["compiled"] == {
        "registers": 64,
        "spills": 2,
        "shared_bytes": 2048,
        "kernels": [
            {"name": "partial", "registers": 64, "spills": 2, "shared_bytes": 1024},
            {"name": "combine", "registers": 32, "spills": 0, "shared_bytes": 2048},
        ],
    }


def test_what_is_not_known_is_left_out() -> None:
    fields = record_of(small_plan(), KERNELS).to_dict()
    assert "compiled" not in fields["regions"][0]
    assert "peak_bytes" not in fields["totals"]
    totals = full_record().to_dict()["totals"]
    assert list(totals)[-2:] == ["peak_bytes", "eager_peak_bytes"]
    assert (totals["peak_bytes"], totals["eager_peak_bytes"]) == (1000, 3000)


# Data that is not a plan ------------------------------------------------------------------------


def renamed(fields: dict[str, Any]) -> None:
    fields["regions"][0]["stategy"] = fields["regions"][0].pop("strategy")


Damage = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d.update(schema=SCHEMA + 1), f"schema {SCHEMA + 1}; this version .* {SCHEMA}"),
        (lambda d: d.update(schema=True), "the plan has schema True"),
        (lambda d: d.pop("schema"), "not a plan: there is no schema number"),
        (lambda d: d.pop("edges"), "there is no field 'edges'"),
        (renamed, r"regions\[0\]: unknown field 'stategy'\. Did you mean 'strategy'\?"),
        (lambda d: d["regions"][1].update(bytes="many"), r"regions\[1\]\.bytes: 'many' .* int is"),
        (lambda d: d["regions"][1].update(bytes=True), r"regions\[1\]\.bytes: True stands"),
        (lambda d: d["totals"].update(peak_bytes=1.5), r"totals\.peak_bytes: 1\.5 stands"),
        (
            lambda d: d["regions"][0]["tiles"][0].pop("warps"),
            r"tiles\[0\]: there is no field 'warps'",
        ),
        (lambda d: d["regions"][0]["predicted"].pop("occupancy"), "no field 'occupancy'"),
        (lambda d: d["edges"][0].pop("gain_us"), r"edges\[0\]: there is no field 'gain_us'"),
        (lambda d: d["edges"][0].update(fused=1), r"edges\[0\]\.fused: 1 stands where bool"),
        (lambda d: d["values"]["x"]["shape"].append(None), r"values\.x\.shape\[2\]: None .*int or"),
        (lambda d: d.update(order="region_0"), "order: 'region_0' stands where a list"),
        (lambda d: d.update(symbols=[]), r"symbols: \[\] stands where an object"),
        (lambda d: d.update(totals=3), "totals: 3 stands where an object"),
    ],
)
def test_damaged_data_is_refused_with_its_place(damage: Damage, message: str) -> None:
    fields = copy.deepcopy(full_record().to_dict())
    damage(fields)
    with pytest.raises(InvalidPlan, match=message):
        PlanRecord.from_dict(fields)


def test_a_whole_number_may_stand_for_a_time() -> None:
    fields = full_record().to_dict()
    fields["totals"]["predicted_us"] = 5
    found = PlanRecord.from_dict(fields).totals.predicted_us
    assert (found, type(found)) == (5.0, float)


@pytest.mark.parametrize("text", ["", "[1, 2]", "null", '"plan"', "{", "{}"])
def test_a_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(InvalidPlan, match="this is not"):
        loads(text)


def test_a_file_that_is_no_plan_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(InvalidPlan, match=r"plan\.json: the plan cannot be read: No such file"):
        load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidPlan, match=r"plan\.json: this is not a text"):
        load(path)
    fields = full_record().to_dict()
    fields["regions"][0]["flops"] = None
    path.write_text(json.dumps(fields))
    with pytest.raises(InvalidPlan, match=r"plan\.json: regions\[0\]\.flops: None stands"):
        load(path)
