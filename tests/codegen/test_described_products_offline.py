"""Products that read by tensor descriptors compile for GPUs that are not here: without spills, by
the instructions that copy tiles, within what a block has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fuser
from fuser.device import device_spec
from fuser.ir.kernel import KernelSpec, Resources
from fuser.ir.region import Region, Strategy
from fuser.report import Plan
from fuser.runtime.offline import compile_many
from support.described import prefer_descriptors

TARGETS = ("sm_90", "sm_100")
Program = Callable[..., Any]


def halves(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)


def gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def residual(x: Tensor, w: Tensor, b: Tensor, skip: Tensor) -> Tensor:
    return F.linear(x, w, b) + skip


def gated(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def relu(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).relu()


def turned(x: Tensor, w: Tensor) -> Tensor:
    return (x.t() @ w.t()).relu()


def heads(q: Tensor, k: Tensor) -> Tensor:
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    return (q @ k.transpose(-1, -2) * 0.125).sigmoid()


def activated(x: Tensor, w: Tensor) -> Tensor:
    return F.relu(x) @ w


PROGRAMS: dict[str, tuple[Program, tuple[Tensor, ...]]] = {
    "gelu": (gelu, (halves(2048, 1024), halves(4096, 1024), halves(4096))),
    "float16": (relu, (halves(2048, 1024).half(), halves(1024, 4096).half())),
    "residual": (
        residual,
        (halves(2048, 1024), halves(2048, 1024), halves(2048), halves(2048, 2048)),
    ),
    "gated": (gated, (halves(2048, 512), halves(2048, 512), halves(2048, 512))),
    "turned": (turned, (halves(512, 2048), halves(2048, 512))),
    "odd": (gelu, (halves(1001, 776), halves(1003, 776), halves(1003))),
    "heads": (heads, (halves(8, 512, 16, 64), halves(8, 512, 16, 64))),
    "float32": (relu, (torch.empty(2048, 512), torch.empty(512, 2048))),
    "turned_float32": (turned, (torch.empty(512, 2048), torch.empty(2048, 512))),
    "activated": (activated, (halves(2048, 512), halves(512, 2048))),
}


def described(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Region, KernelSpec]:
    """The one region that a program becomes where descriptors are preferred, and its kernel."""
    prefer_descriptors(monkeypatch)
    program, args = PROGRAMS[name]
    return only(fuser.plan(program, *args, target=target))


def only(plan: Plan) -> tuple[Region, KernelSpec]:
    assert not plan.opaque
    (region,) = plan.regions
    assert region.strategy is Strategy.DESCRIBED_PRODUCT
    ((kernel,),) = (entry.kernels for entry in plan.kernels)
    return region, kernel


@pytest.fixture
def tensor_cores_multiply_float32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.slow
@pytest.mark.usefixtures("tensor_cores_multiply_float32")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_compile_without_spills(
    name: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    region, kernel = described(name, target, monkeypatch)
    (found,) = compile_many([kernel], target)
    assert isinstance(found, Resources), found
    assert found.spills == 0
    assert found.shared_bytes <= region.cost.needs.shared_bytes
    assert region.cost.needs.shared_bytes <= device_spec(target).shared_bytes_per_block


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gelu", "gated"])
def test_every_candidate_compiles_without_spills(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, kernel = described(name, "sm_90", monkeypatch)
    each = [replace(kernel, configurations=(tile,)) for tile in kernel.configurations]
    for found in compile_many(each, "sm_90"):
        assert isinstance(found, Resources), found
        assert found.spills == 0


@pytest.mark.parametrize("name", ["gelu", "gated"])
def test_large_products_are_predicted_to_be_faster_by_descriptors(name: str) -> None:
    program, args = PROGRAMS[name]
    region, kernel = only(fuser.plan(program, *args, target="sm_90"))
    assert kernel.otherwise is not None
    assert region.schedule.otherwise is not None
    assert region.schedule.otherwise.strategy is Strategy.PRODUCT
    wide = kernel.configurations[0].block("PARTS")
    assert wide == 2  # halves: 128 sums of a lane leave no registers for what follows them


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_other_gpus_have_pointers(target: str) -> None:
    program, args = PROGRAMS["gelu"]
    (region,) = fuser.plan(program, *args, target=target).regions
    assert region.strategy is Strategy.PRODUCT
    assert region.schedule.otherwise is None


def test_needs_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    region, kernel = described("residual", "sm_90", monkeypatch)
    (found,) = compile_many([kernel], "sm_90")
    assert isinstance(found, Resources), found
    assert found.shared_bytes <= region.cost.needs.shared_bytes <= 2 * found.shared_bytes
    assert abs(region.cost.needs.registers - found.registers) < 0.35 * found.registers
