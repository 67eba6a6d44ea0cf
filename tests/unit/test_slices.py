"""Products that are read in slices: which are made slice by slice, and made whole again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser import no_fuse
from fuser.ir.graph import Graph
from fuser.ir.ops import is_contraction
from fuser.ir.region import Reason
from fuser.passes.canonicalize import merge_equal_ops, remove_unused_ops
from fuser.passes.library import as_calls
from fuser.passes.linear_views import linear_view
from fuser.passes.pipeline import plan_graph
from fuser.passes.slices import joined, split_products
from fuser.runtime.unfused import run_ops, view
from support.graphs import assert_plan_holds, captured_graph, graph_of, plan_of


def results(graph: Graph, arguments: tuple[Tensor, ...], symbols: Mapping[str, int]) -> Any:
    """What the ops compute, each run as the call that it stands for."""
    names = [item.name for item in graph.inputs if item.value is not None]
    environment = dict(zip(names, arguments, strict=True))
    run_ops(graph, [op.name for op in graph.ops], environment, symbols)
    found = [output.argument for output in graph.outputs if output.argument is not None]
    return [view(graph, argument, environment[argument.value], symbols) for argument in found]


def products(graph: Graph) -> int:
    return sum(map(is_contraction, graph.ops))


def gated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    left, right = F.linear(x, w, b).chunk(2, -1)
    return F.silu(left) * right


def of_three(x: Tensor, w: Tensor) -> Tensor:
    first, second, third = F.linear(x, w).chunk(3, -1)
    return first * second.sigmoid() + third


def two_of_three(x: Tensor, w: Tensor) -> Tensor:
    first, _, third = F.linear(x, w).chunk(3, -1)
    return first * third


def of_rows(x: Tensor, w: Tensor) -> Tensor:
    product = x @ w
    return product[:3] * product[3:].exp()


def of_rows_merged(x: Tensor, w: Tensor) -> Tensor:
    product = (x @ w).view(-1, w.shape[-1])
    return product[..., :3] * product[..., 3:]


def of_heads(x: Tensor, w: Tensor) -> Tensor:
    heads = (x @ w).view(x.shape[0], 2, 3, 4)
    return heads[:, 0].sin() * heads[:, 1]


def of_heads_transposed(x: Tensor, w: Tensor) -> Tensor:
    heads = (x @ w).view(x.shape[0], 2, 3, 4).permute(1, 2, 0, 3)
    return heads[0] + heads[1] * 2


def with_a_matrix_added(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
    product = torch.addmm(c, x, w, beta=0.5, alpha=2)
    return product[:, :4] * product[:, 4:]


def with_what_is_not_added(x: Tensor, w: Tensor, c: Tensor) -> Tensor:
    product = torch.addmm(c, x, w, beta=0)
    return product[:, :4] * product[:, 4:]


def after_each_other(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    first, second = (x @ w).chunk(2, -1)
    third, fourth = ((first * second) @ v).chunk(2, -1)
    return third - fourth


def of_a_part_again(x: Tensor, w: Tensor) -> Tensor:
    left, right = (x @ w).chunk(2, -1)
    return (left * right).sum(-1) + left[:, 1]


SPLIT: dict[str, tuple[Callable[..., Any], int, tuple[tuple[int, ...], ...]]] = {
    "a gated pair": (gated, 2, ((7, 5), (8, 5), (8,))),
    "of a batch": (gated, 2, ((2, 3, 5), (8, 5), (8,))),
    "one column each": (gated, 2, ((7, 5), (2, 5), (2,))),
    "glu": (lambda x, w: F.glu(F.linear(x, w)), 2, ((2, 3, 5), (6, 5))),
    "three": (of_three, 3, ((7, 5), (9, 5))),
    "two of three": (two_of_three, 2, ((7, 5), (9, 5))),
    "rows": (of_rows, 2, ((6, 5), (5, 4))),
    "merged rows": (of_rows_merged, 2, ((2, 4, 5), (2, 5, 6))),
    "heads": (of_heads, 2, ((7, 5), (5, 24))),
    "transposed heads": (of_heads_transposed, 2, ((7, 5), (5, 24))),
    "batches": (lambda x, w: (x @ w)[..., :4] - (x @ w)[..., 4:], 2, ((2, 3, 5), (2, 5, 8))),
    "a matrix added": (with_a_matrix_added, 2, ((7, 5), (5, 8), (7, 8))),
    "a column added": (with_a_matrix_added, 2, ((7, 5), (5, 8), (7, 1))),
    "nothing added": (with_what_is_not_added, 2, ((7, 5), (5, 8), (7, 8))),
    "one after another": (after_each_other, 4, ((7, 5), (5, 8), (4, 6))),
    "a column of one": (of_a_part_again, 2, ((7, 5), (5, 8))),
}  # fmt: skip


@pytest.mark.parametrize("case", SPLIT)
@pytest.mark.parametrize("dynamic", [False, True])
def test_slices_compute_the_same_and_so_does_what_is_joined_again(case: str, dynamic: bool) -> None:
    program, count, shapes = SPLIT[case]
    arguments = tuple(torch.randn(shape) for shape in shapes)
    graph = graph_of(program, *arguments, dynamic=dynamic)
    graph = remove_unused_ops(merge_equal_ops(graph))
    split = split_products(graph)
    if not dynamic:
        assert products(split) == count
    whole = joined(split, [op.name for op in split.ops])
    assert [op.name for op in whole.ops] == [op.name for op in graph.ops]
    expected = results(graph, arguments, graph.hints)
    for other in (split, whole):
        for result, wanted in zip(results(other, arguments, graph.hints), expected, strict=True):
            torch.testing.assert_close(result, wanted)


def unequal(x: Tensor, w: Tensor) -> Tensor:
    product = x @ w
    return product[:, :3].sum(1) * product[:, 3:].sum(1)


def interleaved(x: Tensor, w: Tensor) -> Tensor:
    product = x @ w
    return product[:, ::2] * product[:, 1::2]


def returned(x: Tensor, w: Tensor) -> Any:
    left, right = (x @ w).chunk(2, -1)
    return left * right, left


def apart(x: Tensor, w: Tensor) -> Any:
    left, right = (x @ w).chunk(2, -1)
    return left.exp(), right.sin()


def read_whole(x: Tensor, w: Tensor) -> Any:
    product = x @ w
    left, right = product.chunk(2, -1)
    return left * right, product.exp()


def turned(x: Tensor, w: Tensor) -> Tensor:
    left, right = (x @ w).chunk(2, -1)
    return left + right.t()


def attention(x: Tensor, w: Tensor) -> Tensor:
    q, k, v = (part.view(1, 8, 2, 4).transpose(1, 2) for part in (x @ w).chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v)


WHOLE: dict[str, tuple[Callable[..., Any], int]] = {
    "unequal slices": (unequal, 8),
    "interleaved slices": (interleaved, 8),
    "a slice that is returned": (returned, 8),
    "slices that do not meet": (apart, 8),
    "a product that is read whole": (read_whole, 8),
    "slices that meet transposed": (turned, 16),
    "queries, keys and values": (attention, 24),
}


@pytest.mark.parametrize("case", WHOLE)
def test_what_stays_whole(case: str) -> None:
    program, columns = WHOLE[case]
    graph = graph_of(program, torch.randn(8, 5), torch.randn(5, columns))
    assert split_products(graph) is graph


@pytest.mark.parametrize("target", ["sm_90", "cpu"])
@pytest.mark.parametrize("case", ["a gated pair", "of a batch", "glu", "three", "rows", "heads"])
def test_one_kernel(case: str, target: str) -> None:
    program, _, shapes = SPLIT[case]
    plan = plan_of(program, *(torch.randn(shape) for shape in shapes), target=target)
    assert_plan_holds(plan)
    assert [region.kind.value for region in plan.regions] == ["contraction"]
    assert plan.opaque == ()


ARGUMENTS = torch.randn(64, 40), torch.randn(128, 40), torch.randn(128)


def test_without_a_kernel_the_product_is_one_call() -> None:
    graph = graph_of(gated, *ARGUMENTS)
    plan = plan_graph(graph, "sm_90", rules=[no_fuse("addmm_slice_0"), no_fuse("addmm_slice_1")])
    assert_plan_holds(plan)
    assert plan.opaque == ("addmm",)
    again = plan_graph(graph_of(gated, *ARGUMENTS), "sm_90")
    assert again.opaque == ()


@pytest.mark.parametrize("kept", [("addmm_slice_0",), ("addmm_slice_0", "addmm_slice_1")])
def test_slices_that_a_cut_leaves_without_readers_are_one_call(kept: tuple[str, ...]) -> None:
    plan = plan_of(gated, *ARGUMENTS)
    readers = [(name, op.name) for name in kept for op in plan.graph.readers[name]]
    again = plan_graph(plan.graph, "sm_90", cuts=dict.fromkeys(readers, Reason.SPILLS))
    assert_plan_holds(again)
    assert again.opaque == ("addmm",)


def test_the_library_s_product_of_slices_is_one_call() -> None:
    plan = plan_of(gated, *ARGUMENTS)
    slices = [op.name for op in plan.graph.ops if is_contraction(op)]
    graph = as_calls(plan.graph, dict.fromkeys(slices, "measured"))
    (call,) = (op for op in graph.ops if op.is_opaque)
    assert (call.name, call.reason, call.part) == ("addmm", "measured", None)
    expected = results(graph_of(gated, *ARGUMENTS), ARGUMENTS, {})
    torch.testing.assert_close(results(graph, ARGUMENTS, {}), expected)
    assert plan_graph(graph, "sm_90").opaque == ("addmm",)


def test_slices_are_planned_alike_again() -> None:
    plan = plan_of(gated, *ARGUMENTS)
    again = plan_graph(plan.graph, "sm_90")
    assert str(again.graph) == str(plan.graph)
    assert again.regions == plan.regions


def test_the_order_of_statements_changes_nothing() -> None:
    def one(x: Tensor, w: Tensor) -> Any:
        first, second, third = (x @ w).chunk(3, -1)
        return third.exp() + first * second

    def other(x: Tensor, w: Tensor) -> Any:
        product = x @ w
        third, second, first = product[:, 32:], product[:, 16:32], product[:, :16]
        multiplied = first * second
        return third.exp() + multiplied

    arguments = torch.randn(64, 40), torch.randn(40, 48)
    plans = [plan_of(program, *arguments) for program in (one, other)]
    texts = [sorted(str(op) for op in plan.graph.ops if is_contraction(op)) for plan in plans]
    assert texts[0] == texts[1]
    assert [len(plan.regions) for plan in plans] == [1, 1]


def test_parts_are_one_call_of_the_program() -> None:
    graph = captured_graph(gated, *ARGUMENTS)
    split = split_products(remove_unused_ops(merge_equal_ops(graph)))
    origins = {op.origin for op in split.ops if op.part is not None}
    assert len(origins) == 1
    assert origins != {""}


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda x: x,
    "a slice": lambda x: x[:, 2:5],
    "backwards": lambda x: x.flip(1)[:, :3],
    "steps": lambda x: x[1::2, ::3],
    "a reshape": lambda x: x.view(2, 2, 3, 2),
    "a merge": lambda x: x.view(-1),
    "a transposed reshape": lambda x: x.view(4, 2, 3).permute(2, 0, 1),
    "a row": lambda x: x[2],
    "an added axis": lambda x: x[:, None, :, None],
    "an expanded axis": lambda x: x[None].expand(3, 4, 6),
}


@pytest.mark.parametrize("case", VIEWS)
def test_a_view_moved_by_nothing_reads_the_same(case: str) -> None:
    def program(x: Tensor) -> Tensor:
        return VIEWS[case](x).clone()

    graph = graph_of(program, torch.empty(4, 6))
    (argument,) = graph.ops[-1].arguments
    found = linear_view(argument)
    value = graph.values[argument.value]
    moved = None if found is None else found.of(value, 0, 0)
    assert moved is not None
    x = torch.randn(4, 6)
    assert torch.equal(view(graph, moved, x, {}), view(graph, argument, x, {}))
    assert str(moved.map) == str(argument.map)
