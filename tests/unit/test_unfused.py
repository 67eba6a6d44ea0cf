"""Ops run one by one, as they were written and in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fuser.ir.graph import Graph
from fuser.runtime.sizes import symbol_values
from fuser.runtime.unfused import in_planned_layout, run_ops, view
from support.runtime import traced_graph

Function = Callable[..., Any]


def run(
    fn: Function,
    *inputs: torch.Tensor,
    dynamic: bool = False,
    precision: torch.dtype | None = None,
    given: tuple[torch.Tensor, ...] = (),
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Trace with `inputs`, run every op on `given`; the outputs and all values."""
    graph, constants = traced_graph(fn, *inputs, dynamic=dynamic)
    given = given or inputs
    environment = environment_of(graph, given, constants)
    symbols = symbol_values(graph, given)
    run_ops(graph, [op.name for op in graph.ops], environment, symbols, precision)
    outputs = []
    for output in graph.outputs:
        assert output.argument is not None
        value = environment[output.argument.value]
        outputs.append(view(graph, output.argument, value, symbols))
    return outputs, environment


def environment_of(
    graph: Graph, inputs: tuple[torch.Tensor, ...], constants: tuple[torch.Tensor, ...] = ()
) -> dict[str, torch.Tensor]:
    named = [item.value.name for item in graph.inputs if item.value is not None]
    found = dict(zip(named, inputs, strict=True))
    return found | {v.name: t for v, t in zip(graph.constants, constants, strict=True)}


def check(fn: Function, *inputs: torch.Tensor, **options: Any) -> None:
    found, _ = run(fn, *inputs, **options)
    wanted = fn(*(options.get("given") or inputs))
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for result, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=0)
        assert result.stride() == expected.stride()


# **** as written ****


def test_views_of_inputs_and_of_results() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = (x.t() + y)[1:, ::2]
        return z, z.reshape(-1), (z * 2).transpose(0, 1), x.expand(2, 4, 6)

    check(fn, torch.randn(4, 6), torch.randn(6, 4))


def test_inputs_that_lie_inside_other_tensors() -> None:
    base = torch.randn(10, 12)
    check(lambda x: (x[:, 1:] * 2, x.t() + 1), base[2:8, 3:9])


def test_several_results_and_their_number() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, indices = torch.sort(x, dim=0)
        largest, _ = torch.topk(x, 2)
        return values + 1, indices, largest

    check(fn, torch.randn(5, 7))


def test_lists_and_keywords() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y, x], 1).sum(1, dtype=torch.float64)

    check(fn, torch.randn(2, 3), torch.randn(2, 4))


def test_sizes_known_only_at_the_call() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.reshape(-1, 2) + 1, x.new_zeros(x.shape[1] * 2, x.shape[0]), x[:, 1:].sum(0)

    check(fn, torch.randn(4, 6), dynamic=True, given=(torch.randn(10, 8),))


def test_only_the_named_ops_run() -> None:
    graph, _ = traced_graph(lambda x: (x + 1) * 2 - 3, torch.randn(4))
    environment = environment_of(graph, (torch.randn(4),))
    run_ops(graph, [graph.ops[0].name], environment, {})
    assert set(environment) == {graph.inputs[0].name, graph.ops[0].name}
    with pytest.raises(KeyError):
        run_ops(graph, [graph.ops[2].name], environment, {})


def test_constants_that_are_computed_where_they_are_read() -> None:
    graph, _ = traced_graph(
        lambda x: x * torch.full_like(x.exp(), 3.0) + torch.arange(4), torch.randn(4)
    )
    x = torch.randn(4)
    environment = environment_of(graph, (x,))
    computed = [op.name for op in graph.ops if op.kind in ("mul", "add", "cast")]
    run_ops(graph, computed, environment, {})
    # `full_like` ran although nothing has made the tensor that it is like.
    assert "exp" not in environment
    torch.testing.assert_close(environment[graph.ops[-1].name], x * 3 + torch.arange(4))


def test_a_result_that_lies_otherwise_than_planned_is_copied() -> None:
    graph, _ = traced_graph(lambda x: torch.sort(x)[0].t(), torch.randn(3, 5))
    (op,) = graph.ops

    def sorted_otherwise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, indices = torch.sort(x)
        return values.t().contiguous().t(), indices

    graph = replace(graph, ops=(replace(op, call=replace(op.call, target=sorted_otherwise)),))
    x = torch.randn(3, 5)
    environment = environment_of(graph, (x,))
    run_ops(graph, [op.name], environment, {})
    assert environment[f"{op.name}_0"].stride() == (5, 1)
    argument = graph.outputs[0].argument
    assert argument is not None
    found = view(graph, argument, environment[argument.value], {})
    assert torch.equal(found, torch.sort(x)[0].t())


@pytest.mark.parametrize(
    ("size", "actual", "planned"),
    [
        ((3, 4), (4, 1), (1, 3)),
        ((3, 4), (0, 1), (4, 1)),
        ((3, 4), (4, 1), (8, 2)),
        ((3, 4), (0, 1), (0, 2)),
    ],
)
def test_layouts(size: tuple[int, ...], actual: tuple[int, ...], planned: tuple[int, ...]) -> None:
    tensor = torch.randn(40).as_strided(size, actual)
    found = in_planned_layout(tensor, planned)
    assert found.stride() == planned
    assert torch.equal(found, tensor)


@pytest.mark.parametrize(("size", "planned"), [((3, 1), (1, 7)), ((0, 4), (9, 9)), ((3,), (1,))])
def test_strides_that_say_nothing_do_not_count(
    size: tuple[int, ...], planned: tuple[int, ...]
) -> None:
    tensor = torch.randn(size)
    assert in_planned_layout(tensor, planned) is tensor


# **** in float64 ****


def test_half_precision_is_computed_in_float64() -> None:
    x, y = torch.randn(64, dtype=torch.bfloat16), torch.randn(64, dtype=torch.bfloat16)
    (found,), environment = run(lambda x, y: (x * y + 1) / 3, x, y, precision=torch.float64)
    torch.testing.assert_close(found, (x.double() * y.double() + 1) / 3)
    # The inputs are left as they are.
    assert environment[next(iter(environment))].dtype is torch.bfloat16


def test_casts_between_floats_do_not_round() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.to(torch.float16).to(torch.float32) * 3, x.to(torch.int32), x > 0.1

    x = torch.randn(50) * 10
    (cast, integer, truth), _ = run(fn, x, precision=torch.float64)
    assert torch.equal(cast, x.double() * 3)
    assert integer.dtype is torch.int32
    assert truth.dtype is torch.bool
    assert torch.equal(integer, x.to(torch.int32))


def test_made_tensors_and_reductions_are_in_float64() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + torch.full((3,), 0.1), x.sum(dtype=torch.float32), x.argmax()

    x = torch.randn(3, dtype=torch.float16)
    (added, total, place), _ = run(fn, x, precision=torch.float64)
    assert added.dtype is total.dtype is torch.float64
    assert torch.equal(total, x.double().sum())
    assert (added - x.double() - 0.1).abs().max() < 1e-15
    assert place.dtype is torch.int64


def test_complex_follows() -> None:
    x = torch.randn(4, dtype=torch.complex64)
    (found,), _ = run(lambda x: x * x, x, precision=torch.float64)
    assert found.dtype is torch.complex128


def test_layouts_and_overlaps_are_kept() -> None:
    base = torch.randn(10, 12)

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.t()[1:] * y[:, 2:]

    x, y = base[2:8, 3:9], torch.randn(6).expand(5, 6)[:, :6]
    y = torch.randn(8).expand(5, 8)
    (found,), _ = run(fn, x, y, precision=torch.float64)
    assert torch.equal(found, x.double().t()[1:] * y.double()[:, 2:])


def test_a_call_that_reads_bits_runs_in_its_own_type() -> None:
    x = torch.randn(8)
    (bits, back), _ = run(
        lambda x: ((x * 2).view(torch.int32), (x.view(torch.int32) + 1).view(torch.float32)),
        x,
        precision=torch.float64,
    )
    assert torch.equal(bits, (x * 2).view(torch.int32))
    assert torch.equal(back, (x.view(torch.int32) + 1).view(torch.float32).double())


def test_a_call_that_refuses_float64_runs_in_its_own_type() -> None:
    graph, _ = traced_graph(lambda x: torch.sort(x * 3)[0] + 1, torch.randn(6))
    position, op = next((k, op) for k, op in enumerate(graph.ops) if op.is_opaque)

    def only_single(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x.dtype is not torch.float32:
            raise RuntimeError("not implemented for 'Double'")
        values, indices = torch.sort(x)
        return values, indices

    ops = list(graph.ops)
    ops[position] = replace(op, call=replace(op.call, target=only_single))
    graph = replace(graph, ops=tuple(ops))
    x = torch.randn(6)
    environment = environment_of(graph, (x,))
    run_ops(graph, [op.name for op in graph.ops], environment, {}, torch.float64)
    found = environment[graph.ops[-1].name]
    assert found.dtype is torch.float64
    torch.testing.assert_close(found.float(), torch.sort(x * 3)[0] + 1)
