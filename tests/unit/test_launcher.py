"""Loading and launching single kernels."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

from fuser.errors import KernelCompilationError
from fuser.ir.kernel import Configuration, GridAxis, KernelArgument, KernelSpec
from fuser.runtime.launcher import Launcher, compile_options, constants_of
from fuser.runtime.loader import load, source_path
from support.played import PlayedFunction, play
from support.runtime import DEVICE, buffer, cache_in, elementwise, needs_kernels, spec_of

s0 = sympy.Symbol("s0", integer=True, positive=True)
s1 = sympy.Symbol("s1", integer=True, positive=True)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path) -> Iterator[None]:
    with cache_in(tmp_path / "cache"):
        yield


# **** loading ****


def test_the_source_is_found_where_the_function_says_it_is() -> None:
    spec = elementwise("add_one", ["x"], "y", 10, "{x} + 1")
    function = load(spec)
    assert inspect.getsource(function.fn) in spec.source
    assert Path(source_path(spec)).read_text() == spec.source
    assert not list(Path(source_path(spec)).parent.glob("**/*.pyc"))


def test_what_runs_is_the_text_and_not_the_file() -> None:
    spec = elementwise("add_two", ["x"], "y", 10, "{x} + 2")
    function = load(spec)
    Path(source_path(spec)).write_text("raise SystemExit\n")
    linecache.checkcache()
    assert inspect.getsource(function.fn) in spec.source


def test_one_key_is_one_function() -> None:
    spec = elementwise("first", ["x"], "y", 10, "{x} + 3")
    again = replace(spec, name="second", source=spec.source.replace("first", "second"))
    assert load(again) is load(spec)


def test_a_module_that_cannot_be_run_names_its_kernel() -> None:
    spec = replace(elementwise("broken", ["x"], "y", 10, "{x}"), source="import nowhere\n", key="b")
    with pytest.raises(KernelCompilationError, match=r"kernel broken .*nowhere"):
        load(spec)


# **** running ****


@needs_kernels
@pytest.mark.parametrize("size", [1, 255, 256, 257, 1000])
def test_a_kernel_of_fixed_size(size: int) -> None:
    x, y = torch.randn(size, device=DEVICE), torch.full((size + 3,), 7.0, device=DEVICE)
    Launcher(elementwise("twice", ["x"], "y", size, "{x} * 2"), DEVICE)(x, y, size)
    torch.testing.assert_close(y[:size], x * 2)
    assert (y[size:] == 7).all()


@needs_kernels
def test_grid_follows_the_symbols() -> None:
    size = s0 * s1 - 1
    launch = Launcher(elementwise("less", ["x"], "y", size, "{x} - 1"), DEVICE, ["s1", "s0"])
    for rows, columns in ((30, 40), (1, 2), (3, 3)):
        count = rows * columns - 1
        x, y = torch.randn(count, device=DEVICE), torch.empty(count, device=DEVICE)
        launch(x, y, count, columns, rows)
        torch.testing.assert_close(y, x - 1)


def test_grid_axes() -> None:
    spec = replace(
        elementwise("grid", ["x"], "y", 10, "{x}"),
        grid=(GridAxis(s0 + 1, "XBLOCK"), GridAxis(s0), GridAxis(5)),
        extent=s0 * 2**20,
    )
    launch = Launcher(spec, "cpu", ["s0"])
    assert launch.geometry(256) == ((2, 256, 5), False)
    assert launch.geometry(255) == ((1, 255, 5), False)
    assert launch.geometry(2048) == ((9, 2048, 5), True)


def test_nothing_is_launched_for_nothing() -> None:
    # The source cannot be loaded, so a launch would raise.
    spec = replace(elementwise("never", ["x"], "y", s0, "{x}"), source="raise OSError\n", key="n")
    launch = Launcher(spec, DEVICE, ["s0"])
    x, y = torch.randn(4), torch.empty(0)
    launch(x, torch.empty(4), 0, 0)
    launch(x, y, 4, 4)
    with pytest.raises(KernelCompilationError):
        launch(x, torch.empty(4), 4, 4)


@needs_kernels
def test_a_kernel_without_outputs_of_its_own_is_launched() -> None:
    text = """\
def write_parts(parts, INDEX_TYPE: tl.constexpr, XBLOCK: tl.constexpr):
    tl.store(parts + tl.program_id(0), 3.0)
"""
    spec = spec_of("write_parts", text, [KernelArgument("workspace", "parts", size=4)], 4, block=1)
    parts = torch.zeros(4, device=DEVICE)
    Launcher(spec, DEVICE)(parts)
    assert parts.tolist() == [3.0] * 4


@needs_kernels
def test_a_kernel_that_does_not_compile_is_named() -> None:
    spec = elementwise("wrong", ["x"], "y", 8, "fn.no_such_function({x})")
    launch = Launcher(spec, DEVICE)
    with pytest.raises(KernelCompilationError, match="no_such_function") as caught:
        launch(torch.randn(8, device=DEVICE), torch.empty(8, device=DEVICE), 8)
    assert caught.value.fields["kernel"] == "wrong"
    assert caught.value.fields["source_path"] == source_path(spec)


@needs_kernels
def test_index_type_and_constants_arrive_in_order() -> None:
    text = """\
def constants(result, INDEX_TYPE: tl.constexpr, BASE: tl.constexpr, XBLOCK: tl.constexpr):
    tl.store(result + tl.program_id(0).to(INDEX_TYPE), BASE * 10 + XBLOCK)
"""
    spec = replace(
        spec_of("constants", text, [buffer("result", True)], 2, block=2), constexprs=(("BASE", 7),)
    )
    assert constants_of(spec, spec.configurations[0], True) == (tl.int64, 7, 2)
    assert constants_of(spec, spec.configurations[0], False) == (tl.int32, 7, 2)
    result = torch.zeros(1, device=DEVICE)
    Launcher(spec, DEVICE)(result)
    assert result.item() == 72


# **** on a GPU, with Triton's part played ****


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedFunction:
    function = PlayedFunction()
    play(monkeypatch, function)
    return function


def spec_with_size(size: Any) -> KernelSpec:
    return replace(
        elementwise("played", ["x"], "y", size, "{x}"),
        configurations=(Configuration((("XBLOCK", 128),), num_warps=8, num_stages=2),),
    )


def test_one_compilation_for_each_alignment(played: PlayedFunction) -> None:
    launch = Launcher(spec_with_size(s0), "cpu", ["s0"])
    x, y = torch.randn(64), torch.empty(64)
    assert x.data_ptr() % 16 == y.data_ptr() % 16 == 0
    for _ in range(3):
        launch(x, y, 32, 32)
        launch(x, y, 48, 48)
    assert len(played.compiled) == 1
    launch(x[1:], y, 32, 32)
    launch(x[5:], y, 16, 16)
    assert len(played.compiled) == 2
    launch(x[1:], y[2:], 32, 32)
    assert len(played.compiled) == 3
    for size in (31, 33, 1, 1):
        launch(x, y, size, size)
    assert len(played.compiled) == 5


def test_wide_sizes_are_compiled_apart(played: PlayedFunction) -> None:
    launch = Launcher(spec_with_size(s0), "cpu", ["s0"])
    x, y = torch.randn(64), torch.empty(64)
    launch(x, y, 32, 32)
    launch(x, y, 2**31, 2**31)
    narrow, wide = played.compiled
    assert narrow["values"][2:] == (32, tl.int32, 128)
    assert wide["values"][2:] == (2**31, tl.int64, 128)


def test_what_triton_is_told(played: PlayedFunction) -> None:
    launch = Launcher(spec_with_size(300), "cpu")
    x, y = torch.randn(300), torch.empty(300)
    launch(x, y, 300)
    (compiled,) = played.compiled
    assert compiled["values"][0] is x
    assert (compiled["num_warps"], compiled["num_stages"]) == (8, 2)
    assert compiled["enable_fp_fusion"] is False
    (launched,) = played.launched
    assert launched == ((3, 1, 1), x.data_ptr(), y.data_ptr(), 300, tl.int32, 128)


def test_a_tensor_that_the_kernel_cannot_reach(played: PlayedFunction) -> None:
    launch = Launcher(spec_with_size(300), "cuda:0")
    with pytest.raises(KernelCompilationError, match="argument x is on cpu"):
        launch.launch(0, 0, torch.randn(300), torch.empty(300), 300, 64, 128)
    assert played.compiled == played.launched == []


def test_another_configuration_can_be_chosen(played: PlayedFunction) -> None:
    spec = spec_with_size(300)
    other = Configuration((("XBLOCK", 64),), num_warps=1)
    launch = Launcher(spec, "cpu", choose=lambda spec: other)
    launch(torch.randn(300), torch.empty(300), 300)
    assert played.compiled[0]["num_warps"] == 1
    assert played.launched[-1][0] == (5, 1, 1)


@pytest.mark.parametrize("target", [GPUTarget("cuda", 80, 32), GPUTarget("hip", "gfx942", 64)])
def test_each_target_gets_the_options_that_it_knows(target: GPUTarget) -> None:
    spec = spec_with_size(10)
    options = compile_options(spec, Configuration((), num_warps=2, num_stages=3), target)
    assert options["num_warps"] == 2
    assert options["num_stages"] == 3
    assert options["enable_fp_fusion"] is False
    assert options["debug"] is False
    assert compile_options(replace(spec, checks_indices=True), *spec.configurations, target)[
        "debug"
    ]
    triton.compiler.make_backend(target).parse_options(options)
    assert ("enable_reflect_ftz" in options) == (target.backend == "cuda")
