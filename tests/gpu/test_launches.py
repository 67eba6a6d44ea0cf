"""Direct launches on a real GPU: results, streams, devices, and what a call costs the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from torch.nn.functional import gelu, softmax

import fuser
from fuser.runtime.direct import HOOKED
from support.benchmarks import load

pytestmark = pytest.mark.gpu


def four_kernels(x: Tensor, y: Tensor) -> Tensor:
    rows = softmax(x * y, -1)
    columns = softmax(rows + y, 0)
    rows = softmax(columns * 2, -1)
    return softmax(rows + x, 0)


def pair(*shape: int) -> tuple[Tensor, Tensor]:
    return torch.randn(shape, device="cuda"), torch.randn(shape, device="cuda")


def calls_of(compiled: Any) -> Any:
    (plan,) = fuser.plans(compiled)
    return plan.calls


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


def test_every_launch_is_direct() -> None:
    compiled = fuser.compile(four_kernels)
    for _ in range(3):
        x, y = pair(37, 65)
        torch.testing.assert_close(compiled(x, y), four_kernels(x, y), rtol=1e-5, atol=1e-6)
    calls = calls_of(compiled)
    assert calls.direct >= 4
    assert calls.indirect == {}
    assert calls.unfused == {}


def test_alignment_compiles_kernels_but_no_graph() -> None:
    compiled = fuser.compile(lambda x: gelu(x) * 3)
    memory = torch.randn(5000, device="cuda")
    compiled(memory[:4096])
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for offset in (1, 2, 4, 0, 3):
        x = memory[offset : offset + 4096]
        torch.testing.assert_close(compiled(x), gelu(x) * 3)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before
    assert calls_of(compiled).direct == 2
    assert calls_of(compiled).indirect == {}


def test_sizes_compile_kernels_but_no_graph() -> None:
    compiled = fuser.compile(lambda x: gelu(x) * 3, dynamic=True)
    for size in (4096, 4097, 8192, 33, 4096):
        x = torch.randn(size, device="cuda")
        torch.testing.assert_close(compiled(x), gelu(x) * 3)
    assert calls_of(compiled).direct == 2


def test_more_than_2_31_elements() -> None:
    compiled = fuser.compile(lambda x: x + 1, dynamic=True)
    for size in (1000, 2**31 + 33):
        x = torch.ones(size, device="cuda", dtype=torch.int8)
        x[-7:] = 5
        found = compiled(x)
        assert found[-7:].tolist() == [6] * 7
        assert (found[: size - 7] == 2).all()
        del x, found
        torch.cuda.empty_cache()
    assert calls_of(compiled).direct == 2


def test_the_current_stream_is_used() -> None:
    compiled = fuser.compile(four_kernels)
    x, y = pair(64, 1024)
    compiled(x, y)
    stream = torch.cuda.Stream()
    big = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(50):
            big = big @ big * 1e-2
        late = x + big[:1, :1].nan_to_num(0, 0, 0) * 0 + 1  # ready only after all of it
        found = compiled(late, y)
    stream.synchronize()
    torch.testing.assert_close(found, four_kernels(x + 1, y), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device_than_the_current_one() -> None:
    compiled = fuser.compile(four_kernels)
    x, y = (t.to("cuda:1") for t in pair(37, 65))
    for _ in range(2):
        found = compiled(x, y)
        assert found.device == x.device
        torch.testing.assert_close(found, four_kernels(x, y), rtol=1e-5, atol=1e-6)
    assert torch.cuda.current_device() == 0


def test_a_profilers_hooks_are_called() -> None:
    compiled = fuser.compile(four_kernels)
    x, y = pair(64, 64)
    compiled(x, y)
    seen: list[str] = []
    hook = triton.knobs.runtime.launch_enter_hook

    def profile(metadata: Any) -> None:
        seen.append(metadata.get()["name"])

    hook.add(profile)
    try:
        found = compiled(x, y)
    finally:
        hook.remove(profile)
    torch.testing.assert_close(found, four_kernels(x, y), rtol=1e-5, atol=1e-6)
    assert len(seen) >= 4
    assert calls_of(compiled).indirect == {HOOKED: len(seen)}


def test_the_parts_of_a_call_are_measured() -> None:
    """How many microseconds they are is for the benchmark to say, which runs alone."""
    overhead = load("overhead")
    (program,) = (item for item in overhead.PROGRAMS if item.name == "four_kernels")
    compared = load("candidates").candidates(("fused",), ())
    timer = load("measure").Timer()
    with torch.no_grad():
        row = overhead.measured_row(program, compared, timer, "cuda", lambda text: None)
    found = row["candidates"]["fuser"]
    assert "error" not in found, found
    assert found["indirect_launches"] == {}
    assert found["kernels"] == 4
    assert found["host_us"] > found["beyond_us"]
