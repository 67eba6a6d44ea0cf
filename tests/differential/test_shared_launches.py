"""Programs whose kernels share launches: what they compute and write, region by region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fuser
from fuser.runtime import launcher
from support.compare import assert_matches_eager


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


SHAPES = [(7, 5), (5,), (13,), (1000, 3), (33, 33), (2, 3, 4), (0, 4), ()]


def several(seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [values(*shape, seed=seed, dtype=dtype) for shape in SHAPES]


def adamw(ps: list[Tensor], gs: list[Tensor], ms: list[Tensor], ss: list[Tensor]) -> None:
    for p, g, m, s in zip(ps, gs, ms, ss, strict=True):
        p.mul_(0.99)
        wide = g.to(m.dtype)
        m.lerp_(wide, 0.1)
        s.mul_(0.9).addcmul_(wide, wide, value=0.1)
        p.addcdiv_(m.to(p.dtype), s.sqrt().to(p.dtype) + 1e-3, value=-0.01)


def averages(means: list[Tensor], values: list[Tensor]) -> None:
    torch._foreach_lerp_(means, values, 0.1)


def clip(gradients: list[Tensor]) -> Tensor:
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    total = torch.linalg.vector_norm(torch.stack(norms))
    for gradient in gradients:
        gradient.mul_((1.0 / (total + 1e-6)).clamp(max=1.0))
    return total


def long_rows(x: Tensor, y: Tensor) -> Any:
    """Both are split over programs, and combined by a second kernel."""
    return x.sum(), y.square().mean()


def all_kinds(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> Any:
    """Elements, tiles over two axes, rows, columns and rows in blocks."""
    return x.exp(), y + z.t(), z.softmax(1), y.sum(0), w.log_softmax(0), x[1:, ::2] * 2


def whole_numbers(x: Tensor, y: Tensor, z: Tensor) -> Any:
    return x.bitwise_and(3), y.to(torch.int8) + 1, z.masked_fill(z > 0, float("nan")).isnan()


def picked(table: Tensor, where: Tensor, y: Tensor) -> Any:
    return F.embedding(where, table) * 2, y.exp()


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "adamw": (adamw, (several(), several(1), several(2), [x.abs() for x in several(3)])),
    "adamw_half": (
        adamw,
        (
            several(dtype=torch.bfloat16),
            several(1, torch.bfloat16),
            several(2),
            [x.abs() for x in several(3)],
        ),
    ),
    "strided": (averages, ([values(6, 4).t(), values(9)], [values(4, 6), values(18)[::2]])),
    "averages": (averages, (several(), several(1))),
    "clip": (clip, (several(),)),
    "long_rows": (long_rows, (values(40000), values(300, 200))),
    "all_kinds": (all_kinds, (values(9, 20), values(70, 65), values(65, 70), values(40000))),
    "whole_numbers": (
        whole_numbers,
        (torch.arange(11), values(6, 3), values(5, 5, 5)),
    ),
    "picked": (picked, (values(9, 20), torch.tensor([1, 8, 0]), values(3, 3))),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_they_compute_what_eager_does(
    program: tuple[Callable[..., Any], tuple[Any, ...]], device: str
) -> None:
    call, args = program
    (plan,) = assert_matches_eager(call, *args, device=device)
    assert plan.fusion.launches, str(plan)
    assert plan.calls is not None
    assert not plan.calls.unfused


def test_sizes_may_change(device: str) -> None:
    """Where the programs of a region end is worked out from the sizes of the call."""

    def program(x: Tensor, y: Tensor, z: Tensor) -> Any:
        return x.exp() * 2, y.t() + y.t().sin(), z.softmax(1), z.sum(0)

    torch.compiler.reset()
    compiled = fuser.compile(program, dynamic=True)
    for rows in (3, 70, 1, 0, 1000):
        args = [
            values(rows, 7).to(device),
            values(rows + 2, 5).to(device),
            values(rows, 9).to(device),
        ]
        for found, wanted in zip(compiled(*args), program(*args), strict=True):
            torch.testing.assert_close(found, wanted)
    plan = fuser.plans(compiled)[-1]
    assert plan.fusion.launches
    assert any("tl.cdiv(" in text for text in plan.sources().values())


def test_each_region_of_a_launch_is_verified(device: str) -> None:
    args = [[x.to(device) for x in several(seed)] for seed in (0, 1)]
    report = fuser.verify(averages, *args)
    names = {check.region for check in report.regions}
    assert len(names) == report.kernels == len(SHAPES)


def test_random_numbers_are_those_of_each_region(device: str) -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        return F.dropout(x, 0.5), F.dropout(y, 0.25) * 2

    (plan,) = assert_matches_eager(
        program, values(40, 30), values(17), device=device, is_random=True
    )
    assert plan.fusion.launches


def test_regions_run_unfused_where_their_kernel_does_not_compile(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cuda":
        pytest.skip("what is on a GPU is compiled before, where it is found and taken apart")
    load = launcher.load

    def broken(spec: Any) -> Any:
        if spec.name.startswith("launch"):
            raise launcher.KernelCompilationError(kernel=spec.name, cause="broken")
        return load(spec)

    monkeypatch.setattr(launcher, "load", broken)
    (plan,) = assert_matches_eager(averages, several(), several(1), device=device)
    assert plan.calls is not None
    assert set(plan.calls.unfused) == {region.name for region in plan.regions}
    assert len(plan.calls.unfused) == len(SHAPES)
