"""One iteration space for a group of ops: axes, splits, indices, and why there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser.ir.dim import is_equal
from fuser.ir.region import Reason
from fuser.ir.space import Space
from fuser.passes.unify import NoSpace, result_index, unify
from support.graphs import axis_sizes, graph_of

Program = Callable[..., Any]
X = torch.randn(4, 6)
Y = torch.randn(6, 4)


def space_of(program: Program, *args: Any, dynamic: bool = False) -> Space:
    """The space of the whole program, with only its outputs stored."""
    graph = graph_of(program, *args, dynamic=dynamic)
    return unify(graph, graph.ops, graph.output_values)


def texts(space: Space, op: str) -> list[str]:
    return [str(affine) for affine in space.index[op]]


def kept_then(program: Program) -> Program:
    """`y = x.exp()` is stored, and so is what the program makes of it."""

    def run(x: Tensor, *rest: Any) -> Any:
        y = x.exp()
        return y, program(y, *rest)

    return run


# Axes and indices -------------------------------------------------------------------------------


def test_pointwise_ops_share_the_axes_of_the_result() -> None:
    space = space_of(lambda x, y: x.exp() + y.sin().t(), X, Y)
    assert axis_sizes(space) == {"d0": 4, "d1": 6}
    assert texts(space, "add") == texts(space, "exp") == ["d0", "d1"]
    assert texts(space, "sin") == ["d1", "d0"]


def test_a_broadcast_operand_has_fewer_axes() -> None:
    space = space_of(lambda x, row, one: x * row.exp() + one.sin(), X, X[0], X[:1, :1])
    assert texts(space, "exp") == ["d1"]
    assert texts(space, "sin") == ["0", "0"]


def test_dimensions_of_size_one_get_no_axis() -> None:
    space = space_of(lambda x: x.view(4, 1, 6, 1).exp().sum(1), X)
    assert axis_sizes(space) == {"d0": 4, "d2": 6}
    assert space.reduced == ()
    assert texts(space, "exp") == ["d0", "0", "d2", "0"]


def test_a_reshape_splits_axes() -> None:
    space = space_of(lambda x: x.exp().view(8, 3) * 2, X)
    assert axis_sizes(space) == {"d0o": 4, "d0i": 2, "d1": 3}
    assert texts(space, "mul") == ["2*d0o + d0i", "d1"]
    assert sorted(texts(space, "exp")[1].split(" + ")) == ["3*d0i", "d1"]


def test_a_reshape_splits_an_axis_more_than_once() -> None:
    space = space_of(lambda x: x.exp().view(24).sin().view(2, 2, 3, 2).cos().view(24) + 1, X)
    assert sorted(axis_sizes(space).values()) == [2, 2, 2, 3]


def test_a_reshape_of_symbolic_sizes() -> None:
    space = space_of(lambda x: x.exp().view(-1) * 2, X, dynamic=True)
    outer, inner = space.axes
    assert texts(space, "exp") == [outer.name, inner.name]
    assert is_equal(space.parallel_size, outer.size * inner.size)


def test_pieces_are_read_at_shifted_indices() -> None:
    space = space_of(lambda x, y: torch.cat([x.exp(), y.sin()], 1), X, X + 1)
    assert axis_sizes(space) == {"d0": 4, "d1": 12}
    assert texts(space, "exp") == ["d0", "d1"]
    assert texts(space, "sin") == ["d0", "d1 + -6"]


def test_positions_of_a_gather_are_part_of_the_group() -> None:
    space = space_of(lambda x, i: x[i % 3] * 2, X, torch.tensor([0, 2]))
    assert texts(space, "remainder") == ["d0"]
    assert texts(space, "index") == ["d0", "d1"]


# Reductions -------------------------------------------------------------------------------------


def test_a_reduction_marks_the_axes_that_it_folds() -> None:
    space = space_of(lambda x: x.view(2, 2, 6).sum((0, 2)).exp(), X)
    assert [(axis.name, axis.is_reduced) for axis in space.axes] == [
        ("d0", True),
        ("d1", False),
        ("d2", True),
    ]
    assert texts(space, "sum_1") == ["d0", "d1", "d2"]
    assert texts(space, "exp") == ["d1"]


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_softmax_is_one_space(dim: int) -> None:
    space = space_of(lambda x: x.softmax(dim), X)
    assert [axis.is_reduced for axis in space.axes] == [k == dim % 2 for k in range(2)]
    assert all(texts(space, op) == ["d0", "d1"] for op in space.index)


def test_readers_of_a_row_may_drop_or_keep_the_folded_dimension() -> None:
    space = space_of(lambda x: x / x.sum(1, keepdim=True) + x.amax(1)[:, None], X)
    assert texts(space, "div") == ["d0", "d1"]
    assert texts(space, "amax") == ["d0", "d1"]


def test_the_largest_reduction_lends_its_axes() -> None:
    def program(x: Tensor) -> Any:
        y = x.exp()
        return y, y.sum(0).relu(), y.amax(0, keepdim=True)

    space = space_of(program, X)
    assert [axis.is_reduced for axis in space.axes] == [True, False]
    assert texts(space, "exp") == texts(space, "amax") == ["d0", "d1"]
    assert texts(space, "relu") == ["d1"]


def test_a_norm_over_two_dimensions_through_a_view() -> None:
    space = space_of(lambda x: F.layer_norm(x.exp().view(2, 2, 6), (2, 6)), X)
    assert (space.parallel_size, space.reduced_size) == (2, 12)
    assert sum(axis.is_reduced for axis in space.axes) == 2


def test_the_index_of_a_result_leaves_folded_dimensions_out() -> None:
    graph = graph_of(lambda x: (x.sum(1), x.amax(1, keepdim=True), x * 2), X)
    kept, one, whole = graph.ops
    index = unify(graph, [whole], graph.output_values).index[whole.name]
    assert [str(a) for a in result_index(kept, index)] == ["d0"]
    assert [str(a) for a in result_index(one, index)] == ["d0", "0"]
    assert result_index(whole, index) == index


# Failures ---------------------------------------------------------------------------------------

FAILURES: dict[str, tuple[Reason, str, Program, tuple[Any, ...]]] = {
    "rows and columns": (
        Reason.OTHER_REDUCTION,
        "waits for all rows",
        lambda x: x.sum(0)[None] + x.sum(1)[:, None],
        (X,),
    ),
    "a sum of sums": (Reason.OTHER_REDUCTION, "over [6]", lambda x: x.sum(0).sum(), (X,)),
    "another row": (
        Reason.OTHER_SPACE,
        "flip reads a part of its producer",
        lambda x: x - x.softmax(1).flip(0),
        (X,),
    ),
    "rows as columns": (
        Reason.OTHER_SPACE,
        "add reads div of another row",
        lambda x: (lambda y: y + y.t())(x.softmax(1)),
        (X[:, :4],),
    ),
    "nothing in common": (
        Reason.OTHER_SPACE,
        "sin over [4]",
        lambda x, y: (x.exp(), y.sin()),
        (X, X[:, 0]),
    ),
    "a part": (Reason.OTHER_SPACE, "reads a part", kept_then(lambda y: y[1:] * 2), (X,)),
    "a broadcast behind a reshape": (
        Reason.OTHER_SPACE,
        "a broadcast behind a reshape",
        lambda x: x.sum(-1).expand(2, 4, 6).view(2, 24) * 2,
        (torch.randn(4, 6, 5),),
    ),
    "a first part": (Reason.OUTPUT_NOT_COVERED, "mul", kept_then(lambda y: y[:2] * 2), (X,)),
    "a repeated output": (
        Reason.OUTPUT_NOT_COVERED,
        "exp",
        kept_then(lambda y, x: y * x),
        (X[0], X),
    ),
    "rows of another length": (
        Reason.NOT_LINEAR,
        "does not divide",
        lambda x: x.exp().view(6, 4).t() + x.sin(),
        (X,),
    ),
    "rows of unknown lengths": (
        Reason.NOT_LINEAR,
        "",
        lambda x, y: x.exp().view(-1)[1:] + y.view(-1)[1:],
        (X, Y),
    ),
    "a computed position": (
        Reason.DATA_DEPENDENT_READ,
        "index",
        lambda x, i: x.exp()[i] * 2,
        (X, torch.tensor([0, 2])),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILURES)
def test_why_there_is_no_space(case: str) -> None:
    reason, detail, program, args = FAILURES[case]
    with pytest.raises(NoSpace) as caught:
        space_of(program, *args, dynamic=case == "rows of unknown lengths")
    assert caught.value.reason is reason
    assert detail in caught.value.detail


def test_a_value_read_at_two_indices_is_linear_at_both() -> None:
    """`v` is read as it stands and one column on, where its reshape no longer is linear."""

    def program(x: Tensor) -> Tensor:
        y = x.expand(2, 8).reshape(16, 1, 1)
        v = y - x
        return torch.cat([v, v], 1)

    with pytest.raises(NoSpace, match="linear"):
        space_of(program, torch.randn(8))


def test_what_waits_for_no_reduction_may_be_read_at_two_indices() -> None:
    space = space_of(lambda x: (lambda y: y[1:] + y[:-1])(x.exp()).sum(1), X)
    assert axis_sizes(space) == {"d0": 3, "d1": 6}
