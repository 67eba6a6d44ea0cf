"""Products that read by tensor descriptors compile for GPUs that are not here: without spills, by
the instructions that copy tiles, within what a block has."""

from __future__ import annotations

from collections.abc import Callable
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


EVERY_TILE = ("gelu", "gated")

Compiled = dict[str, tuple[Region, list[Resources | str]]]


def only(plan: Plan) -> tuple[Region, KernelSpec]:
    """The one region that a program becomes, and its kernel."""
    assert not plan.opaque
    (region,) = plan.regions
    assert region.strategy is Strategy.DESCRIBED_PRODUCT
    ((kernel,),) = (entry.kernels for entry in plan.kernels)
    return region, kernel


@pytest.fixture(scope="module", params=TARGETS)
def compiled(request: pytest.FixtureRequest) -> tuple[str, Compiled]:
    """What the compiler says of every program where descriptors are preferred: of its first tile,
    and of all tiles of some."""
    target: str = request.param
    before = torch.get_float32_matmul_precision()
    # float32 is multiplied on tensor cores only where torch is allowed to.
    torch.set_float32_matmul_precision("high")
    with pytest.MonkeyPatch.context() as patch:
        prefer_descriptors(patch)
        found = {
            name: only(fuser.plan(program, *args, target=target))
            for name, (program, args) in PROGRAMS.items()
        }
    torch.set_float32_matmul_precision(before)
    each: list[tuple[str, KernelSpec]] = []
    for name, (_, kernel) in found.items():
        tiles = kernel.configurations if name in EVERY_TILE else kernel.configurations[:1]
        each += [(name, replace(kernel, configurations=(tile,))) for tile in tiles]
    told: dict[str, list[Resources | str]] = {name: [] for name in found}
    results = compile_many([kernel for _, kernel in each], target)
    for (name, _), result in zip(each, results, strict=True):
        told[name].append(result)
    return target, {name: (found[name][0], told[name]) for name in found}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_compile_without_spills(name: str, compiled: tuple[str, Compiled]) -> None:
    target, results = compiled
    region, resources = results[name]
    limit = device_spec(target).shared_bytes_per_block
    assert len(resources) == (len(region.schedule.candidates[0]) if name in EVERY_TILE else 1)
    for found in resources:
        assert isinstance(found, Resources), found
        assert found.spills == 0
        assert found.shared_bytes <= limit
    first = resources[0]
    assert isinstance(first, Resources)
    needs = region.cost.needs
    assert first.shared_bytes <= needs.shared_bytes <= 2 * first.shared_bytes
    if target == "sm_90" and name != "odd":
        # From sm_100 on the sums lie in a memory of their own; odd results are stored one by one.
        assert abs(needs.registers - first.registers) < 0.35 * first.registers


@pytest.mark.parametrize("name", EVERY_TILE)
def test_large_products_are_predicted_to_be_faster_by_descriptors(name: str) -> None:
    program, args = PROGRAMS[name]
    region, kernel = only(fuser.plan(program, *args, target="sm_90"))
    assert kernel.otherwise is not None
    assert region.schedule.otherwise is not None
    assert region.schedule.otherwise.strategy is Strategy.PRODUCT
    # Halves: 128 sums of a lane leave no registers for what follows them.
    assert kernel.configurations[0].block("PARTS") == 2


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_other_gpus_have_pointers(target: str) -> None:
    program, args = PROGRAMS["gelu"]
    (region,) = fuser.plan(program, *args, target=target).regions
    assert region.strategy is Strategy.PRODUCT
    assert region.schedule.otherwise is None
