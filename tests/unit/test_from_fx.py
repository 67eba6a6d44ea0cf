"""From FX to our graph: views on edges, rows of the table, and what stays the original call."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser.capture.from_fx import DataDependentSize, from_fx
from fuser.ir.dim import is_equal
from fuser.ir.dtype import DType
from fuser.ir.graph import Argument, Effect, Literal, SizeSlot, Slot
from fuser.ir.index_map import IDENTITY
from support.graphs import captured_graph, follow, graph_of, op_of, ravel, traced

Program = Callable[..., Any]
X = torch.randn(4, 6)
aten = torch.ops.aten


# Views ------------------------------------------------------------------------------------------

VIEWS: dict[str, Program] = {
    "permute": lambda x: x.view(2, 2, 6).permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, -1),
    "t": lambda x: aten.t(x),
    "expand": lambda x: x.view(4, 1, 6).expand(-1, 3, -1),
    "expand in front": lambda x: x.expand(2, 4, 6),
    "slice": lambda x: x[1:3, ::2],
    "slice from the end": lambda x: x[-3:, 2:100],
    "select": lambda x: x[2],
    "select from the end": lambda x: x[:, -1],
    "squeeze": lambda x: x.view(4, 1, 6, 1).squeeze(),
    "squeeze one": lambda x: x.view(4, 1, 6, 1).squeeze(-1),
    "squeeze some": lambda x: aten.squeeze.dims(x.view(4, 1, 6, 1), [0, 1]),
    "unsqueeze": lambda x: x.unsqueeze(-1).unsqueeze(1),
    "view": lambda x: x.view(3, 8),
    "view with a one": lambda x: x.view(4, 1, 6),
    "flatten": lambda x: x.flatten(),
    "unsafe view": lambda x: aten._unsafe_view(x, [2, 12]),
    "detach": lambda x: x.detach(),
    "alias": lambda x: aten.alias(x),
    "chunk": lambda x: x.chunk(3, 1)[1],
    "split": lambda x: x.split([1, 3])[1],
    "unbind": lambda x: x.unbind(1)[4],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "movedim": lambda x: x.view(2, 2, 6).movedim(0, 2),
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "heads": lambda x: x.view(2, 2, 3, 2).transpose(1, 2)[:, 1:],
    "rows, part, rows": lambda x: x.view(8, 3)[2:6].view(2, 2, 3)[1],
    "part of a row, cut": lambda x: x.view(24).view(4, 6)[:, :4].view(4, 2, 2),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_an_edge(name: str) -> None:
    """The map and the memory layout of the operand both lead to the elements that torch shows."""
    graph = graph_of(lambda x: VIEWS[name](x) * 2, X)
    (op,) = graph.ops
    operand = op.operands[0]
    assert isinstance(operand, Argument)
    assert operand.value == graph.inputs[0].name
    numbers = torch.arange(24).view(4, 6)
    seen = VIEWS[name](numbers)
    assert op.domain == tuple(seen.shape)
    memory = torch.as_strided(
        numbers, operand.type.shape, operand.type.stride, operand.storage_offset
    )
    for index in itertools.product(*map(range, seen.shape)):
        expected = int(seen[index])
        assert ravel(follow(operand.map, index), (4, 6)) == expected
        assert int(memory[follow(operand.window, index)]) == expected


@pytest.mark.parametrize("dims", [[0], [1], [0, 1], [-1], []])
def test_a_flip_is_a_copy_read_backwards(dims: list[int]) -> None:
    graph = graph_of(lambda x: x.flip(dims), X)
    op = op_of(graph, "copy")
    operand = op.operands[0]
    assert isinstance(operand, Argument)
    flipped = torch.arange(24).view(4, 6).flip(dims)
    for index in itertools.product(range(4), range(6)):
        assert ravel(follow(operand.map, index), (4, 6)) == int(flipped[index])


@pytest.mark.parametrize(
    "program",
    [
        lambda x: aten.as_strided(x, [2, 2], [1, 2]),
        lambda x: aten.view.dtype(x, torch.int32),
        lambda x: aten.unfold(x, 1, 2, 2),
    ],
)
def test_views_of_memory_stay_calls(program: Program) -> None:
    graph = graph_of(lambda x: program(x) + 1, X)
    call, add = graph.ops
    assert (call.is_opaque, call.reason, add.kind) == (True, "no generated form", "add")


def test_an_offset_counts_from_the_values_own_start() -> None:
    whole = torch.arange(48.0).view(8, 6)
    graph = graph_of(lambda x: x[1:, 2:] * 2, whole[4:])
    operand = op_of(graph, "mul").operands[0]
    assert isinstance(operand, Argument)
    assert operand.storage_offset == 8


def test_outputs_may_be_views_numbers_or_nothing() -> None:
    graph = graph_of(lambda x: (x.t(), x * 2, None, 3, 2.5), X)
    first, second, *others = graph.outputs
    assert first.argument is not None
    assert str(first) == f"%{graph.inputs[0].name}[i1, i0]"
    assert first.argument.type.stride == (1, 6)
    assert second.argument is not None
    assert second.argument.map == IDENTITY
    assert [output.number for output in others] == [None, 3, 2.5]


# Operands ---------------------------------------------------------------------------------------


def test_operands_are_read_over_the_results_domain() -> None:
    graph = graph_of(lambda x, row, column: x + row * column, X, X[0], X[:, :1])
    product = op_of(graph, "mul")
    assert product.domain == (4, 6)
    assert [str(o) for o in product.operands] == ["%row_1[i1]", "%column_1[i0, 0]"]
    row = product.arguments[0]
    assert (row.map, row.window, row.type.shape) == (IDENTITY, IDENTITY, (6,))


def test_numbers_are_literals() -> None:
    graph = graph_of(lambda x, n, scale: torch.add(x * n, x, alpha=scale), X, 3, 0.5)
    product, addition = graph.ops
    assert product.operands[1] == Literal(3)
    assert (addition.kind, addition.operands[2]) == ("add_scaled", Literal(0.5))
    assert [item.number for item in graph.inputs] == [None, None, None]


def test_a_number_that_may_change_is_an_input() -> None:
    graph = captured_graph(lambda x, n: x * n, X, 3, dynamic=True)
    numbers = [item.number for item in graph.inputs if item.number is not None]
    assert op_of(graph, "mul").operands[1] in [Literal(dim) for dim in numbers]
    assert 3 in graph.hints.values()


@pytest.mark.parametrize(
    ("program", "compute", "result"),
    [
        (lambda x, i: x.half() * 2, DType.FLOAT32, DType.FLOAT16),
        (lambda x, i: i * 2, DType.INT64, DType.INT64),
        (lambda x, i: i * 2.5, DType.FLOAT32, DType.FLOAT32),
        (lambda x, i: i.exp(), DType.FLOAT32, DType.FLOAT32),
        (lambda x, i: x.double() * x, DType.FLOAT64, DType.FLOAT64),
        (lambda x, i: i > 1, DType.INT64, DType.BOOL),
        (lambda x, i: (i > 1) < (i > 2), DType.INT32, DType.BOOL),
        (lambda x, i: (i > 1) & (i > 2), DType.BOOL, DType.BOOL),
        (lambda x, i: i.sum(), DType.INT64, DType.INT64),
        (lambda x, i: x.half().sum(0), DType.FLOAT32, DType.FLOAT16),
        (lambda x, i: x.half().amax(0), DType.FLOAT32, DType.FLOAT16),
    ],
)
def test_computations_have_torchs_types(program: Program, compute: DType, result: DType) -> None:
    op = graph_of(program, X, torch.arange(6)).ops[-1]
    assert (op.compute, op.type.dtype) == (compute, result)


def test_reductions_keep_their_domain() -> None:
    graph = graph_of(lambda x: (x.sum(-1, keepdim=True), x.amax(0), x.sum()), X)
    kept, dropped, full = graph.ops
    assert (kept.domain, kept.reduced, kept.keepdim, kept.type.shape) == (
        (4, 6),
        (1,),
        True,
        (4, 1),
    )
    assert (dropped.reduced, dropped.keepdim, dropped.type.shape) == ((0,), False, (6,))
    assert (full.reduced, full.type.shape) == ((0, 1), ())
    (single,) = graph_of(lambda x: x.sum(), torch.randn(())).ops
    assert (single.kind, single.reduced) == ("cast", ())


def test_every_tensor_of_a_call_has_its_slot() -> None:
    graph = graph_of(lambda x, w: torch.cat([x, w[1:]]).sort(1, descending=True)[0], X, X + 1)
    cat, sort = graph.ops
    assert cat.call.args == ([Slot(0), Slot(1)],)
    assert [str(a) for a in cat.arguments] == ["%x_1", "%w_1[i0+1, i1]"]
    assert (sort.call.args, sort.call.name) == ((Slot(0), 1, True), "aten.sort.default")


# Original calls ---------------------------------------------------------------------------------

EMPTY = torch.randn(0, 4)
SCALAR = torch.tensor(1.0)
INDEX = torch.zeros(2, dtype=torch.int64)

REASONS: dict[str, tuple[str, Program, tuple[Any, ...]]] = {
    "no row": ("no generated form", lambda x: x.cumsum(0), (X,)),
    "a complex number": ("operand other is (1+2j)", lambda x: x * (1 + 2j), (X,)),
    "complex": (
        "element type complex64 has no generated form",
        lambda x: x + x,
        (X.to(torch.complex64),),
    ),
    "float8": (
        "element type float8_e4m3fn is only cast and copied in generated kernels",
        lambda x: x.to(torch.float8_e4m3fn)[[1, 0]],
        (X,),
    ),
    "booleans": ("arithmetic on booleans", lambda x: x.sign(), (X > 0,)),
    "empty reduction": ("reduction over no elements", lambda x: x.sum(0), (EMPTY,)),
    "empty cat": ("nothing to concatenate", lambda x: torch.cat([x, x]), (EMPTY,)),
    "empty pad": ("padding of nothing", lambda x: F.pad(x, (1, 1, 1, 1)), (EMPTY,)),
    "steps": (
        "scatter into a slice with a step",
        lambda x: torch.slice_scatter(x, x[:2], 0, 0, 4, 2),
        (X,),
    ),
    "empty source": ("reads from nothing", lambda w, i: F.embedding(i, w), (X[:, :0], INDEX)),
    "scalar source": (
        "reads from a single value",
        lambda x, i: x.index_select(0, i),
        (SCALAR, INDEX[:1]),
    ),
    "scalar index": (
        "index_select by a single value",
        lambda x, i: x.index_select(0, i),
        (X, INDEX[0]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REASONS)
def test_what_stays_a_call_says_why(case: str) -> None:
    reason, program, args = REASONS[case]
    op = graph_of(program, *args).ops[-1]
    assert (op.is_opaque, op.reason, op.operands) == (True, reason, ())
    assert op.call.name.startswith("aten.")


def test_options_without_a_row_stay_a_call() -> None:
    module = traced(lambda x: x.clone(), X)
    (node,) = [node for node in module.graph.nodes if node.op == "call_function"]
    node.target = aten.rsub.Tensor
    node.args = (node.args[0], node.args[0], 2)
    (op,) = from_fx(module)[0].ops
    assert op.reason == "no generated form for these options"


def test_results_of_a_call_are_named_by_position() -> None:
    graph = graph_of(lambda x: (x.sort(1)[1] + 1, x.median(0), x.median(1)[0]), X)
    sort, add, first, second = graph.ops
    assert [value.name for value in sort.results] == ["sort_0", "sort_1"]
    assert [str(o) for o in add.operands] == ["%sort_1", "1"]
    # `median_1` is the second median, so the first one's second result needs another name.
    names = [value.name for op in (first, second) for value in op.results]
    assert len(set(names) | {first.name, second.name}) == 6
    assert [output.argument.value for output in graph.outputs if output.argument] == [
        add.name,
        *(value.name for value in first.results),
        second.results[0].name,
    ]


def test_results_that_are_none_leave_a_gap() -> None:
    def program(g: Tensor, x: Tensor, w: Tensor) -> Any:
        mask = [True, False, True]
        return aten.convolution_backward(g, x, w, [2], [1], [0], [1], False, [0], 1, mask)

    args = torch.randn(1, 2, 4), torch.randn(1, 4, 6), torch.randn(2, 4, 3)
    graph = graph_of(program, *args)
    (op,) = graph.ops
    assert [value.position for value in op.results] == [0, 2]
    assert [output.number for output in graph.outputs] == [None, None, None]
    assert [output.argument is None for output in graph.outputs] == [False, True, False]


@pytest.mark.parametrize(
    ("program", "effect"),
    [
        (lambda x: x.sort(1)[0], Effect.NONE),
        (lambda x: torch.multinomial(x.abs(), 1), Effect.ORDERED),
        (lambda x: x.add_(1), Effect.BARRIER),
        (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), Effect.ORDERED),
    ],
)
def test_calls_with_effects_are_marked(program: Program, effect: Effect) -> None:
    op = graph_of(program, X).ops[-1]
    assert (op.is_opaque, op.effect) == (True, effect)


def test_tensors_in_the_program_are_constants() -> None:
    module = traced(lambda x: x + torch.tensor([1.0, 2.0]), X[:, :2])
    graph, tensors = from_fx(module)
    assert [value.type.shape for value in graph.constants] == [(2,)]
    assert torch.equal(tensors[0], torch.tensor([1.0, 2.0]))


# Symbolic sizes ---------------------------------------------------------------------------------


def test_sizes_stay_symbolic_with_their_hints() -> None:
    graph = graph_of(lambda x: (x.view(-1) * x.shape[0], x.shape[1] + 1), X, dynamic=True)
    (item,) = graph.inputs
    assert item.value is not None
    rows, columns = item.value.type.shape
    assert isinstance(rows, sympy.Symbol)
    assert isinstance(columns, sympy.Symbol)
    assert graph.hints == {rows.name: 4, columns.name: 6}
    (op,) = graph.ops
    assert is_equal(op.domain[0], rows * columns)
    assert op.operands[1] == Literal(rows)
    assert graph.outputs[1].number == columns + 1
    assert op.call.args == (Slot(0), SizeSlot(rows))
    assert item.value.type.stride == (columns, 1)


def test_views_of_symbolic_sizes() -> None:
    def program(x: Tensor) -> Any:
        return x[1:, :-1].t() * 2, x.flip(0), x[-1] * 3

    graph = graph_of(program, X, dynamic=True)
    rows, columns = graph.inputs[0].value.type.shape  # type: ignore[union-attr]
    window, flip, last = (op.operands[0] for op in graph.ops)
    assert str(window) == "%x_1[i1+1, i0]"
    assert op_of(graph, "copy").domain == (rows, columns)
    assert str(flip) == f"%x_1[-1*i0+{rows} - 1, i1]"
    assert str(last) == f"%x_1[{rows} - 1, i0]"


@pytest.mark.parametrize("program", [lambda x: x.nonzero(), lambda x: x[x > 0]])
def test_sizes_that_depend_on_data_are_refused(program: Program) -> None:
    with pytest.raises(DataDependentSize, match="depends on data"):
        graph_of(program, X, dynamic=True)


# Sources ----------------------------------------------------------------------------------------


def test_a_source_is_the_innermost_line_of_the_program() -> None:
    def activation(x: Tensor) -> Tensor:
        return x.exp()  # the line itself

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(6)

        def forward(self, x: Tensor) -> Any:
            return self.norm(activation(x)) * 2

    graph = captured_graph(Block(), X)
    exp = op_of(graph, "exp").source
    assert exp.file == __file__
    assert exp.code.startswith("return x.exp()")
    assert str(exp) == f"test_from_fx.py:{exp.line} {exp.code}"
    assert op_of(graph, "rsqrt").source.module == "norm"
    assert op_of(graph, "rsqrt").source.code == "return self.norm(activation(x)) * 2"


def test_without_a_trace_there_is_no_source() -> None:
    assert str(graph_of(torch.exp, X).ops[0].source) == "?"
