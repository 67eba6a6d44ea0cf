"""The words of the command line that name suites and candidates. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

PRECISIONS: Mapping[str, str] = MappingProxyType({
    "fused": "fuser",
    "eager": "fuser-eager",
})  # fmt: skip
"""fuser's precisions, and what results call fuser in each of them."""

COMPETITORS: Mapping[str, str] = MappingProxyType({
    "eager": "PyTorch without a compiler",
    "inductor": "torch.compile",
    "inductor-max": "torch.compile(mode='max-autotune-no-cudagraphs')",
    "inductor-graphs": "torch.compile(mode='reduce-overhead'), with CUDA graphs",
    "fuser-graphs": "fuser.compile(mode='reduce-overhead'), with CUDA graphs",
})  # fmt: skip

SUITES: Mapping[str, str] = MappingProxyType({
    "kernels": "small programs as fractions of what the memory and the tensor cores allow",
    "overhead": "what a compiled call costs on the host",
    "prediction": "the planner's times beside those of its kernels",
})  # fmt: skip
