"""The text of host programs, and what it does when it runs."""

from __future__ import annotations

import ast
import enum
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch

from fuser.codegen.host import HostContext, HostProgram, host_program
from fuser.codegen.host_text import literal_text
from fuser.errors import InvalidPlan
from fuser.ir.dtype import DType
from fuser.ir.graph import Graph, Input, Output, Symbol, TensorType, Value, whole
from fuser.passes.library import as_calls
from fuser.templates import environment
from support.runtime import Planned, elementwise, planned, total_in_parts, traced_graph

Function = Callable[..., Any]


def program_of(made: Planned) -> HostProgram:
    program = host_program(made.plan, made.kernels)
    ast.parse(program.source)
    return program


def lines_of(program: HostProgram) -> list[str]:
    """The program's lines without comments and indentation."""
    return [line.split("  #")[0].strip() for line in program.source.splitlines()]


def add_and_sort(dynamic: bool = False) -> Planned:
    """One kernel between two original calls."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, indices = torch.sort(torch.mm(x, w.t()) + 1)
        return values.t(), indices

    graph, _ = traced_graph(fn, torch.randn(6, 8), torch.randn(5, 8), dynamic=dynamic)
    graph = as_calls(graph, {"mm": "no generated form"})
    size = graph.by_name["add"].type.numel
    return planned(graph, (["add"], [elementwise("add_one", ["mm"], "add", size, "{mm} + 1")]))


def test_the_template_uses_what_its_context_has() -> None:
    from jinja2 import meta

    env = environment()
    assert env.loader is not None
    text = env.loader.get_source(env, "host.py.jinja")[0]
    assert meta.find_undeclared_variables(env.parse(text)) == set(HostContext.__dataclass_fields__)


def test_the_program_reads_like_the_plan() -> None:
    program = program_of(add_and_sort())
    body = program.source[program.source.index("def call") :]
    assert body == (
        "def call(inputs):\n"
        "    (\n"
        "        x_1,  # f32[6, 8]\n"
        "        w_1,  # f32[5, 8]\n"
        "    ) = inputs\n"
        "    inputs.clear()\n"
        "\n"
        "    # sizes, layouts and addresses of the inputs\n"
        "    if not w_1.is_contiguous():\n"
        "        w_1 = planned_layout(w_1, (8, 1))\n"
        "\n"
        "    # mm, the original call: no generated form\n"
        "    mm = aten_mm(x_1, as_strided(w_1, (8, 5), (1, 8)))  # f32[6, 5]\n"
        "    if not mm.is_contiguous():\n"
        "        mm = planned_layout(mm, (5, 1))\n"
        "    del x_1, w_1\n"
        "\n"
        "    # region_0, flat: add\n"
        "    add = empty_strided((6, 5), (5, 1), dtype=torch.float32, device=cpu)  # f32[6, 5]\n"
        "    add_one(mm, add, 30)\n"
        "    del mm\n"
        "\n"
        "    # sort, the original call: no generated form\n"
        "    sort_results = aten_sort(add)\n"
        "    sort_0 = sort_results[0]  # f32[6, 5]\n"
        "    if not sort_0.is_contiguous():\n"
        "        sort_0 = planned_layout(sort_0, (5, 1))\n"
        "    sort_1 = sort_results[1]  # i64[6, 5]\n"
        "    del sort_results\n"
        "    del add\n"
        "\n"
        "    return (\n"
        "        as_strided(sort_0, (5, 6), (1, 5)),  # f32[5, 6]{1, 5}\n"
        "        sort_1,  # i64[6, 5]\n"
        "    )\n"
    )
    assert dict(program.bindings).keys() == {"aten_mm", "aten_sort"}


def test_sizes_come_from_the_inputs() -> None:
    lines = lines_of(program_of(add_and_sort(dynamic=True)))
    bound = {line.split(" = ")[1] for line in lines if line.startswith("s") and ".size(" in line}
    assert bound == {"x_1.size(0)", "x_1.size(1)", "w_1.size(0)"}
    (launch,) = (line for line in lines if line.startswith("add_one("))
    assert len(launch.split(", ")) == 2 + 1 + 3


def graph_with(inputs: list[Input], outputs: list[Output], symbols: list[Symbol]) -> Graph:
    return Graph(tuple(inputs), (), tuple(outputs), tuple(symbols))


def symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, positive=True)


def run_empty(graph: Graph, inputs: list[Any]) -> Any:
    """Run the program of a graph without steps."""
    names: dict[str, Any] = {"planned_layout": lambda tensor, stride: tensor}
    exec(program_of(planned(graph)).source, names)
    return names["call"](inputs)


def test_numbers_in_and_out() -> None:
    a, b = symbol("s0"), symbol("s1")
    value = Value("x", TensorType(DType.FLOAT32, (3 * a, 2), (b, 1)))
    graph = graph_with(
        [Input("first", number=b), Input("again", number=b), Input("five", number=5),
         Input("x", value), Input("nothing")],
        [Output(number=a * b + 1), Output(number=2.5), Output(), Output(number=math.inf),
         Output(whole(value))],
        [Symbol("s0", 4), Symbol("s1", 7)],
    )  # fmt: skip
    x = torch.empty_strided((12, 2), (7, 1))
    inputs: list[Any] = [7, 7, 5, x, None]
    results = run_empty(graph, inputs)
    assert results[:4] == (29, 2.5, None, math.inf)
    assert results[4] is x
    assert inputs == []


def test_a_size_that_no_input_shows() -> None:
    a, b = symbol("s0"), symbol("s1")
    value = Value("x", TensorType(DType.FLOAT32, (a + b,), (1,)))
    graph = graph_with([Input("x", value)], [], [Symbol("s0", 4)])
    with pytest.raises(InvalidPlan, match="s0"):
        program_of(planned(graph))


def test_no_inputs_and_no_outputs() -> None:
    assert run_empty(graph_with([], [], []), []) == ()


def test_names_that_mean_something_else() -> None:
    kind = TensorType(DType.FLOAT32, (2,), (1,))
    names = ["torch", "class", "call", "max", "s0", "add_one", "inputs", "ok"]
    graph = graph_with(
        [Input("s0_in", number=symbol("s0")), *(Input(n, Value(n, kind)) for n in names)],
        [Output(whole(Value(n, kind))) for n in names],
        [Symbol("s0", 3)],
    )
    tensors = [torch.randn(2) for _ in names]
    results = run_empty(graph, [3, *tensors])
    assert all(result is tensor for result, tensor in zip(results, tensors, strict=True))


def test_a_region_without_kernels() -> None:
    made = add_and_sort()
    with pytest.raises(InvalidPlan, match="region_0"):
        host_program(made.plan, ())


def test_scratch_memory_lives_as_long_as_its_region() -> None:
    graph, _ = traced_graph(lambda x: x.sum(), torch.randn(1000))
    source = graph.inputs[0].name
    kernels = total_in_parts("total", source, "sum_1", 1000)
    lines = lines_of(program_of(planned(graph, (["sum_1"], kernels))))
    start = next(k for k, line in enumerate(lines) if line.startswith("sum_1 ="))
    assert lines[start : start + 6] == [
        "sum_1 = empty_strided((), (), dtype=torch.float32, device=cpu)",
        "parts = empty_strided((16,), (1,), dtype=torch.float32, device=cpu)",
        f"total_partial({source}, parts, 1000)",
        f"total_combine(parts, sum_1, 4, {source})",
        "del parts",
        f"del {source}",
    ]


def test_what_is_written_to_is_never_copied() -> None:
    graph, _ = traced_graph(lambda x, y: x.t().add_(y.t()), torch.randn(2, 3), torch.randn(2, 3))
    lines = lines_of(program_of(planned(graph)))
    assert not [line for line in lines if line.startswith("x_1 = ")]
    assert "assert x_1 is planned_layout(x_1, (3, 1))" in lines
    (call,) = (line for line in lines if "aten_add__Tensor" in line)
    assert "as_strided(x_1, (3, 2), (1, 3))" in call


def test_results_that_nothing_reads() -> None:
    graph, _ = traced_graph(lambda x: torch.sort(x)[1], torch.randn(5))
    lines = lines_of(program_of(planned(graph)))
    assert not [line for line in lines if line.startswith("sort_0")]
    graph, _ = traced_graph(lambda x, y: x * 1, torch.randn(5), torch.randn(5))
    kernel = elementwise("same", ["x_1"], "mul", 5, "{x_1}")
    assert "del y_1" in lines_of(program_of(planned(graph, (["mul"], [kernel]))))


class Choice(enum.IntEnum):
    FIRST = 1


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (None, "None"),
        (True, "True"),
        (3, "3"),
        (1e-5, "1e-05"),
        (math.inf, "math.inf"),
        (-math.inf, "-math.inf"),
        (math.nan, "math.nan"),
        ("mean", "'mean'"),
        (torch.float16, "torch.float16"),
        (torch.device("cuda", 1), "torch.device('cuda:1')"),
        (torch.strided, "torch.strided"),
        (torch.channels_last, "torch.channels_last"),
        (Choice.FIRST, None),
        (object(), None),
    ],
)
def test_literals(item: Any, text: str | None) -> None:
    assert literal_text(item) == text
    if text is not None:
        value = eval(text, {"math": math, "torch": torch})
        assert value == item or (item != item and value != value)


def test_arguments_that_have_no_literal_are_bound() -> None:
    graph, _ = traced_graph(lambda x: torch.sort(x)[0], torch.randn(5))
    (op,) = graph.ops
    token = object()
    nested = [token, slice(None, 3), {"k": (token,)}]
    call = replace(
        op.call, args=(*op.call.args, nested), kwargs=(("from", 2), ("mode", Choice.FIRST))
    )
    graph = replace(graph, ops=(replace(op, call=call),))
    program = program_of(planned(graph))
    bindings = dict(program.bindings)
    assert bindings["constant_argument"] is token
    assert bindings["constant_argument_at2"] is Choice.FIRST
    assert (
        "aten_sort(x_1, [constant_argument, slice(None, 3, None), {'k': (constant_argument,)}], "
        "**{'from': 2}, mode=constant_argument_at2)"
    ) in program.source
