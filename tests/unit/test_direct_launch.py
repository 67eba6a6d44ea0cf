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

from fuser.ir.kernel import KernelSpec, RegionKernels
from fuser.runtime.direct import HOOKED
from fuser.runtime.kernel import launch_text
from fuser.runtime.launcher import Launcher
from support.played import CudaLauncher, Launcher36, Launcher37, PlayedFunction, play
from support.runtime import elementwise, total_in_parts

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
    assert "current_device" not in known
    assert ", current_device())\n" in current


def test_nothing_is_worked_out_twice() -> None:
    spec = kernel(1000)
    text = launch_text(spec, spec.configurations[0], [], torch.device("cuda:0"))
    called = [ast.unparse(n.func) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
    assert sorted(called) == ["missed", "run", "variant_of"]
    assert "run(8, 1, 1, stream, *head, address_0, address_1, address_2, argument_3, *tail)" in text


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


def test_a_profilers_hooks_are_called(played: PlayedFunction) -> None:
    launch = Launcher(kernel(64), "cpu")
    given = tensors()
    hook = triton.knobs.runtime.launch_enter_hook
    seen: list[Any] = []
    launch(*given, 64)
    hook.add(seen.append)
    try:
        launch(*given, 64)
        launch(given[0][1:], *given[1:], 64)  # the first launch of another kernel
    finally:
        hook.remove(seen.append)
    launch(*given, 64)
    assert [metadata["grid"] for metadata in seen] == [(1, 1, 1)] * 2
    assert played.through == [1]
    assert launch.counts.indirect == {HOOKED: 1}
    assert len(played.launched) == 4


@pytest.mark.parametrize("kind", ["none", "function"])
def test_hooks_of_another_kind_are_left_to_triton(
    played: PlayedFunction, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    launch = Launcher(kernel(64), "cpu")
    given = tensors()
    launch(*given, 64)
    seen: list[Any] = []
    hook = seen.append if kind == "function" else None
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", hook)
    launch(*given, 64)
    assert played.through == [1]
    assert launch.counts.indirect == {HOOKED: 1}
    launch(given[0][1:], *given[1:], 64)
    assert len(seen) == (2 if kind == "function" else 0)
    assert len(played.launched) == 3


# **** the C function below the launcher of Triton 3.6 ****


@pytest.fixture
def below(monkeypatch: pytest.MonkeyPatch) -> PlayedFunction:
    function = PlayedFunction(CudaLauncher)
    play(monkeypatch, function)
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    return function


def run_of(launch: Launcher) -> Any:
    (variant,) = launch.variants.values()
    return variant.run


def test_the_c_function_is_called_by_itself(below: PlayedFunction) -> None:
    launch = Launcher(kernel(64), "cpu")
    given = tensors()
    hook = triton.knobs.runtime.launch_enter_hook
    seen: list[Any] = []
    hook.add(seen.append)
    try:
        launch(*given, 64)  # the first launch calls hooks itself
    finally:
        hook.remove(seen.append)
    launch(*given, 64)
    assert below.launched == [((1, 1, 1), *addresses(given), 64, tl.int32, 128)] * 2
    assert [metadata["grid"] for metadata in seen] == [(1, 1, 1)]
    assert run_of(launch) is below.run.launch
    assert (launch.counts.direct, launch.counts.indirect, below.through) == (1, {}, [])


def other_release(below: PlayedFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", "3.7.0")


def scratch_memory(below: PlayedFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    below.run.global_scratch_size = 128


def unpacks_descriptors(below: PlayedFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    below.run.launch = lambda *args, inner=below.run.launch: inner(*args)


def other_attributes(below: PlayedFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    del below.run.profile_scratch_size


def other_class(below: PlayedFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    below.run = type("HIPLauncher", (CudaLauncher,), {})(below.launched)


@pytest.mark.parametrize(
    "change",
    [other_release, scratch_memory, unpacks_descriptors, other_attributes, other_class],
)
def test_the_launcher_is_called_where_it_does_more(
    below: PlayedFunction, monkeypatch: pytest.MonkeyPatch, change: Callable[..., None]
) -> None:
    change(below, monkeypatch)
    launch = Launcher(kernel(64), "cpu")
    given = tensors()
    for _ in range(2):
        launch(*given, 64)
    assert below.launched == [((1, 1, 1), *addresses(given), 64, tl.int32, 128)] * 2
    assert run_of(launch) is below.run
    assert (launch.counts.direct, launch.counts.indirect, below.through) == (1, {}, [])


def test_a_c_function_that_refuses(below: PlayedFunction) -> None:
    def refuse(*_: Any) -> None:
        raise TypeError("function takes exactly 21 arguments (20 given)")

    below.run.launch = type("Refusing", (), {"__call__": refuse})()
    launch = Launcher(kernel(64), "cpu")
    given = tensors()
    for _ in range(2):
        launch(*given, 64)
    assert below.through == [0, 1]
    ((reason, count),) = launch.counts.indirect.items()
    assert "exactly 21 arguments" in reason
    assert count == 2


# **** regions of several kernels ****


def test_the_last_kernel_is_handed_what_the_earlier_ones_read() -> None:
    first, last = total_in_parts("total", "x", "z", 1000)
    entry = RegionKernels(("region_0",), (first, last))
    assert entry.handed_on == ("x",)
    text = launch_text(last, last.configurations[0], ["s0"], torch.device("cuda:0"), 1)
    assert text.startswith(
        "def launch(stream, misaligned, argument_0, argument_1, argument_2, address_0, address_1, "
        "s0, other_0):\n"
    )
    missed = "(argument_0, argument_1, argument_2, ), (s0, ), (other_0, ))"
    assert f"return missed(key, (1, 1, 1), False, stream, {missed}" in text
