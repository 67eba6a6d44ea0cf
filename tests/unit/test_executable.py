"""Compiled graphs: results, lifetimes, fallbacks, step-by-step runs."""

from __future__ import annotations

import gc
import logging
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fuser import log
from fuser.codegen.host import host_program
from fuser.runtime import executable as executable_module
from fuser.runtime.executable import Executable, should_run_unfused
from support.runtime import (
    DEVICE,
    Planned,
    cache_in,
    elementwise,
    needs_kernels,
    planned,
    total_in_parts,
    traced_graph,
)

Function = Callable[..., Any]
pytestmark = needs_kernels


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(log, "_warned", set())
    with cache_in(tmp_path / "cache"):
        yield


def executable_of(made: Planned) -> Executable:
    program = host_program(made.plan, made.kernels)
    return Executable(made.plan, made.kernels, program, made.constants)


def own_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name.startswith("fuser")]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE)


def mixed(x: torch.Tensor, w: torch.Tensor) -> tuple[Any, ...]:
    added = torch.mm(x, w.t()) + 1
    values, indices = torch.sort(added)
    return values.t(), indices, added[1:, ::2], x.shape[0] * 2, None


def mixed_plan(dynamic: bool = False, expression: str = "{mm} + 1") -> Planned:
    graph, _ = traced_graph(mixed, random(6, 8), random(5, 8), dynamic=dynamic)
    size = graph.by_name["add"].type.numel
    return planned(graph, (["add"], [elementwise("add_one", ["mm"], "add", size, expression)]))


def check(executable: Executable, inputs: list[Any], wanted: tuple[Any, ...]) -> None:
    given = list(inputs)
    results = executable(given)
    assert given == []
    walked = executable.walk(inputs, lambda *_: None)
    for found in (results, walked):
        for result, expected in zip(found, wanted, strict=True):
            if isinstance(expected, torch.Tensor):
                torch.testing.assert_close(result, expected)
                assert result.stride() == expected.stride()
            else:
                assert result == expected


def test_kernels_and_original_calls_in_turn() -> None:
    executable = executable_of(mixed_plan())
    for _ in range(2):
        x, w = random(6, 8), random(5, 8)
        check(executable, [x, w], mixed(x, w))
    assert executable.fallbacks == {}


def test_sizes_may_change_between_calls() -> None:
    executable = executable_of(mixed_plan(dynamic=True))
    for rows, inner, columns in ((6, 8, 5), (40, 3, 21), (2, 2, 300)):
        x, w = random(rows, inner), random(columns, inner)
        check(executable, [x, w], mixed(x, w))


def test_inputs_that_lie_otherwise_than_planned() -> None:
    graph, _ = traced_graph(lambda x: x * 2, random(4, 6))
    kernel = elementwise("twice", ["x_1"], "mul", 24, "{x_1} * 2")
    executable = executable_of(planned(graph, (["mul"], [kernel])))
    x = random(6, 4).t()
    results = executable([x])
    torch.testing.assert_close(results[0], x * 2)


def test_constants() -> None:
    graph, _ = traced_graph(lambda x, table: x * table, random(12), random(12))
    x_input, table_input = graph.inputs
    assert table_input.value is not None
    graph = replace(graph, inputs=(x_input,), constants=(table_input.value,))
    kernel = elementwise("scaled", ["x_1", "table_1"], "mul", 12, "{x_1} * {table_1}")
    table = random(12)
    executable = executable_of(planned(graph, (["mul"], [kernel]), constants=(table,)))
    x = random(12)
    for _ in range(2):
        check(executable, [x], (x * table,))


def test_values_end_with_their_last_reader() -> None:
    alive: list[int] = []
    references: list[weakref.ref[Any]] = []

    def count(x: torch.Tensor) -> torch.Tensor:
        gc.collect()
        alive.append(sum(reference() is not None for reference in references))
        fresh = x.clone()
        references.append(weakref.ref(fresh))
        return fresh

    graph, _ = traced_graph(lambda x: torch.sort(torch.sort(torch.sort(x)[0])[0])[0], random(8))

    def first_only(x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return count(x), None

    ops = tuple(replace(op, call=replace(op.call, target=first_only)) for op in graph.ops)
    executable = executable_of(planned(replace(graph, ops=ops)))
    x = random(8)
    references.append(weakref.ref(x))
    inputs = [x]
    del x
    executable(inputs)
    # The input and the first result are gone when the third call is made.
    assert alive == [1, 1, 1]


# **** fallbacks ****


def test_a_kernel_that_does_not_compile(caplog: pytest.LogCaptureFixture) -> None:
    executable = executable_of(mixed_plan(dynamic=True, expression="fn.no_such({mm})"))
    with caplog.at_level(logging.WARNING, "fuser"):
        for rows in (6, 7, 8):
            x, w = random(rows, 8), random(5, 8)
            check(executable, [x, w], mixed(x, w))
    assert list(executable.fallbacks) == ["region_0"]
    (message,) = own_messages(caplog)
    assert "region_0 runs unfused" in message
    assert "no_such" in message


def sums(x: torch.Tensor) -> torch.Tensor:
    return (x * torch.full_like(x, 2.0)).sum() + 1


def sums_plan(broken: tuple[int, ...] = ()) -> Planned:
    graph, _ = traced_graph(sums, random(1000))
    kernels = list(total_in_parts("total", "x_1", "sum_1", 1000))
    kernels[0] = replace(
        kernels[0], source=kernels[0].source.replace("tl.sum(part", "2 * tl.sum(part"), key="two"
    )
    for position in broken:
        source = kernels[position].source.replace("tl.sum(", "tl.no_such(")
        kernels[position] = replace(kernels[position], source=source, key=f"broken {position}")
    total = [op.name for op in graph.ops if op.name != "add"]
    after = elementwise("after", ["sum_1"], "add", 1, "{sum_1} + 1")
    return planned(graph, (total, kernels), (["add"], [after]))


@pytest.mark.parametrize("broken", [(), (0,), (1,), (0, 1)])
def test_any_kernel_of_a_region_may_fail(broken: tuple[int, ...]) -> None:
    executable = executable_of(sums_plan(broken))
    for _ in range(3):
        x = random(1000)
        check(executable, [x], (sums(x),))
    assert list(executable.fallbacks) == (["region_0"] if broken else [])


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    executable = executable_of(mixed_plan())

    def out_of_memory(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    for runner in executable.steps.values():
        monkeypatch.setattr(type(runner.launchers[0]), "miss", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        executable([random(6, 8), random(5, 8)])


# **** step by step ****


def test_an_observer_sees_each_region() -> None:
    executable = executable_of(sums_plan())
    x = random(1000)
    seen: list[tuple[str, set[str], dict[str, torch.Tensor]]] = []
    (result,) = executable.walk(
        [x], lambda region, before, stored: seen.append((region.name, set(before), dict(stored)))
    )
    assert [(name, before) for name, before, _ in seen] == [
        ("region_0", {"x_1"}),
        ("region_1", {"x_1", "sum_1"}),
    ]
    torch.testing.assert_close(seen[0][2]["sum_1"], (x * 2).sum())
    assert result is seen[1][2]["add"]


# **** where there is no kernel ****


def test_without_interpreter_the_cpu_runs_unfused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    graph, _ = traced_graph(lambda x: x + 1, torch.randn(3))
    monkeypatch.setattr(executable_module, "is_interpreting", lambda: True)
    assert not should_run_unfused(graph)
    monkeypatch.setattr(executable_module, "is_interpreting", lambda: False)
    with caplog.at_level(logging.WARNING, "fuser"):
        assert should_run_unfused(graph)
        assert should_run_unfused(graph)
    (message,) = own_messages(caplog)
    assert "TRITON_INTERPRET=1" in message


@pytest.mark.skipif(DEVICE != "cpu", reason="about regions on the CPU")
def test_a_region_on_the_cpu_beside_others_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    graph, _ = traced_graph(mixed, random(6, 8), random(5, 8))
    sort = graph.by_name["sort"]
    elsewhere = tuple(replace(v, type=replace(v.type, device="cuda:0")) for v in sort.results)
    other = replace(
        graph, ops=(*graph.ops, replace(sort, name="far", kind="add", results=elsewhere))
    )
    monkeypatch.setattr(executable_module, "is_interpreting", lambda: False)
    assert not should_run_unfused(other)
    with caplog.at_level(logging.WARNING, "fuser"):
        # Its kernel would not even compile.
        executable = executable_of(mixed_plan(expression="fn.no_such({mm})"))
        x, w = random(6, 8), random(5, 8)
        check(executable, [x, w], mixed(x, w))
    assert executable.fallbacks == {}
    assert own_messages(caplog) == []


def test_tracebacks_show_the_program() -> None:
    graph, _ = traced_graph(lambda x: torch.sort(x)[0], random(5))
    (op,) = graph.ops

    def broken(x: torch.Tensor) -> None:
        raise ValueError("broken")

    graph = replace(graph, ops=(replace(op, call=replace(op.call, target=broken)),))
    with pytest.raises(ValueError, match="broken") as caught:
        executable_of(planned(graph))([random(5)])
    text = "".join(traceback.format_exception(caught.value))
    assert "sort_results = aten_sort(x_1)" in text or "sort_results = broken" in text
