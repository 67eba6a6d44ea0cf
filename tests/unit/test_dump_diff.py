"""What changed between two plans: regions by their ops, edges, calls and totals; and the text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fuser.dump.diff import Change, EdgeChange, PlanDiff, diff
from fuser.dump.diff_text import NO_DIFFERENCE, SHOWN, diff_text
from fuser.dump.record import EdgeRecord, OpRecord, PlanRecord, RegionRecord, Tile
from fuser.dump.recording import record_of
from fuser.dump.words import WIDTH, byte_text, time_text
from fuser.ir.kernel import Resources
from support.plans import kernels, small_plan

KERNELS = (kernels("region_0", "scale"), kernels("region_1", "ratio"))


@pytest.fixture
def plan() -> PlanRecord:
    return record_of(small_plan(), KERNELS)


def with_region(plan: PlanRecord, number: int, **fields: Any) -> PlanRecord:
    regions = list(plan.regions)
    regions[number] = replace(regions[number], **fields)
    return replace(plan, regions=tuple(regions))


def regrouped(plan: PlanRecord, *groups: str) -> PlanRecord:
    """The plan with a region for each text of op names."""
    pattern = plan.regions[0]
    regions = tuple(
        replace(
            pattern,
            name=f"region_{number}",
            ops=tuple(OpRecord(op, op, "model.py:1", "") for op in group.split()),
        )
        for number, group in enumerate(groups)
    )
    return replace(plan, regions=regions, order=tuple(region.name for region in regions))


def names(regions: tuple[RegionRecord, ...]) -> list[str]:
    return [" ".join(op.name for op in region.ops) for region in regions]


def pairs(difference: PlanDiff) -> list[tuple[str, str]]:
    return [(item.before.name, item.after.name) for item in difference.regions]


def test_equal_plans_do_not_differ(plan: PlanRecord) -> None:
    assert diff(plan, record_of(small_plan(), KERNELS)).is_empty
    assert diff_text(diff(plan, plan)) == NO_DIFFERENCE


def test_names_of_regions_and_kernels_lines_times_of_passes_and_gains_do_not_count(
    plan: PlanRecord,
) -> None:
    ops = tuple(replace(op, source="other.py:99") for op in plan.regions[0].ops)
    later = with_region(plan, 0, name="region_7", ops=ops, kernels=("other_name",))
    later = replace(
        later,
        order=("region_7", *plan.order[1:]),
        passes=tuple(replace(item, ms=item.ms + 5) for item in plan.passes),
        edges=tuple(replace(edge, gain_us=edge.gain_us + 5) for edge in plan.edges),
    )
    assert diff(plan, later).is_empty


def test_a_region_is_recognised_by_its_ops_and_its_changes_are_listed(plan: PlanRecord) -> None:
    predicted = replace(plan.regions[1].predicted, time_us=5.5)
    later = with_region(
        plan, 1, name="region_9", strategy="looped", bytes=1 << 20, predicted=predicted
    )
    (change,) = diff(plan, replace(later, order=("region_0", "mm", "region_9"))).regions
    assert (change.before.name, change.after.name) == ("region_1", "region_9")
    assert (change.added, change.removed) == ((), ())
    assert change.changes == (
        Change("strategy", "row_in_registers", "looped"),
        Change("bytes", plan.regions[1].bytes, 1 << 20),
        Change("time_us", plan.regions[1].predicted.time_us, 5.5),
    )


def test_what_a_kernel_needs_how_it_is_tiled_and_why_is_compared(plan: PlanRecord) -> None:
    before = replace(
        plan.regions[1].predicted,
        registers=40, shared_bytes=512, blocks_per_processor=6, occupancy=0.75,
    )  # fmt: skip
    after = replace(before, registers=64, blocks_per_processor=4, occupancy=0.5)
    plan = with_region(
        plan, 1, predicted=before, tiles=(Tile({"XBLOCK": 2, "RBLOCK": 1024}, 8),), notes=()
    )
    later = with_region(
        plan, 1, predicted=after, tiles=(Tile({"XBLOCK": 1, "RBLOCK": 1024}, 8),),
        notes=("the first tile spilled",),
    )  # fmt: skip
    difference = diff(plan, later)
    (change,) = difference.regions
    assert [item.field for item in change.changes] == ["tile", "registers", "occupancy", "notes"]
    tiles = ("XBLOCK=2 RBLOCK=1024, 8 warps", "XBLOCK=1 RBLOCK=1024, 8 warps")
    assert diff_text(difference).splitlines()[2:] == [
        f"      tile                   {' -> '.join(tiles)}",
        "      registers              40 -> 64  (+60.0%)",
        "      occupancy              75% -> 50%",
        "      notes                  none -> the first tile spilled",
    ]


def test_bytes_by_size_are_compared_where_they_depend_on_a_size(plan: PlanRecord) -> None:
    numbers = with_region(plan, 0, bytes_by_size=str(plan.regions[0].bytes + 1))
    assert diff(plan, numbers).is_empty
    earlier, later = (with_region(plan, 0, bytes_by_size=f"{k}*s0") for k in (2, 3))
    (change,) = diff(earlier, later).regions
    assert change.changes == (Change("bytes_by_size", "2*s0", "3*s0"),)
    assert "bytes_by_size          2*s0 -> 3*s0" in diff_text(diff(earlier, later))


def test_a_region_that_is_cut_keeps_its_larger_part(plan: PlanRecord) -> None:
    before, after = regrouped(plan, "a b c d", "e f"), regrouped(plan, "a b c", "d e f", "g")
    difference = diff(before, after)
    assert pairs(difference) == [("region_0", "region_0"), ("region_1", "region_1")]
    assert [(item.added, item.removed) for item in difference.regions] == [
        ((), ("d",)),
        (("d",), ()),
    ]
    assert (names(difference.vanished), names(difference.appeared)) == ([], ["g"])


def test_no_region_is_matched_twice(plan: PlanRecord) -> None:
    before, after = regrouped(plan, "a b", "c d", "x"), regrouped(plan, "a b c d")
    difference = diff(before, after)
    assert pairs(difference) == [("region_0", "region_0")]
    assert difference.regions[0].added == ("c", "d")
    assert (names(difference.vanished), names(difference.appeared)) == (["c d", "x"], [])
    back = diff(after, before)
    assert (names(back.vanished), names(back.appeared)) == ([], ["c d", "x"])


def test_equal_ops_match_even_where_another_region_shares_more(plan: PlanRecord) -> None:
    before, after = regrouped(plan, "a", "b c d"), regrouped(plan, "b c d", "a")
    assert diff(before, after).regions == ()
    assert [change.field for change in diff(before, after).plan] == ["order"]


def test_edges_that_are_decided_otherwise(plan: PlanRecord) -> None:
    first, second, *others = plan.edges
    turned = replace(first, fused=True, code="fused", reason="fused: the value stays in registers")
    new = EdgeRecord("amax", "mul", False, "cycle", "a cycle", 0.0)
    difference = diff(plan, replace(plan, edges=(turned, *others, new)))
    assert difference.edges == (
        EdgeChange("mul", "mm", first, turned),
        EdgeChange("mm", "add", second, None),
        EdgeChange("amax", "mul", None, new),
    )
    assert diff_text(difference).splitlines() == [
        "edges: 3 changed",
        "  ~ mul -> mm",
        "      - refused: the reader runs as its original call (no generated form)",
        "      + fused: the value stays in registers",
        "  - mm -> add: refused: the producer runs as its original call (no generated form)",
        "  + amax -> mul: refused: a cycle",
    ]


def test_calls_types_targets_and_totals(plan: PlanRecord) -> None:
    later = replace(
        plan,
        target="sm_80",
        opaque=(replace(plan.opaque[0], reason="too small"),),
        totals=replace(plan.totals, kernels=4, bytes=2 * plan.totals.bytes, peak_bytes=10),
        values=plan.values | {"x": replace(plan.values["x"], dtype="float16")},
    )
    difference = diff(plan, later)
    assert difference.plan == (Change("target", "sm_90", "sm_80"),)
    text = diff_text(difference)
    assert "  target                 sm_90 -> sm_80\n" in text
    assert "  kernels                2 -> 4  (+100.0%)\n" in text
    once, twice = byte_text(plan.totals.bytes), byte_text(2 * plan.totals.bytes)
    assert f"  bytes                  {once} -> {twice}  (+100.0%)\n" in text
    assert "  peak_bytes             none -> 10 B\n" in text
    assert "  ~ mm\n      - aten.mm.default, because: no generated form\n" in text
    assert "      + aten.mm.default, because: too small\n" in text
    assert "  x:\n      - bfloat16[256, 1024] strides 1024, 1\n" in text
    assert "      + float16[256, 1024] strides 1024, 1" in text
    back = diff(replace(plan, opaque=()), plan)
    assert "  + mm: aten.mm.default, because: no generated form" in diff_text(back)


def test_registers_count_where_both_plans_have_them(plan: PlanRecord) -> None:
    few = {"scale": Resources(24, 0, 0), "ratio": Resources(40, 0, 64)}
    compiled = record_of(small_plan(), KERNELS, few)
    many = record_of(small_plan(), KERNELS, few | {"ratio": Resources(255, 8, 64)})
    (change,) = diff(compiled, many).regions
    assert change.changes == (
        Change("compiled registers", 40, 255),
        Change("compiled spills", 0, 8),
    )
    difference = diff(plan, compiled)
    assert (difference.regions, difference.plan) == ((), (Change("compiled", False, True),))


def test_the_text_fits_a_terminal_and_counts_what_it_leaves_out(plan: PlanRecord) -> None:
    before = regrouped(
        plan, *(f"an_operation_with_a_long_name_{k} and_another_{k}" for k in range(40))
    )
    after = with_region(
        regrouped(plan, "other"), 0, inputs=tuple(f"argument_{k}" for k in range(30))
    )
    text = diff_text(diff(before, after))
    assert "regions: 40 vanished, 1 appeared\n" in text
    assert f"  and {41 - SHOWN} more (--verbose shows all)" in text
    assert max(map(len, text.splitlines())) <= WIDTH
    everything = diff_text(diff(before, after), verbose=True)
    assert "more (" not in everything
    assert "..." not in everything
    assert max(map(len, everything.splitlines())) <= WIDTH
    region = after.regions[0]
    cost = f"{byte_text(region.bytes)}, {time_text(region.predicted.time_us)}"
    assert f"  + region_0: pointwise, flat, {cost}: other" in everything


def test_a_long_change_gets_a_line_for_each_side(plan: PlanRecord) -> None:
    later = with_region(plan, 0, inputs=tuple(f"argument_{k}" for k in range(10)), name="other")
    text = diff_text(diff(plan, replace(later, order=("other", *plan.order[1:]))))
    assert text.startswith("regions: 1 changed\n  ~ region_0 -> other: mul\n      inputs:\n")
    assert "\n          - x\n          + argument_0, argument_1, " in text
