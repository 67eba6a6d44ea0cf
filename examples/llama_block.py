"""One decoder block of Llama 3 8B in bf16: what is fused around its products and its attention.

The sizes are those of the published model, the weights are random. Without a GPU the block is
planned as shapes, which takes no memory for its 218 million weights.

    python examples/llama_block.py                    # the plan's totals; on a GPU also the times
    fuserc plan examples/llama_block.py --target sm_90 --verbose
    fuserc verify examples/llama_block.py:make_small  # a small block, also without a GPU
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils.benchmark import Timer

TYPE = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Configuration:
    """Sizes of a block and of its input; by default those of Llama 3 8B."""

    hidden: int = 4096
    heads: int = 32
    key_value_heads: int = 8
    intermediate: int = 14336
    epsilon: float = 1e-5
    theta: float = 500_000.0
    batch: int = 2
    tokens: int = 2048

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


SMALL = Configuration(hidden=64, heads=4, key_value_heads=2, intermediate=96, tokens=10)


class RootMeanSquareNorm(nn.Module):
    """Rows scaled to a mean square of one, in fp32, and by a weight for each column."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=TYPE))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return self.weight * (wide * scale).to(x.dtype)


def rotary_tables(configuration: Configuration) -> tuple[Tensor, Tensor]:
    """Cosine and sine [tokens, head_size] of each position's angles, in fp32."""
    size = configuration.head_size
    powers = torch.arange(0, size, 2, dtype=torch.float32) / size
    positions = torch.arange(configuration.tokens, dtype=torch.float32)
    angles = torch.outer(positions, configuration.theta**-powers)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """`x` [batch, heads, tokens, head_size], each head turned by its position's angles."""
    first, second = x.chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    return (x * cosine + turned * sine).to(x.dtype)


class Attention(nn.Module):
    """Causal attention in which several heads share a key and a value."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__()
        hidden, self.head_size = configuration.hidden, configuration.head_size
        shared = configuration.key_value_heads * self.head_size
        self.query = nn.Linear(hidden, hidden, bias=False, dtype=TYPE)
        self.key = nn.Linear(hidden, shared, bias=False, dtype=TYPE)
        self.value = nn.Linear(hidden, shared, bias=False, dtype=TYPE)
        self.output = nn.Linear(hidden, hidden, bias=False, dtype=TYPE)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        batch, tokens, hidden = x.shape
        query, key, value = (
            projection(x).view(batch, tokens, -1, self.head_size).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        return self.output(mixed.transpose(1, 2).reshape(batch, tokens, hidden))


class FeedForward(nn.Module):
    """SwiGLU: one projection, gated by the SiLU of another."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__()
        hidden, intermediate = configuration.hidden, configuration.intermediate
        self.gate = nn.Linear(hidden, intermediate, bias=False, dtype=TYPE)
        self.up = nn.Linear(hidden, intermediate, bias=False, dtype=TYPE)
        self.down = nn.Linear(intermediate, hidden, bias=False, dtype=TYPE)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention, then the feed-forward part, each behind a norm and added to its input."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__()
        self.attention_norm = RootMeanSquareNorm(configuration.hidden, configuration.epsilon)
        self.attention = Attention(configuration)
        self.feed_forward_norm = RootMeanSquareNorm(configuration.hidden, configuration.epsilon)
        self.feed_forward = FeedForward(configuration)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        return x + self.feed_forward(self.feed_forward_norm(x))


def build(configuration: Configuration, device: str) -> tuple[Block, tuple[Tensor, ...]]:
    """A block with random weights and its arguments: the hidden state and the rotary tables."""
    with torch.device(device):
        block = Block(configuration).eval().requires_grad_(False)
        for norm in (block.attention_norm, block.feed_forward_norm):
            nn.init.normal_(norm.weight, 1.0, 0.1)
        shape = (configuration.batch, configuration.tokens, configuration.hidden)
        hidden = torch.randn(shape, dtype=TYPE)
        return block, (hidden, *rotary_tables(configuration))


def make(device: str) -> tuple[Block, list[tuple[Tensor, ...]]]:
    """The block at its published sizes, for `fuserc`; without a GPU as shapes without memory."""
    if torch.device(device).type == "cpu":
        with FakeTensorMode():
            block, arguments = build(Configuration(), device)
    else:
        block, arguments = build(Configuration(), device)
    return block, [arguments]


def make_small(device: str) -> tuple[Block, list[tuple[Tensor, ...]]]:
    """A block that Triton's interpreter runs in a second."""
    block, arguments = build(SMALL, device)
    return block, [arguments]


def compare(block: Block, arguments: tuple[Tensor, ...]) -> None:
    """Run the block fused and in eager, verify every kernel, and time both."""
    import fuser

    fast = fuser.compile(block)
    with torch.no_grad():
        expected, result = block(*arguments), fast(*arguments)
        difference = float((result.float() - expected.float()).abs().max())
        largest = float(expected.abs().max())
        print(f"largest difference from eager {difference:.2e}, of values up to {largest:.2e}")
        print(str(fuser.verify(block, *arguments)).splitlines()[-1])
        for name, program in (("eager", block), ("fused", fast)):
            timer = Timer(
                "program(*arguments)", globals={"program": program, "arguments": arguments}
            )
            print(f"{name} {timer.blocked_autorange().median * 1e3:.3f} ms")


def main() -> None:
    import fuser

    block, [arguments] = make("cpu")
    plan = fuser.plan(block, *arguments, target="sm_90")
    totals, peaks = plan.record.totals, plan.peaks
    print(f"planned for sm_90: {totals.ops} ops in {totals.kernels} generated kernels and")
    print(f"  {totals.opaque_calls} original calls, which these figures leave out:")
    print(f"  {totals.bytes / 1e6:.0f} MB moved, {totals.unfused_bytes / 1e6:.0f} MB op by op")
    print(f"  {totals.predicted_us:.0f} us predicted, {totals.unfused_us:.0f} us op by op")
    print(f"  {peaks.planned / 1e6:.0f} MB held at most, {peaks.eager / 1e6:.0f} MB op by op")
    if torch.cuda.is_available():
        torch.manual_seed(0)
        block, [arguments] = make("cuda")
        compare(block, arguments)


if __name__ == "__main__":
    main()
