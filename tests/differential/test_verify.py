"""`fuser.verify`: what is right passes, and each planted fault is found and named.

Faults are planted in the text of kernels or in a row of the op table, so that everything else is
the compiler as it is. `assert_matches_eager`, which the other tests rely on, has to see them too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuser
from fuser.codegen.generate import generate
from fuser.errors import FusionMismatch, InvalidArgument
from fuser.ir.kernel import RegionKernels
from fuser.ir.plan import FusionPlan
from support.compare import assert_matches_eager
from support.planted import edit_host, edit_kernels, edit_row, use_generate


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


class Gelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 33)
        with torch.no_grad():
            self.linear.weight.copy_(torch.linspace(-1, 1, 198).view(33, 6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).softmax(-1)
        return F.gelu(y * 20 - 2)  # the line with the fault


def inputs(device: str) -> Tensor:
    return torch.linspace(-2, 2, 30).view(5, 6).to(device)


# What is right ------------------------------------------------------------------------------------


def test_a_right_module_is_verified(device: str) -> None:
    model = Gelu().to(device)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    report = fuser.verify(model, inputs(device))
    assert report.is_right
    assert {check.phase for check in report.regions} == {"forward", "backward"}
    assert {"output 0", "gradient of linear.weight"} <= {check.name for check in report.tensors}
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())
    text = str(report)
    assert text.splitlines()[-1].startswith("verified: ")
    assert "against eager and float64" in text
    assert "forward 0 region_0" in text
    assert text.count(" ok") == len(report.regions) + len(report.tensors)


def test_functions_arguments_and_writes_are_verified(device: str) -> None:
    def program(x: Tensor, *, scale: float) -> Tensor:
        x.mul_(scale)
        return x.softmax(-1)

    x = inputs(device)
    report = fuser.verify(program, x, scale=0.5)
    assert report.is_right
    assert torch.equal(x, inputs(device))  # a copy was written to
    assert {"output 0", "argument 0"} <= {check.name for check in report.tensors}


def test_random_programs_are_verified(device: str) -> None:
    report = fuser.verify(lambda x: F.dropout(x * 2, 0.5).softmax(-1), inputs(device))
    assert report.is_right


def test_graphs_on_both_sides_of_a_break_are_verified(device: str) -> None:
    def program(x: Tensor) -> Tensor:
        y = x.exp()
        torch._dynamo.graph_break()
        return y.softmax(-1)

    report = fuser.verify(program, inputs(device))
    assert {check.graph for check in report.regions} == {0, 1}


def test_what_is_not_a_model_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="verify"):
        fuser.verify(nn.Linear, torch.ones(2))
    with pytest.raises(InvalidArgument, match="verify"):
        fuser.verify("model", torch.ones(2))


# What is wrong ------------------------------------------------------------------------------------


def test_a_wrong_constant_is_found_and_named(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = edit_kernels(monkeypatch, lambda text: text.replace("0.70710678", "0.71710678"))
    with torch.no_grad(), pytest.raises(FusionMismatch) as caught:
        fuser.verify(Gelu().to(device), inputs(device))
    fields = caught.value.fields
    assert changed
    assert str(fields["region"]).startswith(f"{changed[0]} (inference graph 0)")
    assert "erf" in str(fields["operations"]).split(", ")
    assert "the line with the fault" in str(fields["source_line"])
    assert f"{__name__.rpartition('.')[-1]}.py:" in str(fields["source_line"])
    index = fields["index"]
    assert isinstance(index, list)
    assert [0 <= k < size for k, size in zip(index, (5, 33), strict=True)] == [True, True]
    error, eager_error = fields["fused_error"], fields["eager_error"]
    assert isinstance(error, float)
    assert isinstance(eager_error, float)
    assert error > 100 * eager_error
    text = str(caught.value)
    assert text.startswith(f"[fusion-mismatch] region {changed[0]}")
    for part in ("worst element: [", "fused:", "eager:", "fp64:", "the line with the fault"):
        assert part in text


FAULTS = {
    "divide": "fn.divide({0}, {1}) * 1.0001",
    "exp": "fn.exp({0}) + 0.001",
    "erf": "fn.erf({0} * 1.01)",
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_wrong_row_of_the_op_table_is_found(
    kind: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_row(monkeypatch, kind, FAULTS[kind])
    with torch.no_grad(), pytest.raises(FusionMismatch) as caught:
        fuser.verify(Gelu().to(device), inputs(device))
    assert kind in str(caught.value.fields["operations"]).split(", ")
    with pytest.raises(AssertionError, match="error beyond the tolerance"):
        assert_matches_eager(Gelu(), inputs("cpu"), device=device)


def test_nan_where_eager_has_a_number_is_found(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_row(monkeypatch, "erf", "fn.sqrt({0})")
    with torch.no_grad(), pytest.raises(FusionMismatch) as caught:
        fuser.verify(Gelu().to(device), inputs(device))
    assert "fused:  nan" in str(caught.value)


def test_a_number_where_eager_has_nan_is_found(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_row(monkeypatch, "sqrt", "fn.sqrt(fn.abs({0}))")
    with pytest.raises(FusionMismatch, match="not finite"):
        fuser.verify(torch.sqrt, inputs(device))


def test_a_fault_in_the_backward_pass_is_found(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_backward(plan: FusionPlan, *given: Any, **options: Any) -> tuple[RegionKernels, ...]:
        with monkeypatch.context() as patch:
            if plan.phase == "backward":
                edit_row(patch, "mul", "{0} * {1} * 1.001")
            return generate(plan, *given, **options)

    use_generate(monkeypatch, only_backward)
    with pytest.raises(FusionMismatch, match="backward graph 0"):
        fuser.verify(Gelu().to(device), inputs(device))
    with torch.no_grad():
        assert fuser.verify(Gelu().to(device), inputs(device)).is_right


def test_a_wrong_whole_number_is_found(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_row(monkeypatch, "bitwise_and", "{0} | {1}")
    whole = torch.arange(12, device=device)
    with pytest.raises(FusionMismatch, match="elements differ"):
        fuser.verify(lambda n: n & 5, whole)


# What the other tests rely on ---------------------------------------------------------------------


def double(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16], ids=str)
def test_an_element_left_out_is_seen(
    dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = edit_kernels(
        monkeypatch, lambda text: text.replace("x_mask = x < 30", "x_mask = x < 29")
    )
    with pytest.raises(AssertionError, match=r"output\[4, 5\]|nan"):
        assert_matches_eager(double, inputs("cpu").to(dtype), device=device)
    assert changed


def test_wrong_layouts_aliases_and_writes_are_seen(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand-ins for the compiler, each wrong in one way."""

    def in_place(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1

    wrong: list[tuple[Callable[..., Any], Callable[..., Any], str]] = [
        (double, lambda x: (x.t() * 2).contiguous().t(), "strides"),
        (double, lambda x: (x * 2).double(), "dtype"),
        (double, lambda x: [x * 2], "structure"),
        (lambda x: x.t(), lambda x: x.t().clone(), "strides|shared memory"),
        (lambda x: x[1:], lambda x: x[1:].clone(), "shared memory"),
        (in_place, lambda x: x * 2 + 1, "argument"),
    ]
    for right, other, message in wrong:
        monkeypatch.setattr(fuser, "compile", lambda *_, other=other, **__: other)
        monkeypatch.setattr(fuser, "plans", lambda _: ())
        with pytest.raises(AssertionError, match=message):
            assert_matches_eager(right, inputs("cpu"), device=device)


def test_the_sign_of_a_zero_is_seen(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_row(monkeypatch, "neg", "0 - {0}")
    zeros = torch.tensor([0.0, 1.0])
    with pytest.raises(AssertionError, match="zero of the other sign"):
        assert_matches_eager(torch.neg, zeros, device=device, elementwise=True)


def test_a_small_element_has_its_own_tolerance(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_row(monkeypatch, "mul", "{0} * {1} + 1e-9")
    sizes = torch.tensor([1e-6, 1e6])
    with pytest.raises(AssertionError, match="beyond the tolerance"):
        assert_matches_eager(double, sizes, device=device, elementwise=True)
    assert_matches_eager(double, sizes, device=device)


def test_a_wrong_host_program_is_found(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    def edit(text: str) -> str:
        head, mark, results = text.partition("    return (\n")
        return head + mark + re.sub(r"(\w+),", r"\1 + 1,", results, count=1)

    edit_host(monkeypatch, edit)
    with pytest.raises(FusionMismatch, match="host program of the inference graph"):
        fuser.verify(lambda x: x.softmax(-1) * 2, inputs(device))
