"""A plan as data: the documented fields, every op in one place, and the same text each time."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from fuser.dump.to_json import to_dict, to_json
from fuser.ir.kernel import Configuration
from fuser.ir.region import Cost, Needs, Schedule, Strategy
from fuser.passes.pipeline import plan_graph
from support.plans import Sketch, kernels, small_graph, small_plan, tensor


def without_times(fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {"passes": [record | {"ms": 0} for record in fields["passes"]]}


def test_the_fields_are_those_documented_in_a_fixed_order() -> None:
    fields = to_dict(small_plan())
    assert list(fields) == [
        "schema", "target", "phase", "graph", "totals", "symbols", "order", "regions", "opaque",
        "edges", "values", "passes", "siblings", "launches",
    ]  # fmt: skip
    assert fields["schema"] == 2
    assert (fields["target"], fields["phase"], fields["graph"]) == ("sm_90", "inference", "small")
    region = fields["regions"][0]
    assert list(region) == [
        "name", "kind", "strategy", "axes", "tiles", "ops", "recomputed", "inputs", "outputs",
        "bytes", "unfused_bytes", "cached_bytes", "bytes_by_size", "flops", "special", "predicted",
        "notes", "kernels", "launch",
    ]  # fmt: skip
    assert list(fields["totals"]) == [
        "ops", "kernels", "opaque_calls", "bytes", "unfused_bytes", "predicted_us", "unfused_us",
    ]  # fmt: skip
    assert region["launch"] == {
        "name": "",
        "code": "no_other",
        "reason": "no other short kernel can run at the same time",
    }
    assert list(region["predicted"]) == [
        "registers", "shared_bytes", "blocks_per_processor", "occupancy", "time_us", "unfused_us",
        "bound",
    ]  # fmt: skip
    assert region["ops"] == [
        {"name": "mul", "op": "mul", "source": "model.py:10 y = mul(x)", "module": "layers.0"}
    ]
    assert fields["opaque"] == [
        {
            "name": "mm",
            "op": "aten.mm.default",
            "source": "model.py:11 y = aten.mm.default(x)",
            "module": "layers.0",
            "reason": "no generated form",
        }
    ]
    assert fields["edges"][0] == {
        "producer": "mul",
        "consumer": "mm",
        "fused": False,
        "code": "opaque_reader",
        "reason": "the reader runs as its original call (no generated form)",
        "gain_us": 0.0,
    }
    assert list(fields["passes"][0]) == ["name", "ms", "before", "after"]


def test_a_region_has_its_needs_its_tile_and_its_notes() -> None:
    plan = small_plan()
    first, second = plan.regions
    cost = Cost(
        bytes=10, unfused_bytes=40, bytes_by_size=10, cached_bytes=30, flops=50, special=60,
        needs=Needs(38, 32, 12, 0.75), time_us=3.25, unfused_us=9.5, bound="memory",
    )  # fmt: skip
    candidates = (
        (Configuration((("XBLOCK", 4), ("RBLOCK", 64)), 8), Configuration((("XBLOCK", 2),), 8)),
        (Configuration((("XBLOCK", 1),), 2),),
    )
    second = replace(
        second, cost=cost, schedule=Schedule(Strategy.SPLIT, candidates, 4), notes=("split here",)
    )
    region = to_dict(replace(plan, regions=(first, second)))["regions"][1]
    assert region["predicted"] == {
        "registers": 38, "shared_bytes": 32, "blocks_per_processor": 12, "occupancy": 0.75,
        "time_us": 3.25, "unfused_us": 9.5, "bound": "memory",
    }  # fmt: skip
    assert region["tiles"] == [
        {"blocks": {"XBLOCK": 4, "RBLOCK": 64}, "warps": 8},
        {"blocks": {"XBLOCK": 1}, "warps": 2},
    ]
    assert region["notes"] == ["split here"]
    assert (region["bytes"], region["cached_bytes"], region["bytes_by_size"]) == (10, 30, "10")
    assert (region["flops"], region["special"]) == (50, 60)


def test_every_op_is_in_one_region_or_in_opaque() -> None:
    plan = small_plan()
    fields = to_dict(plan)
    listed = [op["name"] for region in fields["regions"] for op in region["ops"]]
    listed += [op["name"] for op in fields["opaque"]]
    assert sorted(listed) == sorted(op.name for op in plan.graph.ops)
    steps = [region["name"] for region in fields["regions"]]
    steps += [op["name"] for op in fields["opaque"]]
    assert sorted(fields["order"]) == sorted(steps)


def test_the_totals_are_the_sums_of_the_regions() -> None:
    fields = to_dict(small_plan())
    totals = fields["totals"]
    assert (totals["ops"], totals["kernels"], totals["opaque_calls"]) == (6, 2, 1)
    for name in ("bytes", "unfused_bytes"):
        assert totals[name] == sum(region[name] for region in fields["regions"])
    predicted = sum(region["predicted"]["time_us"] for region in fields["regions"])
    assert abs(totals["predicted_us"] - predicted) < 0.01
    assert totals["bytes"] < totals["unfused_bytes"]


def test_the_text_is_json_and_does_not_vary() -> None:
    first, second = to_json(small_plan()), to_json(plan_graph(small_graph(), "sm_90"))
    assert first.endswith("}\n")
    assert list(json.loads(first)) == list(json.loads(second))
    assert without_times(json.loads(first)) == without_times(json.loads(second))
    assert json.loads(first) == to_dict(small_plan()) | {"passes": json.loads(first)["passes"]}


def test_symbolic_sizes_are_texts_and_counts_use_the_hints() -> None:
    sketch = Sketch()
    rows = sketch.symbol("s0", 8)
    x = sketch.input("x", rows, 16)
    y = sketch.pointwise("exp", sketch.pointwise("mul", x, 2.0))
    fields = to_dict(plan_graph(sketch.graph(y), "sm_90"))
    assert fields["symbols"] == {"s0": 8}
    assert fields["values"]["x"] == {
        "dtype": "float32",
        "shape": ["s0", 16],
        "stride": [16, 1],
        "bytes": 8 * 16 * 4,
    }
    assert fields["regions"][0]["axes"][0] == {"name": "d0", "size": "s0", "reduced": False}
    assert fields["regions"][0]["bytes"] == 2 * 8 * 16 * 4
    assert fields["regions"][0]["bytes_by_size"] == "128*s0"
    assert json.loads(json.dumps(fields)) == fields


def test_kernels_are_named_and_counted_once_they_are_generated() -> None:
    plan = small_plan()
    generated = (kernels("region_0", "scale"), kernels("region_1", "partial", "combine"))
    fields = to_dict(plan, generated)
    assert [region["kernels"] for region in fields["regions"]] == [
        ["scale"],
        ["partial", "combine"],
    ]
    assert fields["totals"]["kernels"] == 3


def test_a_split_reduction_counts_as_two_kernels_before_they_are_generated() -> None:
    sketch = Sketch()
    x = sketch.input("x", 4, 1 << 20)
    plan = plan_graph(sketch.graph(sketch.reduction("sum", x, 1)), "sm_90")
    fields = to_dict(plan)
    assert fields["regions"][0]["strategy"] == "split"
    assert fields["totals"]["kernels"] == 2


def test_two_results_of_one_call_that_meet_in_one_reader_are_one_edge() -> None:
    sketch = Sketch()
    x = sketch.input("x", 8)
    low, high = sketch.call("aten.aminmax.default", x, results=[tensor(8), tensor(8)])
    plan = plan_graph(sketch.graph(sketch.pointwise("add", low, high)), "sm_90")
    assert [(edge["producer"], edge["consumer"]) for edge in to_dict(plan)["edges"]] == [
        ("aminmax", "add")
    ]


def test_an_empty_graph_has_an_empty_plan() -> None:
    sketch = Sketch("nothing")
    fields = to_dict(plan_graph(sketch.graph(sketch.input("x", 8)), "cpu"))
    assert fields["regions"] == fields["opaque"] == fields["edges"] == fields["order"] == []
