"""A plan as one page to look at: its graph, a table of its steps, each step in full, a roofline.

In: a plan, the kernels of its regions once they are generated, and what is known of their
resources. Out: HTML that holds everything it needs, Plotly included, and may load nothing.
"""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from fuser.device import device_spec
from fuser.dump.facts import (
    NOT_COMPILED,
    CompiledKernels,
    compiled_of,
    has_registers,
    operation,
    tiles,
    value_bytes,
)
from fuser.dump.graph_figure import graph_figure
from fuser.dump.launches import shares_text
from fuser.dump.looks import FILL, FLOW, LINE, Figure
from fuser.dump.page import KernelText, Link, OpLine, PlanPage, RefusedLine, StepPage, ValueLine
from fuser.dump.record import Peaks
from fuser.dump.recording import totals
from fuser.dump.roofline_figure import intensity_text, rate_text, roofline_figure
from fuser.dump.steps import Flow, FlowKind, Step, flows_of, steps_of
from fuser.dump.words import (
    byte_text,
    count_text,
    registers_text,
    resources_text,
    share_text,
    shared_text,
    tiles_text,
    time_text,
)
from fuser.errors import MissingPackage
from fuser.ir.dim import python_text
from fuser.ir.graph import Op
from fuser.ir.kernel import KernelSpec, RegionKernels, Resources
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region
from fuser.templates import render

__all__ = ["MissingPackage", "to_html"]


_COLUMNS = ("moved", "unfused", "operations", "predicted", "unfused time")
_FLOW_NAMES: Mapping[FlowKind, str] = {
    FlowKind.FUSED: "fused",
    FlowKind.REFUSED: "not fused",
    FlowKind.CALL: "not fused with a call",
    FlowKind.LOADED: "loaded to compute again",
}


def to_html(
    plan: FusionPlan,
    kernels: Sequence[RegionKernels] = (),
    resources: CompiledKernels = NOT_COMPILED,
    peaks: Peaks | None = None,
    *,
    model: str = "",
) -> str:
    """The plan as the text of one HTML page that works offline; raises `MissingPackage`.

    `model` is the name in the title, in place of the graph's.
    """
    library = _package("plotly.offline", "plotly").get_plotlyjs()
    steps = steps_of(plan)
    flows = flows_of(plan, steps)
    figures = {
        "graph": graph_figure(plan, steps, flows),
        "roofline": roofline_figure(steps, device_spec(plan.target)),
    }
    specs = {region: item.kernels for item in kernels for region in item.regions}
    colours = _Colours()
    streams = _Streams(steps, flows)
    pages = tuple(
        _step(plan, step, streams, specs.get(step.name, ()), resources, colours) for step in steps
    )
    name = model or ("" if plan.graph.name == plan.phase else plan.graph.name)
    device = device_spec(plan.target)
    page = PlanPage(
        title=f"Fusion plan of {name}, {plan.phase}" if name else f"Fusion plan, {plan.phase}",
        subtitle=f"for {plan.target} ({device.name})",
        totals=_totals(plan, kernels, peaks),
        columns=_COLUMNS,
        reasons=_reasons(flows),
        steps=pages,
        fills=tuple((bound, FILL[bound], LINE[bound]) for bound in FILL),
        legend=tuple(
            (_FLOW_NAMES[kind], FLOW[kind], sum(flow.kind is kind for flow in flows))
            for kind in FlowKind
        ),
        figures=_script_data(_compact(figures)),
        library=Markup(library),
        source_style=Markup(colours.style),
    )
    return render("plan.html.jinja", page)


def _reasons(flows: Sequence[Flow]) -> tuple[tuple[int, str], ...]:
    """How many values were not fused for each reason, the most frequent first."""
    texts = [flow.verdict.reason.value for flow in flows if flow.is_refused and flow.verdict]
    return tuple((count, text) for text, count in Counter(texts).most_common())


class _Streams:
    """What flows into and out of each step from and to other steps."""

    def __init__(self, steps: Sequence[Step], flows: Sequence[Flow]) -> None:
        self._steps = steps
        self.into: dict[int, list[Flow]] = {step.number: [] for step in steps}
        self.out_of: dict[int, list[Flow]] = {step.number: [] for step in steps}
        for flow in flows:
            if not flow.is_inside:
                self.into[flow.target].append(flow)
                self.out_of[flow.source].append(flow)

    def around(self, step: Step) -> list[Flow]:
        return self.into[step.number] + self.out_of[step.number]

    def link(self, number: int) -> Link:
        return Link(number, self._steps[number].name)

    def links(self, numbers: Iterable[int]) -> list[Link]:
        return [self.link(number) for number in dict.fromkeys(numbers)]


class _Colours:
    """Colours Python text as HTML; equal texts are coloured once."""

    def __init__(self) -> None:
        self._pygments = _package("pygments", "pygments")
        self._lexer = _package("pygments.lexers", "pygments").PythonLexer()
        formatters = _package("pygments.formatters", "pygments")
        self._formatter = formatters.HtmlFormatter(nowrap=True, style="friendly")
        self._done: dict[str, Markup] = {}

    @property
    def style(self) -> str:
        return str(self._formatter.get_style_defs(".source"))

    def __call__(self, source: str) -> Markup:
        if source not in self._done:
            text = self._pygments.highlight(source, self._lexer, self._formatter)
            self._done[source] = Markup(text)
        return self._done[source]


def _package(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackage(feature="a plan as HTML", package=package, extra="html") from error


def _compact(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """The figures with each text that stands at many points written once; the page expands them."""
    found = {}
    for name, figure in figures.items():
        data = []
        for trace in figure["data"]:
            words = dict.fromkeys(trace.get("text", ()))
            if 2 * len(words) < len(trace.get("text", ())):
                number = {text: at for at, text in enumerate(words)}
                at = [number[text] for text in trace["text"]]
                trace = {**trace, "text": {"words": list(words), "at": at}}
            data.append(trace)
        found[name] = {**figure, "data": data}
    return found


def _script_data(data: Any) -> Markup:
    """JSON that may stand in a script element: no text in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


def _totals(
    plan: FusionPlan, kernels: Sequence[RegionKernels], peaks: Peaks | None
) -> tuple[tuple[str, str, str], ...]:
    """Label, value and note of each total."""
    facts = totals(plan, kernels, peaks)
    calls = f"+ {count_text(facts.opaque_calls, 'original call')}"
    found = [
        ("ops", f"{facts.ops:,}", ""),
        ("kernels", f"{facts.kernels:,}", calls if facts.opaque_calls else ""),
        ("moved", byte_text(facts.bytes), f"{byte_text(facts.unfused_bytes)} unfused"),
        ("predicted", time_text(facts.predicted_us), f"{time_text(facts.unfused_us)} unfused"),
    ]
    if peaks is not None:
        found.append(("peak memory", byte_text(peaks.planned), f"{byte_text(peaks.eager)} eager"))
    return tuple(found)


def _step(
    plan: FusionPlan,
    step: Step,
    streams: _Streams,
    specs: Sequence[KernelSpec],
    resources: CompiledKernels,
    colours: _Colours,
) -> StepPage:
    region = step.region
    again = () if region is None else region.recomputed
    ops = tuple(_op(op, op.name in again) for op in step.ops)
    if region is None:
        reads = list(step.ops[0].reads)
        writes = [value.name for value in step.ops[0].results]
    else:
        reads, writes = list(region.inputs), list(region.outputs)
    notes = () if region is None else region.notes
    shared = plan.launch_of.get(step.name)
    # The kernel of a shared launch is long, and shown once.
    is_first = shared is None or shared.regions[0] == step.name
    refused = [flow for flow in streams.around(step) if flow.is_refused]
    found = compiled_of([spec.name for spec in specs], resources)
    words = {step.name, step.title, *reads, *writes, *notes}
    words.update(
        word for op in ops for word in (op.name, op.operation, op.code, op.module, op.where)
    )
    return StepPage(
        number=step.number,
        name=step.name,
        title=step.title,
        bound=step.bound,
        space=_space(step),
        reason=step.ops[0].reason or "not known" if region is None else "",
        op_count=len(ops),
        facts=() if region is None else tuple(_facts(plan, region, found)),
        cells=_cells(step),
        ops=ops,
        inputs=tuple(_input(plan, step, name, streams) for name in reads),
        outputs=tuple(_output(plan, step, name, streams) for name in writes),
        refused=tuple(_refused(step, flow, streams) for flow in refused),
        kernels=tuple(_kernel(spec, resources, colours) for spec in specs if is_first),
        words=" ".join(sorted(words)).lower(),
    )


def _op(op: Op, again: bool) -> OpLine:
    source = op.source
    where = f"{source.file.rsplit('/', 1)[-1]}:{source.line}" if source.file else ""
    types = ", ".join(str(value.type) for value in op.results)
    return OpLine(op.name, operation(op), types, where, source.code, source.module, again)


def _space(step: Step) -> str:
    if step.region is None:
        return ""
    space = step.region.space
    over = " ".join(f"{axis.name}={python_text(axis.size)}" for axis in space.parallel)
    inner = " ".join(f"{axis.name}={python_text(axis.size)}" for axis in space.reduced)
    return (over or "one element") + (f", reducing {inner}" if inner else "")


def _facts(plan: FusionPlan, region: Region, found: Resources | None) -> Iterator[tuple[str, str]]:
    """Label and value of everything that is known of a region."""
    cost = region.cost
    yield "bytes moved", byte_text(cost.bytes)
    yield "unfused bytes", byte_text(cost.unfused_bytes)
    yield "served by L2", byte_text(cost.cached_bytes)
    yield "operations", _number(cost.flops)
    yield "special functions", _number(cost.special)
    yield "predicted time", time_text(cost.time_us)
    yield "unfused time", time_text(cost.unfused_us)
    yield "bound by", cost.bound
    yield "operations per byte", intensity_text(cost.flops, cost.bytes)
    yield "predicted rate", rate_text(cost.flops / max(cost.time_us, 1e-9) * 1e6)
    if has_registers(plan.target):
        blocks = count_text(cost.needs.blocks_per_processor, "block")
        yield "registers", registers_text(cost.needs, found)
        yield "shared memory", shared_text(cost.needs, found)
        yield "occupancy", f"{share_text(cost.needs.occupancy)} predicted, {blocks} a processor"
    if tiles(region):
        yield "tile", tiles_text(tiles(region))
    if not isinstance(cost.bytes_by_size, int):
        yield "bytes by size", python_text(cost.bytes_by_size)
    if region.name in plan.launch_of:
        yield "launch", shares_text(plan, region.name)
    for note in region.notes:
        yield "note", note


def _cells(step: Step) -> tuple[tuple[str, float], ...]:
    """The cells under `_COLUMNS`, each with the number that it sorts by."""
    if step.region is None:
        return (("", -1.0),) * len(_COLUMNS)
    cost = step.region.cost
    return (
        (byte_text(cost.bytes), float(cost.bytes)),
        (byte_text(cost.unfused_bytes), float(cost.unfused_bytes)),
        (_number(cost.flops), float(cost.flops)),
        (time_text(cost.time_us), float(cost.time_us)),
        (time_text(cost.unfused_us), float(cost.unfused_us)),
    )


def _number(count: float) -> str:
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f}"


def _value(plan: FusionPlan, name: str, role: str, links: Sequence[Link]) -> ValueLine:
    graph = plan.graph
    size = byte_text(value_bytes(graph, name))
    return ValueLine(name, str(graph.values[name].type), size, role, tuple(links))


def _input(plan: FusionPlan, step: Step, name: str, streams: _Streams) -> ValueLine:
    links = streams.links(f.source for f in streams.into[step.number] if f.value == name)
    return _value(plan, name, "" if links else "given to the graph", links)


def _output(plan: FusionPlan, step: Step, name: str, streams: _Streams) -> ValueLine:
    links = streams.links(f.target for f in streams.out_of[step.number] if f.value == name)
    is_result = name in plan.graph.output_values
    role = "result of the graph" if is_result else "" if links else "not read"
    return _value(plan, name, role, links)


def _refused(step: Step, flow: Flow, streams: _Streams) -> RefusedLine:
    other = flow.source if flow.target == step.number else flow.target
    gain = 0.0 if flow.verdict is None else flow.verdict.gain_us
    return RefusedLine(
        flow.producer,
        flow.consumer,
        flow.reason,
        f"would have saved {time_text(gain)}" if gain > 0 else "",
        streams.link(other),
    )


def _kernel(spec: KernelSpec, resources: CompiledKernels, colours: _Colours) -> KernelText:
    needs = resources.get(spec.name)
    text = "" if needs is None else resources_text(needs)
    return KernelText(spec.name, text, colours(spec.source))
