"""Ops of one form have one kernel, and what a kernel depends on is in the form."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from fuser.device import device_spec
from fuser.ir.dtype import DType
from fuser.ir.graph import Argument, Graph
from fuser.passes.base import NO_LIMITS, Limits
from fuser.passes.candidate import Candidate, Refused, candidate_for
from fuser.passes.clusters import leaving
from fuser.passes.forms import Forms
from support.graphs import renamed
from support.plans import Sketch, transposed

H200 = device_spec("sm_90")
Program = Callable[[Sketch, Argument, Argument], Argument]


def form(program: Program, dtype: DType = DType.FLOAT32, stored: int = 1) -> tuple[int, ...]:
    """The form in a graph with all the others, so that numbers can be compared."""
    sketch = Sketch()
    for make in PROGRAMS:
        for kind in (DType.FLOAT32, DType.BFLOAT16):
            make(sketch, sketch.input(f"x{len(sketch.inputs)}", 64, 64, dtype=kind),
                 sketch.input(f"y{len(sketch.inputs)}", 64, 64, dtype=kind))  # fmt: skip
    first = len(sketch.ops)
    program(
        sketch,
        sketch.input("left", 64, 64, dtype=dtype),
        sketch.input("right", 64, 64, dtype=dtype),
    )
    ops = sketch.ops[first:]
    return Forms(sketch.graph(), H200).form(ops, {op.name for op in ops[-stored:]})


def product(s: Sketch, x: Argument, y: Argument) -> Argument:
    return s.pointwise("mul", s.pointwise("add", x, y), y)


def of_the_other(s: Sketch, x: Argument, y: Argument) -> Argument:
    return s.pointwise("mul", s.pointwise("add", x, y), x)


def square(s: Sketch, x: Argument, y: Argument) -> Argument:
    total = s.pointwise("add", x, y)
    return s.pointwise("mul", total, total)


def across(s: Sketch, x: Argument, y: Argument) -> Argument:
    return s.pointwise("mul", s.pointwise("add", x, transposed(y)), y)


def halved(s: Sketch, x: Argument, _: Argument) -> Argument:
    return s.pointwise("mul", x, 0.5)


def thirds(s: Sketch, x: Argument, _: Argument) -> Argument:
    return s.pointwise("mul", x, 3.25)


def doubled(s: Sketch, x: Argument, _: Argument) -> Argument:
    return s.pointwise("mul", x, 2.0)


def nothing(s: Sketch, x: Argument, _: Argument) -> Argument:
    return s.pointwise("mul", x, 0.0)


def rows(s: Sketch, x: Argument, _: Argument) -> Argument:
    return s.reduction("sum", x, 1)


def columns(s: Sketch, x: Argument, _: Argument) -> Argument:
    return s.reduction("sum", x, 0)


PROGRAMS = (
    product, of_the_other, square, across, halved, doubled, nothing, rows, columns
)  # fmt: skip


def test_forms_differ_in_operands_views_types_axes_and_what_is_stored() -> None:
    forms = [
        form(program, dtype) for program in PROGRAMS for dtype in (DType.FLOAT32, DType.BFLOAT16)
    ]
    forms.append(form(product, stored=2))
    assert len(set(forms)) == len(forms)


def test_numbers_that_no_rule_asks_for_are_alike() -> None:
    assert form(halved) == form(thirds)


@pytest.mark.parametrize("limits", [NO_LIMITS, Limits(ops=6, arguments=5)])
@pytest.mark.parametrize("target", ["sm_90", "cpu"])
def test_a_known_form_gives_the_kernel_that_the_ops_have(target: str, limits: Limits) -> None:
    """Runs of ops of a graph and the same runs under other names, in one graph."""
    rng, device = random.Random(0), device_spec(target)
    hits = 0
    for seed in range(20):
        half = random_half(seed)
        other = renamed(half, lambda name: f"again_{name}")
        graph = Graph(
            half.inputs + other.inputs, half.ops + other.ops, half.outputs + other.outputs
        )
        forms = Forms(graph, device)
        for _ in range(12):
            size = rng.randint(1, 8)
            start = rng.randrange(len(half.ops) - size)
            for ops in (half.ops[start : start + size], other.ops[start : start + size]):
                stored = leaving(graph, frozenset(op.name for op in ops))
                before = len(forms.known)
                wanted = outcome(partial(candidate_for, graph, ops, stored, device, limits))
                assert outcome(partial(forms.candidate, ops, stored, limits)) == wanted
                hits += len(forms.known) == before
    assert hits > 50


def outcome(judge: Callable[[], Candidate]) -> object:
    """A kernel with the order in which its ops got their indexes, or why there is none."""
    try:
        found = judge()
    except Refused as refused:
        return refused.reason, refused.detail
    return found, list(found.space.index)


def random_half(seed: int) -> Graph:
    rng, sketch = random.Random(seed), Sketch()
    values = [sketch.input(f"x{k}", 64, 64) for k in range(3)]
    for _ in range(24):
        left, right = rng.choice(values[-6:]), rng.choice(values[-6:])
        if rng.random() < 0.2:
            right = sketch.reduction("sum", right, rng.choice([0, 1]), keepdim=True)
        elif rng.random() < 0.2:
            right = transposed(right)
        kind = rng.choice(["add", "mul", "maximum"])
        values.append(sketch.pointwise(kind, left, right))
    return sketch.graph(*values[-3:])
