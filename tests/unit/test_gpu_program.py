"""Host programs on a GPU, played on the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import triton

from fuser.codegen.host import host_program
from fuser.ir.kernel import KernelSpec
from fuser.runtime import executable as executable_module
from fuser.runtime.direct import HOOKED
from fuser.runtime.executable import Executable
from fuser.runtime.launcher import Launcher
from support.played import Launcher36, Launcher37, PlayedFunction, play
from support.runtime import Planned, elementwise, on_gpu, planned, total_in_parts, traced_graph


@pytest.fixture(params=[Launcher36, Launcher37], ids=["triton 3.6", "triton 3.7"])
def played(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PlayedFunction:
    function = PlayedFunction(request.param)
    play(monkeypatch, function)
    return function


def sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum() + 1


def sums_plan() -> Planned:
    graph, _ = traced_graph(sums, torch.randn(1000))
    total = total_in_parts("total", "x_1", "sum_1", 1000)
    after = elementwise("after", ["sum_1"], "add", 1, "{sum_1} + 1")
    return planned(on_gpu(graph), (["sum_1"], total), (["add"], [after]))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """GPU 0 is current, tensors lie on the CPU; the devices whose stream was asked for."""
    asked: list[int] = []

    def empty(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype)

    def current_stream(device: int) -> int:
        asked.append(device)
        return 77

    functions = {
        "current_gpu": lambda: 0, "current_stream": current_stream, "empty_on_gpu": empty,
    }  # fmt: skip
    monkeypatch.setattr(executable_module, "_gpu_functions", lambda: functions)
    monkeypatch.setattr(Launcher, "check_devices", lambda *_: None)
    return asked


def test_a_program_on_a_gpu() -> None:
    made = sums_plan()
    program = host_program(made.plan, made.kernels)
    assert program.gpu == "cuda:0"
    body = program.source[program.source.index("def call") :]
    assert body == (
        "def call(inputs):\n"
        "    if current_gpu() != 0:\n"
        "        with torch.cuda.device(0):\n"
        "            return call(inputs)\n"
        "    if has_hooks():\n"
        "        return call_hooked(inputs)\n"
        "    stream = current_stream(0)\n"
        "    (\n"
        "        x_1,  # f32[1000]\n"
        "    ) = inputs\n"
        "    inputs.clear()\n"
        "\n"
        "    # sizes, layouts and addresses of the inputs\n"
        "    if not x_1.is_contiguous():\n"
        "        x_1 = planned_layout(x_1, (1,))\n"
        "    at_x_1 = x_1.data_ptr()\n"
        "    misaligned = at_x_1 % 16\n"
        "\n"
        "    # region_0, flat: sum\n"
        "    sum_1 = empty_on_gpu((), (), torch.float32)  # f32[]\n"
        "    at_sum_1 = sum_1.data_ptr()\n"
        "    parts = empty_on_gpu((16,), (1,), torch.float32)  # f32[16]\n"
        "    at_parts = parts.data_ptr()\n"
        "    total_partial(stream, misaligned, x_1, parts, 1000, at_x_1, at_parts)\n"
        "    total_combine(stream, misaligned, parts, sum_1, 4, at_parts, at_sum_1, x_1)\n"
        "    del parts\n"
        "    del x_1\n"
        "\n"
        "    # region_1, flat: add\n"
        "    add = empty_on_gpu((), (), torch.float32)  # f32[]\n"
        "    at_add = add.data_ptr()\n"
        "    after(stream, misaligned, sum_1, add, 1, at_sum_1, at_add)\n"
        "    del sum_1\n"
        "\n"
        "    return (\n"
        "        add,  # f32[]\n"
        "    )\n"
    )


def test_one_stream_for_all_launches_of_a_call(played: PlayedFunction, gpu: list[int]) -> None:
    made = sums_plan()
    executable = Executable(made.plan, made.kernels, host_program(made.plan, made.kernels))
    for _ in range(2):
        executable([torch.randn(1000)])
    assert gpu == [0, 0]
    assert [launched[0] for launched in played.launched] == [(4, 1, 1), (1, 1, 1), (1, 1, 1)] * 2
    assert executable.counts.direct == 3
    assert played.through == []


def test_hooks_are_looked_for_once_a_call(played: PlayedFunction, gpu: list[int]) -> None:
    made = sums_plan()
    executable = Executable(made.plan, made.kernels, host_program(made.plan, made.kernels))
    executable([torch.randn(1000)])
    hook = triton.knobs.runtime.launch_enter_hook
    seen: list[Any] = []
    hook.add(seen.append)
    try:
        for _ in range(2):
            executable([torch.randn(1000)])
    finally:
        hook.remove(seen.append)
    executable([torch.randn(1000)])
    assert [item["grid"] for item in seen] == [(4, 1, 1), (1, 1, 1), (1, 1, 1)] * 2
    assert played.through == [3, 4, 5, 6, 7, 8]
    assert executable.counts.indirect == {HOOKED: 6}
    assert executable.counts.direct == 3


def test_addresses_from_outside_are_tested(played: PlayedFunction, gpu: list[int]) -> None:
    """Of inputs and of what original calls return: which of them is misaligned is in the key."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, 0) * 2 + y

    memory = torch.zeros(200)
    offset = 0

    def cumsum(x: torch.Tensor, dim: int) -> torch.Tensor:
        return memory[offset : offset + 64]

    graph, _ = traced_graph(fn, torch.randn(64), torch.randn(64))
    ops = tuple(
        replace(op, call=replace(op.call, target=cumsum)) if op.is_opaque else op
        for op in graph.ops
    )
    twice = elementwise("twice", ["cumsum"], "mul", 64, "{cumsum} * 2")
    plus = elementwise("plus", ["mul", "y_1"], "add", 64, "{mul} + {y_1}")
    made = planned(on_gpu(replace(graph, ops=ops)), (["mul"], [twice]), (["add"], [plus]))
    executable = Executable(made.plan, made.kernels, host_program(made.plan, made.kernels))
    variants = []
    for offset, start in ((0, 0), (1, 0), (4, 8), (0, 3), (2, 1)):
        executable([torch.randn(64), memory[100 + start : 164 + start]])
        variants.append(
            tuple(
                len(launcher.variants)
                for runner in executable.steps.values()
                for launcher in runner.launchers
            )
        )
        ((_, first, *_), (_, _, second, *_)) = played.launched[-2:]
        assert first == memory.data_ptr() + 4 * offset
        assert second == memory.data_ptr() + 4 * (100 + start)
    assert variants == [(1, 1), (2, 1), (2, 1), (2, 2), (2, 2)]


@pytest.mark.parametrize(
    ("broken", "region", "launches"),
    [
        ("total_partial", "region_0", {"after": 3}),
        ("total_combine", "region_0", {"total_partial": 1, "after": 3}),
        ("after", "region_1", {"total_partial": 3, "total_combine": 3}),
    ],
)
def test_a_region_whose_kernel_does_not_compile_is_not_launched_again(
    monkeypatch: pytest.MonkeyPatch,
    gpu: list[int],
    broken: str,
    region: str,
    launches: dict[str, int],
) -> None:
    functions: dict[str, PlayedFunction] = {}

    def load(spec: KernelSpec) -> PlayedFunction:
        found = functions.setdefault(spec.name, PlayedFunction())
        found.error = ValueError("no such function") if spec.name == broken else None
        return found

    play(monkeypatch, load)
    made = sums_plan()
    executable = Executable(made.plan, made.kernels, host_program(made.plan, made.kernels))
    for _ in range(3):
        executable([torch.randn(1000)])
    assert list(executable.fallbacks) == [region]
    counted = {name: len(item.launched) for name, item in functions.items()}
    assert {name: count for name, count in counted.items() if count} == launches


def test_the_ops_of_a_failed_region_are_given_all_it_read(
    monkeypatch: pytest.MonkeyPatch, gpu: list[int]
) -> None:
    """Its first kernel reads the input, its second one fails and is not given it."""

    def load(spec: KernelSpec) -> PlayedFunction:
        found = PlayedFunction()
        found.error = ValueError("broken") if spec.name == "total_combine" else None
        return found

    play(monkeypatch, load)
    graph, _ = traced_graph(lambda x: x.sum(), torch.randn(1000))
    kernels = total_in_parts("total", "x_1", "sum_1", 1000)
    made = planned(on_gpu(graph), (["sum_1"], kernels))
    executable = Executable(made.plan, made.kernels, host_program(made.plan, made.kernels))
    for _ in range(3):
        x = torch.randn(1000)
        (result,) = executable([x])
        torch.testing.assert_close(result, x.sum())
    assert list(executable.fallbacks) == ["region_0"]


def test_several_gpus() -> None:
    graph, _ = traced_graph(lambda x, y: (x * 2, y + 1), torch.randn(64), torch.randn(64))
    far = on_gpu(graph, "cuda:1")
    graph = on_gpu(graph)
    graph = replace(
        graph,
        inputs=(graph.inputs[0], far.inputs[1]),
        ops=(graph.ops[0], far.ops[1]),
        outputs=(graph.outputs[0], far.outputs[1]),
    )
    near_kernel = elementwise("near", ["x_1"], "mul", 64, "{x_1} * 2")
    far_kernel = elementwise("far", ["y_1"], "add", 64, "{y_1} + 1")
    made = planned(graph, (["mul"], [near_kernel]), (["add"], [far_kernel]))
    program = host_program(made.plan, made.kernels)
    # The runtime then binds launch functions that find the device and the stream themselves.
    assert program.gpu == ""
    assert "current_stream" not in program.source
    assert "near(x_1, mul, 64)" in program.source
    assert "far(y_1, add, 64)" in program.source
