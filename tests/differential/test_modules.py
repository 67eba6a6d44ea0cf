"""Whole modules: training steps, structures in and out, state, graph breaks, changing sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

import fuser
from support.compare import assert_matches_eager, generated_kinds


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


# Models -------------------------------------------------------------------------------------------


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 48), nn.Linear(48, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x))) + x  # type: ignore[no-any-return]


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)  # type: ignore[no-any-return]


class Block(nn.Module):
    """A GPT block with attention written out."""

    def __init__(self, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))  # type: ignore[no-any-return]


class SwiGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(16)
        self.gate, self.up = nn.Linear(16, 40, bias=False), nn.Linear(16, 40, bias=False)
        self.down = nn.Linear(40, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


class Pooled(nn.Module):
    """Embeddings, averaged over the tokens that count."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 12, padding_idx=0), nn.Embedding(7, 12)
        self.norm = nn.LayerNorm(12)

    def forward(self, ids: Tensor) -> Tensor:
        counts = (ids != 0).unsqueeze(-1)
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.norm(self.tokens(ids) + self.places(places)) * counts
        return F.normalize(x.sum(1) / counts.sum(1).clamp(min=1), dim=-1)


def transformer_layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(
        24, 3, dim_feedforward=40, dropout=0.0, batch_first=True, **options
    )


IDS = torch.tensor([[1, 5, 0, 0], [7, 7, 2, 10], [0, 0, 0, 0]])
MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "mlp": lambda: (MLP(), values(5, 16)),
    "encoder_layer": lambda: (transformer_layer(activation="gelu"), values(2, 7, 24)),
    "encoder_layer_norm_first": lambda: (transformer_layer(norm_first=True), values(2, 7, 24)),
    "conv_net": lambda: (ConvNet(), values(4, 3, 8, 8)),
    "gpt_block": lambda: (Block(), values(2, 9, 24)),
    "swiglu": lambda: (SwiGLU(), values(3, 5, 16)),
    "pooled": lambda: (Pooled(), IDS),
}


def made(name: str) -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MODELS[name]()


# Training and inference ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_training_step(name: str, dtype: torch.dtype, device: str) -> None:
    """Output, every gradient, and the buffers after the step."""
    model, x = made(name)
    x = x.to(dtype) if x.is_floating_point() else x
    plans = assert_matches_eager(model.to(dtype).train(), x, grad=True, device=device)
    assert [plan.fusion.phase for plan in plans] == ["forward", "backward"]
    assert generated_kinds(plans[:1])
    assert generated_kinds(plans[1:])


@pytest.mark.parametrize("name", MODELS)
def test_inference(name: str, device: str) -> None:
    model, x = made(name)
    (plan,) = assert_matches_eager(model.eval(), x, device=device)
    assert plan.fusion.phase == "inference"


def test_optimizer_steps_follow_eagers(device: str) -> None:
    """Five steps of a compiled model and of its twin; the loss falls alike."""
    (model, x), (twin, _) = made("swiglu"), made("swiglu")
    compiled = fuser.compile(model.to(device))
    x = x.to(device)
    losses: list[list[float]] = []
    for program, owner in ((compiled, model), (twin.to(device), twin)):
        optimizer = torch.optim.SGD(owner.parameters(), lr=0.1)
        losses.append([])
        for _ in range(5):
            optimizer.zero_grad()
            loss = F.mse_loss(program(x), x * 0.5)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=64 * torch.finfo(torch.float32).eps)
    assert losses[0][-1] < losses[0][0]


# Structures ---------------------------------------------------------------------------------------


class Pair(NamedTuple):
    first: Tensor
    second: Tensor | None


@dataclasses.dataclass
class Output:
    logits: Tensor
    hidden: tuple[Tensor, ...]
    loss: Tensor | None = None


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, batch: dict[str, Any], *, scale: float = 1.0, mask: Any = None) -> Any:
        x = self.linear(batch["x"]).relu() * scale
        if mask is not None:
            x = x.masked_fill(mask, 0)
        return {
            "a": x,
            "nested": [x.sum(-1), {"b": (x, None, 3, "text")}],
            "pair": Pair(x + 1, None),
        }


def test_nested_arguments_and_outputs(device: str) -> None:
    batch = {"x": values(4, 6), "unused": [values(2), "name"]}
    for kwargs in ({}, {"scale": 0.5}, {"scale": 2.0, "mask": values(4, 6) > 0}):
        assert_matches_eager(Structured(), batch, kwargs=kwargs, grad=True, device=device)


def test_a_dataclass_comes_back(device: str) -> None:
    def program(x: Tensor) -> Output:
        y = x.sigmoid()
        return Output(y, (y * 2, y.sum(-1)))

    x = values(3, 5).to(device)
    given, expected = fuser.compile(program)(x), program(x)
    assert isinstance(given, Output)
    assert given.loss is None
    assert_matches_eager(lambda x: dataclasses.astuple(program(x)), values(3, 5), device=device)
    assert given.hidden[1].shape == expected.hidden[1].shape


class Counter(nn.Module):
    calls: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(6))
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            self.mean.lerp_(x.detach().mean(0), 0.25)
        return (x - self.mean) * self.weight


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_buffers_are_written(training: bool, device: str) -> None:
    assert_matches_eager(Counter().train(training), values(4, 6), grad=True, device=device)


def test_the_compiled_object_is_the_module(device: str) -> None:
    module = Counter().to(device)
    compiled = fuser.compile(module)
    x = values(4, 6).to(device)
    compiled.train()
    compiled(x)
    compiled(x)
    assert int(module.calls) == int(compiled.calls) == 2
    compiled.eval()
    assert not module.training
    compiled(x)
    assert int(module.calls) == 2
    assert compiled.weight is module.weight
    state = {name.removeprefix("_orig_mod."): t for name, t in compiled.state_dict().items()}
    assert state.keys() == module.state_dict().keys()
    with torch.no_grad():
        module.weight.mul_(2)
    assert torch.equal(compiled(x), module(x))
    assert {plan.fusion.phase for plan in fuser.plans(compiled)} >= {"forward"}


# Graph breaks and sizes ---------------------------------------------------------------------------


def test_a_graph_break_gives_several_plans(device: str) -> None:
    def program(x: Tensor) -> Tensor:
        y = F.gelu(x) * 2
        torch._dynamo.graph_break()
        return y.softmax(-1) + x

    plans = assert_matches_eager(program, values(4, 9), device=device, expect_opaque=())
    assert len(plans) == 2
    assert "erf" in generated_kinds(plans[:1])
    assert "amax" in generated_kinds(plans[1:])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_branch_on_data(device: str) -> None:
    def program(x: Tensor) -> Tensor:
        y = x.exp()
        return y * 2 if bool(y.sum() > 0) else y - 1

    plans = assert_matches_eager(program, values(4, 9), grad=True, device=device)
    assert len(plans) >= 2


SIZES = (1, 2, 5, 17, 0)


@pytest.mark.parametrize("name", ["mlp", "swiglu", "gpt_block"])
def test_changing_sizes_compile_a_few_times(name: str, device: str) -> None:
    """Sizes 0 and 1 are compiled for on their own; all others share one graph."""
    torch.compiler.reset()
    model, x = made(name)
    model = model.to(device).eval()
    compiled = fuser.compile(model)
    counters.clear()
    with torch.no_grad():
        for batch in SIZES:
            for length in SIZES if x.dim() == 3 else (None,):
                shape = (batch, *(() if length is None else (length,)), x.shape[-1])
                given = values(*shape).to(device)
                expected = model(given)
                found = compiled(given)
                assert found.shape == expected.shape
                fused = fuser.numerics.compare(found, expected, expected.double(), 64)
                assert fused.is_right, (shape, fused)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs <= (4 if x.dim() == 2 else 10), graphs
    assert graphs == len(fuser.plans(compiled))


@pytest.mark.parametrize("sizes", [(2, 3), (5, 1), (17, 4), (1, 1)], ids=str)
def test_dynamic_training_step(sizes: tuple[int, int], device: str) -> None:
    for name in ("swiglu", "gpt_block"):
        model, x = made(name)
        given = values(*sizes, x.shape[-1])
        assert_matches_eager(model.train(), given, grad=True, dynamic=True, device=device)


def test_eager_precision_of_a_chain_is_bit_for_bit(device: str) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        # Eager on a CPU rounds a number that it adds, on a GPU it does not: 0.125 needs none.
        return ((x * 1.7 + y).sigmoid() * x - y / 3).tanh().relu() + 0.125

    x, y = (values(33, 65, dtype=torch.bfloat16, seed=k).to(device) for k in (0, 1))
    expected = program(x, y)
    torch.compiler.reset()
    compiled = fuser.compile(program, precision="eager")
    assert torch.equal(compiled(x, y), expected)
    (plan,) = fuser.plans(compiled)
    assert len(plan.regions) == 1
    assert not plan.opaque
    torch.compiler.reset()
    assert not torch.equal(fuser.compile(program)(x, y), expected)
