"""Which reads tensor descriptors can describe, and how kernels are given them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
import triton
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import BaseBackend
from triton.backends.nvidia import driver as nvidia_driver
from triton.tools.tensor_descriptor import TensorDescriptor

from fuser.ir.dtype import DType
from fuser.ir.kernel import Configuration, GridAxis, KernelArgument, KernelSpec, Window
from fuser.ir.space import Affine, LoopAxis
from fuser.passes.contraction import ROWS
from fuser.passes.windows import tile_window
from fuser.runtime.descriptors import MOST_KNOWN, Descriptors, descriptor_type
from fuser.runtime.kernel import geometry_texts
from fuser.runtime.launcher import Launcher
from support.played import Launcher36, Launcher37, PlayedFunction, play
from support.runtime import elementwise

s0 = sympy.Symbol("s0", integer=True, positive=True)
ROW, INNER = LoopAxis("m", 100), LoopAxis("k", 48, is_reduced=True)
TILE = Configuration((("MBLOCK", 64), ("KBLOCK", 32), ("PROGRAMS", 6)))


# What can be described ----------------------------------------------------------------------------


def window(
    steps: dict[str, Any],
    offset: int = 0,
    batch: tuple[LoopAxis, ...] = (),
    rows: tuple[LoopAxis, ...] = (ROW,),
    dtype: DType = DType.FLOAT32,
) -> Any:
    groups = {"o": batch, "m": rows, "ka": (INNER,)}
    return tile_window(Affine(tuple(steps.items()), offset), dtype, ROWS, groups)


def test_rows_with_neighbours_along_the_inner_axis() -> None:
    found = window({"m": 64, "k": 1}, offset=8)
    assert found.window == Window((100, 48), (64, 1), ("MBLOCK", "KBLOCK"), 8)
    assert found.variables == ("m", "ka")


def test_a_transposed_operand() -> None:
    found = window({"m": 1, "k": 104})
    assert found.window == Window((48, 100), (104, 1), ("KBLOCK", "MBLOCK"))
    assert found.variables == ("ka", "m")


def test_rows_of_two_axes_that_memory_has_as_one() -> None:
    outer, inner = LoopAxis("a", 5), LoopAxis("b", 20)
    found = window({"a": 20 * 48, "b": 48, "k": 1}, rows=(outer, inner))
    assert found.window.sizes == (100, 48)
    assert window({"a": 24 * 48, "b": 48, "k": 1}, rows=(outer, inner)) is None


def test_batch_axes_are_dimensions_of_their_own() -> None:
    axes = LoopAxis("a", 2), LoopAxis("b", 3)
    found = window({"a": 19200, "b": 48, "m": 192, "k": 1}, batch=axes)
    assert found.window.sizes == (2, 3, 100, 48)
    assert found.window.blocks == (None, None, "MBLOCK", "KBLOCK")
    together = window({"a": 3 * 4800, "b": 4800, "m": 48, "k": 1}, batch=axes)
    assert together.window.sizes == (6, 100, 48)
    assert together.batch == (Affine((("b", 1), ("a", 3))),)


def test_rows_may_be_of_any_number() -> None:
    found = window({"m": 64, "k": 1}, rows=(LoopAxis("m", s0),))
    assert found.window.sizes == (s0, 48)


@pytest.mark.parametrize(
    ("steps", "offset", "dtype"),
    [
        ({"m": 50, "k": 1}, 0, DType.FLOAT32),  # rows begin at multiples of 8 bytes
        ({"m": 52, "k": 1}, 0, DType.FLOAT16),
        ({"m": 64, "k": 1}, 2, DType.FLOAT32),  # the first element does
        ({"m": 64, "k": 2}, 0, DType.FLOAT32),  # no neighbours
        ({"m": -64, "k": 1}, 4800, DType.FLOAT32),  # backwards
        ({"m": s0, "k": 1}, 0, DType.FLOAT32),  # not known to be a multiple of anything
        ({"k": 1}, 0, DType.FLOAT32),  # the same for every row
        ({"m": 64, "k": 1}, 0, DType.FLOAT64),
    ],
)
def test_what_pointers_have_to_read(steps: dict[str, Any], offset: int, dtype: DType) -> None:
    assert window(steps, offset, dtype=dtype) is None


# What kernels are given ---------------------------------------------------------------------------

ARGUMENT = KernelArgument(
    "buffer", "x", DType.BFLOAT16, window=Window((s0, 48), (64, 1), ("MBLOCK", "KBLOCK"), 8)
)


def test_a_descriptor_of_an_address() -> None:
    descriptors = Descriptors(ARGUMENT, TILE)
    found = descriptors(4096, (100, 48))
    assert isinstance(found, TensorDescriptor)
    assert found.base.data_ptr() == 4096 + 16
    assert (found.shape, found.strides, found.block_shape) == ([100, 48], [64, 1], [64, 32])
    assert descriptors(4096, (100, 48)) is found
    assert descriptors(4096, (101, 48)) is not found


def test_few_descriptors_are_kept() -> None:
    descriptors = Descriptors(ARGUMENT, TILE)
    for place in range(3 * MOST_KNOWN):
        descriptors(4096 * (place + 1), (100, 48))
    assert len(descriptors.known) <= MOST_KNOWN


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32])
def test_offline_and_at_a_call_triton_has_one_type(dtype: DType) -> None:
    """Both by a tensor, as it compiles, and by an address, as it launches."""
    argument = replace(ARGUMENT, dtype=dtype)
    descriptors = Descriptors(argument, TILE)
    memory = torch.zeros(8 + 100 * 64, dtype=getattr(torch, dtype.value))
    for given in (descriptors(4096, (100, 48)), descriptors.of_tensor(memory, (100, 48))):
        found = native_specialize_impl(BaseBackend, given, False, True, True)[0]
        assert found.replace(" ", "") == descriptor_type(argument, TILE).replace(" ", "")


def test_triton_encodes_an_address_as_it_would_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed Triton's own code, above the call of the CUDA driver."""
    encoded: list[tuple[Any, ...]] = []
    utils = type("Utils", (), {"fill_tma_descriptor_tiled": lambda *given: encoded.append(given)})
    driver = type("Driver", (), {"utils": utils})
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    how = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [64, 32]}
    expanded = nvidia_driver.make_tensordesc_arg(
        Descriptors(ARGUMENT, TILE)(4096, (100, 48)), {**how, "fp4_padded": False}
    )
    ((address, *_, block, shape, strides, padding),) = encoded
    assert (address, block, shape, strides) == (4096 + 16, [64, 32], [100, 48], [64, 1])
    assert not padding
    assert expanded[1:] == [100, 48, 64, 1]


# Launches -----------------------------------------------------------------------------------------


@pytest.fixture(params=[Launcher36, Launcher37], ids=["triton 3.6", "triton 3.7"])
def played(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PlayedFunction:
    function = PlayedFunction(request.param)
    play(monkeypatch, function)
    return function


def spec() -> KernelSpec:
    """A kernel that reads rows of `x` by a descriptor, and `x` and `y` otherwise."""
    otherwise = elementwise("by_pointers", ["y", "x"], "z", s0, "{x} + {y}", block=128)
    by_name = {argument.name: argument for argument in otherwise.arguments}
    described = replace(ARGUMENT, dtype=DType.FLOAT32)
    return replace(
        otherwise,
        name="by_descriptors",
        key="another",
        arguments=(described, by_name["y"], by_name["z"]),
        grid=(GridAxis(s0, "MBLOCK", (GridAxis(3),), "PROGRAMS"),),
        configurations=(TILE,),
        otherwise=otherwise,
    )


def given() -> list[torch.Tensor]:
    return [torch.zeros(8 + 100 * 64 + 4), torch.zeros(16), torch.zeros(16)]


def test_a_kernel_is_launched_with_a_descriptor(played: PlayedFunction) -> None:
    launch = Launcher(spec(), "cpu", ["s0"])
    x, y, z = given()
    for _ in range(2):
        launch(x, y, z, 100)
    assert len(played.compiled) == 1
    assert isinstance(played.compiled[0]["values"][0].base, torch.Tensor)
    for grid, descriptor, *rest in played.launched:
        assert grid == (6, 1, 1)
        assert descriptor.base.data_ptr() == x.data_ptr() + 32
        assert descriptor.shape == [100, 48]
        assert rest[:2] == [y.data_ptr(), z.data_ptr()]
    assert launch.counts.direct == 1
    assert not launch.counts.indirect


def test_what_is_not_aligned_is_launched_by_pointers(played: PlayedFunction) -> None:
    launch = Launcher(spec(), "cpu", ["s0"])
    x, y, z = given()
    launch(x[1:], y, z, 100)
    ((grid, first, second, third, *_),) = played.launched
    assert grid == (1, 1, 1)
    assert (first, second, third) == (y.data_ptr(), x[1:].data_ptr(), z.data_ptr())


def test_what_has_no_elements_is_launched_by_pointers(played: PlayedFunction) -> None:
    launch = Launcher(spec(), "cpu", ["s0"])
    x, y, z = given()
    launch(x[:0], y, z, 100)
    assert [where[2] for where in played.launched] == [0]


def test_what_other_arguments_are_aligned_to_does_not_matter(played: PlayedFunction) -> None:
    launch = Launcher(spec(), "cpu", ["s0"])
    x, y, z = given()
    launch(x, y[1:], z, 100)
    assert played.launched[0][0] == (6, 1, 1)


@pytest.mark.parametrize(("rows", "programs"), [(10, "3"), (100, "6"), (s0, None)])
def test_no_more_programs_than_run_at_once(rows: Any, programs: str | None) -> None:
    walking = replace(spec(), grid=(GridAxis(rows, "MBLOCK", (GridAxis(3),), "PROGRAMS"),))
    text = geometry_texts(walking, TILE)[0][0]
    if programs is not None:
        assert text == programs
    else:
        assert [eval(text, {"s0": size}) for size in (0, 10, 65, 1000)] == [0, 3, 6, 6]
