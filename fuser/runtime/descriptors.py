"""Tensor descriptors of a kernel's arguments, made on the host.

In: an argument with a window, and the configuration that says how large its tiles are. Out: the
`TensorDescriptor` that Triton's launchers take in place of an address. It names memory by its
address and keeps no tensor alive; equal addresses and sizes share one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from fuser.ir.dtype import DType
from fuser.ir.kernel import Configuration, KernelArgument

__all__ = ["Descriptors", "descriptor_type"]

MOST_KNOWN = 64
"""Descriptors of one argument that are kept: a program has few tensors in one place."""


@dataclass(frozen=True, slots=True)
class _Address:
    """What a descriptor asks of a tensor."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.address


class Descriptors:
    """`descriptors(address, sizes)` describes the window of memory that begins there."""

    def __init__(self, argument: KernelArgument, configuration: Configuration) -> None:
        assert argument.window is not None
        self.window = argument.window
        self.dtype: torch.dtype = getattr(torch, argument.dtype.value)
        self.skipped = self.window.offset * argument.dtype.bytes
        self.blocks = block_of(argument, configuration)
        self.known: dict[tuple[int, tuple[int, ...]], Any] = {}

    def __call__(self, address: int, sizes: tuple[int, ...]) -> Any:
        found = self.known.get((address, sizes))
        if found is None:
            if len(self.known) == MOST_KNOWN:
                self.known.clear()
            found = self.made(_Address(address + self.skipped, self.dtype), sizes)
            self.known[address, sizes] = found
        return found

    def of_tensor(self, tensor: torch.Tensor, sizes: tuple[int, ...]) -> Any:
        """The same of a tensor: for Triton's compiler and for its interpreter."""
        offset = tensor.storage_offset() + self.window.offset
        return self.made(torch.as_strided(tensor, sizes, self.window.strides, offset), sizes)

    def made(self, base: Any, sizes: tuple[int, ...]) -> Any:
        return TensorDescriptor(base, list(sizes), list(self.window.strides), self.blocks)


def block_of(argument: KernelArgument, configuration: Configuration) -> list[int]:
    """A tile's elements along each dimension."""
    assert argument.window is not None
    blocks = argument.window.blocks
    return [1 if name is None else configuration.block(name) for name in blocks]


def descriptor_type(argument: KernelArgument, configuration: Configuration) -> str:
    """Triton's name for the type of such an argument."""
    types = {DType.FLOAT16: "fp16", DType.BFLOAT16: "bf16", DType.FLOAT32: "fp32"}
    block = ", ".join(map(str, block_of(argument, configuration)))
    return f"tensordesc<{types[argument.dtype]}[{block}]>"
