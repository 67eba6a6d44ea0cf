"""A plan as a drawing: DOT that parses, whatever the names and reasons hold."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import pytest

from fuser.dump.looks import FILL, LINE
from fuser.dump.to_dot import LOADED, OPAQUE, REFUSED, to_dot
from fuser.dump.words import byte_text, needs_text, tiles_text, time_text
from fuser.ir.kernel import Resources
from fuser.ir.region import Region
from fuser.passes.pipeline import plan_graph
from support.plans import Sketch, kernels, small_plan, tensor, transposed

TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([A-Za-z_]\w*)|(->|[{}\[\]=,;]))')

Attributes = dict[str, str]


@dataclass
class Drawing:
    """What a DOT text says: attributes of each node, of each edge, and the nodes of each box."""

    nodes: dict[str, Attributes] = field(default_factory=dict)
    edges: list[tuple[str, str, Attributes]] = field(default_factory=list)
    boxes: dict[str, list[str]] = field(default_factory=dict)
    titles: dict[str, Attributes] = field(default_factory=dict)


class Parser:
    """The part of the DOT grammar that the dump uses, read strictly."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        position = 0
        while text[position:].strip():
            found = TOKEN.match(text, position)
            assert found, f"not DOT: {text[position : position + 40]!r}"
            kind = ("text", "word", "mark")[(found.lastindex or 0) - 1]
            self.tokens.append((kind, found[found.lastindex or 0]))
            position = found.end()
        self.next = 0
        self.drawing = Drawing()

    def take(self, *wanted: str) -> str:
        kind, token = self.tokens[self.next]
        assert token in wanted or kind in wanted, f"{token!r} in place of {wanted}"
        self.next += 1
        return token

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.next]

    def parse(self) -> Drawing:
        self.take("digraph")
        self.take("text")
        self.take("{")
        self.statements("")
        assert self.next == len(self.tokens)
        return self.drawing

    def statements(self, box: str) -> None:
        while self.peek() != ("mark", "}"):
            kind, token = self.peek()
            if (kind, token) == ("word", "subgraph"):
                self.take("subgraph")
                inner = self.take("text")
                self.take("{")
                self.drawing.boxes[inner] = []
                self.statements(inner)
                continue
            name = self.take("text", "graph", "node", "edge")
            if self.peek() == ("mark", "->"):
                self.take("->")
                reader = self.take("text")
                self.drawing.edges.append((name, reader, self.attributes()))
            elif kind == "word":
                fields = self.attributes()
                if box:
                    self.drawing.titles[box] = fields
            else:
                assert name not in self.drawing.nodes
                self.drawing.nodes[name] = self.attributes()
                if box:
                    self.drawing.boxes[box].append(name)
            self.take(";")
        self.take("}")

    def attributes(self) -> Attributes:
        found: Attributes = {}
        self.take("[")
        while True:
            key = self.take("word")
            self.take("=")
            found[key] = self.take("text")
            if self.take(",", "]") == "]":
                return found


def title(region: Region, *needs: str) -> str:
    """The label of a region's box with these needs in it."""
    cost, tile = region.cost, tiles_text([c[0] for c in region.schedule.candidates])
    lines = [
        f"{region.name}: {region.kind.value}, {region.strategy.value}",
        f"{byte_text(cost.bytes)}, {time_text(cost.time_us)}, bound by {cost.bound}",
        *needs,
        f"tile {tile}",
    ]
    return r"\n".join(lines)


@pytest.mark.parametrize("bound", ["memory", "compute", "launch"])
def test_regions_are_boxes_in_the_colour_of_what_bounds_them(bound: str) -> None:
    plan = small_plan()
    first, *others = plan.regions
    first = replace(first, cost=replace(first.cost, bound=bound))
    drawing = Parser(to_dot(replace(plan, regions=(first, *others)))).parse()
    assert drawing.boxes == {
        "cluster_region_0": ["mul"],
        "cluster_region_1": ["add", "tanh", "amax", "divide"],
    }
    assert drawing.titles["cluster_region_0"] == {
        "label": title(first, *needs_text(first.cost.needs)),
        "style": "filled",
        "fillcolor": FILL[bound],
        "color": LINE[bound],
    }


def test_boxes_say_what_their_kernels_compiled_to() -> None:
    plan = small_plan()
    generated = (kernels("region_0", "scale"), kernels("region_1", "partial", "combine"))
    resources = {"partial": Resources(64, 2, 0), "combine": Resources(32, 0, 2048)}
    titles = Parser(to_dot(plan, generated, resources)).parse().titles
    first, second = plan.regions
    assert titles["cluster_region_0"]["label"] == title(first, *needs_text(first.cost.needs))
    needs = needs_text(second.cost.needs, Resources(64, 2, 2048))
    assert needs[0] == f"registers {second.cost.needs.registers} predicted, 64 compiled, 2 spilled"
    assert titles["cluster_region_1"]["label"] == title(second, *needs)


def test_boxes_for_the_interpreter_have_no_registers_and_notes_are_broken() -> None:
    plan = replace(small_plan(), target="cpu")
    first, *others = plan.regions
    noted = replace(first, notes=("a smaller tile, because " * 4,))
    drawing = Parser(to_dot(replace(plan, regions=(noted, *others)))).parse()
    label = drawing.titles["cluster_region_0"]["label"]
    head, *notes = label.split(r"\nnote: ")
    assert head == title(first)
    assert len(notes) == 1
    assert max(map(len, notes[0].split(r"\n"))) <= 56


def test_opaque_calls_are_grey_and_say_why() -> None:
    drawing = Parser(to_dot(small_plan())).parse()
    node = drawing.nodes["mm"]
    assert node["fillcolor"] == OPAQUE
    assert node["label"] == r"mm: aten.mm.default\nbf16[256, 1024]\nno generated form"
    assert [name for name, fields in drawing.nodes.items() if fields.get("fillcolor")] == ["mm"]
    assert drawing.nodes["divide"]["peripheries"] == drawing.nodes["add"]["peripheries"] == "2"


def test_refused_edges_are_red_with_the_reason_and_loads_are_grey() -> None:
    drawing = Parser(to_dot(small_plan())).parse()
    edges = {(source, reader): fields for source, reader, fields in drawing.edges}
    assert edges["mul", "mm"] == {
        "color": REFUSED,
        "fontcolor": REFUSED,
        "label": r"the reader runs as its original\ncall (no generated form)",
    }
    assert edges["add", "tanh"] == {"color": "black"}
    assert edges["amax", "divide"]["label"] == "[i0, 0]"
    assert edges["x", "mul"] == {"color": LOADED}


def test_quotes_backslashes_and_line_ends_do_not_break_the_text() -> None:
    sketch = Sketch('a "graph" \\')
    x = sketch.input('x"\\', 8, 8)
    y = sketch.pointwise("exp", transposed(x), name='y"; evil [')
    z = sketch.call(
        'lib.odd"op.default', y, results=[tensor(8, 8)], reason='a "reason"\nwith \\ two lines'
    )[0]
    drawing = Parser(to_dot(plan_graph(sketch.graph(z), "sm_90"))).parse()
    assert set(drawing.nodes) == {'x\\"\\\\', 'y\\"; evil [', 'odd\\"op'}
    assert r"a \"reason\" with \\ two lines" in drawing.nodes['odd\\"op']["label"]
    assert len(drawing.edges) == 2


def test_the_text_does_not_vary() -> None:
    assert to_dot(small_plan()) == to_dot(small_plan())
