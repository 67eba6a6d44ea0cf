"""Kernels compiled for GPUs that are not there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sympy

from fuser.errors import KernelCompilationError, UnknownTarget
from fuser.ir.kernel import Configuration, KernelSpec
from fuser.runtime import offline
from fuser.runtime.offline import Resources, compile_many, compile_offline
from support.runtime import cache_in, elementwise

s0 = sympy.Symbol("s0", integer=True, positive=True)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    with cache_in(tmp_path / "cache") as path:
        yield path


def good(block: int = 1024) -> KernelSpec:
    return elementwise("good", ["x", "y"], "z", s0, "fn.abs({x}) * {y} + 1", block=block)


def bad() -> KernelSpec:
    return elementwise("bad", ["x"], "y", s0, "fn.no_such_function({x})")


def greedy() -> KernelSpec:
    """Needs more registers than a thread can have."""
    spec = elementwise("greedy", ["x"], "y", s0, "tl.cumsum({x})", block=8192)
    return replace(spec, configurations=(Configuration((("XBLOCK", 8192),), num_warps=1),))


def test_many_kernels_for_one_target(cache: Path) -> None:
    first, wrong, spilling, last = compile_many([good(), bad(), greedy(), good(256)], "sm_90")
    assert isinstance(first, Resources)
    assert 8 <= first.registers <= 64
    assert (first.spills, first.shared_bytes) == (0, 0)
    assert isinstance(wrong, str)
    assert "no_such_function" in wrong
    assert isinstance(spilling, Resources)
    assert spilling.registers == 255
    assert spilling.spills > 0
    assert isinstance(last, Resources)
    assert last.registers < first.registers
    # What was compiled is kept in fuser's cache and nowhere else.
    assert list(cache.glob("triton/*/good.cubin"))


def test_an_amd_target() -> None:
    (found,) = compile_many([good()], "gfx942", {"s0": 2**32}, ["size"])
    assert isinstance(found, Resources)
    assert found.registers > 4
    assert found.spills == 0


def test_a_kernel_that_does_not_compile_raises() -> None:
    with pytest.raises(KernelCompilationError, match=r"(?s)kernel bad .*no_such"):
        compile_offline(bad(), "sm_80")


def test_unknown_targets_are_named() -> None:
    with pytest.raises(UnknownTarget, match="sm_90"):
        compile_many([good()], "sm_91")


def test_sizes_decide_types() -> None:
    narrow, wide = (offline._job(good(), {"s0": size}, ["size"]) for size in (64, 2**31))
    assert (narrow.signature, narrow.is_wide) == (["*fp32", "*fp32", "*fp32", "i32"], False)
    assert (wide.signature, wide.is_wide) == (["*fp32", "*fp32", "*fp32", "i64"], True)
    assert narrow.aligned == [0, 1, 2, 3]
    assert offline._job(good(), {"s0": 64}, ()).aligned == [0, 1, 2]


def test_a_worker_that_dies_costs_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Resources(1, 0, 0)
    runs = iter([([found], "killed"), ([found, found], "")])
    asked: list[int] = []

    def run(jobs: list[object], target: str) -> tuple[list[Resources | str], str]:
        asked.append(len(jobs))
        results, complaint = next(runs)
        return list(results), complaint

    monkeypatch.setattr(offline, "_run_worker", run)
    monkeypatch.setattr(offline, "is_interpreting", lambda: True)
    results = compile_many([good(), bad(), good(), good()], "sm_90")
    assert results[0] == results[2] == results[3] == found
    assert results[1] == "the compiler ended without a result: killed"
    assert asked == [4, 2]
