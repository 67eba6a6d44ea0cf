"""Launches past Triton's bookkeeping: the right call, and the long way where that is not known."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

import fuser
from fuser import log
from fuser.ir.kernel import RegionKernels
from fuser.runtime.direct import PACKS, Bound, direct
from fuser.runtime.interpreter import is_interpreting
from fuser.runtime.launcher import Launch
from support.played import PlayedTriton, play
from support.runtime import cache_in, elementwise

CONSTANTS = ("int32", 128)


def on_a_gpu(test: Any) -> Any:
    skip = pytest.mark.skipif(is_interpreting(), reason="about launches on a GPU")
    return pytest.mark.gpu(skip(test))


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedTriton:
    monkeypatch.setattr(log, "_warned", set())
    return play(monkeypatch)


def run(bound: Bound, *arguments: Any) -> None:
    passed = (arguments,) if PACKS else arguments
    bound.launch(8, 4, 2, 9, *bound.before, *passed)


def test_the_drivers_function_is_called_with_what_triton_passes(played: PlayedTriton) -> None:
    kernel = played.kernel()
    bound = direct(kernel, (16, 32, 5), CONSTANTS)
    assert played.launched == []
    assert bound.launch == played.driver_call
    run(bound, 64, 80, 6, *CONSTANTS)
    kernel[(8, 4, 2)](64, 80, 6, *CONSTANTS, stream=9)
    first, second = played.launched
    assert first == second == ((8, 4, 2), 9, 64, 80, 6, *CONSTANTS)


def test_a_kernel_that_needs_memory_at_each_launch(played: PlayedTriton) -> None:
    played.scratch_size = 128
    asked: list[int] = []

    def allocate(size: int, alignment: int, stream: Any) -> int:
        asked.append(size)
        return 0

    triton.set_allocator(allocate)
    try:
        bound = direct(played.kernel(), (16,), CONSTANTS)
        assert bound.launch != played.driver_call
        run(bound, 16, *CONSTANTS)
    finally:
        triton.set_allocator(triton.runtime._allocation.NullAllocator())
    assert played.launched == [((8, 4, 2), 9, 16, *CONSTANTS)]
    assert asked[-1] == 128 * 8 * 4 * 2


class OtherKernel:
    """A compiled kernel of a Triton that launches in another way."""

    def __init__(self) -> None:
        self.launched: list[Any] = []
        self._run = None

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *values, stream: self.launched.append((grid, stream, *values))


def test_another_triton_is_used_as_it_is(
    played: PlayedTriton, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = OtherKernel()
    with caplog.at_level(logging.WARNING, "fuser"):
        bound = direct(kernel, (16,), CONSTANTS)
        direct(kernel, (16,), CONSTANTS)
    assert len([record for record in caplog.records if "longer way" in record.message]) == 1
    assert kernel.launched == []
    run(bound, 16, None, None)
    assert kernel.launched == [((8, 4, 2), 9, 16, *CONSTANTS)]


def test_a_launcher_whose_call_has_another_form(
    played: PlayedTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = played.kernel()

    class Reversed(type(kernel.run)):  # type: ignore[misc]
        def __call__(self, *given: Any) -> None:
            self.launch(*reversed(given))

    seen: list[Any] = []
    kernel._run = Reversed.__new__(Reversed)
    kernel._run.launch = lambda *given: seen.append(given)
    bound = direct(kernel, (16,), CONSTANTS)
    run(bound, 16, None, None)
    assert list(reversed(seen[-1]))[:5] == [8, 4, 2, 9, kernel.function]


def test_who_listens_to_launches_hears_of_all(played: PlayedTriton) -> None:
    spec = elementwise("played", ["x"], "y", 32, "{x}")
    launch = Launch(RegionKernels("region_0", (spec,)), "cpu")
    x, y = torch.randn(32), torch.empty(32)
    heard: list[Any] = []
    launch.run(0, x, y)
    chain = triton.knobs.runtime.launch_enter_hook
    chain.add(heard.append)
    try:
        launch.run(0, x, y)
    finally:
        chain.remove(heard.append)
    launch.run(0, x, y)
    assert len(heard) == 1
    assert len(played.launched) == 3
    assert len(played.compiled) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton.knobs.runtime, "launch_exit_hook", heard.append)
        launch.run(0, x, y)
    assert len(heard) == 2


# **** on a GPU ****


@pytest.fixture
def tripled(tmp_path: Path) -> Iterator[Launch]:
    """A region of one kernel: y = 3 x."""
    spec = elementwise("tripled", ["x"], "y", 1000, "{x} * 3")
    with cache_in(tmp_path / "cache"):
        yield Launch(RegionKernels("region_0", (spec,)), torch.device("cuda", 0))


@on_a_gpu
def test_a_launch_is_the_drivers_call(tripled: Launch) -> None:
    memory = torch.randn(1001, device="cuda:0")
    stream = torch.cuda.Stream()
    y = torch.empty(1000, device="cuda:0")
    for x in (memory[:1000], memory[1:], memory[:1000]):
        stream.wait_stream(torch.cuda.current_stream())
        tripled.run(stream.cuda_stream, x, y)
        torch.cuda.current_stream().wait_stream(stream)
        torch.testing.assert_close(y, x * 3)
    assert len(tripled.ready) == 2
    for launch, before in tripled.ready.values():
        assert getattr(launch, "__name__", "") == "launch"
        assert launch.__class__.__name__ == "builtin_function_or_method"
        assert isinstance(before, tuple)


@on_a_gpu
def test_a_profilers_hooks_are_called(tripled: Launch) -> None:
    x, y = torch.randn(1000, device="cuda:0"), torch.empty(1000, device="cuda:0")
    stream = torch.cuda.current_stream().cuda_stream
    heard: list[str] = []

    def hear(metadata: Any) -> None:
        heard.append(metadata.get()["name"])

    triton.knobs.runtime.launch_enter_hook.add(hear)
    try:
        tripled.run(stream, x, y)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hear)
    tripled.run(stream, x, y)
    torch.testing.assert_close(y, x * 3)
    assert heard == ["tripled"]


@on_a_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_program_runs_where_its_tensors_are() -> None:
    compiled = fuser.compile(lambda x, y: (x * y + 1).softmax(-1))
    with torch.no_grad():
        for device in ("cuda:1", "cuda:0", "cuda:1"):
            x, y = torch.randn(2, 20, 30, device=device)
            found = compiled(x, y)
            assert found.device == torch.device(device)
            torch.testing.assert_close(found, (x * y + 1).softmax(-1))
    assert torch.cuda.current_device() == 0
