"""Kernel specifications: what code generation hands to the runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as OneOf

from fuser.ir.dim import Dim
from fuser.ir.dtype import DType

ALIGNMENT = 16
"""Bytes. Triton compiles for addresses that are multiples of it, and for sizes that are."""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a buffer that a tensor descriptor lets a kernel read, a tile at a time.

    `sizes` and `strides` have the elements of each dimension and between its neighbours, outermost
    first; the last stride is 1. `blocks` names the block that a tile has along each, None where it
    has one element. The first element is `offset` elements into the buffer.
    """

    sizes: tuple[Dim, ...]
    strides: tuple[int, ...]
    blocks: tuple[str | None, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class KernelArgument:
    """One argument of a kernel, in call order.

    `buffer`: a tensor, by value name; with a `window` the kernel is given a descriptor of that
    instead of the address. `workspace`: scratch memory of `size` elements that the host allocates.
    `size`: an integer expression over the graph's symbols.
    """

    kind: OneOf["buffer", "workspace", "size"]
    name: str
    dtype: DType = DType.INT64
    size: Dim = 0
    is_output: bool = False
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """Block sizes and warps for one compilation of a kernel."""

    blocks: tuple[tuple[str, int], ...]
    num_warps: int = 4
    num_stages: int = 1

    def block(self, name: str) -> int:
        return dict(self.blocks)[name]


@dataclass(frozen=True, slots=True)
class GridAxis:
    """Programs along one grid axis: ceil(`size` / block), or `size` itself without a block.

    Of several sizes that share the axis it is as many times those of `times`. Where programs walk
    what is left of it, there are no more of them than the block `most` says.
    """

    size: Dim
    block: str | None = None
    times: tuple[GridAxis, ...] = ()
    most: str | None = None


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel. Called as `kernel[grid](*arguments, INDEX_TYPE=..., **configuration.blocks)`.

    `key` is a digest of the program without its names and comments: kernels that do the same for
    different layers share one, and so one compilation. `extent` is the largest element offset the
    kernel may form: at 2**31 and above it is compiled with 64-bit indices. `checks_indices` asks
    for device-side assertions. `constexprs` are further compile-time arguments with fixed values.
    `otherwise` computes the same from the same buffers, at calls in which one that has a window is
    not aligned or has no address.
    """

    name: str
    source: str
    key: str
    arguments: tuple[KernelArgument, ...]
    grid: tuple[GridAxis, ...]
    configurations: tuple[Configuration, ...]
    extent: Dim
    checks_indices: bool = False
    constexprs: tuple[tuple[str, int], ...] = ()
    otherwise: KernelSpec | None = None


@dataclass(frozen=True, slots=True)
class RegionKernels:
    """The launches of one region, or of several that share each of them, in order."""

    regions: tuple[str, ...]
    kernels: tuple[KernelSpec, ...]

    @property
    def handed_on(self) -> tuple[str, ...]:
        """Buffers that the last kernel is given after its arguments: those of the earlier ones.

        Should a kernel not compile, the regions' ops take the place of all, and read them.
        """
        *earlier, last = self.kernels
        own = {argument.name for argument in last.arguments}
        seen = (a for spec in earlier for a in spec.arguments if a.kind == "buffer")
        return tuple(dict.fromkeys(a.name for a in seen if a.name not in own))


@dataclass(frozen=True, slots=True)
class Resources:
    """What one compiled kernel needs."""

    registers: int
    """32-bit registers of a thread."""
    spills: int
    """Of those that did not fit, how many live in local memory."""
    shared_bytes: int
    """Shared memory of a block."""
