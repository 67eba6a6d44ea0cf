"""Kernels with instructions that the assembler gets wrong are refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fuser.runtime.assembly import UnreliableInstruction, check_assembly


@pytest.mark.parametrize("line", ["add.s16x2 \t%r11, %r9, %r10;", "@%p1 max.u16x2 %r1, %r2, %r3;"])
def test_pairs_of_small_integers_are_refused(line: str) -> None:
    with pytest.raises(UnreliableInstruction, match="16x2"):
        check_assembly(SimpleNamespace(asm={"ptx": f"mov.pred \t%p4, 0;\n\t{line}"}))


def test_pairs_whose_halves_both_serve_are_not() -> None:
    """As of int8 tensors."""
    check_assembly(SimpleNamespace(asm={"ptx": "add.s16x2 %r11, %r9, %r10; mov.b32 %r9, 0;"}))


def test_pairs_of_halves_and_other_assembly_are_not() -> None:
    check_assembly(
        SimpleNamespace(asm={"ptx": "cvt.rn.bf16x2.f32 %r1, %f1, %f2; add.s16 %rs1, %rs2, 1;"})
    )
    check_assembly(SimpleNamespace(asm={"amdgcn": "v_pk_add_u16 v0, v1, v2"}))
