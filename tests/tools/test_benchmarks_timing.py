"""How the benchmarks take times: of a stand-in for a device, and of the GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.benchmarks import load


def timer_with(monkeypatch: pytest.MonkeyPatch, hides_at_us: float) -> tuple[Any, list[float]]:
    """A timer on a device where a call takes 3 ms, flushes 1 ms, and hiding a call needs a pause;
    and the pauses before calls."""
    timer = object.__new__(load("measure").Timer)
    nothing = load("measure")._nothing
    pauses: list[float] = []

    def between_flushes(call: Callable[[], Any], pause_us: float) -> tuple[float, bool]:
        if call is nothing:
            return 1.0, True
        pauses.append(pause_us)
        return (4.0, True) if pause_us >= hides_at_us else (9.0, False)

    monkeypatch.setattr(timer, "_between_flushes", between_flushes)
    return timer, pauses


def test_flushes_are_taken_off_and_the_pause_grows_until_the_host_is_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timer, pauses = timer_with(monkeypatch, hides_at_us=1000.0)
    assert timer._device(lambda: None, host_us=50.0) == (3.0, 0.0, True)
    assert pauses[:3] == [400.0, 800.0, 1600.0]
    assert len(pauses) == 2 + load("measure").REPETITIONS


def test_a_call_that_cannot_be_hidden_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    timer, pauses = timer_with(monkeypatch, hides_at_us=float("inf"))
    assert timer._device(lambda: None, host_us=50.0) == (8.0, 0.0, False)
    assert max(pauses) == load("measure").LONGEST_PAUSE_US


def test_a_replayed_call_is_its_share_of_a_graph_without_the_flushes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure = load("measure")
    timer = object.__new__(measure.Timer)
    # A graph is what it repeats; flushes take 2 ms and a call 0.25 ms.
    monkeypatch.setattr(timer, "_captured", lambda call: call)
    drift = iter(range(10_000))

    def replayed(repeated: Callable[[], Any]) -> float:
        calls = 0 if repeated is measure._nothing else measure.REPLAYED
        return 2.0 + 0.25 * calls + (next(drift) // 2) * 0.1  # both of a pair alike

    monkeypatch.setattr(timer, "_replayed", replayed)
    assert timer.replay_ms(lambda: None) == pytest.approx(0.25)


# On a GPU -----------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_device_times_are_those_of_the_device() -> None:
    timer = load("measure").Timer()
    x = torch.randn(64 << 20, device="cuda")
    y = torch.empty_like(x)
    half = x.numel() // 2
    whole = timer.measure(lambda: y.copy_(x))
    part = timer.measure(lambda: y[:half].copy_(x[:half]))
    nothing = timer.measure(lambda: None)
    assert whole.is_host_hidden
    assert 1.8 < whole.milliseconds / part.milliseconds < 2.2
    assert abs(nothing.milliseconds) < 0.005
    replayed = timer.replay_ms(lambda: y.copy_(x))
    assert 0.9 < replayed / whole.milliseconds < 1.1
    # Two hundred launches keep the host busy for longer than they take on the device.
    small = torch.zeros(16, device="cuda")

    def many() -> None:
        for _ in range(200):
            small.add_(1)

    busy = timer.measure(many)
    assert busy.is_host_hidden
    assert busy.milliseconds < busy.host_us / 1e3
