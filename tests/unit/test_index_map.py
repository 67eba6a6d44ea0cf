"""Views as chains of steps: merging, composition, broadcasts, text."""

from __future__ import annotations

import itertools

import pytest
import sympy

from fuser.ir.index_map import (
    IDENTITY,
    Axis,
    IndexMap,
    Reshape,
    Step,
    Strided,
    broadcast,
    same_shape,
)
from support.graphs import follow

S, T = sympy.symbols("s t", positive=True, integer=True)

TRANSPOSE = Strided((6, 4), (Axis(1), Axis(0)))
FLIP = Strided((4, 6), (Axis(0), Axis(1, -1, 5)))
LAST = Strided((4,), (Axis(0), Axis(None, 1, 5)))


def chain(*steps: Step) -> IndexMap:
    """The map of a reader that looks through the steps, the viewed tensor's own step first."""
    result = IDENTITY
    for step in steps:
        result = result.after(step)
    return result


# Merging ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step",
    [
        Strided((4, 6), (Axis(0), Axis(1))),
        Strided((), ()),
        Reshape((4, 6), (4, 6)),
        Reshape((S, T + T), (S, 2 * T)),
    ],
)
def test_a_step_that_moves_nothing_leaves_no_trace(step: Step) -> None:
    assert chain(step).is_identity
    assert chain(TRANSPOSE, step) == chain(TRANSPOSE)


@pytest.mark.parametrize(
    "steps",
    [
        (TRANSPOSE, Strided((4, 6), (Axis(1), Axis(0)))),
        (FLIP, FLIP),
        (Reshape((24,), (4, 6)), Reshape((4, 6), (24,))),
        (Reshape((2, 12), (4, 6)), Reshape((3, 8), (2, 12)), Reshape((4, 6), (3, 8))),
        # x[None][0]
        (Strided((1, 4), (Axis(1),)), Strided((4,), (Axis(None), Axis(0)))),
    ],
)
def test_there_and_back_is_the_identity(steps: tuple[Step, ...]) -> None:
    assert chain(*steps) == IDENTITY


def test_steps_of_one_kind_become_one() -> None:
    every_second = Strided((10,), (Axis(0, 2, 1),))
    every_third = Strided((3,), (Axis(0, 3, 2),))
    assert chain(every_second, every_third) == chain(Strided((3,), (Axis(0, 6, 5),)))
    assert chain(Reshape((24,), (4, 6)), Reshape((8, 3), (24,))) == chain(Reshape((8, 3), (4, 6)))
    assert chain(FLIP, LAST) == chain(Strided((4,), (Axis(0), Axis(None, 1, 0))))


def test_steps_of_two_kinds_stay_apart_until_one_is_undone() -> None:
    mixed = chain(TRANSPOSE, Reshape((24,), (6, 4)))
    assert len(mixed.steps) == 2
    assert mixed.after(Reshape((6, 4), (24,))) == chain(TRANSPOSE)


def test_a_slice_from_the_start_keeps_two_reshapes_apart() -> None:
    # x.view(4, 6)[:, :4].view(4, 2, 2): the slice leaves no step, but the row is still 6 long.
    steps = (
        Reshape((4, 6), (24,)),
        Strided((4, 4), (Axis(0), Axis(1))),
        Reshape((4, 2, 2), (4, 4)),
    )
    assert follow(chain(*steps), (1, 0, 0)) == (6,)


def test_symbolic_steps_merge_like_numbers() -> None:
    flip = Strided((S,), (Axis(0, -1, S - 1),))
    assert chain(flip, flip) == IDENTITY
    shifted = chain(Strided((S,), (Axis(0, 1, T),)), Strided((S,), (Axis(0, 2, S),)))
    assert shifted == chain(Strided((S,), (Axis(0, 2, S + T),)))


def test_compose_is_one_step_after_the_other() -> None:
    inner = chain(TRANSPOSE, Reshape((24,), (6, 4)))
    outer = chain(Reshape((2, 12), (24,)), Strided((12,), (Axis(None, 1, 1), Axis(0))))
    composed = inner.compose(outer)
    for position in range(12):
        assert follow(composed, (position,)) == follow(inner, follow(outer, (position,)))
    assert inner.compose(IDENTITY) == inner
    assert IDENTITY.compose(inner) == inner


# Broadcasts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("producer", "reader"),
    [
        ((4,), (3, 4)),
        ((1, 4), (3, 4)),
        ((3, 1), (3, 4)),
        ((), (2, 2)),
        ((1,), (1,)),
        ((1, 1), (5, 1, 4)),
    ],
)
def test_a_broadcast_aligns_the_last_dimensions(
    producer: tuple[int, ...], reader: tuple[int, ...]
) -> None:
    index_map = chain(broadcast(producer, reader))
    lead = len(reader) - len(producer)
    for index in itertools.product(*map(range, reader)):
        expected = tuple(
            0 if size == 1 else position
            for position, size in zip(index[lead:], producer, strict=True)
        )
        assert follow(index_map, index) == expected


def test_a_broadcast_of_symbolic_sizes_repeats_only_ones() -> None:
    assert broadcast((1, S), (T, S)) == Strided((T, S), (Axis(None), Axis(1)))
    assert chain(broadcast((S, T), (S, T))) == IDENTITY


# Shapes and text --------------------------------------------------------------------------------


def test_shapes_are_the_same_dimension_by_dimension() -> None:
    assert same_shape((), ())
    assert same_shape((S * (T + 1), 3), (S * T + S, 3))
    assert not same_shape((3,), (3, 1))
    assert not same_shape((S,), (T,))


@pytest.mark.parametrize(
    ("index_map", "text"),
    [
        (IDENTITY, ""),
        (chain(TRANSPOSE), "[i1, i0]"),
        (chain(LAST), "[i0, 5]"),
        (chain(Strided((S,), (Axis(0, -1, S - 1),))), "[-1*i0+s - 1]"),
        (chain(Reshape((4, S), (4 * S,))), ".view(4, s)"),
        (chain(TRANSPOSE, Reshape((24,), (6, 4))), "[i1, i0].view(24)"),
    ],
)
def test_the_text_reads_as_the_program_did(index_map: IndexMap, text: str) -> None:
    assert str(index_map) == text
