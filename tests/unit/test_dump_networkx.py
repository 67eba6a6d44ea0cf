"""A plan as a networkx graph: nodes and edges with the facts that questions are asked about."""

from __future__ import annotations

import networkx

from fuser.dump.to_networkx import to_networkx
from fuser.passes.pipeline import plan_graph
from support.plans import Sketch, small_plan, tensor, transposed


def test_the_nodes_are_the_ops_and_the_inputs() -> None:
    plan = small_plan()
    flow = to_networkx(plan)
    assert flow.graph == {"name": "small", "target": "sm_90", "phase": "inference"}
    assert list(flow.nodes) == ["x", "bias", "weight", *(op.name for op in plan.graph.ops)]
    assert flow.nodes["amax"] == {
        "op": "amax",
        "kind": "reduction",
        "type": "bf16[256, 1]",
        "source": "model.py:14 y = amax(x)",
        "region": "region_1",
        "opaque": False,
        "reason": "",
        "is_output": False,
    }
    assert flow.nodes["mm"]["opaque"]
    assert (flow.nodes["mm"]["kind"], flow.nodes["mm"]["op"]) == ("opaque", "aten.mm.default")
    assert flow.nodes["mm"]["reason"] == "no generated form"
    assert (flow.nodes["x"]["kind"], flow.nodes["x"]["region"]) == ("input", "")
    outputs = [name for name, is_output in flow.nodes(data="is_output") if is_output]
    assert outputs == ["add", "divide"]


def test_the_edges_carry_the_value_the_view_and_the_decision() -> None:
    flow = to_networkx(small_plan())
    assert flow.edges["amax", "divide", 0] == {
        "value": "amax",
        "view": "[i0, 0]",
        "fused": True,
        "code": "fused",
        "reason": "fused: the value stays in registers",
        "bytes": 512,
    }
    assert flow.edges["mul", "mm", 0]["code"] == "opaque_reader"
    assert flow.edges["x", "mul", 0] == {
        "value": "x", "view": "", "fused": False, "code": "", "reason": "", "bytes": 256 * 1024 * 2,
    }  # fmt: skip
    assert networkx.is_directed_acyclic_graph(flow)


def test_an_op_that_reads_a_value_twice_has_two_edges() -> None:
    sketch = Sketch()
    x = sketch.pointwise("exp", sketch.input("x", 8, 8))
    plan = plan_graph(sketch.graph(sketch.pointwise("add", x, transposed(x))), "sm_90")
    flow = to_networkx(plan)
    assert [fields["view"] for _, _, fields in flow.edges("exp", data=True)] == ["", "[i1, i0]"]


def test_the_results_of_one_call_leave_from_one_node() -> None:
    sketch = Sketch()
    x = sketch.input("x", 8)
    low, high = sketch.call("aten.aminmax.default", x, results=[tensor(8), tensor(8)])
    flow = to_networkx(plan_graph(sketch.graph(sketch.pointwise("add", low, high)), "sm_90"))
    values = [value for _, _, value in flow.out_edges("aminmax", data="value")]
    assert values == ["aminmax_0", "aminmax_1"]
    assert flow.nodes["aminmax"]["type"] == "f32[8], f32[8]"


def test_bytes_of_a_symbolic_size_use_its_hint() -> None:
    sketch = Sketch()
    x = sketch.input("x", sketch.symbol("s0", 10), 4)
    flow = to_networkx(plan_graph(sketch.graph(sketch.pointwise("exp", x)), "sm_90"))
    assert flow.edges["x", "exp", 0]["bytes"] == 160
    assert set(flow.nodes) == {"x", "exp"}
