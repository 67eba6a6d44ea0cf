"""Predicted bytes, operations and time, against counts by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fuser.device import DeviceSpec, device_spec
from fuser.ir.region import Cost
from fuser.passes.base import NO_LIMITS
from fuser.passes.candidate import candidate_for
from fuser.passes.cost import op_work
from support.graphs import graph_of, op_of

Program = Callable[..., Any]
H200 = device_spec("sm_90")
X = torch.empty(64, 128)
NUMEL = 64 * 128


def cost_of(program: Program, *args: Any, device: DeviceSpec = H200, dynamic: bool = False) -> Cost:
    """The cost of the whole program as one kernel, and of its ops one by one."""
    graph = graph_of(program, *args, dynamic=dynamic)
    whole = candidate_for(graph, graph.ops, graph.output_values, device, NO_LIMITS).cost
    alone = [
        candidate_for(graph, [op], frozenset({op.name}), device, NO_LIMITS).cost for op in graph.ops
    ]
    return replace(
        whole,
        unfused_bytes=sum(cost.bytes for cost in alone),
        unfused_us=sum(cost.time_us for cost in alone),
    )


def read_bytes(program: Program, *args: Any) -> int:
    """Bytes read, for a program with one float32 result."""
    graph = graph_of(program, *args)
    return cost_of(program, *args).bytes - 4 * int(graph.ops[-1].type.numel)


# Bytes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "size"),
    [(torch.float32, 4), (torch.bfloat16, 2), (torch.float64, 8), (torch.int8, 1), (torch.bool, 1)],
)
def test_each_element_is_read_and_written_once(dtype: torch.dtype, size: int) -> None:
    assert cost_of(lambda x: x.clone(), X.to(dtype)).bytes == 2 * NUMEL * size


def test_a_chain_moves_only_its_ends() -> None:
    cost = cost_of(lambda x: x.exp().sin().cos(), X)
    assert cost.bytes == 2 * NUMEL * 4
    assert cost.unfused_bytes == 3 * cost.bytes


def test_a_value_read_by_many_is_read_once() -> None:
    cost = cost_of(lambda x: x.exp() + x.sin() * x, X)
    assert cost.bytes == 2 * NUMEL * 4
    assert cost.unfused_bytes == (2 + 2 + 3 + 3) * NUMEL * 4


@pytest.mark.parametrize(
    ("program", "elements"),
    [
        (lambda x: x[:, :32] + 1, 64 * 32),
        (lambda x: x[::2] + 1, 32 * 128),
        (lambda x: x[3] + 1, 128),
        (lambda x: x[:, :1].expand(64, 128) + 1, 64),
        (lambda x: x.t() + 1, NUMEL),
        (lambda x: x[:32] + x[32:], NUMEL),
        (lambda x: x[1:] + x[:-1], NUMEL),
        (lambda x: x.view(128, 64)[:2] + 1, 2 * 64),
        (lambda x: torch.full((64, 128), 2.0), 0),
        (lambda x: x.expand(3, 64, 128) + 1, NUMEL),
    ],
)
def test_what_is_read_is_what_the_view_shows(program: Program, elements: int) -> None:
    assert read_bytes(program, X) == 4 * elements


def test_a_gather_reads_what_it_picks_and_its_positions() -> None:
    table, positions = torch.empty(1000, 16), torch.zeros(32, dtype=torch.int64)
    read = read_bytes(lambda w, i: w[i], table, positions)
    assert read == 32 * 16 * 4 + 32 * 8


def test_stored_values_are_written_besides() -> None:
    cost = cost_of(lambda x: (lambda y: (y, y.sum(1)))(x.exp()), X)
    assert cost.bytes == (2 * NUMEL + 64) * 4


def test_symbolic_sizes_count_as_their_hints() -> None:
    found = cost_of(lambda x: x.exp() * 2, X, dynamic=True)
    known = cost_of(lambda x: x.exp() * 2, X)
    assert replace(found, bytes_by_size=known.bytes_by_size) == known
    assert len(found.bytes_by_size.free_symbols) == 2
    assert known.bytes_by_size == known.bytes


# Work and time ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "kind", "work"),
    [
        (lambda x: x + 1, "add", NUMEL),
        (lambda x: x.exp(), "exp", 16 * NUMEL),
        (lambda x: x.sum(1), "sum", NUMEL),
        (lambda x: torch.add(x, x, alpha=2), "add_scaled", 2 * NUMEL),
    ],
)
def test_work_is_weight_times_domain(program: Program, kind: str, work: int) -> None:
    graph = graph_of(program, X)
    assert op_work(graph, op_of(graph, kind)) == work
    assert cost_of(program, X).flops == work


SLOW = replace(H200, copy_rate=1e9, l2_rate=1e9, vector_rate=2e9, launch_us=3.0, processors=1)
"""A byte takes a nanosecond, and so does an operation."""


def test_time_is_a_launch_and_the_longer_of_two() -> None:
    memory = cost_of(lambda x: x + 1, X, device=SLOW)
    assert memory.time_us == pytest.approx(3.0 + 8 * NUMEL / 1e3)
    assert memory.bound == "memory"
    compute = cost_of(lambda x: x.exp(), X, device=SLOW)
    assert compute.time_us == pytest.approx(3.0 + 16 * NUMEL / 1e3)
    assert compute.bound == "compute"
    assert cost_of(lambda x: x + 1, X).bound == "launch"


# Access patterns --------------------------------------------------------------------------------

WIDE = torch.empty(4096, 8192, dtype=torch.bfloat16)


def test_a_strided_read_pays_for_its_sectors() -> None:
    straight = cost_of(lambda x, y: x + y, WIDE, torch.empty_like(WIDE))
    # Of unknown sizes it is walked flat: see test_crossing.py for tiles.
    across = torch.empty(8192, 4096, dtype=WIDE.dtype)
    crossed = cost_of(lambda x, y: x + y.t(), WIDE, across, dynamic=True)
    assert crossed.bytes == straight.bytes == 3 * WIDE.numel() * 2
    # Each element of the transposed operand takes a sector of 32 bytes from L2.
    assert crossed.cached_bytes == WIDE.numel() * (2 + 2 + 32)
    assert crossed.time_us > 2 * straight.time_us


def test_what_is_read_again_comes_from_the_second_level_cache() -> None:
    """A row of 128k elements is read for its maximum and its sum, and for its result."""
    row = cost_of(lambda x: x.softmax(1), torch.empty(32, 1 << 17))
    numel = 32 << 17
    assert row.cached_bytes == 3 * 4 * numel
    assert row.bytes == 2 * 4 * numel


def test_long_rows_of_many_programs_fit_the_cache_in_part() -> None:
    numel = 1024 << 17
    row = cost_of(lambda x: x.softmax(1), torch.empty(1024, 1 << 17))
    in_progress = H200.processors * row.needs.blocks_per_processor * 4 << 17
    again = row.bytes - 2 * 4 * numel
    assert again == int(4 * numel * (1 - H200.l2_bytes / 2 / in_progress))
    assert 0 < again < 4 * numel


def test_a_broadcast_is_moved_once_and_served_again() -> None:
    cost = cost_of(lambda x, b: x + b, WIDE, torch.empty(8192, dtype=torch.bfloat16))
    assert cost.bytes == 2 * WIDE.numel() * 2 + 8192 * 2
    assert cost.cached_bytes == 3 * WIDE.numel() * 2


def test_few_bytes_in_flight_are_slow() -> None:
    """One program a processor that asks for little cannot keep memory busy."""
    few = cost_of(lambda x: x.sum(1), torch.empty(8, 8192))
    many = cost_of(lambda x: x.sum(1), torch.empty(8192, 8192))
    per_byte = [(cost.time_us - H200.launch_us) / cost.bytes for cost in (few, many)]
    assert per_byte[0] > 4 * per_byte[1]


def test_special_functions_are_counted() -> None:
    assert cost_of(lambda x: x.exp() / (x + 1), X).special == 2 * NUMEL


def test_apart_is_the_sum_over_the_ops() -> None:
    cost = cost_of(lambda x: x.exp() * 2, X)
    alone = [cost_of(torch.exp, X), cost_of(lambda x: x * 2, X)]
    assert cost.unfused_us == pytest.approx(sum(one.time_us for one in alone))
    assert cost.unfused_bytes == sum(one.bytes for one in alone)
    assert cost.time_us < cost.unfused_us


def test_a_faster_device_is_predicted_to_be_faster() -> None:
    wide = torch.empty(4096, 4096)
    times = [
        cost_of(torch.exp, wide, device=device_spec(target)).time_us
        for target in ("sm_89", "sm_80", "sm_90", "sm_100")
    ]
    assert times == sorted(times, reverse=True)
