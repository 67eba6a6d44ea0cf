"""A plan as text: what stands where, never wider than a terminal, and colours only in one."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import nn

import fuser
from fuser.dump.record import Peaks
from fuser.dump.to_text import edge_line, to_text, write_text
from fuser.dump.words import WIDTH, byte_text, needs_text, tiles_text, time_text
from fuser.ir.graph import Effect
from fuser.ir.kernel import Configuration, Resources
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Cost, Needs, Schedule, Strategy
from fuser.passes.pipeline import plan_graph
from support.plans import Sketch, kernels, small_plan, tensor, transposed

COSTS: Mapping[str, tuple[Cost, Schedule]] = {
    "region_0": (
        Cost(
            bytes=1_050_000, unfused_bytes=1_050_000, cached_bytes=1_050_000,
            needs=Needs(18, 0, 16, 1.0), time_us=2.7, unfused_us=2.7, bound="launch",
        ),
        Schedule(Strategy.FLAT, ((Configuration((("XBLOCK", 512),)),),)),
    ),
    "region_1": (
        Cost(
            bytes=1_570_000, unfused_bytes=3_670_000, cached_bytes=6_000_000,
            needs=Needs(38, 32, 12, 0.75), time_us=2.9, unfused_us=10.9, bound="memory",
        ),
        Schedule(
            Strategy.ROW_IN_REGISTERS,
            ((Configuration((("XBLOCK", 2), ("RBLOCK", 1024)), num_warps=8),),),
        ),
    ),
}  # fmt: skip
"""What no change of the cost model moves."""

SMALL = """\
plan of small for sm_90, inference
  6 ops in 2 kernels + 1 opaque call
  2.62 MB moved, 4.72 MB unfused;  5.6 us predicted, 13.6 us unfused  (opaque calls not counted)
  peak memory 3.15 MB, 5.24 MB in eager

  1  region_0: pointwise, flat over d0=256 d1=1024
       1.05 MB (1.05 MB unfused), 2.7 us (2.7 us unfused), bound by launch
       registers 18 predicted; shared memory 0 B predicted; occupancy 100% predicted;
       tile XBLOCK=512, 4 warps
       from layers.0
       in   %x bf16[256, 1024]
       %mul  mul  bf16[256, 1024]  model.py:10 y = mul(x)
       out  %mul bf16[256, 1024]

  2  mm: opaque call aten.mm.default, because: no generated form
       from layers.0
       in   %mul bf16[256, 1024], %weight bf16[1024, 1024]
       out  %mm  bf16[256, 1024]  model.py:11 y = aten.mm.default(x)

  3  region_1: reduction, row_in_registers over d0=256, reducing d1=1024
       1.57 MB (3.67 MB unfused), 2.9 us (10.9 us unfused), bound by memory, 6.00 MB served by L2
       registers 38 predicted; shared memory 32 B predicted; occupancy 75% predicted;
       tile XBLOCK=2 RBLOCK=1024, 8 warps
       from layers.0
       in   %mm bf16[256, 1024], %bias bf16[1024]
       %add     add     bf16[256, 1024]  model.py:12 y = add(x)
       %tanh    tanh    bf16[256, 1024]  model.py:13 y = tanh(x)
       %amax    amax    bf16[256, 1]     model.py:14 y = amax(x)
       %divide  divide  bf16[256, 1024]  model.py:15 y = divide(x)
       out  %add bf16[256, 1024], %divide bf16[256, 1024]

6 edges between ops: 4 fused, 2 refused
     3  fused: the value stays in registers
     1  fused: the value stays in registers and is stored once for other readers
     1  refused: the producer runs as its original call
          mm -> add  (no generated form)
     1  refused: the reader runs as its original call
          mul -> mm  (no generated form)"""

PEAKS = Peaks(planned=3_150_000, eager=5_240_000)


def fixed_plan() -> FusionPlan:
    """The small plan with costs and schedules written by hand."""
    plan = small_plan()
    regions = []
    for region in plan.regions:
        cost, schedule = COSTS[region.name]
        regions.append(replace(region, cost=cost, schedule=schedule))
    return replace(plan, regions=tuple(regions))


def with_notes(plan: FusionPlan, *notes: str) -> FusionPlan:
    """The plan with notes at its last region."""
    *others, last = plan.regions
    return replace(plan, regions=(*others, replace(last, notes=notes)))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_whole_of_a_small_plan() -> None:
    assert to_text(fixed_plan(), peaks=PEAKS) == SMALL
    assert to_text(fixed_plan()) == SMALL.replace("  peak memory 3.15 MB, 5.24 MB in eager\n", "")
    assert to_text(small_plan()) == to_text(small_plan())


def test_only_verbose_shows_times_of_passes() -> None:
    text = to_text(fixed_plan(), peaks=PEAKS, verbose=True)
    launches, passes = text.removeprefix(SMALL).split("\n\n")
    assert launches.startswith("\nno launch is shared\n     2  apart: no other short kernel")
    assert passes.startswith("passes:\n  gather_early ")
    assert passes.count(" ms") == len(fixed_plan().passes)


def test_a_file_gets_plain_text_and_a_terminal_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain, terminal = io.StringIO(), Terminal()
    write_text(fixed_plan(), plain, peaks=PEAKS)
    write_text(fixed_plan(), terminal, peaks=PEAKS)
    assert plain.getvalue() == SMALL + "\n"
    assert "\x1b[1;32m  1  region_0" in terminal.getvalue()
    assert re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue()) == SMALL + "\n"


def test_a_spilling_kernel_is_red_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    resources = {"scale": Resources(24, 0, 0), "ratio": Resources(255, 8, 32)}
    write_text(fixed_plan(), terminal, (kernels("region_0", "scale"), kernels("region_1", "ratio")),
               resources)  # fmt: skip
    assert (
        "\x1b[1;31m       registers 38 predicted, 255 compiled, 8 spilled;" in terminal.getvalue()
    )
    assert "\x1b[32m       registers 18 predicted, 24 compiled, 0 spilled;" in terminal.getvalue()


def test_long_names_types_and_sources_stay_inside_the_width() -> None:
    sketch = Sketch("a_graph_" + "x" * 20)
    inputs = [sketch.input(f"l_self_modules_layers_modules_{k}_weight", 64, 128) for k in range(9)]
    total = inputs[0]
    for item in inputs[1:]:
        total = sketch.pointwise("add", total, item, name=f"a_rather_long_name_{item.value}")
    call = sketch.call(
        "some_library.an_operation_with_a_long_name.default",
        total,
        transposed(total),
        results=[tensor(64, 128)],
        reason="this operation is not in the table, " * 5,
    )[0]
    text = to_text(plan_graph(sketch.graph(call), "sm_90"))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert all(f"%l_self_modules_layers_modules_{k}_weight f32[64, 128]" in text for k in range(9))
    assert "[i1, i0]" in text
    assert "\n       because: this operation is not in the table, this" in text


def test_what_is_computed_again_is_marked() -> None:
    sketch = Sketch()
    x, y = sketch.input("x", 64), sketch.input("y", 64)
    half = sketch.full(0.5, 64)
    first = sketch.pointwise("mul", x, half, name="first")
    broken = sketch.call("aten.sort.default", first, results=[tensor(64)])[0]
    second = sketch.pointwise("mul", y, half, name="second")
    text = to_text(plan_graph(sketch.graph(sketch.pointwise("add", broken, second)), "sm_90"))
    assert "%full   full  f32[64]" in text
    assert "%full    full (again)  f32[64]" in text
    assert "fused: cheaper to compute again in the reader than to load" in text


def test_many_refused_edges_are_counted_unless_all_are_asked_for() -> None:
    sketch = Sketch()
    x = sketch.input("x", 64)
    outputs = []
    for _ in range(9):
        part = sketch.call("aten.sort.default", x, results=[tensor(64)])[0]
        outputs.append(sketch.pointwise("exp", part))
    plan = plan_graph(sketch.graph(*outputs), "sm_90")
    assert "and 3 more" in to_text(plan)
    assert "and 3 more" not in to_text(plan, verbose=True)
    assert to_text(plan, verbose=True).count(" -> exp") == 9


def test_sizes_known_only_at_the_call_are_named_with_their_hints() -> None:
    sketch = Sketch()
    x = sketch.input("x", sketch.symbol("s0", 8), sketch.symbol("s1", 16))
    text = to_text(plan_graph(sketch.graph(sketch.pointwise("exp", x)), "sm_90"))
    assert "  sizes seen while tracing: s0=8, s1=16" in text
    assert "over d0=s0 d1=s1" in text
    assert "%exp  exp  f32[s0, s1]" in text


def test_a_call_without_results_still_shows_its_line() -> None:
    sketch = Sketch()
    x = sketch.input("x", 8)
    sketch.call("aten._assert_async.msg", x, results=[], effect=Effect.ORDERED)
    text = to_text(plan_graph(sketch.graph(x), "sm_90"))
    assert "  1  _assert_async: opaque call aten._assert_async.msg" in text
    assert "       out  nothing    model.py:10 y = aten._assert_async.msg(x)\n" in text


def test_kernels_are_named_once_they_are_generated() -> None:
    generated = (kernels("region_0", "region_0"), kernels("region_1", "partial", "combine"))
    text = to_text(small_plan(), generated)
    assert text.count("kernel ") == 1
    assert "       kernel partial, combine\n" in text
    assert "6 ops in 3 kernels + 1 opaque call\n" in text


def test_what_kernels_compiled_to_stands_beside_what_was_predicted() -> None:
    generated = (kernels("region_0", "region_0"), kernels("region_1", "partial", "combine"))
    resources = {
        "region_0": Resources(24, 0, 0),
        "partial": Resources(255, 8, 1024),
        "combine": Resources(32, 0, 2048),
    }
    text = to_text(fixed_plan(), generated, resources)
    assert "\n  compiled: at most 255 registers, 8 spilled, 2.05 kB shared memory\n" in text
    assert (
        "bound by launch\n"
        "       registers 18 predicted, 24 compiled, 0 spilled; "
        "shared memory 0 B predicted, 0 B compiled;\n"
        "       occupancy 100% predicted; tile XBLOCK=512, 4 warps\n"
    ) in text
    assert (
        "       registers 38 predicted, 255 compiled, 8 spilled;\n"
        "       shared memory 32 B predicted, 2.05 kB compiled; occupancy 75% predicted;\n"
        "       tile XBLOCK=2 RBLOCK=1024, 8 warps\n"
        "       compiled partial: 255 registers, 8 spilled, 1.02 kB shared memory\n"
        "       compiled combine: 32 registers, none spilled, 2.05 kB shared memory\n"
    ) in text


def test_the_interpreter_has_tiles_and_no_registers() -> None:
    text = to_text(replace(fixed_plan(), target="cpu"))
    assert "bound by launch\n       tile XBLOCK=512, 4 warps\n" in text
    assert "registers 18" not in text
    assert "occupancy" not in text


def test_each_kernel_of_a_region_has_its_tile() -> None:
    tiles = [Configuration((("XBLOCK", 64), ("RBLOCK", 16)), 8), Configuration((("XBLOCK", 1),), 1)]
    assert tiles_text(tiles) == "XBLOCK=64 RBLOCK=16, 8 warps, then XBLOCK=1, 1 warp"
    assert needs_text(Needs()) == (
        "registers 0 predicted", "shared memory 0 B predicted", "occupancy 100% predicted",
    )  # fmt: skip


def test_notes_are_listed_with_their_region_and_wrapped() -> None:
    long = "a tile of half the size, because the first one spilled " * 3
    text = to_text(with_notes(fixed_plan(), "split at add", long))
    assert "8 warps\n       note: split at add\n       note: a tile of half" in text
    assert max(map(len, text.splitlines())) <= WIDTH
    assert " ".join(text.split()).count("because the first one spilled") == 3


def test_bytes_are_an_expression_where_sizes_change_from_call_to_call() -> None:
    sketch = Sketch()
    x = sketch.input("x", sketch.symbol("s0", 8), 16)
    plan = plan_graph(sketch.graph(sketch.pointwise("exp", x)), "sm_90")
    assert "\n       128*s0 bytes moved\n" in to_text(plan)


class Block(nn.Module):
    """Attention written out between two norms, and a gated feed-forward part."""

    def __init__(self, dim: int = 48, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(dim), nn.RMSNorm(dim)
        self.packed, self.joined = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        packed = self.packed(self.first(x)).view(batch, length, 3, self.heads, dim // self.heads)
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-1, -2)) * (dim // self.heads) ** -0.5
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        weights = scores.masked_fill(~causal, float("-inf")).softmax(-1)
        x = x + self.joined((weights @ value).transpose(1, 2).reshape(batch, length, dim))
        gate, signal = self.up(self.second(x)).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * signal)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_the_plan_of_a_transformer_block_fits_a_terminal(dynamic: bool) -> None:
    plan = fuser.plan(Block(), torch.randn(2, 17, 48), target="sm_90", dynamic=dynamic)
    assert len(plan.regions) > 2
    largest = {name: Resources(255, 128, 232_448) for name in plan.sources()}
    for resources in ({}, largest):
        text = to_text(plan.fusion, plan.kernels, resources, plan.peaks, verbose=True)
        assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    for region in plan.regions:
        assert (
            f"registers {region.cost.needs.registers} predicted, 255 compiled, 128 spilled" in text
        )
    assert "peak memory " in text


def test_an_empty_plan_has_a_text() -> None:
    sketch = Sketch("nothing")
    text = to_text(plan_graph(sketch.graph(sketch.input("x", 8)), "cpu"))
    assert text.splitlines()[:2] == [
        "plan of nothing for cpu, inference",
        "  0 ops in 0 kernels + 0 opaque calls",
    ]
    sketch = Sketch("backward")
    graph = sketch.graph(sketch.input("x", 8))
    assert to_text(plan_graph(graph, "cpu", "backward")).startswith("plan for cpu, backward\n")


def test_an_edge_on_a_line() -> None:
    assert [edge_line(verdict) for verdict in small_plan().verdicts][:2] == [
        "mul -> mm: the reader runs as its original call (no generated form)",
        "mm -> add: the producer runs as its original call (no generated form)",
    ]


def test_amounts_are_short_and_have_a_unit() -> None:
    amounts = (0, 999, 1000, 99_960, 999_960, 1_048_576, 5_000_000_000, 7_300_000_000_000)
    assert [byte_text(amount) for amount in amounts] == [
        "0 B", "999 B", "1.00 kB", "100 kB", "1000 kB", "1.05 MB", "5.00 GB", "7300 GB",
    ]  # fmt: skip
    assert [time_text(time) for time in (0.0, 2.54, 1500.0, 2.5e6)] == [
        "0.0 us", "2.5 us", "1.50 ms", "2.50 s",
    ]  # fmt: skip
