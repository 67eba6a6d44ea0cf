"""Launches straight to the compiled kernel, with Triton's part played."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
import triton
import triton.language as tl

from fuser.codegen.host import host_program
from fuser.ir.graph import Graph
from fuser.ir.kernel import KernelSpec
from fuser.runtime import executable as executable_module
from fuser.runtime.direct import HOOKED, hook_chains
from fuser.runtime.executable import Executable
from fuser.runtime.kernel import Place, launch_text
from fuser.runtime.launcher import Launcher
from support.played import Launcher36, Launcher37, PlayedFunction, play
from support.runtime import Planned, elementwise, planned, total_in_parts, traced_graph

s0 = sympy.Symbol("s0", integer=True, positive=True)
SIZE = 4096


@pytest.fixture(params=[Launcher36, Launcher37], ids=["triton 3.6", "triton 3.7"])
def played(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PlayedFunction:
    function = PlayedFunction(request.param)
    play(monkeypatch, function)
    return function


def kernel(size: Any = s0) -> KernelSpec:
    return elementwise("played", ["x", "y"], "z", size, "{x} + {y}", block=128)


def tensors() -> list[torch.Tensor]:
    found = [torch.randn(SIZE) for _ in range(3)]
    assert all(tensor.data_ptr() % 16 == 0 for tensor in found)
    return found


def addresses(values: list[torch.Tensor]) -> list[int]:
    return [value.data_ptr() for value in values]


# **** what is launched ****


def test_every_launch_is_direct(played: PlayedFunction) -> None:
    launch = Launcher(kernel(), "cpu", ["s0"])
    given = tensors()
    for size in (1000, 1000, 208):
        launch(*given, size, size)
    assert played.launched == [
        ((-(-size // 128), 1, 1), *addresses(given), size, tl.int32, 128)
        for size in (1000, 1000, 208)
    ]
    assert played.through == []
    assert launch.counts.direct == 2  # only 208 is a multiple of 16
    assert not launch.counts.indirect


def test_alignment_makes_another_kernel(played: PlayedFunction) -> None:
    launch = Launcher(kernel(SIZE - 4), "cpu")
    x, y, z = tensors()
    for first, second in ((x, y), (x[1:], y), (x[2:], y), (x, y[3:]), (x[1:], y[1:]), (x[4:], y)):
        launch(first, second, z, SIZE - 4)
    # x[2:] is like x[1:], and 4 elements are 16 bytes.
    assert len(played.compiled) == len(launch.variants) == launch.counts.direct == 4
    assert len(played.launched) == 6


@pytest.mark.parametrize(
    ("size", "same"), [(48, 96), (33, 35), (1, 1), (2**31, 2**32), (2**31 + 1, 2**31 + 3)]
)
def test_sizes_of_a_kind_share_a_kernel(played: PlayedFunction, size: int, same: int) -> None:
    launch = Launcher(kernel(), "cpu", ["s0"])
    given = tensors()
    for n in (size, same):
        launch(*given, n, n)
    assert len(played.compiled) == 1
    kinds = {16: 1, 17: 2, 1: 3, 2**31: 4, 2**31 + 1: 5}
    for count in kinds:
        launch(*given, count, count)
    assert len(played.compiled) == len(launch.variants) == len(kinds)


def test_indices_are_64_bits_wide_from_2_31_elements_on(played: PlayedFunction) -> None:
    launch = Launcher(replace(kernel(), extent=4 * s0), "cpu", ["s0"])
    given = tensors()
    for size in (2**29 - 16, 2**29):
        launch(*given, size, size)
    assert [item["values"][4] for item in played.compiled] == [tl.int32, tl.int64]
    assert [launched[5] for launched in played.launched] == [tl.int32, tl.int64]
    fixed = Launcher(replace(kernel(64), extent=2**31), "cpu")
    fixed(*given, 64)
    assert played.launched[-1][5] == tl.int64


def test_another_device_is_another_kernel() -> None:
    spec = kernel(64)
    known, current = (
        launch_text(spec, spec.configurations[0], [], torch.device(device))
        for device in ("cuda:1", "cuda")
    )
    assert "key = aligned" in known
    assert "key = (aligned, current_device())" in current


def test_nothing_is_worked_out_twice() -> None:
    spec = kernel(1000)
    text = launch_text(spec, spec.configurations[0], [], torch.device("cuda:0"))
    called = [ast.unparse(n.func) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
    assert sorted(called) == sorted(
        [*(f"argument_{k}.data_ptr" for k in range(3)), "variant_of", "missed", "run"]
    )
    assert "run(8, 1, 1, stream, function, metadata, None, None, None, " in text


def test_nothing_is_launched_for_an_empty_output(played: PlayedFunction) -> None:
    launch = Launcher(kernel(), "cpu", ["s0"])
    x, y, z = tensors()
    launch(x, y, torch.empty(0), 64, 64)
    launch(x, y, z, 0, 0)
    assert played.launched == played.compiled == []


# **** when Triton is not as known ****


def no_launcher(played: PlayedFunction) -> None:
    del played.run


def no_handle(played: PlayedFunction) -> None:
    played.function = None


def other_order(played: PlayedFunction) -> None:
    played.run = lambda stream, gridX, gridY, gridZ, function, *args: None


def too_few(played: PlayedFunction) -> None:
    played.run = lambda gridX, gridY, gridZ, stream, function: None


def builtin(played: PlayedFunction) -> None:
    played.run = max


def refuses(played: PlayedFunction) -> None:
    def run(gridX: int, gridY: int, gridZ: int, stream: int, function: int, *args: Any) -> None:
        raise TypeError("function takes exactly 21 arguments (20 given)")

    played.run = run


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (no_launcher, "run"),
        (no_handle, "None for a handle"),
        (other_order, "takes stream, gridX"),
        (too_few, "called otherwise"),
        (builtin, "called otherwise"),
        (refuses, "exactly 21 arguments"),
    ],
)
def test_the_documented_way_is_the_fallback(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[PlayedFunction], None], reason: str
) -> None:
    function = PlayedFunction()
    change(function)
    play(monkeypatch, function)
    launch = Launcher(kernel(), "cpu", ["s0"])
    given = tensors()
    for _ in range(3):
        launch(*given, 64, 64)
    assert function.launched == [((1, 1, 1), *addresses(given), 64, tl.int32, 128)] * 3
    assert function.through == [0, 1, 2]
    assert launch.counts.direct == 0
    ((found, count),) = launch.counts.indirect.items()
    assert reason in found
    assert count == 3


def test_hooks_without_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    function = PlayedFunction()
    play(monkeypatch, function)
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", None)
    launch = Launcher(kernel(64), "cpu")
    launch(*tensors(), 64)
    assert function.through == [0]
    assert hook_chains().launch_enter_hook.calls == []


def test_a_profilers_hooks_are_called(played: PlayedFunction) -> None:
    launch = Launcher(kernel(64), "cpu")
    given = tensors()
    hook = triton.knobs.runtime.launch_enter_hook

    def profile(metadata: Any) -> None: ...

    launch(*given, 64)
    hook.add(profile)
    try:
        launch(*given, 64)
        Launcher(kernel(64), "cpu", counts=launch.counts)(*given, 64)
    finally:
        hook.remove(profile)
    launch(*given, 64)
    assert played.through == [1, 2]
    assert launch.counts.indirect == {HOOKED: 2}
    assert len(played.launched) == 4
    assert len(set(played.launched)) == 1


# **** host programs on a GPU, played on the CPU ****


def on_gpu(graph: Graph, device: str = "cuda:0") -> Graph:
    """The graph with every value on a GPU."""

    def moved(item: Any) -> Any:
        return item and replace(item, type=replace(item.type, device=device))

    inputs = tuple(replace(item, value=moved(item.value)) for item in graph.inputs)
    outputs = tuple(replace(item, argument=moved(item.argument)) for item in graph.outputs)
    ops = tuple(
        replace(
            op,
            results=tuple(map(moved, op.results)),
            arguments=tuple(map(moved, op.arguments)),
        )
        for op in graph.ops
    )
    return replace(graph, inputs=inputs, ops=ops, outputs=outputs)


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
        "    stream = current_stream(0)\n"
        "    (\n"
        "        x_1,  # f32[1000]\n"
        "    ) = inputs\n"
        "    inputs.clear()\n"
        "\n"
        "    # sizes and layouts of the inputs\n"
        "    if x_1.stride() != (1,):\n"
        "        x_1 = planned_layout(x_1, (1,))\n"
        "\n"
        "    # region_0, flat: sum\n"
        "    sum_1 = empty_on_gpu((), (), torch.float32)  # f32[]\n"
        "    parts = empty_on_gpu((16,), (1,), torch.float32)  # f32[16]\n"
        "    total_partial(stream, x_1, parts, 1000)\n"
        "    total_combine(stream, parts, sum_1, 4)\n"
        "    del parts\n"
        "    del x_1\n"
        "\n"
        "    # region_1, flat: add\n"
        "    add = empty_on_gpu((), (), torch.float32)  # f32[]\n"
        "    after(stream, sum_1, add, 1)\n"
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


def test_a_regions_launches_meet() -> None:
    spec = kernel(64)
    first, middle, last = (
        launch_text(spec, spec.configurations[0], [], torch.device("cuda:0"), Place(k, 3))
        for k in range(3)
    )
    mine = "(argument_0, argument_1, argument_2, argument_3,)"
    assert f"calls.given = given = [{mine}]" in first
    assert "del" not in middle
    assert f"    given = calls.given\n    del calls.given\n    given.append({mine})\n" in last
