"""Finished kernel text: tidied, checked, and keyed by what it does; names inside a kernel."""

from __future__ import annotations

import textwrap

import pytest
import torch

from fuser.codegen.names import RESERVED, Names
from fuser.codegen.source import checked_source, program_key
from fuser.errors import SourceGenerationError
from support.graphs import kernels_of

HEADER = '''"""A kernel.

What it computes.
"""

import triton
import triton.language as tl

from fuser.runtime import device_functions as fn


@triton.jit
'''

BODY = """\
def {kernel}(
    {a}_ptr,  # f32[64]
    {b}_out,  # f32[64]
    {size},
    INDEX_TYPE: tl.constexpr,
    XBLOCK: tl.constexpr,
):
    x = tl.program_id(0).to(INDEX_TYPE) * XBLOCK + tl.arange(0, XBLOCK)
    x_mask = x < {size}
    {a} = tl.load({a}_ptr + x, x_mask, other=0)  # f32[64]  {comment}
    {b} = {function}({a}) * {number}
    tl.store({b}_out + x, {b}, x_mask)
"""

NAMES = {
    "kernel": "region_0",
    "a": "mul",
    "b": "exp",
    "size": "size_0",
    "comment": "model.py:3",
    "function": "fn.exp",
    "number": "2.0",
}


def source(**changes: str) -> str:
    return HEADER + BODY.format(**{**NAMES, **changes})


# Checks -----------------------------------------------------------------------------------------


def test_a_kernel_passes_as_it_is() -> None:
    assert checked_source("region_0", source()) == source()


def test_gaps_that_templates_leave_are_closed() -> None:
    untidy = (
        source().replace("    x_mask", "\n\n    \n    x_mask").replace("\n\n\n@", "\n\n\n\n\n\n@")
    )
    assert checked_source("region_0", untidy + "\n\n\n") == source()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (source() + "    )\n", "not valid Python"),
        (source(kernel="region_1"), "defines no kernel"),
        ("", "defines no kernel"),
        (source(function="fm.exp"), "uses fm, which nothing defines"),
        (source(number="scale"), "uses scale, which nothing defines"),
        (source(number="XBLOK"), "uses XBLOK, which nothing defines"),
    ],
)
def test_what_triton_would_not_take_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SourceGenerationError, match=reason):
        checked_source("region_0", text)


def test_a_refusal_quotes_the_line() -> None:
    with pytest.raises(SourceGenerationError, match=r"exp = fn.exp\(mul\) \* scale"):
        checked_source("region_0", source(number="scale"))


def test_names_of_loops_and_other_functions_are_known() -> None:
    text = HEADER + textwrap.dedent(
        """\
        def same(a):
            return a

        def region_0(a_ptr, RBLOCK: tl.constexpr):
            for r_start in range(0, 4, RBLOCK):
                first, (second, third) = r_start, (1, 2)
                tl.store(a_ptr + first, second + third + float("inf"))
        """
    )
    assert checked_source("region_0", text) == text


# Keys -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel": "region_7"},
        {"a": "add_3", "b": "relu"},
        {"size": "size_1"},
        {"comment": "elsewhere.py:99 y = f(x)"},
        {"kernel": "layer_9", "a": "b", "b": "a", "size": "rows", "comment": ""},
    ],
)
def test_a_program_under_other_names_has_the_same_key(changes: dict[str, str]) -> None:
    assert program_key(source(**changes)) == program_key(source())


def test_a_docstring_is_no_part_of_a_key() -> None:
    assert program_key(source().replace("A kernel", "Another kernel")) == program_key(source())


@pytest.mark.parametrize(
    "other",
    [
        source(function="fn.sin"),
        source(number="2"),
        source(number="3.0"),
        source().replace("tl.store(exp_out", "tl.store(mul_ptr"),
        source().replace("+ x, x_mask, other=0", "+ x * 2, x_mask, other=0"),
        source().replace("XBLOCK", "YBLOCK"),
        source().replace("    mul_ptr,  # f32[64]\n    exp_out,", "    exp_out,\n    mul_ptr,"),
        source().replace("import device_functions", "import other_functions"),
    ],
)
def test_another_program_has_another_key(other: str) -> None:
    assert program_key(other) != program_key(source())


def test_layers_of_a_model_share_kernels() -> None:
    """Two layers alike differ in names and lines; a third has another size."""

    def program(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.softmax(1) * 2, y.softmax(1) * 2, z.softmax(1) * 2

    x, y, z = torch.empty(4, 6), torch.empty(4, 6), torch.empty(4, 8)
    first, second, third = kernels_of(program, x, y, z)
    assert first.key == second.key != third.key
    assert first.source != second.source


# Names ------------------------------------------------------------------------------------------


def test_a_name_is_given_once() -> None:
    names = Names()
    assert [names.fresh("mul") for _ in range(3)] == ["mul", "mul_at2", "mul_at3"]
    assert names.fresh("mul_at2") == "mul_at2_at2"


@pytest.mark.parametrize(
    "wanted", ["x0", "r12", "lambda", "1st", "", "a.b-c", "size_3", *sorted(RESERVED)]
)
def test_names_are_identifiers_that_no_template_uses(wanted: str) -> None:
    name = Names().fresh(wanted)
    assert name.isidentifier()
    assert name not in RESERVED
    assert name not in {"x0", "r12", "lambda", "size_3"}
