"""One encoder layer of BERT large in bf16: what is fused around its products and its attention.

The sizes are those of the published model, the weights are random. Without a GPU the layer is
planned as shapes, which takes no memory for its 12.6 million weights.

    python examples/bert_layer.py                    # the plan's totals; on a GPU also the times
    fuserc plan examples/bert_layer.py --target sm_90 --verbose
    fuserc verify examples/bert_layer.py:make_small  # a small layer, also without a GPU
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
    """Sizes of a layer and of its input; by default those of BERT large."""

    hidden: int = 1024
    heads: int = 16
    intermediate: int = 4096
    epsilon: float = 1e-12
    dropout: float = 0.1
    batch: int = 16
    tokens: int = 512


SMALL = Configuration(hidden=64, heads=4, intermediate=128, batch=2, tokens=10)


class Attention(nn.Module):
    """Attention between all tokens; `mask` is added to the scores."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__()
        hidden = configuration.hidden
        self.head_size = hidden // configuration.heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden, dtype=TYPE) for _ in range(3))
        self.output = nn.Linear(hidden, hidden, dtype=TYPE)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, tokens, hidden = x.shape
        query, key, value = (
            projection(x).view(batch, tokens, -1, self.head_size).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.output(mixed.transpose(1, 2).reshape(batch, tokens, hidden))


class Layer(nn.Module):
    """Attention, then the feed-forward part, each added to its input and normalised after it."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__()
        hidden, intermediate = configuration.hidden, configuration.intermediate
        self.attention = Attention(configuration)
        self.attention_norm = nn.LayerNorm(hidden, eps=configuration.epsilon, dtype=TYPE)
        self.up = nn.Linear(hidden, intermediate, dtype=TYPE)
        self.down = nn.Linear(intermediate, hidden, dtype=TYPE)
        self.feed_forward_norm = nn.LayerNorm(hidden, eps=configuration.epsilon, dtype=TYPE)
        self.dropout = nn.Dropout(configuration.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        wide = functional.gelu(self.up(x))
        return self.feed_forward_norm(x + self.dropout(self.down(wide)))


def padding_mask(configuration: Configuration) -> Tensor:
    """What is added to the scores [batch, 1, 1, tokens]: sentences have different lengths."""
    batch, tokens = configuration.batch, configuration.tokens
    lengths = tokens - torch.arange(batch) * tokens // (2 * batch)
    is_padding = torch.arange(tokens) >= lengths[:, None]
    mask = torch.zeros(batch, tokens, dtype=TYPE)
    return mask.masked_fill(is_padding, torch.finfo(mask.dtype).min)[:, None, None, :]


def build(configuration: Configuration, device: str) -> tuple[Layer, tuple[Tensor, ...]]:
    """A layer with random weights and its arguments: the hidden state and the mask."""
    with torch.device(device):
        layer = Layer(configuration).eval().requires_grad_(False)
        for norm in (layer.attention_norm, layer.feed_forward_norm):
            nn.init.normal_(norm.weight, 1.0, 0.1)
            nn.init.normal_(norm.bias, 0.0, 0.1)
        shape = (configuration.batch, configuration.tokens, configuration.hidden)
        return layer, (torch.randn(shape, dtype=TYPE), padding_mask(configuration))


def make(device: str) -> tuple[Layer, list[tuple[Tensor, ...]]]:
    """The layer at its published sizes, for `fuserc`; without a GPU as shapes without memory."""
    if torch.device(device).type == "cpu":
        with FakeTensorMode():
            layer, arguments = build(Configuration(), device)
    else:
        layer, arguments = build(Configuration(), device)
    return layer, [arguments]


def make_small(device: str) -> tuple[Layer, list[tuple[Tensor, ...]]]:
    """A layer that Triton's interpreter runs in a second."""
    layer, arguments = build(SMALL, device)
    return layer, [arguments]


def compare(layer: Layer, arguments: tuple[Tensor, ...]) -> None:
    """Run the layer fused and in eager, verify every kernel, and time both."""
    import fuser

    fast = fuser.compile(layer)
    with torch.no_grad():
        expected, result = layer(*arguments), fast(*arguments)
        difference = float((result.float() - expected.float()).abs().max())
        largest = float(expected.abs().max())
        print(f"largest difference from eager {difference:.2e}, of values up to {largest:.2e}")
        print(str(fuser.verify(layer, *arguments)).splitlines()[-1])
        for name, program in (("eager", layer), ("fused", fast)):
            timer = Timer(
                "program(*arguments)", globals={"program": program, "arguments": arguments}
            )
            print(f"{name} {timer.blocked_autorange().median * 1e3:.3f} ms")


def main() -> None:
    import fuser

    layer, [arguments] = make("cpu")
    plan = fuser.plan(layer, *arguments, target="sm_90")
    totals, peaks = plan.record.totals, plan.peaks
    print(f"planned for sm_90: {totals.ops} ops in {totals.kernels} generated kernels and")
    print(f"  {totals.opaque_calls} original calls, which these figures leave out:")
    print(f"  {totals.bytes / 1e6:.0f} MB moved, {totals.unfused_bytes / 1e6:.0f} MB op by op")
    print(f"  {totals.predicted_us:.0f} us predicted, {totals.unfused_us:.0f} us op by op")
    print(f"  {peaks.planned / 1e6:.0f} MB held at most, {peaks.eager / 1e6:.0f} MB op by op")
    if torch.cuda.is_available():
        torch.manual_seed(0)
        layer, [arguments] = make("cuda")
        compare(layer, arguments)


if __name__ == "__main__":
    main()
