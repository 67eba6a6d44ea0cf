"""A plan as a page: all of it is there, what users write stays text, and nothing is loaded."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import jinja2.meta
import networkx
import pytest

from fuser.device import device_spec
from fuser.dump.facts import edges
from fuser.dump.graph_figure import WIDTH, graph_figure, place
from fuser.dump.layered import arrange
from fuser.dump.looks import FILL, LINE, clipped, escaped
from fuser.dump.page import PlanPage
from fuser.dump.record import Peaks
from fuser.dump.roofline_figure import roofline_figure
from fuser.dump.steps import FlowKind, flows_of, steps_of
from fuser.dump.to_html import MissingPackage, to_html
from fuser.dump.words import byte_text, time_text
from fuser.ir.graph import Graph, Source
from fuser.ir.kernel import RegionKernels, Resources
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Cost, Needs
from fuser.passes.pipeline import plan_graph
from fuser.templates import FOLDER, environment, render
from support.plans import Sketch, kernels, small_plan, tensor

plotly_offline = pytest.importorskip("plotly.offline")
graph_objects = pytest.importorskip("plotly.graph_objects")

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&amp;<a href='https://example.org'>"
LOADERS = ("src", "href", "srcset", "action", "data", "poster", "background")


@dataclass
class Page(HTMLParser):
    """What a page holds: its elements, the text of each script, the text outside scripts."""

    html: str
    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    text: str = ""
    inside: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))
        self.inside = tag if tag in ("script", "style") else ""
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        elif not self.inside:
            self.text += data

    def all(self, tag: str, **attributes: str) -> list[dict[str, str]]:
        wanted = attributes.items()
        return [found for name, found in self.elements if name == tag and wanted <= found.items()]

    @property
    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.scripts[0])
        return found


def page_of(plan: FusionPlan, specs: tuple[RegionKernels, ...] = (), **fields: Any) -> Page:
    return Page(to_html(plan, specs, **fields))


def renamed(graph: Graph, code: str) -> Graph:
    """The graph with `code` as the source line and module of each op."""
    source = Source(f"/home/someone/{code}.py", 7, code, code)
    return dataclasses.replace(
        graph, ops=tuple(dataclasses.replace(op, source=source) for op in graph.ops)
    )


def hostile_plan() -> FusionPlan:
    sketch = Sketch(HOSTILE)
    x = sketch.input(f"x{HOSTILE}", 8, 8)
    y = sketch.pointwise("exp", x, name=f"y{HOSTILE}")
    z = sketch.call("lib.odd.default", y, results=[tensor(8, 8)], reason=HOSTILE, name=HOSTILE)[0]
    return plan_graph(renamed(sketch.graph(z), HOSTILE), "sm_90")


def all_text(figure: dict[str, Any]) -> str:
    """The words of a figure of the page, each once."""
    found = []
    for trace in figure["data"]:
        text = trace.get("text", ())
        found += text["words"] if isinstance(text, dict) else text
    return "\n".join(found)


def test_every_step_has_its_row_its_text_and_its_box() -> None:
    plan = small_plan()
    page = page_of(plan)
    rows = [found["data-step"] for found in page.all("tr") if "data-step" in found]
    assert rows == [str(k) for k in range(len(plan.order))]
    for number, name in enumerate(plan.order):
        assert page.all("article", id=f"step-{number}") == [{"id": f"step-{number}", "hidden": ""}]
        assert name in page.text
        assert f"<b>{name}</b>" in all_text(page.figures["graph"])
    assert len(page.figures["graph"]["layout"]["shapes"]) == len(plan.order)


def test_every_edge_is_drawn_once_and_says_what_was_decided() -> None:
    plan = small_plan()
    flows = flows_of(plan, steps_of(plan))
    drawn = {(flow.producer, flow.consumer): flow for flow in flows}
    assert len(drawn) == len(flows)
    assert set(drawn) == {(edge.producer, edge.consumer) for edge in edges(plan)}
    words = all_text(page_of(plan).figures["graph"])
    for edge in edges(plan):
        assert drawn[edge.producer, edge.consumer].is_refused is not edge.fused
        assert f"{edge.producer} → {edge.consumer}" in words
    assert "not fused: the reader runs as its original call (no" in words.replace("<br>", " ")


def test_ops_lines_costs_inputs_and_outputs_are_shown() -> None:
    plan = small_plan()
    text = page_of(plan).text
    cost = plan.regions[1].cost
    shown = ("tanh", "bf16[256, 1024]", "y = tanh(x)", "model.py:13", "layers.0")
    costs = (byte_text(cost.bytes), byte_text(cost.unfused_bytes), time_text(cost.time_us))
    for words in (*shown, *costs, "given to the graph", "result of the graph"):
        assert words in text
    assert "/home/someone" not in text


def test_kernels_and_what_they_compiled_to_are_shown() -> None:
    specs = (kernels("region_1", "first", "second"),)
    page = page_of(small_plan(), specs, resources={"first": Resources(40, 0, 2048)})
    assert "# source of first" in page.text
    assert "# source of second" in page.text
    assert "40 registers" in page.text


def facts(page: Page, step: int) -> dict[str, str]:
    """Label to value of the facts of a step."""
    article = page.html.split(f'<article id="step-{step}"')[1].split("</article>")[0]
    found = re.findall(r"<div><dt>(.*?)</dt><dd>(.*?)</dd></div>", article, re.DOTALL)
    return dict(found)


def test_a_region_shows_what_it_needs_how_it_is_tiled_and_what_was_changed() -> None:
    plan = small_plan()
    first, second = plan.regions
    cost = Cost(
        bytes=2000, unfused_bytes=9000, cached_bytes=5000, flops=1000, special=4000,
        needs=Needs(38, 32, 12, 0.75), time_us=3.0, unfused_us=12.0,
    )  # fmt: skip
    plan = dataclasses.replace(
        plan, regions=(first, dataclasses.replace(second, cost=cost, notes=("split <here>",)))
    )
    shown = facts(page_of(plan), 2)
    assert shown["registers"] == "38 predicted"
    assert shown["shared memory"] == "32 B predicted"
    assert shown["occupancy"] == "75% predicted, 12 blocks a processor"
    assert (shown["served by L2"], shown["special functions"]) == ("5.00 kB", "4 k")
    assert "RBLOCK=" in shown["tile"]
    assert shown["note"] == "split &lt;here&gt;"
    specs = (kernels("region_1", "ratio"),)
    shown = facts(page_of(plan, specs, resources={"ratio": Resources(40, 2, 64)}), 2)
    assert shown["registers"] == "38 predicted, 40 compiled, 2 spilled"
    assert shown["shared memory"] == "32 B predicted, 64 B compiled"
    assert "registers 38 predicted" in all_text(page_of(plan).figures["graph"])
    assert "registers" not in facts(page_of(dataclasses.replace(plan, target="cpu")), 2)


def test_a_region_of_sizes_known_at_the_call_has_its_bytes_as_an_expression() -> None:
    sketch = Sketch()
    x = sketch.input("x", sketch.symbol("s0", 8), 16)
    plan = plan_graph(sketch.graph(sketch.pointwise("exp", x)), "sm_90")
    assert facts(page_of(plan), 0)["bytes by size"] == "128*s0"
    assert "bytes by size" not in facts(page_of(small_plan()), 0)


def test_the_title_has_the_model_the_target_and_the_totals() -> None:
    plan = small_plan()
    page = page_of(plan, peaks=Peaks(3_000_000, 5_000_000), model="TinyModel")
    title = page.text.split("Graph")[0]
    moved = byte_text(sum(region.cost.bytes for region in plan.regions))
    for words in ("TinyModel", "sm_90", "NVIDIA H200", moved, "5.00 MB eager"):
        assert words in " ".join(title.split())


def test_hostile_texts_stay_texts() -> None:
    page = page_of(hostile_plan())
    assert page.all("img") == []
    assert page.all("a") == []
    assert len(page.scripts) == len(page_of(small_plan()).scripts) == 3
    assert not any(key.startswith("on") for _, found in page.elements for key in found)
    assert HOSTILE in page.text
    words = all_text(page.figures["graph"])
    assert set(re.findall(r"<[^>]*>", words)) == {"<b>", "</b>", "<br>"}


def test_hostile_kernel_sources_stay_texts() -> None:
    item = kernels("region_1", "first")
    spec = dataclasses.replace(item.kernels[0], source=f"x = 1  # {HOSTILE}\n", name=HOSTILE)
    page = page_of(small_plan(), (dataclasses.replace(item, kernels=(spec,)),))
    assert page.all("img") == []
    assert f"# {HOSTILE}" in page.text


def test_nothing_is_loaded() -> None:
    html = to_html(small_plan(), (kernels("region_1", "first"),))
    page = Page(html)
    for tag, attributes in page.elements:
        for key in LOADERS:
            assert attributes.get(key, "data:").startswith("data:"), (tag, attributes)
    assert {tag for tag, _ in page.elements} & {"iframe", "object", "embed", "base"} == set()
    own = html.replace(plotly_offline.get_plotlyjs(), "")
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+", own) == []
    assert "@import" not in own
    policy = page.all("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"]
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_the_figures_follow_plotly_s_schema() -> None:
    plan = small_plan()
    steps = steps_of(plan)
    graph_objects.Figure(graph_figure(plan, steps, flows_of(plan, steps)))
    graph_objects.Figure(roofline_figure(steps, device_spec(plan.target)))


def test_texts_of_many_points_are_written_once() -> None:
    plan = small_plan()
    steps = steps_of(plan)
    whole = graph_figure(plan, steps, flows_of(plan, steps))["data"]
    for full, short in zip(whole, page_of(plan).figures["graph"]["data"], strict=True):
        text = short.get("text")
        if isinstance(text, dict):
            text = [text["words"][at] for at in text["at"]]
        assert text == full.get("text")


def test_boxes_do_not_overlap_and_values_flow_to_the_right() -> None:
    plan = small_plan()
    steps = steps_of(plan)
    flows = flows_of(plan, steps)
    boxes, _ = place(steps, flows)
    for a in boxes:
        for b in boxes:
            apart = a.top + a.height <= b.top or b.top + b.height <= a.top
            assert a is b or a.left != b.left or apart
    for flow in flows:
        assert flow.is_inside or boxes[flow.source].left + WIDTH < boxes[flow.target].left


def test_layers_keep_their_distances_and_leave_lanes_free() -> None:
    flow = networkx.DiGraph(
        [("a", "b"), ("b", "c"), ("a", "c"), ("a", "d"), ("d", "c"), ("e", "c")]
    )
    heights = {"a": 40.0, "b": 100.0, "c": 40.0, "d": 60.0, "e": 40.0}
    placed = arrange(flow, heights, gap=20.0)
    assert placed.layer == {"a": 0, "b": 1, "d": 1, "e": 1, "c": 2}
    spans = [(placed.top[name], placed.top[name] + heights[name]) for name in "bde"]
    [(layer, lane)] = placed.passes("a", "c")
    spans = sorted([*spans, (lane, lane)])
    assert layer == 1
    assert all(below - above >= 19.9 for (_, above), (below, _) in pairwise(spans))
    assert min(placed.top.values()) >= 0
    assert arrange(flow, heights, gap=20.0) == placed


def test_regions_have_the_colour_of_what_bounds_them() -> None:
    assert set(FILL) == set(LINE) == {"memory", "compute", "launch", "call"}
    assert len(set(FILL.values())) == len(set(LINE.values())) == 4
    plan = small_plan()
    steps = steps_of(plan)
    shapes = graph_figure(plan, steps, flows_of(plan, steps))["layout"]["shapes"]
    assert [shape["fillcolor"] for shape in shapes] == [FILL[step.bound] for step in steps]


def test_a_plan_without_ops_is_a_page() -> None:
    sketch = Sketch()
    page = page_of(plan_graph(sketch.graph(sketch.input("x", 4)), "sm_90"))
    assert page.figures["graph"]["layout"]["shapes"] == []


def test_an_op_computed_again_is_drawn_in_both_regions() -> None:
    plan = small_plan()
    last = plan.regions[-1]
    again = dataclasses.replace(last, recomputed=("mul",))
    plan = dataclasses.replace(plan, regions=(*plan.regions[:-1], again))
    steps = steps_of(plan)
    assert [step.name for step in steps if any(op.name == "mul" for op in step.ops)] == [
        "region_0",
        "region_1",
    ]
    assert {flow.kind for flow in flows_of(plan, steps)} == {FlowKind.FUSED, FlowKind.CALL}
    assert "(again)" in page_of(plan).text


def test_long_texts_are_clipped_and_wrapped_before_they_are_escaped() -> None:
    assert clipped("a<b" * 10, 5) == "a&lt;ba…"
    assert escaped(["x " * 40]).count("<br>") == 1


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingPackage, match=r"pip install 'fuser-compiler\[html\]'"):
        to_html(small_plan())


def test_the_template_reads_its_context_and_forgives_nothing() -> None:
    parsed = environment().parse((FOLDER / "plan.html.jinja").read_text(encoding="utf-8"))
    fields = {item.name for item in dataclasses.fields(PlanPage)}
    assert jinja2.meta.find_undeclared_variables(parsed) == fields
    partial = dataclasses.make_dataclass("Partial", [("title", str)])
    with pytest.raises(jinja2.UndefinedError):
        render("plan.html.jinja", partial(title="x"))


def test_the_page_does_not_vary() -> None:
    assert to_html(small_plan()) == to_html(small_plan())
