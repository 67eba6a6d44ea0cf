"""Slices that are read of a tile, pieces that are put together, and halves of an axis."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fuser.ir.index_map import Axis, IndexMap, Reshape, Strided
from fuser.ir.region import RegionKind
from fuser.ir.space import Affine, NotLinear, SplitAxis
from fuser.passes.contraction import least_sides, roles_of
from fuser.passes.parts import Half, half_of, inverse_index, piece_index, piece_of
from fuser.passes.unify import NoSpace, unify
from support.graphs import graph_of, op_of, plan_of

SIZES = {"o": 2, "i": 8, "h": 4}
WHOLE = Affine((("h", 16), ("o", 8), ("i", 1)))


def halves(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)


# Slices -------------------------------------------------------------------------------------------


def sliced(size: int, step: int, offset: int) -> IndexMap:
    return IndexMap((Strided((size,), (Axis(0, step, offset),)),))


@pytest.mark.parametrize(
    ("size", "step", "offset", "inside"),
    [
        (64, 1, 0, {"h": 16, "o": 8, "i": 1}),
        (16, 1, 16, {"o": 8, "i": 1}),
        (16, 1, 0, {"o": 8, "i": 1}),
        (8, 1, 8, {"i": 1}),
        (8, 8, 3, {"h": 2, "o": 1}),
        (4, 16, 0, {"h": 1}),
    ],
)
def test_the_index_inside_a_slice(
    size: int, step: int, offset: int, inside: dict[str, int]
) -> None:
    found = inverse_index(sliced(size, step, offset), (WHOLE,), SIZES, (size,))
    assert not isinstance(found, str)
    (affine,) = found
    assert affine is not None
    assert dict(affine.terms) == inside


def test_a_slice_that_crosses_an_axis_asks_for_its_split() -> None:
    with pytest.raises(SplitAxis) as split:
        inverse_index(sliced(4, 1, 4), (WHOLE,), SIZES, (4,))
    assert (split.value.axis, split.value.inner) == ("i", 4)


def test_a_slice_at_no_border_of_an_axis_has_no_index() -> None:
    with pytest.raises(NotLinear):
        inverse_index(sliced(3, 1, 0), (WHOLE,), SIZES, (3,))


def test_without_a_domain_no_slice_is_read() -> None:
    assert inverse_index(sliced(8, 1, 8), (WHOLE,), SIZES) == "{} reads a part of its producer"


def test_a_slice_from_the_start_leaves_no_step() -> None:
    assert inverse_index(IndexMap(), (WHOLE,), SIZES, (16,)) == [Affine((("o", 8), ("i", 1)))]


def test_what_is_not_asked_for_has_no_index() -> None:
    found = inverse_index(sliced(8, 1, 8), (WHOLE,), SIZES, (None,))
    assert found == [None]


def test_a_broadcast_behind_a_reshape_has_no_index() -> None:
    both = IndexMap((Reshape((12,), (3, 4)), Strided((3, 4), (Axis(0), Axis(1)))))
    broadcast = IndexMap((*both.steps[:1], Strided((3, 4), (Axis(0),))))
    assert inverse_index(broadcast, (Affine(),), SIZES) == "a broadcast behind a reshape"


# Pieces and halves --------------------------------------------------------------------------------


def test_a_piece_fixes_the_axes_outside_it() -> None:
    graph = graph_of(lambda x, y: torch.cat((x, y), -1), torch.empty(4, 8), torch.empty(4, 8))
    op = op_of(graph, "cat")
    index = (Affine((("h", 1),)), Affine((("o", 8), ("i", 1))))
    assert [piece_of(op, position) for position in (0, 1)] == [1, 1]
    assert piece_index(op, 0, index, SIZES)[1] == Affine((("i", 1),), 0)
    assert piece_index(op, 1, index, SIZES)[1] == Affine((("i", 1),), 8)


def test_pieces_of_two_dimensions_have_the_ops_own_index() -> None:
    graph = graph_of(lambda x: torch.nn.functional.pad(x, (1, 2, 3, 4)), torch.empty(4, 8))
    op = op_of(graph, "pad")
    index = (Affine((("h", 1),)), Affine((("i", 1),)))
    assert piece_of(op, 0) is None
    assert piece_index(op, 0, index, SIZES) == index


@pytest.mark.parametrize(
    ("wanted", "half"),
    [
        (Affine((("h", 16), ("i", 1)), 8), Half("o", 1)),
        (Affine((("i", 1), ("h", 16))), Half("o", 0)),
        (Affine((("h", 16), ("i", 1)), 4), None),
        (Affine((("h", 16), ("i", 1)), 16), None),
        (Affine((("h", 16), ("o", 8)), 1), None),
        (Affine((("i", 1),), 8), None),
        (WHOLE, None),
    ],
)
def test_a_half_is_one_place_of_an_axis_with_two(wanted: Affine, half: Half | None) -> None:
    assert half_of((wanted,), (WHOLE,), SIZES) == half


# Spaces and tiles ---------------------------------------------------------------------------------


def turned(x: Tensor, w: Tensor) -> Tensor:
    heads = (x @ w).view(*x.shape[:1], -1, 16)
    first, second = heads.chunk(2, -1)
    return torch.cat((-second, first), -1)


def test_both_halves_are_in_a_tile() -> None:
    graph = graph_of(turned, torch.empty(32, 24), torch.empty(24, 64))
    stored = frozenset({graph.ops[-1].name})
    space = unify(graph, graph.ops, stored)
    roles = roles_of(graph, graph.ops, stored, space)
    assert len(space.halved) == 1
    assert space.halved <= set(roles.columns)
    assert least_sides(roles, space) == (1, 16)


def test_halves_along_the_rows_are_in_a_tile_as_well() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        first, second = (x @ w).chunk(2, 0)
        return torch.cat((second, first), 0)

    graph = graph_of(program, torch.empty(32, 24), torch.empty(24, 64))
    stored = frozenset({graph.ops[-1].name})
    space = unify(graph, graph.ops, stored)
    assert least_sides(roles_of(graph, graph.ops, stored, space), space) == (32, 1)


def test_a_half_that_is_stored_by_itself_is_refused() -> None:
    graph = graph_of(lambda x, w: (x @ w)[:, :32].exp(), torch.empty(8, 24), torch.empty(24, 64))
    with pytest.raises(NoSpace):
        unify(graph, graph.ops, frozenset({graph.ops[-1].name}))


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "cpu"])
def test_tiles_of_a_turned_product_hold_whole_heads(target: str) -> None:
    plan = plan_of(turned, halves(64, 256), halves(256, 96), target=target)
    (region,) = plan.regions
    assert region.kind is RegionKind.CONTRACTION
    assert all(tile.block("NBLOCK") % 16 == 0 for tile in region.schedule.candidates[0])


def test_a_product_of_one_row_is_not_summed_where_it_is_read_in_halves() -> None:
    plan = plan_of(turned, halves(1, 256), halves(256, 64), target="sm_90")
    assert all(r.kind is RegionKind.POINTWISE or r.strategy.value == "product" or len(r.ops) == 1
               for r in plan.regions)  # fmt: skip
