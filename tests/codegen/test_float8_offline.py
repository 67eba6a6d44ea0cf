"""Conversions to float8e4m3, compiled for GPUs that need not be here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = """
import triton
import triton.language as tl
from fuser.runtime import device_float8 as fn


@triton.jit
def quantise(source, result, again, N: tl.constexpr):
    places = tl.arange(0, N)
    bits = fn.to_float8_e4m3fn(tl.load(source + places))
    tl.store(result + places, bits)
    tl.store(again + places, fn.from_float8_e4m3fn(bits) + 1)
"""
WORKER = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from kernels import quantise

types = {"source": "*fp32", "result": "*u8", "again": "*fp32", "N": "constexpr"}
aligned = {(k,): [["tt.divisibility", 16]] for k in range(3)}
made = compile(
    ASTSource(quantise, types, constexprs={"N": 128}, attrs=aligned),
    target=GPUTarget("cuda", int(sys.argv[1]), 32),
    options={"num_warps": 2},
)
print(made.asm["ptx"])
"""


@pytest.mark.parametrize(("capability", "has_instruction"), [(80, False), (89, True), (90, True)])
def test_the_instruction_converts_one_number_at_a_time(
    capability: int, has_instruction: bool, tmp_path: Path
) -> None:
    """ptxas 12 loses what is used apart of two that one instruction converts. What decides is the
    target, so that what is compiled here is what runs there."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "worker.py").write_text(WORKER)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, str(tmp_path / "worker.py"), str(capability)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"cvt\.rn\.satfinite\.e4m3x2\.f32 +([^;]*);", done.stdout)
    assert bool(found) == has_instruction
    assert all(re.search(r", *0f00000000, ", operands) for operands in found), found
