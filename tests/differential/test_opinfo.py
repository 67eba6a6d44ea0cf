"""A fixed part of PyTorch's own operator samples; `make opinfo` runs all of them."""

from __future__ import annotations

import warnings

import pytest

from opinfo.cases import Task, cases_of
from opinfo.check import FAILED, FUSED, RAISED, check
from opinfo.families import is_of_another_family
from opinfo.known import reason_of

PART = {
    "float32": (
        "addmm", "arange", "argmax", "cat", "diag", "einsum", "expand", "gather", "index_select",
        "lerp", "linalg_vector_norm", "logaddexp", "masked_fill", "nn_functional_dropout",
        "nn_functional_group_norm", "nn_functional_pad_reflect", "nn_functional_soft_margin_loss",
        "permute", "roll", "softmax", "var", "where",
    ),
    "bfloat16": (
        "add", "clamp", "cumsum", "logsumexp", "nn_functional_gelu", "nn_functional_layer_norm",
        "sum",
    ),
    "float16": ("div_floor_rounding", "mm", "nn_functional_silu", "sigmoid", "std"),
    "float64": ("atan2", "nn_functional_cross_entropy", "tril", "xlogy"),
    "int64": ("bitwise_left_shift", "floor_divide", "prod", "remainder", "sort", "take_along_dim"),
    "bool": ("all", "bitwise_xor", "logical_not", "mul", "stack"),
}  # fmt: skip
TASKS = [Task(operator, dtype) for dtype, operators in PART.items() for operator in operators]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.operator}-{task.dtype}")
def test_samples_agree_with_eager(task: Task, device: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of some of its own samples
        cases = list(cases_of(task, device, number=2))
        outcomes = [check(case, device) for case in cases]
    assert outcomes
    raised = [c for c, o in zip(cases, outcomes, strict=True) if o.status == RAISED]
    assert [c.name for c in raised if not c.is_error] == []
    failed = [o for o in outcomes if o.status == FAILED and not reason_of(task, o.name)]
    assert not failed, "; ".join(f"{o.name}: {o.detail}" for o in failed)


def test_a_wrong_result_is_seen(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that gives twice the values, and one that gives a copy of a view, both fail."""
    (sample, *_) = cases_of(Task("sin", "float32"), device, number=1)
    view = next(cases_of(Task("permute", "float32"), device, number=1))
    right = check(sample, device)
    assert right.status == FUSED, right.detail
    monkeypatch.setattr("fuser.compile", lambda program, **_: _Changed(program))
    monkeypatch.setattr("fuser.plans", lambda compiled: ())
    assert "beyond the tolerance" in check(sample, device).detail
    assert "shared memory" in check(view, device).detail


class _Changed:
    def __init__(self, program: object) -> None:
        self.program = program

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.program(*args, **kwargs).clone() * 2  # type: ignore[operator]


def test_which_calls_are_of_the_five_families() -> None:
    assert not is_of_another_family(["aten.index_put.default", "aten.i0.default"])
    assert is_of_another_family(["aten.mm.default", "aten.convolution.default"])
    assert is_of_another_family(["aten.sort.default"])
