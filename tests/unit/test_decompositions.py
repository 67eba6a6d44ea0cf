"""The decomposition table: eager's values, types and layouts, and only calls that have rows.

Each function is traced forward and backward by AOTAutograd with the table and run on the CPU. Half
precision is judged by distance from a run in double precision, in which eager is no better.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import default_partition
from torch.utils._pytree import tree_leaves

from fuser.capture.decomposition.table import decompositions
from fuser.capture.views import MOVES, VIEWS
from fuser.ir.ops import BY_TARGET

Function = Callable[..., Any]

ROWS = {*BY_TARGET, *VIEWS, *MOVES, "<built-in function getitem>"}


def trace(function: Function) -> tuple[Function, set[str]]:
    """The function compiled with the table, and the calls of its graphs, filled in as it runs.

    It is compiled once, for the types and sizes of its first arguments.
    """
    calls: set[str] = set()

    def compiler(module: fx.GraphModule, inputs: Sequence[Any]) -> Function:
        calls.update(str(n.target) for n in module.graph.nodes if n.op == "call_function")
        return lambda arguments: module.forward(*arguments)

    def boxed(module: fx.GraphModule, inputs: Sequence[Any]) -> Function:
        runner = compiler(module, inputs)
        runner._boxed_call = True  # type: ignore[attr-defined]
        return runner

    compiled = aot_function(
        function, boxed, boxed, default_partition, decompositions=decompositions()
    )
    return compiled, calls


def results(function: Function, tensors: Sequence[Tensor], **options: Any) -> list[Tensor]:
    """Outputs and input gradients for a fixed, uneven output gradient."""
    leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors]
    outputs = [t for t in tree_leaves(function(*leaves, **options)) if isinstance(t, Tensor)]
    sought = [t for t in outputs if t.requires_grad]
    if not sought:
        return [t.detach() for t in outputs]
    weights = [
        torch.cos(torch.arange(t.numel()) * 0.7 + 0.3).reshape(t.shape).to(t.dtype) for t in sought
    ]
    wanted = [t for t in leaves if t.requires_grad]
    grads = torch.autograd.grad(sought, wanted, weights, allow_unused=True)
    return [t.detach() for t in (*outputs, *(g for g in grads if g is not None))]


def check(function: Function, *tensors: Tensor) -> set[str]:
    """Compare with eager and with double precision; the surviving calls."""
    compiled, calls = trace(function)
    got, eager = results(compiled, tensors), results(function, tensors)
    exact = results(function, [t.double() if t.is_floating_point() else t for t in tensors])
    assert len(got) == len(eager)
    for k, (ours, theirs, true) in enumerate(zip(got, eager, exact, strict=True)):
        assert ours.dtype == theirs.dtype, k
        assert ours.shape == theirs.shape, k
        if ours.numel() == 0:
            continue
        assert strides(ours) == strides(theirs), k
        if not ours.is_floating_point():
            assert torch.equal(ours, theirs), k
            continue
        assert torch.equal(ours.isnan(), theirs.isnan()), k
        assert torch.equal(ours.isinf(), theirs.isinf()), k
        finite = ours.isfinite()
        size = true[finite].abs().max().item() if finite.any() else 0.0
        allowed = 2 * distance(theirs, true, finite) + 2 * torch.finfo(ours.dtype).eps * size
        assert distance(ours, true, finite) <= allowed + 1e-30, k
    return calls


def strides(t: Tensor) -> list[int]:
    return [stride for size, stride in zip(t.shape, t.stride(), strict=True) if size > 1]


def distance(value: Tensor, true: Tensor, finite: Tensor) -> float:
    return (value.double() - true)[finite].abs().max().item() if finite.any() else 0.0


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = numbers(4, 6, 8)
Y = numbers(4, 6, 8, seed=1)
W6, B6 = numbers(6, seed=2), numbers(6, seed=3)
W8, B8 = numbers(8, seed=4), numbers(8, seed=5)
CLASSES = torch.tensor([[1, 0, 5, 2, 2, 4, -100, 3]] * 4)
UNIT, UNIT_TARGET = X.sigmoid(), Y.sigmoid()

FUNCTIONS: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "softmax": (lambda x: F.softmax(x, 1), (X,)),
    "log_softmax": (lambda x: F.log_softmax(x, -1), (X,)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), (X, W8, B8)),
    "layer_norm_plain": (lambda x: F.layer_norm(x, (6, 8)), (X,)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (8,), w), (X, W8)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 3, w, b), (X, W6, B6)),
    "instance_norm": (F.instance_norm, (X,)),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (X, W6, B6)),
    "cross_entropy": (lambda x, y: F.cross_entropy(x, y), (X, CLASSES)),
    "cross_entropy_smooth": (
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1, reduction="sum"),
        (X, CLASSES),
    ),
    "nll_loss": (lambda x, y: F.nll_loss(x, y, reduction="none"), (X, CLASSES)),
    "mse_loss": (F.mse_loss, (X, Y)),
    "l1_loss": (F.l1_loss, (X, Y)),
    "smooth_l1_loss": (lambda x, y: F.smooth_l1_loss(x, y, beta=0.3), (X, Y)),
    "huber_loss": (lambda x, y: F.huber_loss(x, y, delta=0.4), (X, Y)),
    "kl_div": (lambda x, y: F.kl_div(x, y, reduction="batchmean"), (X, UNIT_TARGET)),
    "binary_cross_entropy": (F.binary_cross_entropy, (UNIT, UNIT_TARGET)),
    "bce_with_logits": (F.binary_cross_entropy_with_logits, (X, UNIT_TARGET)),
    "gelu": (F.gelu, (X,)),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), (X,)),
    "silu": (F.silu, (X,)),
    "elu": (F.elu, (X,)),
    "selu": (F.selu, (X,)),
    "celu": (F.celu, (X,)),
    "mish": (F.mish, (X,)),
    "softplus": (F.softplus, (X,)),
    "hardswish": (F.hardswish, (X,)),
    "hardsigmoid": (F.hardsigmoid, (X,)),
    "hardtanh": (F.hardtanh, (X,)),
    "relu": (F.relu, (X,)),
    "leaky_relu": (F.leaky_relu, (X,)),
    "logsigmoid": (F.logsigmoid, (X,)),
    "glu": (F.glu, (X,)),
    "var": (lambda x: x.var(1), (X,)),
    "std_mean": (lambda x: torch.std_mean(x, (0, 2), correction=0), (X,)),
    "mean": (lambda x: x.mean((0, 2)), (X,)),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), (X,)),
    "max_dim": (lambda x: x.max(1), (X,)),
    "aminmax": (lambda x: torch.aminmax(x.detach(), dim=1), (X,)),
    "norm": (lambda x: x.norm(), (X,)),
    "norm_3": (lambda x: torch.linalg.vector_norm(x, 3, 1), (X,)),
    "normalize": (lambda x: F.normalize(x, dim=1), (X,)),
    "addcmul": (lambda x, y: torch.addcmul(x, x, y, value=0.3), (X, Y)),
    "addcdiv": (lambda x, y: torch.addcdiv(x, x, y, value=0.3), (X, UNIT)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.7), (X, Y)),
    "tril": (torch.tril, (X,)),
    "masked_fill": (lambda x: x.masked_fill(x > 0.5, -1e4), (X,)),
    "pow": (lambda x: (x**2, x**3, x**-1), (UNIT,)),
    "roll": (lambda x: (x.roll(3, 1), x.roll((1, -2), (0, 2)), x.roll(5)), (X,)),
    "repeat": (lambda x: x.repeat(2, 1, 3), (X,)),
    "split": (lambda x: [t * k for k, t in enumerate(x.split([1, 2, 3], 1))], (X,)),
    "unbind_stack": (lambda x: torch.stack(x.unbind(1), -1), (X,)),
    "clamp": (lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=0.1)), (X,)),
    "outer_and_dot": (lambda w, b: (torch.outer(w, b), w.dot(b)), (W8, B8)),
}

HALF = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_agrees_with_eager_and_ends_in_rows(name: str) -> None:
    function, tensors = FUNCTIONS[name]
    assert check(function, *tensors) <= ROWS
    for dtype in HALF:
        half = [t.to(dtype) if t.is_floating_point() else t for t in tensors]
        assert check(function, *half) <= ROWS


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "group_norm", "batch_norm", "mse_loss"])
def test_layouts_are_those_of_eager(name: str) -> None:
    function, tensors = FUNCTIONS[name]
    moved = [t.transpose(1, 2).contiguous().transpose(1, 2) if t.dim() == 3 else t for t in tensors]
    check(function, *moved)


def test_channels_last_survives_normalisation() -> None:
    x = numbers(2, 6, 5, 4).to(memory_format=torch.channels_last)
    calls = check(lambda x, w, b: F.group_norm(x, 3, w, b), x, W6, B6)
    assert "aten.clone.default" not in calls
    calls = check(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), x, W6, B6)
    assert "aten.clone.default" not in calls


def test_running_statistics() -> None:
    def step(x: Tensor, mean: Tensor, variance: Tensor, training: bool = True) -> Tensor:
        return F.batch_norm(x, mean, variance, None, None, training, 0.3)

    for dtype in (torch.float32, torch.bfloat16):
        compiled, calls = trace(step)
        x = X.to(dtype)
        ours, theirs = [torch.zeros(6), torch.ones(6)], [torch.zeros(6), torch.ones(6)]
        compiled(x, *ours)
        step(x.float(), *theirs)  # with half inputs, eager's own statistics are less exact
        torch.testing.assert_close(ours, theirs)
        assert calls <= ROWS
    running = [B6, W6.abs()]
    used, _ = trace(lambda x, m, v: step(x, m, v, training=False))
    torch.testing.assert_close(used(X, *running), step(X, *running, training=False))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
@pytest.mark.parametrize(("samples", "correction"), [(1, 1), (2, 5), (0, 0), (0, 1), (3, 2)])
def test_variance_of_too_few_samples(samples: int, correction: int) -> None:
    def variances(x: Tensor) -> tuple[Tensor, ...]:
        return x.var(0, correction=correction), *torch.var_mean(x, 0, correction=correction)

    x = numbers(samples, 3)
    for ours, theirs in zip(trace(variances)[0](x), variances(x), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_half_statistics_are_accumulated_in_single() -> None:
    x = torch.full((1, 5000), 1.0, dtype=torch.bfloat16)
    compiled, _ = trace(lambda x: (x.sum(1), x.mean(1), x.var(1), x.norm()))
    total, mean, variance, norm = compiled(x)
    assert total.item() == torch.tensor(5000.0).bfloat16().item()
    assert mean.item() == 1.0
    assert variance.item() == 0.0
    assert norm.item() == torch.tensor(math.sqrt(5000.0)).bfloat16().item()


def test_users_casts_are_told_apart_from_internal_ones() -> None:
    compiled, calls = trace(lambda x: x.to(torch.bfloat16).to(torch.float32))
    torch.testing.assert_close(compiled(X), X.bfloat16().float(), rtol=0, atol=0)
    assert calls == {"aten._to_copy.default"}
    compiled, calls = trace(F.silu)
    compiled(X.bfloat16())
    assert "prims.convert_element_type.default" in calls
    assert "aten._to_copy.default" not in calls


def test_a_copy_with_a_cast_rounds() -> None:
    def narrowed(x: Tensor) -> Tensor:
        return torch.empty(x.shape, dtype=torch.bfloat16).copy_(x).float()

    compiled, calls = trace(narrowed)
    torch.testing.assert_close(compiled(X), X.bfloat16().float(), rtol=0, atol=0)
    assert "aten._to_copy.default" in calls


def test_integer_and_boolean_reductions_keep_their_types() -> None:
    def reduce(x: Tensor) -> list[Tensor]:
        flags = x > 2
        return [
            x.sum(), x.sum(0, dtype=torch.int32), x.prod(), x.sum(dtype=torch.bool),
            x.prod(1, dtype=torch.bool), flags.sum(1), flags.max(), flags.max(0)[1],
            torch.count_nonzero(x, 0), x.max(1)[0], x.float().sum(dtype=torch.bool),
            x // 2, x - 3 * x, torch.floor_divide(x, 3),
        ]  # fmt: skip

    for dtype in (torch.uint8, torch.int8, torch.int32, torch.int64):
        compiled, calls = trace(reduce)
        x = torch.tensor([[3, 0, 7], [100, 120, 1]], dtype=dtype)
        for ours, theirs in zip(compiled(x), reduce(x), strict=True):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)
        assert calls <= ROWS


def test_extremes_see_nan_and_its_first_position() -> None:
    x = torch.tensor([[1.0, math.nan, math.nan], [2.0, 3.0, 3.0]])
    compiled, _ = trace(lambda x: (*x.max(1), *x.min(1), x.max(), *torch.aminmax(x, dim=1)))
    for ours, theirs in zip(
        compiled(x), (*x.max(1), *x.min(1), x.max(), *torch.aminmax(x, dim=1)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_infinite_and_empty_rows() -> None:
    rows = torch.tensor([[-math.inf, -math.inf], [0.0, -math.inf], [math.inf, 0.0]])
    for function in (
        lambda x: F.softmax(x, 1),
        lambda x: F.log_softmax(x, 1),
        lambda x: torch.logsumexp(x, 1),
        lambda x: torch.ops.aten._safe_softmax(x, 1),
    ):
        torch.testing.assert_close(trace(function)[0](rows), function(rows), equal_nan=True)
    for function in (lambda x: F.softmax(x, 1), lambda x: F.layer_norm(x, (3,)), F.gelu):
        assert trace(function)[0](torch.empty(0, 3)).shape == (0, 3)
    assert trace(lambda x: F.softmax(x, 1))[0](torch.empty(3, 0)).shape == (3, 0)


def test_random_numbers_are_functions_of_a_seed() -> None:
    def draw(x: Tensor) -> tuple[Tensor, ...]:
        normal = x.clone().normal_()
        return F.dropout(x, 0.4), torch.rand_like(x), torch.bernoulli(x.sigmoid()), normal

    compiled, calls = trace(draw)
    assert all(result.shape == X.shape for result in compiled(X))
    assert {name for name in calls if name not in ROWS} == {"fuser.seed.default"}
    assert {"fuser.uniform.default", "fuser.normal.default"} <= calls


def test_random_numbers_can_be_left_to_eager() -> None:
    fused, left = set(decompositions()), set(decompositions(fuses_random=False))
    assert left < fused
    assert {str(target) for target in fused - left} >= {
        "aten.native_dropout.default", "aten.rand.default", "aten.bernoulli.p",
    }  # fmt: skip


def test_draws_from_a_generator_of_the_users_stay_whole() -> None:
    calls = {}
    for target in decompositions().keys() - decompositions(fuses_random=False).keys():
        if "generator" in {argument.name for argument in target._schema.arguments}:
            calls[target] = decompositions()[target](X, generator=torch.Generator())
    assert calls
    assert set(calls.values()) == {NotImplemented}


def test_products_and_attention_stay_whole() -> None:
    def layers(x: Tensor, w: Tensor, b: Tensor, q: Tensor) -> Tensor:
        y = F.linear(x, w, b) + torch.baddbmm(q, q, q).sum() + torch.addmm(b, x, w, beta=0.5)
        y = y + F.conv1d(q, q).sum() + torch.mv(w, b)
        return y + F.scaled_dot_product_attention(q[None], q[None], q[None]).sum()

    square = numbers(8, 8)
    cube = numbers(8, 8, 8)
    calls = check(layers, square, square, B8, cube)
    whole = {name for name in calls if name not in ROWS}
    assert {"aten.addmm.default", "aten.baddbmm.default"} <= set(calls)
    assert "aten.convolution.default" in whole
    assert any("_scaled_dot_product" in name for name in whole)
    assert not any(name.startswith("aten.mv") for name in whole)


def test_optimiser_lists_become_single_tensors() -> None:
    def update(*tensors: Tensor) -> list[Tensor]:
        params, grads = list(tensors[:3]), list(tensors[3:])
        grads = torch._foreach_add(grads, params, alpha=0.01)
        means = torch._foreach_lerp(params, grads, 0.1)
        roots = torch._foreach_sqrt(torch._foreach_addcmul(grads, grads, grads, 0.5))
        bounded = torch._foreach_maximum(roots, 0.1)
        norms = torch._foreach_norm(grads)
        return [
            *torch._foreach_addcdiv(params, means, bounded, -0.1),
            *torch._foreach_mul(params, [1.0, 2.0, 3.0]),
            *norms,
        ]

    tensors = [numbers(3, k + 1, seed=k).abs() for k in range(6)]
    tensors[3:] = [t.clone() for t in tensors[:3]]
    compiled, calls = trace(update)
    torch.testing.assert_close(compiled(*tensors), update(*tensors))
    assert calls <= ROWS


def test_the_other_compilers_table_is_not_imported() -> None:
    program = (
        "import sys; from fuser.capture.decomposition.table import decompositions;"
        "decompositions();"
        "print('torch._inductor.decomposition' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert printed.stdout.strip() == "False", printed.stderr
