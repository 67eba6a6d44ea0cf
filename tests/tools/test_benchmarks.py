"""The benchmarks' programs, counts and rows, without a GPU.

Programs run in eager at small sizes or as fake tensors at full size; times come from a stand-in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from fuser.runtime.interpreter import is_interpreting
from support.benchmarks import load

COPY_RATE, PRODUCT_RATE = 4.27e12, 684e12
"""The ceilings on the H200 that the floors below were worked out for."""

FLOORS = {
    "gelu_chain": 0.094,
    "three_outputs": 0.157,
    "transposed_add": 0.047,
    "rotary": 0.251,
    "softmax_1024": 0.063,
    "softmax_4096": 0.063,
    "softmax_32768": 0.063,
    "softmax_131072": 0.126,
    "add_rms_norm": 0.126,
    "dropout_add_layer_norm": 0.126,
    "dropout_add_layer_norm_training": 0.251,
    "layer_norm": 0.063,
    "layer_norm_training": 0.157,
    "group_norm_silu": 0.063,
    "column_sum": 0.126,
    "mse_loss": 0.126,
    "cross_entropy": 0.246,
    "cross_entropy_training": 0.738,
    "rms_norm_fp8": 0.047,
    "product": 1.608,
    "linear_gelu": 1.608,
    "linear_gelu_small": 0.0035,
    "linear_residual": 1.608,
    "swiglu": 2.161,
    "packed_swiglu": 2.161,
    "qkv": 0.603,
    "rms_norm_linear": 0.603,
    "linear_residual_layer_norm": 0.047,
    "one_token_linear": 0.008,
    "one_token_linear_14336": 0.0275,
    "few_tokens_linear_4": 0.0079,
    "few_tokens_linear_16": 0.0080,
    "few_tokens_linear_64": 0.0082,
    "one_token_swiglu": 0.055,
    "one_token_rms_norm_linear": 0.0118,
    "one_token_rms_norm_qkv": 0.0118,
    "scaled_masked_product": 0.157,
    "swiglu_mlp_training": 9.720,
    "adamw": 1.320,
    "adamw_transformer": 0.154,
    "clip_gradients": 0.044,
}

IN_PLACE = {"adamw": (0, 2, 3), "adamw_transformer": (0, 2, 3), "clip_gradients": (0,)}
"""Programs that return nothing, and which of their arguments they write."""


class StandIn:
    """A timer that runs a call once and takes it to need one millisecond."""

    def first_call(self, call: Callable[[], Any]) -> float:
        call()
        return 2.0

    def measure(self, call: Callable[[], Any]) -> Any:
        call()
        return load("measure").Timing(1.0, 0.01, 20.0, True)

    def replay_ms(self, call: Callable[[], Any]) -> float:
        call()
        return 0.5

    def busy_us(self, call: Callable[[], Any]) -> tuple[float, float]:
        call()
        return 20.0, 30.0


def small(name: str) -> Any:
    return load("workloads").workloads(4096)[name]


def nbytes(values: Any) -> int:
    leaves = pytree.tree_leaves(values)
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))


# What is counted ----------------------------------------------------------------------------------


def test_floors_are_those_that_were_worked_out_by_hand() -> None:
    found = load("workloads").workloads()
    assert list(found) == list(FLOORS)
    for name, expected in FLOORS.items():
        digits = len(str(expected).partition(".")[2])
        allowed = 0.5 * 10**-digits + 0.005 * expected  # the table rounds and leaves vectors out
        floor = found[name].floor_ms(COPY_RATE, PRODUCT_RATE)
        assert abs(floor - expected) <= allowed, f"{name}: {floor}"


@pytest.mark.parametrize("name", FLOORS)
def test_counts_are_the_bytes_of_inputs_and_outputs(name: str) -> None:
    workload = load("workloads").workloads()[name]
    with FakeTensorMode(), torch.set_grad_enabled(workload.is_training):
        arguments = workload.make("cpu")
        before = nbytes(arguments)
        outputs = workload.run(*arguments)
        written = nbytes(outputs)
        if workload.is_training:
            leaves = [x for x in arguments if x.requires_grad]
            written += nbytes(torch.autograd.grad(outputs, leaves, torch.ones_like(outputs)))
        elif name in IN_PLACE:
            written = nbytes([arguments[k] for k in IN_PLACE[name]])
    assert workload.written == written
    # Backward reads again what forward read, but what no gradient depends on.
    assert before <= workload.read <= (3 * before if workload.is_training else before)
    assert workload.bytes == workload.read + workload.written


def test_the_floor_is_the_longer_of_bytes_and_products() -> None:
    workload = load("workload").Workload("w", None, None, read=60, written=40, flops=500)
    assert workload.floor_ms(copy_rate=100.0, product_rate=1000.0) == 1000.0
    assert workload.bound(copy_rate=100.0, product_rate=1000.0) == "memory"
    assert workload.floor_ms(copy_rate=1000.0, product_rate=1000.0) == 500.0
    assert workload.bound(copy_rate=1000.0, product_rate=1000.0) == "products"


@pytest.mark.parametrize("name", [*list(FLOORS)[: list(FLOORS).index("product")], *IN_PLACE])
def test_programs_run_with_few_rows(name: str) -> None:
    workload = small(name)
    with torch.set_grad_enabled(workload.is_training):
        arguments = workload.make("cpu")
        result = workload.call(workload.run, arguments)()
    values = [x for x in pytree.tree_leaves((result, arguments)) if x is not None]
    assert all(bool(torch.isfinite(x.double()).all()) for x in values)


def test_a_training_call_returns_the_gradients_of_its_leaves() -> None:
    workload = small("layer_norm_training")
    arguments = workload.make("cpu")
    gradients = workload.call(workload.run, arguments)()
    assert [g.shape for g in gradients] == [x.shape for x in arguments]
    assert all(x.grad is None for x in arguments)


def test_adamw_is_that_of_torch() -> None:
    module = load("optimisers")
    parameters, gradients, means, squares = module._adamw("", [(3, 4), (5,)]).make("cpu")
    models = [torch.nn.Parameter(p.clone()) for p in parameters]
    settings = {"lr": module.LEARNING_RATE, "weight_decay": module.DECAY, "eps": module.EPSILON}
    optimiser = torch.optim.AdamW(
        models, betas=(module.FIRST_BETA, module.SECOND_BETA), foreach=False, **settings
    )
    for model, gradient, mean, square in zip(models, gradients, means, squares, strict=True):
        model.grad = gradient.clone()
        state = {"step": torch.tensor(module.STEP - 1.0)}
        optimiser.state[model] = state | {
            "exp_avg": mean.clone(), "exp_avg_sq": square.clone()
        }  # fmt: skip
    optimiser.step()
    module.adamw(parameters, gradients, means, squares)
    for parameter, model in zip(parameters, models, strict=True):
        torch.testing.assert_close(parameter, model.detach())


def test_clipping_is_that_of_torch() -> None:
    module = load("optimisers")
    (gradients,) = module._clipping("", [(3, 4), (5,)]).make("cpu")
    models = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for model, gradient in zip(models, gradients, strict=True):
        model.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_(models, module.LARGEST_NORM, foreach=False)
    module.clip(gradients)
    for gradient, model in zip(gradients, models, strict=True):
        torch.testing.assert_close(gradient, model.grad)


# Rows ---------------------------------------------------------------------------------------------


def refuse(program: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        raise ValueError("first line\n\nsecond line")

    return call


def kernel_rows(*names: str) -> list[dict[str, Any]]:
    """Rows of eager and of a candidate that fails on the last of `names`."""
    candidate = load("candidates").Candidate
    eager, failing = candidate("eager", unchanged), candidate("other", refuse)
    rows = [kernel_row(name, (eager, candidate("other", unchanged))) for name in names[:-1]]
    return [*rows, kernel_row(names[-1], (eager, failing))]


def kernel_row(name: str, compared: Any) -> dict[str, Any]:
    rates = load("measure").Rates(COPY_RATE, PRODUCT_RATE)
    row: dict[str, Any] = load("kernels").measured_row(
        small(name), compared, StandIn(), rates, "cpu", lambda text: None
    )
    return row


def unchanged(program: Callable[..., Any]) -> Callable[..., Any]:
    return program


def test_a_candidate_that_raises_is_an_error_in_its_row_alone() -> None:
    rows = kernel_rows("softmax_1024", "column_sum")
    eager, other = (rows[1]["candidates"][name] for name in ("eager", "other"))
    assert other == {"error": "ValueError: first line | second line"}
    assert (eager["ms"], eager["host_us"], eager["first_call_s"]) == (1.0, 20.0, 2.0)
    assert eager["fraction"] == rows[1]["floor_ms"]
    found = load("kernels").summary(rows)
    assert (found["rows"], found["compared_rows"]) == (2, 1)
    assert found["geometric_mean"]["eager"] == pytest.approx(rows[0]["floor_ms"])
    assert found["failed"] == {"column_sum: other": "ValueError: first line | second line"}
    assert "other FAILED ValueError" in load("kernels").row_text(rows[1])


def test_short_programs_are_replayed_too() -> None:
    candidate = load("candidates").Candidate
    compared = (candidate("eager", unchanged), candidate("graphs", unchanged, has_graphs=True))
    row = kernel_row("softmax_1024", compared)
    eager, graphs = (row["candidates"][name] for name in ("eager", "graphs"))
    assert (eager["ms"], eager["replay_ms"]) == (1.0, 0.5)
    assert graphs["ms"] == 1.0
    assert "replay_ms" not in graphs
    assert "eager 1.0000 (0.00) replayed 0.5000" in load("kernels").row_text(row)


def test_a_call_that_cannot_be_captured_keeps_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandIn, "replay_ms", lambda clock, call: refuse(call)())
    row = kernel_row("softmax_1024", (load("candidates").Candidate("eager", unchanged),))
    eager = row["candidates"]["eager"]
    assert eager["ms"] == 1.0
    assert eager["replay_error"] == "ValueError: first line | second line"
    assert "not replayed: ValueError" in load("kernels").row_text(row)


def test_long_programs_are_not_replayed() -> None:
    rates = load("measure").Rates(copy=1.0, product=1.0)
    candidate = load("candidates").Candidate("eager", unchanged)
    row = load("kernels").measured_row(
        small("softmax_1024"), (candidate,), StandIn(), rates, "cpu", lambda text: None
    )
    assert "replay_ms" not in row["candidates"]["eager"]


@pytest.mark.skipif(not is_interpreting(), reason="needs kernels on the CPU")
def test_fuser_is_verified_timed_and_described() -> None:
    compared = load("candidates").candidates(("fused",), ("eager",))
    row = kernel_row("layer_norm_training", compared)
    found = row["candidates"]["fuser"]
    assert "error" not in found, found
    assert found["verified_values"] > 4
    assert found["strategies"]
    assert (found["fallbacks"], found["unfused_graphs"]) == ({}, [])
    assert row["speedup"] == row["replay_speedup"] == {"fuser": {"eager": 1.0}}


@pytest.mark.skipif(not is_interpreting(), reason="needs kernels on the CPU")
def test_predictions_stand_beside_the_times_of_each_kernel() -> None:
    prediction = load("prediction")
    rows = prediction.measured_rows(small("softmax_1024"), 4096, StandIn(), "cpu")
    assert rows
    for row in rows:
        assert (row["workload"], row["divisor"], row["measured_us"]) == ("softmax_1024", 4096, 1e3)
        assert row["predicted_us"] > 0
    assert "reduction" in {row["kind"] for row in rows}


def test_predictions_that_fail_are_rows_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    prediction = load("prediction")
    monkeypatch.setattr(prediction, "compile_graph", refuse(prediction.compile_graph))
    rows = prediction.measured_rows(small("column_sum"), 4096, StandIn(), "cpu")
    assert len(rows) == 1
    assert "first line" in rows[0]["error"]
    assert list(prediction.summary(rows)["failed"]) == ["column_sum 1/4096 "]


@pytest.mark.skipif(not is_interpreting(), reason="needs kernels on the CPU")
def test_a_call_is_split_into_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    overhead = load("overhead")
    # The interpreter launches nothing.
    monkeypatch.setattr(overhead, "bare_launches", lambda graphs, call: ((lambda: None), 4))
    compared = load("candidates").candidates(("fused",), ("eager", "fuser-graphs"))
    with torch.no_grad():
        row = overhead.measured_row(
            overhead.PROGRAMS[0], compared, StandIn(), "cpu", lambda text: None
        )
    found = row["candidates"]["fuser"]
    assert "error" not in found, found
    assert found["kernels"] >= 4
    parts = [found[f"{part}_us"] for part in ("guards", "entry", "launches", "rest")]
    assert sum(parts) == found["host_us"]
    assert found["beyond_us"] == found["entry_us"] + found["rest_us"]
    assert found["indirect_launches"] == {}
    assert "none, its tensors are on the CPU" in overhead.row_text(row)


@pytest.mark.parametrize("backend", ["no_work", "no_host_program"])
def test_the_empty_backends_return_what_the_program_returns(backend: str) -> None:
    overhead = load("overhead")
    chosen = getattr(overhead, backend)
    torch.compiler.reset()
    program, arguments = overhead.PROGRAMS[0].make("cpu")
    compiled = torch.compile(program, backend=chosen() if backend != "no_work" else chosen)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*arguments), program(*arguments))
        assert compiled(*arguments) is compiled(*arguments)


# Ranks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3, 4], [10, 100, 1000, 10000], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),
        ([1, 2, 2, 3], [1, 3, 2, 4], 0.9486832980505138),
        ([1], [2], None),
        ([1, 1, 1], [1, 2, 3], None),
    ],
)
def test_rank_correlation(first: list[float], second: list[float], expected: float | None) -> None:
    assert load("ranks").rank_correlation(first, second) == pytest.approx(expected)


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert load("ranks").ranks([3.0, 1.0, 3.0, 3.0, 2.0]) == [4.0, 1.0, 4.0, 4.0, 2.0]
