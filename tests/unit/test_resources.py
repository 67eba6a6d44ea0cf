"""Predicted registers, shared memory and occupancy: by hand, by rule, and against the compiler."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fuser.codegen.generate import kernels_of as generated
from fuser.device import device_spec
from fuser.ir.graph import Graph
from fuser.ir.kernel import Configuration, KernelSpec, Resources
from fuser.ir.region import Needs, Region
from fuser.passes.kernel_model import Kernel, kernels_of
from fuser.passes.layout import layout_of, shared_bytes
from fuser.passes.pipeline import plan_graph
from fuser.passes.resources import needs_of, predict, register_limit, resident
from fuser.runtime.offline import compile_many
from support.graphs import graph_of, only_region
from support.runtime import cache_in

Program = Callable[..., Any]
H200 = device_spec("sm_90")
A100 = device_spec("sm_80")


def tile(x: int, r: int = 0, warps: int = 4) -> Configuration:
    blocks = (("XBLOCK", x), ("RBLOCK", r)) if r else (("XBLOCK", x),)
    return Configuration(blocks, num_warps=warps)


def kernels_in(graph: Graph, region: Region) -> tuple[Kernel, ...]:
    ops = [op for op in graph.ops if op.name in region.all_ops]
    return kernels_of(graph, ops, region.outputs, region.space, region.schedule)


def modelled(program: Program, *args: Any, dynamic: bool = False) -> tuple[Kernel, ...]:
    """The kernels of a program that is one region."""
    graph = graph_of(program, *args, dynamic=dynamic)
    return kernels_in(graph, only_region(plan_graph(graph, "sm_90")))


def registers(kernel: Kernel, configuration: Configuration) -> int:
    return predict(kernel, configuration, H200)[0]


def shared(kernel: Kernel, configuration: Configuration) -> int:
    return predict(kernel, configuration, H200)[1]


# Occupancy --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "needed", "bytes_used", "warps", "blocks", "occupancy"),
    [
        # From the occupancy calculator of the CUDA toolkit.
        ("sm_90", 32, 0, 8, 8, 1.0),
        ("sm_90", 33, 0, 8, 6, 0.75),
        ("sm_90", 64, 0, 8, 4, 0.5),
        ("sm_90", 255, 0, 4, 2, 0.125),
        ("sm_90", 128, 0, 16, 1, 0.25),
        ("sm_90", 72, 0, 4, 7, 0.4375),
        ("sm_90", 16, 0, 1, 32, 0.5),  # as many blocks as a processor takes
        ("sm_90", 104, 0, 2, 8, 0.25),  # 19 warps would fit, in units of four
        ("sm_90", 32, 48 << 10, 8, 4, 0.5),
        ("sm_80", 32, 100 << 10, 8, 1, 0.125),
        ("sm_89", 40, 0, 8, 6, 1.0),
    ],
)
def test_resident_blocks(
    target: str, needed: int, bytes_used: int, warps: int, blocks: int, occupancy: float
) -> None:
    found = resident(needed, bytes_used, tile(1024, warps=warps), device_spec(target))
    assert found == Needs(needed, bytes_used, blocks, occupancy)


def test_what_no_block_fits_into_has_no_occupancy() -> None:
    assert resident(128, 0, tile(1024, warps=32), H200).blocks_per_processor == 0
    assert resident(32, 300 << 10, tile(1024), H200).occupancy == 0


def test_the_most_registers_of_a_thread() -> None:
    assert [register_limit(tile(1024, warps=w), H200) for w in (4, 8, 16, 32)] == [
        255,
        255,
        128,
        64,
    ]


# Shared memory ----------------------------------------------------------------------------------


def test_elementwise_kernels_need_no_shared_memory() -> None:
    (kernel,) = modelled(lambda x: x.exp() + 1, torch.empty(1 << 22))
    assert shared(kernel, tile(1024)) == 0


def test_warps_exchange_their_part_of_each_row() -> None:
    (kernel,) = modelled(lambda x: x.softmax(-1), torch.empty(4096, 1024))
    # Four words a lane: a warp has 128 elements of a row, and all four warps work on one.
    assert shared(kernel, tile(4, 1024)) == 4 * 4 * 4
    assert shared(kernel, tile(4, 1024, warps=8)) == 4 * 8 * 4
    # A row of 128 is a warp's own.
    assert shared(kernel, tile(32, 128)) == 0


def test_argument_reductions_exchange_an_index_as_well() -> None:
    (kernel,) = modelled(lambda x: x.argmax(-1), torch.empty(4096, 1024))
    assert shared(kernel, tile(1, 1024)) == 4 * (4 + 8)


def test_columns_are_shared_by_all_warps() -> None:
    first, second = modelled(lambda x: x.sum(0), torch.empty(65536, 1024))
    assert shared(first, tile(64, 64, warps=8)) == 64 * 8 * 4
    # The second kernel has each row in one warp, and deals its results out anew.
    assert shared(second, tile(128, 8)) == 128 * 4


def test_stores_of_wider_elements_than_loads_change_lanes() -> None:
    (kernel,) = modelled(lambda x: x.float() * 2, torch.empty(1 << 22, dtype=torch.bfloat16))
    # Eight elements of two bytes are loaded together, four of four bytes stored.
    assert shared(kernel, tile(1024)) == 1024 * 4
    assert shared(kernel, tile(512)) == 0  # a lane has only four
    assert shared(kernel, tile(2048)) == 1024 * 4  # in two turns


# Registers --------------------------------------------------------------------------------------


def test_more_operands_never_need_fewer_registers() -> None:
    def total(*tensors: Tensor) -> Tensor:
        return sum(tensors)  # type: ignore[return-value]

    found = []
    for count in range(1, 9):
        (kernel,) = modelled(total, *[torch.empty(1 << 20) for _ in range(count + 1)])
        found.append(registers(kernel, tile(1024)))
    assert found == sorted(found)
    assert found[-1] >= found[0] + 16


def test_values_across_a_reduction_are_kept() -> None:
    def shifted(count: int) -> Program:
        def run(x: Tensor, *others: Tensor) -> Tensor:
            products = [x * other for other in others[:count]]
            total = sum(product.exp().sum(-1, keepdim=True) for product in products)
            return sum(product / total for product in products)  # type: ignore[return-value]

        return run

    tensors = [torch.empty(8192, 1024) for _ in range(4)]
    found = [registers(modelled(shifted(count), *tensors)[0], tile(4, 1024)) for count in (1, 2, 3)]
    # Each product is a register for each of the 32 elements of a lane.
    assert found[1] >= found[0] + 25
    assert found[2] >= found[1] + 25


def test_smaller_tiles_never_need_more_registers() -> None:
    for program, args, dynamic in corpus():
        graph = graph_of(program, *args, dynamic=dynamic)
        plan = plan_graph(graph, "sm_90")
        for region in plan.regions:
            for kernel, tiles in zip(
                kernels_in(plan.graph, region), region.schedule.candidates, strict=True
            ):
                found = [registers(kernel, each) for each in tiles]
                assert found == sorted(found, reverse=True), (program.__name__, region.schedule)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_wide_elements_take_two_registers(dtype: torch.dtype) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    narrow = torch.float32 if dtype.is_floating_point else torch.int32
    (wide,) = modelled(program, *[torch.empty(1 << 20, dtype=dtype)] * 2)
    (slim,) = modelled(program, *[torch.empty(1 << 20, dtype=narrow)] * 2)
    assert registers(wide, tile(1024)) > registers(slim, tile(1024))
    assert registers(wide, tile(512)) == registers(slim, tile(1024))


# Regions ----------------------------------------------------------------------------------------


def test_the_interpreter_needs_nothing() -> None:
    graph = graph_of(lambda x: x.softmax(-1), torch.empty(64, 128))
    assert only_region(plan_graph(graph, "cpu")).cost.needs == Needs()


def test_the_largest_kernel_of_a_split_reduction_counts() -> None:
    graph = graph_of(lambda x: x.sum(0), torch.empty(65536, 1024))
    plan = plan_graph(graph, "sm_90")
    region = only_region(plan)
    kernels = kernels_in(plan.graph, region)
    each = [
        predict(kernel, tiles[0], H200)
        for kernel, tiles in zip(kernels, region.schedule.candidates, strict=True)
    ]
    assert len(each) == 2
    needs = region.cost.needs
    assert (needs.registers, needs.shared_bytes) in each
    assert needs.registers == max(found for found, _ in each)


def test_a_tile_that_would_spill_is_passed_over() -> None:
    graph = graph_of(lambda x, y: (x + y).exp(), torch.empty(1 << 22), torch.empty(1 << 22))
    plan = plan_graph(graph, "sm_90")
    region = only_region(plan)
    ops = [op for op in plan.graph.ops if op.name in region.all_ops]

    def needs(*tiles: Configuration) -> Needs:
        schedule = replace(region.schedule, candidates=(tiles,))
        return needs_of(plan.graph, ops, region.outputs, region.space, schedule, H200)

    assert needs(tile(1 << 17), tile(1024)) == needs(tile(1024))
    only_large = needs(tile(1 << 17))
    assert only_large.registers > 255
    assert only_large.blocks_per_processor == 0


def test_lanes_of_a_warp_of_64() -> None:
    (kernel,) = modelled(lambda x: x.softmax(-1), torch.empty(4096, 1024))
    found = layout_of(kernel, tile(4, 1024), device_spec("gfx942"))
    assert found.counts[3] == 4 * 1024 // (4 * 64)
    assert shared_bytes(kernel, found) == (4 * 4 * 4, False)


# Against the compiler ---------------------------------------------------------------------------


def gated(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
    return torch.tanh(x + bias) * torch.sigmoid(y)


def elu_pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return functional.elu(x), torch.where(x > y, x, y * 0.1)


def adagrad(weight: Tensor, gradient: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    squares = squares + gradient * gradient
    return weight - 0.01 * gradient / (squares.sqrt() + 1e-10), squares


def rounded_codes(x: Tensor, scale: Tensor) -> Tensor:
    return torch.clamp(torch.floor(x * scale + 0.5), 0, 255).to(torch.uint8)


def shifted_blend(x: Tensor) -> Tensor:
    return 0.75 * x[:, :-1] + 0.25 * x[:, 1:]


def integer_mix(x: Tensor, y: Tensor) -> Tensor:
    return (x * 3 + y) & 1023


def double_ratio(x: Tensor, y: Tensor) -> Tensor:
    return (x - y) / (x.abs() + y.abs() + 1e-8)


def joined(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x * 2, y + 1], -1).relu()


def tempered(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, x * 0.5, -1e4).softmax(-1)


def scaled_norm(x: Tensor, gain: Tensor) -> Tensor:
    return x / (x.norm(dim=-1, keepdim=True) + 1e-6) * gain


def biased_layer_norm(x: Tensor, bias: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
    return functional.layer_norm(functional.silu(x + bias), weight.shape, weight, shift)


def squared_hinge(x: Tensor, y: Tensor) -> Tensor:
    return torch.clamp(1 - x * y, min=0).square().mean()


def column_means(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(0), x.abs().mean(0)


def row_extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(-1), x.argmin(-1)


def long_log_softmax(x: Tensor) -> Tensor:
    return x.log_softmax(-1)


def weighted_total(x: Tensor, weight: Tensor) -> Tensor:
    return (x * weight).sum(-1)


def softmax_gradient(gradient: Tensor, output: Tensor) -> Tensor:
    return output * (gradient - (gradient * output).sum(-1, keepdim=True))


def turned(x: Tensor, y: Tensor) -> Tensor:
    return x * y.T


def of(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=dtype)


def corpus() -> list[tuple[Program, tuple[Tensor, ...], bool]]:
    """Programs that the model's constants were not fitted to; True where sizes are symbolic."""
    single, half = torch.float32, torch.bfloat16
    return [
        (gated, (of(half, 4096, 4096), of(half, 4096, 4096), of(half, 4096)), False),
        (elu_pair, (of(single, 4096, 2048), of(single, 4096, 2048)), False),
        (adagrad, (of(single, 1 << 23), of(single, 1 << 23), of(single, 1 << 23)), False),
        (rounded_codes, (of(half, 4096, 4096), of(single, 4096)), False),
        (shifted_blend, (of(single, 4096, 4097),), False),
        (integer_mix, (of(torch.int64, 1 << 22), of(torch.int64, 1 << 22)), False),
        (double_ratio, (of(torch.float64, 1 << 22), of(torch.float64, 1 << 22)), False),
        (joined, (of(half, 4096, 1024), of(half, 4096, 512)), False),
        (turned, (of(single, 2048, 4096), of(single, 4096, 2048)), False),
        (gated, (of(single, 1024, 2000), of(single, 1024, 2000), of(single, 2000)), True),
        (tempered, (of(half, 8192, 2048), of(torch.bool, 8192, 2048)), False),
        (scaled_norm, (of(single, 16384, 768), of(single, 768)), False),
        (scaled_norm, (of(half, 8192, 4096), of(half, 4096)), False),
        (biased_layer_norm, (of(half, 8192, 2048), *[of(half, 2048)] * 3), False),
        (softmax_gradient, (of(half, 8192, 4096), of(half, 8192, 4096)), False),
        (softmax_gradient, (of(single, 4096, 512), of(single, 4096, 512)), False),
        (row_extremes, (of(single, 8192, 2048),), False),
        (weighted_total, (of(half, 16384, 1024), of(half, 1024)), False),
        (weighted_total, (of(torch.float64, 4096, 512), of(torch.float64, 512)), False),
        (long_log_softmax, (of(half, 1024, 100_000),), False),
        (long_log_softmax, (of(single, 1024, 5000),), True),
        (squared_hinge, (of(single, 4096, 4096), of(single, 4096, 4096)), False),
        (column_means, (of(half, 32768, 1024),), False),
    ]


Predicted = tuple[int, int]


def planned(target: str) -> tuple[list[tuple[KernelSpec, Predicted]], dict[str, int]]:
    """Each kernel of the corpus with its prediction, and the hints of all sizes."""
    found: dict[str, tuple[KernelSpec, Predicted]] = {}
    hints: dict[str, int] = {}
    for program, args, dynamic in corpus():
        plan = plan_graph(graph_of(program, *args, dynamic=dynamic), target)
        for region in plan.regions:
            entry = generated(plan.graph, region)
            kernels = kernels_in(plan.graph, region)
            for spec, kernel in zip(entry.kernels, kernels, strict=True):
                chosen = spec.configurations[0]
                needed, bytes_used = predict(kernel, chosen, device_spec(target))
                limit = register_limit(chosen, device_spec(target))
                found[spec.key] = (spec, (min(needed, limit), bytes_used))
        hints.update(plan.graph.hints)
    return list(found.values()), hints


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_predictions_are_close_to_what_is_compiled(target: str, tmp_path: Path) -> None:
    rows, hints = planned(target)
    assert len(rows) >= 25
    with cache_in(tmp_path):
        results = compile_many([spec for spec, _ in rows], target, hints)
    errors: list[float] = []
    exact = 0
    for (_, (needed, bytes_used)), result in zip(rows, results, strict=True):
        assert isinstance(result, Resources), result
        exact += bytes_used == result.shared_bytes
        if not result.spills:
            errors.append(abs(needed - result.registers) / result.registers)
    assert statistics.median(errors) < 0.2, sorted(errors)
    assert exact >= len(rows) - 2
