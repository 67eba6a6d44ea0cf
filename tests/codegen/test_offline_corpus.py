"""Every kernel of a corpus of models, forward and backward, compiles for GPUs that are not here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from fuser.capture.backend import Backend, CompileContext
from fuser.driver import Options, plan_module
from fuser.dump.stages import NO_STAGES
from fuser.ir.kernel import KernelSpec
from fuser.runtime.offline import Resources, compile_many

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")


class Block(nn.Module):
    """Attention written out, norms, a gated feed-forward part and an embedding."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.table = nn.Embedding(50, dim)
        self.first, self.second = nn.LayerNorm(dim), nn.RMSNorm(dim)
        self.packed, self.joined = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(2 * dim, dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        batch, length, dim = x.shape
        packed = self.packed(self.first(x)).view(batch, length, 3, self.heads, dim // self.heads)
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-1, -2)) * (dim // self.heads) ** -0.5
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        weights = scores.masked_fill(~causal, float("-inf")).softmax(-1)
        x = x + self.joined((weights @ value).transpose(1, 2).reshape(batch, length, dim))
        gate, signal = self.up(self.second(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * signal)


def block_loss() -> tuple[Callable[..., torch.Tensor], Sequence[torch.Tensor]]:
    model = Block(48, 3)
    head = nn.Linear(48, 50)

    def loss(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = head(model(tokens))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    tokens = torch.randint(0, 50, (3, 17))
    return loss, (tokens, tokens.roll(-1, 1))


def convolutions() -> tuple[Callable[..., torch.Tensor], Sequence[torch.Tensor]]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8),
        nn.Hardswish(),
    )  # fmt: skip
    return lambda x: model(x).mean(), (torch.randn(2, 3, 12, 12),)


def half_mixture() -> tuple[Callable[..., torch.Tensor], Sequence[torch.Tensor]]:
    def mixture(x: torch.Tensor, y: torch.Tensor, pick: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([x.exp(), functional.pad(y, (1, 1))], 1)[:, pick]
        chosen = joined.argmax(1) + (joined > 0).sum(1)
        return (joined.float().std(1) + chosen).to(torch.bfloat16) * joined.amax(1)

    x = torch.randn(33, 20, dtype=torch.bfloat16, requires_grad=True)
    return mixture, (x, torch.randn(33, 7, dtype=torch.bfloat16), torch.tensor([0, 3, -1, 5]))


def long_rows() -> tuple[Callable[..., torch.Tensor], Sequence[torch.Tensor]]:
    def rows(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1).sum() + x.logsumexp(0).amax() + (x - x.mean()).square().mean()

    return rows, (torch.randn(3, 50_000, requires_grad=True),)


def noise() -> tuple[Callable[..., torch.Tensor], Sequence[torch.Tensor]]:
    def noisy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        normed = functional.layer_norm(functional.dropout(x, 0.1) + x, (64,))
        spread = normed * torch.randn_like(x) + torch.rand_like(x.T).T
        rest = functional.dropout(y, 0.3).softmax(-1) * torch.rand_like(y, dtype=torch.float64)
        return spread.sum(0).sum() + rest.sum()

    return noisy, (torch.randn(96, 64, requires_grad=True), torch.randn(30, 63, requires_grad=True))


CORPUS = (block_loss, convolutions, half_mixture, long_rows, noise)


def kernels_for(target: str, dynamic: bool) -> tuple[list[KernelSpec], dict[str, int]]:
    """The corpus's kernels for `target`, each program once, and hints for their sizes."""
    found: dict[str, KernelSpec] = {}
    hints: dict[str, int] = {}

    def collect(module: fx.GraphModule, inputs: Sequence[Any], context: CompileContext) -> Any:
        plan, kernels, _ = plan_module(module, target, context.phase, Options(), NO_STAGES)
        hints.update(plan.graph.hints)
        for entry in kernels:
            found.update({spec.key: spec for spec in entry.kernels})
        return module

    for make in CORPUS:
        program, arguments = make()
        torch._dynamo.reset()
        compiled = torch.compile(program, backend=Backend(collect), dynamic=dynamic)
        compiled(*arguments).float().sum().backward()
    return list(found.values()), hints


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_the_corpus_compiles_without_spills(target: str, dynamic: bool) -> None:
    specs, hints = kernels_for(target, dynamic)
    assert len(specs) > 20
    failed: dict[str, object] = {}
    for spec, result in zip(specs, compile_many(specs, target, hints), strict=True):
        if not isinstance(result, Resources) or result.spills:
            failed[f"{spec.name} {spec.configurations[0]}"] = result
    assert failed == {}
