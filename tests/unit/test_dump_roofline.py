"""The roofline of a plan: the roofs of the device, and a point for each region."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fuser.device import device_spec
from fuser.dump.roofline_figure import TENSOR_ROOF, VECTOR_ROOF, roofline_figure
from fuser.dump.steps import steps_of
from fuser.passes.pipeline import plan_graph
from support.plans import Sketch, small_plan, tensor


def points(figure: dict[str, Any]) -> dict[int, tuple[float, float]]:
    """Step number to its point in a roofline."""
    return {
        number: (x, y)
        for trace in figure["data"]
        if "customdata" in trace
        for number, x, y in zip(trace["customdata"], trace["x"], trace["y"], strict=True)
    }


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_the_roofs_are_the_device_s(target: str) -> None:
    device = device_spec(target)
    figure = roofline_figure(steps_of(small_plan()), device)
    roofs = {trace["name"]: trace for trace in figure["data"]}
    for name, rate in ((VECTOR_ROOF, device.vector_rate), (TENSOR_ROOF, device.tensor_rate)):
        roof = roofs[name]
        assert roof["y"] == pytest.approx(
            [min(x * device.copy_rate, rate) for x in roof["x"]], rel=1e-9
        )
        assert roof["y"][-2:] == pytest.approx([rate, rate])
        assert roof["x"] == sorted(roof["x"])
    # The roof of the tensor cores goes on where that of the vector units leaves the slope.
    assert roofs[TENSOR_ROOF]["x"][0] == pytest.approx(roofs[VECTOR_ROOF]["x"][1])
    low, high = figure["layout"]["yaxis"]["range"]
    assert 10**low < min(roofs[VECTOR_ROOF]["y"])
    assert 10**high > device.tensor_rate
    assert sorted(points(figure)) == [0, 2]
    assert len(figure["layout"]["annotations"]) == 3


def test_a_device_without_tensor_cores_has_one_roof() -> None:
    figure = roofline_figure(steps_of(small_plan()), device_spec("cpu"))
    assert [trace["name"] for trace in figure["data"]].count(TENSOR_ROOF) == 0
    assert len(figure["layout"]["annotations"]) == 2


def test_every_region_of_a_page_has_its_point() -> None:
    sketch = Sketch()
    x = sketch.input("x", 64, 64)
    for k in range(5):
        x = sketch.pointwise("exp", x)
        x = sketch.call("aten.sort.default", x, results=[tensor(64, 64)], name=f"sort_{k}")[0]
    plan = plan_graph(sketch.graph(x), "sm_90")
    bounds = ("memory", "compute", "launch", "launch", "memory")
    plan = dataclasses.replace(
        plan,
        regions=tuple(
            dataclasses.replace(region, cost=dataclasses.replace(region.cost, bound=bound))
            for region, bound in zip(plan.regions, bounds, strict=True)
        ),
    )
    steps = steps_of(plan)
    figure = roofline_figure(steps, device_spec("sm_90"))
    assert sorted(points(figure)) == [step.number for step in steps if step.region is not None]


def test_a_region_without_arithmetic_has_its_point_too() -> None:
    sketch = Sketch()
    x = sketch.input("x", 64, 64)
    plan = plan_graph(sketch.graph(sketch.pointwise("copy", x)), "sm_90")
    figure = roofline_figure(steps_of(plan), device_spec("sm_90"))
    ((x_at, y_at),) = points(figure).values()
    assert x_at > 0
    assert y_at > 0
