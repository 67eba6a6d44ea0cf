"""Plans and kernels of a dozen programs against the files under tests/golden.

The files quote the programs without line numbers, which every edit above them would change. A
change that is meant is accepted by running with --update-golden and reading the difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuser.codegen.generate import generate
from fuser.ir.graph import Graph
from fuser.ir.plan import FusionPlan
from fuser.passes.pipeline import plan_graph
from support.graphs import captured_graph, renamed

Golden = Callable[[str, str], None]
FOLDER = Path(__file__).resolve().parents[1] / "golden"


# Programs. A line of them has at most 50 characters: kernels quote no more than fits. -----------


def gelu_chain(x: Tensor, bias: Tensor) -> Tensor:
    y = F.gelu(x + bias)
    return y * torch.sigmoid(y)


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x * 0.125, dim=-1)


def looped_softmax(x: Tensor) -> Tensor:
    return F.softmax(x, dim=-1)


def layer_norm_residual(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Any:
    y = x + residual
    return F.layer_norm(y, y.shape[-1:], weight, bias), y


def dynamic_layer_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight) + x


def transpose_add(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x) + y.t()


def cat_and_pad(x: Tensor, y: Tensor) -> Tensor:
    z = torch.cat([x, torch.tanh(y)], dim=1)
    return F.pad(z, (1, 2), value=0.5) * 2


def heads(x: Tensor) -> Tensor:
    y = torch.sin(x).view(2, 12, 4, 16)
    return y.transpose(1, 2).contiguous()


def embedding_norm(tokens: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    x = F.embedding(tokens, table)
    square = x.pow(2).mean(-1, keepdim=True)
    return x * torch.rsqrt(square + 1e-6) * weight


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)


def full_reduction(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).abs().mean()


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y = F.linear(x, weight)
    return F.gelu(y, approximate="tanh") + bias


def half_with_casts(x: Tensor, scale: Tensor) -> Tensor:
    wide = x.float() * scale
    return torch.exp(wide.bfloat16() - 1).half()


# Arguments --------------------------------------------------------------------------------------


def full(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype)


def whole_numbers(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


ARGUMENTS: dict[Callable[..., Any], tuple[Tensor, ...]] = {
    gelu_chain: (full(64, 256), full(256)),
    softmax: (full(64, 1000),),
    looped_softmax: (full(128, 40000),),
    layer_norm_residual: (full(64, 768), full(64, 768), full(768), full(768)),
    dynamic_layer_norm: (full(40, 256), full(256)),
    transpose_add: (full(48, 80), full(80, 48)),
    cat_and_pad: (full(16, 32), full(16, 24)),
    heads: (full(2, 12, 64),),
    embedding_norm: (whole_numbers(4, 32), full(1000, 64), full(64)),
    cross_entropy: (full(32, 1000), whole_numbers(32)),
    full_reduction: (full(300, 400), full(300, 400)),
    linear_gelu: (full(64, 128), full(512, 128), full(512)),
    half_with_casts: (full(64, 256, dtype=torch.bfloat16), full(256)),
}
PROGRAMS = [pytest.param(program, id=program.__name__) for program in ARGUMENTS]


# Text -------------------------------------------------------------------------------------------


def canonical(graph: Graph) -> Graph:
    """Values named by what they are: the tracer's own numbers change between versions of torch."""
    names: dict[str, str] = {}
    counts: dict[str, int] = {}

    def give(name: str, wanted: str) -> None:
        counts[wanted] = counts.get(wanted, 0) + 1
        names[name] = wanted if counts[wanted] == 1 else f"{wanted}_{counts[wanted]}"

    for item in graph.inputs:
        give(item.name, "input" if item.value else "number")
    for op in graph.ops:
        give(op.name, op.call.name.split(".")[1] if op.is_opaque else op.kind)
    return renamed(graph, names.__getitem__)


def plan_of(program: Callable[..., Any]) -> FusionPlan:
    is_dynamic = program.__name__.startswith("dynamic")
    graph = captured_graph(program, *ARGUMENTS[program], dynamic=is_dynamic)
    return plan_graph(canonical(graph), "sm_90")


def plan_text(plan: FusionPlan) -> Iterator[str]:
    yield from str(plan.graph).splitlines()
    for step in plan.order:
        region = plan.by_name.get(step)
        if region is None:
            yield f"\n{step}: original call, {plan.graph.by_name[step].reason}"
            continue
        axes = (f"{a.name}={a.size}{' reduced' * a.is_reduced}" for a in region.space.axes)
        yield f"\n{region.name}: {region.kind.value}, {region.strategy.value}, {', '.join(axes)}"
        yield f"  in {', '.join(region.inputs)}"
        for name in sorted(region.all_ops, key=plan.graph.position.__getitem__):
            index = ", ".join(map(str, region.space.index[name]))
            yield f"  {name}[{index}]{' again' * (name in region.recomputed)}"
        yield f"  out {', '.join(region.outputs)}"
    yield ""
    for verdict in plan.verdicts:
        yield f"{verdict.producer} -> {verdict.consumer}: {verdict.text}"


def kernel_text(plan: FusionPlan) -> Iterator[str]:
    for region in generate(plan):
        for kernel in region.kernels:
            yield from kernel.source.splitlines()
            yield ""


def settled(lines: Iterator[str]) -> str:
    """The lines without what an edit of this file or a new torch changes.

    Size symbols are numbered as they appear: their names are a hash of where they came from.
    """
    symbols: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return symbols.setdefault(match[0], f"n{len(symbols)}")

    text = re.sub(r"\bs\d+\b", number, "\n".join(lines)).rstrip() + "\n"
    return re.sub(rf"\b{Path(__file__).name}:\d+ ", "", text)


@pytest.mark.parametrize("program", PROGRAMS)
def test_plans_and_kernels_are_as_they_were(program: Callable[..., Any], golden: Golden) -> None:
    plan = plan_of(program)
    for kind, lines in {"plans": plan_text(plan), "kernels": kernel_text(plan)}.items():
        text = settled(lines)
        assert text.isascii()
        assert str(FOLDER.parents[1]) not in text
        golden(f"{kind}/{program.__name__}.txt", text)


def test_no_golden_file_is_left_over() -> None:
    expected = {f"{kind}/{p.__name__}.txt" for p in ARGUMENTS for kind in ("plans", "kernels")}
    found = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.txt")}
    assert found == expected
