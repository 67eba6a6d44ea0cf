"""Every row of the op table against eager and float64: each element type, and gradients.

In float32 a sample runs with all its shapes and layouts, otherwise with the special values and one
odd shape: code for an element does not depend on where it lies. All cases go through one compiled
function; a failure names the sample, the element type and, by its key in the output, the case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from fuser.ir.ops import TABLE, Group
from support.compare import assert_matches_eager, generated_kinds
from support.inputs import Cases, Inputs
from support.samples import BOOL, FLOATS, INTEGERS, SAMPLES, Sample

FEW = ("special", "odd")
EXACT = INTEGERS + BOOL
# Half of the time that a test takes is spent on starting: the exact types share one program.
GROUPS: dict[str, Sequence[torch.dtype]] = {
    **{str(dtype).removeprefix("torch."): (dtype,) for dtype in FLOATS},
    "exact": EXACT,
}
GRADIENT_GROUPS = ("float32", "bfloat16")


def chosen(groups: Sequence[str], gradient: bool = False) -> list[Any]:
    """Every sample with each group in which it has an element type."""
    return [
        pytest.param(sample, group, id=f"{sample.name}-{group}")
        for sample in SAMPLES
        for group in groups
        if set(sample.dtypes) & set(GROUPS[group]) and (sample.gradient or not gradient)
    ]


def cases_of(sample: Sample, group: str) -> Cases:
    """The arguments by element type and case."""
    found: Cases = {}
    for dtype in GROUPS[group]:
        if dtype in sample.dtypes:
            for name, arguments in sample.cases(Inputs(dtype)).items():
                if dtype is torch.float32 or name in FEW:
                    found[f"{str(dtype).removeprefix('torch.')} {name}"] = arguments
    return found


def program_of(sample: Sample) -> Any:
    def program(cases: Cases) -> dict[str, Any]:
        return {name: sample.call(*arguments) for name, arguments in cases.items()}

    return program


def test_every_kind_of_the_table_has_a_sample() -> None:
    # Random numbers are no function of their operands, and a product alone is the library's: they
    # have tests of their own.
    elsewhere = (Group.RANDOM, Group.CONTRACTION)
    kinds = {row.kind for row in TABLE if row.group not in elsewhere}
    assert kinds == {sample.kind for sample in SAMPLES}


@pytest.mark.parametrize(("sample", "group"), chosen(tuple(GROUPS)))
def test_forward(sample: Sample, group: str, device: str) -> None:
    plans = assert_matches_eager(
        program_of(sample), cases_of(sample, group), device=device, expect_opaque=(),
        elementwise=sample.elementwise, signed_zeros=sample.signed_zeros, layouts=sample.layouts,
    )  # fmt: skip
    assert (sample.reaches or sample.kind) in generated_kinds(plans)


@pytest.mark.parametrize(("sample", "group"), chosen(GRADIENT_GROUPS, gradient=True))
def test_gradient(sample: Sample, group: str, device: str) -> None:
    assert_matches_eager(
        program_of(sample), cases_of(sample, group), grad=True, device=device,
        expect_opaque=sample.backward_calls, elementwise=sample.elementwise,
        signed_zeros=sample.signed_zeros, layouts=sample.layouts,
    )  # fmt: skip
