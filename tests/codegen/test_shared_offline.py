"""Shared kernels compile for GPUs without spilling, and keep what is known of their addresses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from fuser.codegen.generate import generate
from fuser.ir.kernel import KernelSpec
from fuser.passes.pipeline import plan_graph
from fuser.runtime import offline
from fuser.runtime.offline import Resources, compile_many
from support.graphs import captured_graph

SHAPES = [(640, 512), (48,), (31, 7), (256,), (96, 16), (129,)]

PTX = """\
import json, sys
from triton.backends.compiler import GPUTarget
from fuser.runtime import offline
job = offline._Job(**json.load(sys.stdin))
print(offline._compile(job, GPUTarget("cuda", int(sys.argv[1]), 32)).asm["ptx"])
"""


def step(*lists: list[Tensor]) -> None:
    for p, g, m, s in zip(*lists, strict=True):
        m.lerp_(g, 0.1)
        s.mul_(0.9).addcmul_(g, g, value=0.1)
        p.addcdiv_(m, s.sqrt() + 1e-8, value=-0.01)


def norms(*lists: list[Tensor]) -> list[Tensor]:
    return [torch.linalg.vector_norm(value) for values in lists for value in values]


def specs(program: object, target: str) -> list[KernelSpec]:
    lists = [[torch.empty(shape) for shape in SHAPES] for _ in range(4)]
    plan = plan_graph(captured_graph(program, *lists), target)
    return [s for entry in generate(plan) if len(entry.regions) > 1 for s in entry.kernels]


def borders(*lists: list[Tensor]) -> list[Tensor]:
    """Of one program each: the compiler may know all of its indices to be small."""
    return [torch.slice_scatter(x, torch.zeros(4, 4), 1, 2, 6) for x in lists[0]]


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_small_indices_are_not_packed_in_pairs(target: str) -> None:
    """Which the assembler gets wrong: `fuser/runtime/assembly.py`."""
    plan = plan_graph(captured_graph(borders, [torch.empty(4, 9) for _ in range(3)]), target)
    (entry,) = generate(plan)
    assert len(entry.regions) == 3
    (needs,) = compile_many(entry.kernels, target)
    assert isinstance(needs, Resources)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("program", [step, norms], ids=lambda program: program.__name__)
def test_they_compile_without_spills(program: object, target: str) -> None:
    found = compile_many(specs(program, target), target)
    assert found
    assert all(isinstance(needs, Resources) and not needs.spills for needs in found)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_regions_keep_their_wide_loads(target: str) -> None:
    """Four regions have sizes that are multiples of 16, and two have not."""
    (spec,) = specs(step, target)
    job = offline._job(spec, {}, ())
    command = ["env", "-u", "TRITON_INTERPRET", f"PYTHONPATH={os.pathsep.join(sys.path)}"]
    command += [sys.executable, "-c", PTX, target.removeprefix("sm_")]
    done = subprocess.run(command, input=json.dumps(asdict(job)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = Counter(re.findall(r"(?:ld|st)\.global\S*", done.stdout))
    # A lane has eight elements of a tensor. The compiler may write alike parts only once.
    assert found["ld.global.v4.b32"] >= 2 * 4
    assert found["st.global.v4.b32"] >= 2 * 3
    assert found["ld.global.b32"] <= 2 * 8 * 4
    assert found["st.global.b32"] <= 2 * 8 * 3
    assert len(found) == 4
