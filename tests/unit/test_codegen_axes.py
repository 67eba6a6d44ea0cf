"""Loop axes as kernel variables: order, merging, and text that evaluates to the right offset."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest
import sympy

from fuser.codegen.axes import AxisText, KernelAxis, SizeArguments, merge_axes
from fuser.ir.dim import Dim, evaluate, product
from fuser.ir.space import Affine, LoopAxis
from fuser.passes.access import Access, order_axes

S, T = sympy.symbols("s t", positive=True, integer=True)
A, B, C = LoopAxis("a", 4), LoopAxis("b", 6), LoopAxis("c", 5)
M, N = LoopAxis("m", S), LoopAxis("n", T)


def form(offset: Dim = 0, **terms: Dim) -> Affine:
    return Affine(tuple(terms.items()), offset)


def names(axes: Sequence[KernelAxis]) -> list[str]:
    return ["".join(part.name for part in axis.parts) for axis in axes]


# Order ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("primary", "order"),
    [
        (None, "abc"),
        (form(a=30, b=5, c=1), "abc"),
        (form(a=1, b=4, c=24), "cba"),
        (form(a=5, b=20, c=1), "bac"),
        (form(a=30, b=-5, c=1), "abc"),
        # An access that does not vary over an axis says nothing about its place.
        (form(b=1), "abc"),
    ],
)
def test_axes_follow_the_strides_of_the_primary_access(primary: Affine | None, order: str) -> None:
    access = None
    if primary is not None:
        steps = {axis: abs(int(step)) for axis, step in primary.terms}
        access = Access("op", "x", 4, 120, steps)
    found = order_axes((A, B, C), access)
    assert "".join(axis.name for axis in found) == order


# Merging ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accesses", "groups"),
    [
        ([], ["abc"]),
        ([form(a=30, b=5, c=1)], ["abc"]),
        ([form(7, a=30, b=5, c=1), form()], ["abc"]),
        ([form(a=60, b=10, c=2)], ["abc"]),
        ([form(a=30, b=5, c=1), form(b=5, c=1)], ["a", "bc"]),
        ([form(a=30, b=5, c=1), form(a=6, b=1)], ["ab", "c"]),
        ([form(a=30, b=5, c=1), form(c=1)], ["ab", "c"]),
        ([form(a=30, b=5, c=1), form(a=1, b=4, c=24)], ["a", "b", "c"]),
        ([form(a=31, b=5, c=1)], ["a", "bc"]),
        ([form(a=-30, b=-5, c=-1)], ["abc"]),
    ],
)
def test_axes_merge_where_every_access_agrees(accesses: list[Affine], groups: list[str]) -> None:
    merged = merge_axes((A, B, C), accesses, "x")
    assert names(merged) == groups
    assert [axis.size for axis in merged] == [
        product(part.size for part in axis.parts) for axis in merged
    ]
    expected = ["x"] if len(groups) == 1 else [f"x{k}" for k in range(len(groups))]
    assert [axis.name for axis in merged] == expected


def test_symbolic_axes_merge_where_the_expressions_agree() -> None:
    assert names(merge_axes((M, N), [form(m=T, n=1)], "r")) == ["mn"]
    assert names(merge_axes((M, N), [form(m=S, n=1)], "r")) == ["m", "n"]
    (axis,) = merge_axes((M, N), [], "r")
    assert axis.size == S * T
    assert merge_axes((), [], "x") == ()


# Text -------------------------------------------------------------------------------------------

ACCESSES = (
    form(a=30, b=5, c=1),
    form(3, a=1, b=4, c=24),
    form(29, b=-5, c=-1),
    form(a=6, b=1),
    form(c=2),
    form(11),
    form(),
)


def run(lines: Sequence[str], variables: Mapping[str, int]) -> dict[str, int]:
    known = dict(variables)
    for line in lines:
        exec(line, {}, known)
    return known


@pytest.mark.parametrize("order", list(itertools.permutations((A, B, C))))
@pytest.mark.parametrize("accesses", [ACCESSES[:1], ACCESSES[1:2], ACCESSES[3:], ACCESSES])
def test_text_evaluates_to_the_offset(
    order: tuple[LoopAxis, ...], accesses: tuple[Affine, ...]
) -> None:
    """Every lane's variables, as the kernel sets them, against the loop indices they stand for."""
    axes = merge_axes(order, accesses, "x")
    text = AxisText(axes, SizeArguments())
    lines = text.decomposition("x", axes)
    points = itertools.product(*(range(int(axis.size)) for axis in order))
    for lane, point in enumerate(points):
        index = {axis.name: k for axis, k in zip(order, point, strict=True)}
        known = run(lines, {"x": lane})
        for access in accesses:
            expected = int(access.offset) + sum(int(c) * index[a] for a, c in access.terms)
            assert eval(text.affine(access), {}, known) == expected


def test_symbolic_text_evaluates_to_the_offset() -> None:
    hints = {"s": 3, "t": 4}
    sizes = SizeArguments()
    accesses = [form(m=T, n=1), form(S * T - 1, m=-T, n=-1), form(n=S)]
    axes = merge_axes((M, N), accesses, "x")
    text = AxisText(axes, sizes)
    lines = text.decomposition("x", axes)
    texts = [text.affine(access) for access in accesses]
    arguments = {name: evaluate(size, hints) for name, size in sizes.names.items()}
    for lane, (m, n) in enumerate(itertools.product(range(3), range(4))):
        known = run(lines, {"x": lane, **arguments})
        found = [eval(one, {}, known) for one in texts]
        assert found == [4 * m + n, 11 - 4 * m - n, 3 * n]


def test_one_axis_needs_no_decomposition() -> None:
    axes = merge_axes((A, B), [form(a=6, b=1)], "x")
    text = AxisText(axes, SizeArguments())
    assert text.decomposition("x", axes) == []
    assert text.affine(form(2, a=6, b=1)) == "x + 2"
    assert text.affine(form()) == "0"


def test_sizes_become_arguments_once_each() -> None:
    sizes = SizeArguments()
    texts = [sizes.text(dim) for dim in (7, S, S * T, 8, S * (T + 1), S * T + S, S)]
    assert texts == ["7", "size_0", "size_1", "8", "size_2", "size_2", "size_0"]
    assert list(sizes.names.values()) == [S, S * T, S * (T + 1)]
