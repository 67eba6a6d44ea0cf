"""Iteration spaces: affine forms, reshapes as digits of a number, coverage."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
import sympy

from fuser.ir.dim import Dim
from fuser.ir.index_map import IDENTITY, Axis, IndexMap, Reshape, Shape, Strided
from fuser.ir.space import (
    Affine,
    Index,
    LoopAxis,
    NotLinear,
    Space,
    SplitAxis,
    covers_once,
    linear_index,
    memory_offset,
    regroup,
    reshape_index,
    through,
)
from support.graphs import unravel

S, T = sympy.symbols("s t", positive=True, integer=True)
SIZES: Mapping[str, Dim] = {"a": 4, "b": 6, "d": 24, "m": S, "n": T, "st": S * T, "one": 1}


def form(offset: Dim = 0, **terms: Dim) -> Affine:
    return Affine(tuple(terms.items()), offset)


def keys(index: Index) -> list[tuple[object, ...]]:
    return [affine.key() for affine in index]


def value(affine: Affine, point: Mapping[str, int]) -> int:
    return int(affine.offset) + sum(int(c) * point[axis] for axis, c in affine.terms)


# Affine forms -----------------------------------------------------------------------------------


def test_forms_add_and_scale() -> None:
    assert form(1, a=2).plus(form(3, a=1, b=5)).key() == form(4, a=3, b=5).key()
    assert form(a=2).plus(form(a=-2)) == Affine()
    assert form(1, a=2).scaled(3, 4) == form(7, a=6)
    assert form(1, a=2).scaled(0, 4) == form(4)
    assert form(m=S).scaled(T, S) == form(S, m=S * T)
    assert form(a=1, b=2).axes == {"a", "b"}


def test_a_key_ignores_the_order_of_terms() -> None:
    assert form(a=1, b=2).key() == form(b=2, a=1).key()
    assert form(a=1, b=2).key() != form(a=2, b=1).key()
    assert form(1, a=1).key() != form(a=1).key()


@pytest.mark.parametrize(
    ("affine", "text"),
    [(form(), "0"), (form(a=1), "a"), (form(3, a=2, m=S), "2*a + s*m + 3"), (form(S - 1), "s - 1")],
)
def test_forms_read_as_sums(affine: Affine, text: str) -> None:
    assert str(affine) == text


def test_a_linear_index_counts_in_row_major_order() -> None:
    assert linear_index((form(a=1), form(b=1)), (4, 6)).key() == form(a=6, b=1).key()
    assert (
        linear_index((form(m=1), form(n=1), form(2)), (S, T, 3)).key()
        == form(2, m=3 * T, n=3).key()
    )
    assert linear_index((), ()) == Affine()
    assert memory_offset((form(a=1), form(1, b=2)), (S, 10)).key() == form(10, a=S, b=20).key()


# Regrouping -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("linear", "shape", "expected"),
    [
        (form(a=6, b=1), (4, 6), (form(a=1), form(b=1))),
        (form(a=6, b=1), (24,), (form(a=6, b=1),)),
        (form(a=6, b=1), (4, 1, 6, 1), (form(a=1), form(), form(b=1), form())),
        (form(a=6), (4, 6), (form(a=1), form())),
        (form(), (), ()),
        (form(), (1, 1), (form(), form())),
        (form(m=T, n=1), (S * T,), (form(m=T, n=1),)),
        (form(m=6 * T, n=6, b=1), (S, T, 6), (form(m=1), form(n=1), form(b=1))),
        (form(m=6 * T, n=6, b=1), (S * T, 6), (form(m=T, n=1), form(b=1))),
        (form(m=6 * T, n=6, b=1), (S, 6 * T), (form(m=1), form(n=6, b=1))),
    ],
)
def test_each_term_finds_the_dimension_of_its_stride(
    linear: Affine, shape: Shape, expected: Index
) -> None:
    assert keys(regroup(linear, shape, SIZES)) == keys(expected)


@pytest.mark.parametrize(
    ("linear", "shape", "axis", "inner"),
    [
        (form(d=1), (4, 6), "d", 6),
        (form(a=6, b=1), (2, 12), "a", 2),
        (form(a=6, b=1), (8, 3), "b", 3),
        (form(b=4, a=1), (2, 12), "b", 3),
        (form(st=1), (S, T), "st", T),
        (form(m=6, b=1), (S, 2, 3), "b", 3),
        # Counted from the end, as after a flip: the parts have the same sizes.
        (form(23, d=-1), (4, 6), "d", 6),
    ],
)
def test_a_term_that_spans_two_dimensions_asks_for_a_split(
    linear: Affine, shape: Shape, axis: str, inner: Dim
) -> None:
    with pytest.raises(SplitAxis) as caught:
        regroup(linear, shape, SIZES)
    assert (caught.value.axis, caught.value.inner) == (axis, inner)


@pytest.mark.parametrize(
    ("linear", "shape"),
    [
        (form(a=6, b=1), (6, 4)),
        (form(m=T, n=1), (T, S)),
        (form(st=1), (S, T + 1)),
        (form(a=5, b=1), (4, 6)),
        (form(a=1), ()),
        (form(m=1), (2, 2)),
    ],
)
def test_what_no_split_makes_linear_is_refused(linear: Affine, shape: Shape) -> None:
    with pytest.raises(NotLinear):
        regroup(linear, shape, SIZES)


def test_the_outermost_dimension_takes_what_is_left() -> None:
    """A masked reader may look past its end, or before its beginning."""
    assert keys(regroup(form(-2, a=6, b=1), (4,), SIZES)) == keys((form(-2, a=6, b=1),))


@pytest.mark.parametrize(
    ("linear", "shape", "expected"),
    [
        (form(12, a=6), (8, 6), (form(2, a=1), form())),
        (form(-12, a=6), (8, 6), (form(-2, a=1), form())),
        (form(2, a=6), (4, 6), (form(a=1), form(2))),
        (form(10, a=1), (3, 8), (form(1), form(2, a=1))),
        (form(-4 * S, m=4, a=1), (S, 4), (form(-S, m=1), form(a=1))),
        (form(S * T, n=1), (2, T), (form(S), form(n=1))),
        (form(3, m=1), (S,), (form(3, m=1),)),
        (form(5, a=6, b=-1), (4, 6), (form(a=1), form(5, b=-1))),
        (form(18, a=-6, b=1), (4, 6), (form(3, a=-1), form(b=1))),
    ],
)
def test_an_offset_is_shared_out_among_the_dimensions(
    linear: Affine, shape: Shape, expected: Index
) -> None:
    assert keys(regroup(linear, shape, SIZES)) == keys(expected)


@pytest.mark.parametrize(
    ("linear", "shape"),
    [
        (form(3, a=1), (4, 6)),
        (form(3, b=1), (4, 6)),
        (form(-1, a=1), (4, 6)),
        (form(1, m=T, n=1), (S, T)),
        (form(S, a=6), (8, 6)),
        (form(4, b=-1), (4, 6)),
        (form(6, b=-1), (4, 6)),
        (form(m=T, n=-1), (S, T)),
    ],
)
def test_an_offset_that_may_carry_is_refused(linear: Affine, shape: Shape) -> None:
    with pytest.raises(NotLinear):
        regroup(linear, shape, SIZES)


@pytest.mark.parametrize("offset", range(-8, 9))
@pytest.mark.parametrize("sign", [1, -1])
def test_a_window_over_a_reshape_is_right_wherever_it_is_linear(offset: int, sign: int) -> None:
    """Brute force: four neighbours, forwards or backwards, of a 3 by 4 tensor read as a line."""
    linear = form(offset + (0 if sign == 1 else 3), a=sign)
    try:
        index = regroup(linear, (3, 4), SIZES)
    except NotLinear:
        # Only the windows that begin at a row's start lie in one row.
        assert offset % 4 != 0
        return
    for a in range(4):
        number = value(linear, {"a": a})
        if 0 <= number < 12:
            assert tuple(value(part, {"a": a}) for part in index) == unravel(number, (3, 4))


def test_a_reshape_takes_an_index_to_the_other_shape() -> None:
    index = (form(a=1), form(b=1))
    assert keys(reshape_index(index, Reshape((4, 6), (24,)), SIZES)) == keys((form(a=6, b=1),))
    with pytest.raises(SplitAxis):
        reshape_index(index, Reshape((4, 6), (4, 3, 2)), SIZES)


# Following a map --------------------------------------------------------------------------------


def test_a_map_takes_the_readers_index_to_the_producers() -> None:
    index = (form(a=1), form(b=1))
    transpose = IDENTITY.after(Strided((4, 6), (Axis(1), Axis(0))))
    assert through(transpose, index, SIZES) == (form(b=1), form(a=1))
    window = IDENTITY.after(Strided((4, 6), (Axis(None, 1, 7), Axis(1, -1, 5), Axis(0, 2, 1))))
    assert through(window, index, SIZES) == (form(7), form(5, b=-1), form(1, a=2))
    assert through(IDENTITY, index, SIZES) == index


def test_a_map_of_several_steps_is_followed_from_the_reader() -> None:
    # x.t().view(24), x of shape (6, 4), read at (a, b) through .view(4, 6).
    steps = IndexMap(
        (Reshape((4, 6), (24,)), Reshape((24,), (4, 6)), Strided((4, 6), (Axis(1), Axis(0))))
    )
    assert keys(through(steps, (form(a=1), form(b=1)), {**SIZES})) == keys((form(b=1), form(a=1)))


# Coverage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "shape", "axes", "expected"),
    [
        ((form(a=1), form(b=1)), (4, 6), "ab", True),
        ((form(b=1), form(a=1)), (6, 4), "ab", True),
        ((form(a=6, b=1),), (24,), "ab", True),
        ((form(b=1, a=6),), (24,), "ab", True),
        ((form(a=1), form(), form(b=1)), (4, 1, 6), "ab", True),
        ((), (), "", True),
        ((form(a=1), form(b=1)), (4, 6), "a", False),
        ((form(a=1), form()), (4, 6), "a", False),
        ((form(a=1), form(b=1)), (4, 6), "abd", False),
        ((form(a=1), form(a=1)), (4, 4), "a", False),
        ((form(a=1),), (5,), "a", False),
        ((form(1, a=1),), (4,), "a", False),
        ((form(a=2),), (4,), "a", False),
        ((form(3, a=-1),), (4,), "a", False),
        ((form(a=5, b=1),), (24,), "ab", False),
    ],
)
def test_coverage(index: Index, shape: Shape, axes: str, expected: bool) -> None:
    assert covers_once(index, shape, SIZES, axes) is expected
    if expected:
        points = itertools.product(*(range(int(SIZES[axis])) for axis in axes))
        named = [dict(zip(axes, point, strict=True)) for point in points]
        seen = [tuple(value(affine, point) for affine in index) for point in named]
        assert sorted(seen) == list(itertools.product(*(range(int(size)) for size in shape)))


def test_coverage_of_symbolic_sizes() -> None:
    assert covers_once((form(m=1), form(n=1)), (S, T), SIZES, "mn")
    assert covers_once((form(m=T, n=1),), (T * S,), SIZES, "mn")
    assert not covers_once((form(m=T, n=1),), (T * T,), SIZES, "mn")
    assert not covers_once((form(m=1), form(n=1)), (T, S), SIZES, "mn")


# Spaces -----------------------------------------------------------------------------------------


def test_a_space_tells_kept_axes_from_folded_ones() -> None:
    axes = (LoopAxis("a", 4), LoopAxis("m", S, is_reduced=True), LoopAxis("b", 6))
    space = Space(axes, {})
    assert [axis.name for axis in space.parallel] == ["a", "b"]
    assert [axis.name for axis in space.reduced] == ["m"]
    assert (space.parallel_size, space.reduced_size) == (24, S)
    assert (Space((), {}).parallel_size, Space((), {}).reduced_size) == (1, 1)
