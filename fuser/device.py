"""What the planner knows of each GPU: a frozen table, and the entry for the GPU that is present.

Figures are per device and in base units (bytes, operations and seconds unless the name says
otherwise). Sources: NVIDIA's A100, H100, H200 and B200 data sheets and the compute-capability table
of the CUDA programming guide; AMD's MI300X data sheet. `copy_rate` is what a copy reaches, about
nine tenths of the data sheet (4.27 of 4.8 TB/s was measured on an H200).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fuser.errors import UnknownTarget


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One kind of device."""

    target: str
    name: str
    backend: str
    """Triton's name for the code generator: `cuda`, `hip`, or `cpu` for the interpreter."""
    architecture: int | str
    warp_size: int
    processors: int
    registers_per_processor: int
    """32-bit registers."""
    max_registers_per_thread: int
    shared_bytes_per_block: int
    shared_bytes_per_processor: int
    shared_bytes_reserved: int
    """What the driver takes of every block's shared memory for itself."""
    threads_per_processor: int
    blocks_per_processor: int
    copy_rate: float
    """Bytes read plus bytes written in a second by a long copy."""
    l2_rate: float
    """Bytes that L2 serves in a second."""
    vector_rate: float
    """float32 operations in a second outside the tensor cores, a multiply-add being two."""
    tensor_rate: float
    """16-bit floating-point operations in a second of the tensor cores, without sparsity."""
    l2_bytes: int
    launch_us: float
    """What starting one more kernel costs."""

    @property
    def has_descriptors(self) -> bool:
        """Whether tiles are copied by tensor descriptors, from Hopper on; tensor cores read them in
        shared memory there."""
        return isinstance(self.architecture, int) and self.architecture >= 90


def _nvidia(target: str, name: str, architecture: int, **figures: float) -> DeviceSpec:
    """What all NVIDIA GPUs since Ampere share, and the `figures` in which they differ."""
    shared: dict[str, Any] = {
        "warp_size": 32, "registers_per_processor": 65536, "max_registers_per_thread": 255,
        "shared_bytes_reserved": 1024, "threads_per_processor": 2048, "blocks_per_processor": 32,
        "launch_us": 2.5,
    }  # fmt: skip
    return DeviceSpec(target, name, "cuda", architecture, **{**shared, **figures})


DEVICES: Mapping[str, DeviceSpec] = MappingProxyType({
    spec.target: spec
    for spec in (
        _nvidia("sm_80", "NVIDIA A100", 80, processors=108, shared_bytes_per_block=166912,
                shared_bytes_per_processor=167936, copy_rate=1.75e12, l2_rate=4.0e12,
                vector_rate=19.5e12, tensor_rate=312e12, l2_bytes=40 << 20, launch_us=3.0),
        _nvidia("sm_89", "NVIDIA L40S", 89, processors=142, shared_bytes_per_block=101376,
                shared_bytes_per_processor=102400, threads_per_processor=1536,
                blocks_per_processor=24, copy_rate=0.77e12, l2_rate=4.0e12, vector_rate=91.6e12,
                tensor_rate=362e12, l2_bytes=96 << 20, launch_us=3.0),
        _nvidia("sm_90", "NVIDIA H200", 90, processors=132, shared_bytes_per_block=232448,
                shared_bytes_per_processor=233472, copy_rate=4.27e12, l2_rate=5.5e12,
                vector_rate=67e12, tensor_rate=989e12, l2_bytes=50 << 20),
        _nvidia("h100", "NVIDIA H100", 90, processors=132, shared_bytes_per_block=232448,
                shared_bytes_per_processor=233472, copy_rate=3.0e12, l2_rate=5.5e12,
                vector_rate=67e12, tensor_rate=989e12, l2_bytes=50 << 20),
        _nvidia("sm_100", "NVIDIA B200", 100, processors=148, shared_bytes_per_block=232448,
                shared_bytes_per_processor=233472, copy_rate=7.2e12, l2_rate=10e12,
                vector_rate=80e12, tensor_rate=2250e12, l2_bytes=126 << 20),
        DeviceSpec("gfx942", "AMD MI300X", "hip", "gfx942", warp_size=64, processors=304,
                   registers_per_processor=131072, max_registers_per_thread=512,
                   shared_bytes_per_block=65536, shared_bytes_per_processor=65536,
                   shared_bytes_reserved=0, threads_per_processor=2048, blocks_per_processor=32,
                   copy_rate=4.7e12, l2_rate=8e12, vector_rate=163e12, tensor_rate=1307e12,
                   l2_bytes=256 << 20, launch_us=4.0),
        # The interpreter has no parallelism to budget: what counts there is the number of blocks.
        DeviceSpec("cpu", "Triton interpreter", "cpu", 0, warp_size=32, processors=1,
                   registers_per_processor=1 << 30, max_registers_per_thread=1 << 20,
                   shared_bytes_per_block=1 << 30, shared_bytes_per_processor=1 << 30,
                   shared_bytes_reserved=0, threads_per_processor=2048, blocks_per_processor=32,
                   copy_rate=2.0e9, l2_rate=2.0e9, vector_rate=2.0e9, tensor_rate=2.0e9,
                   l2_bytes=1 << 20, launch_us=1000.0),
    )
})  # fmt: skip


def device_spec(target: str) -> DeviceSpec:
    """The entry for `target`; raises `UnknownTarget` naming the known ones."""
    if target not in DEVICES:
        raise UnknownTarget(target=target, known=tuple(DEVICES))
    return DEVICES[target]


def present_target() -> str:
    """The target of the GPU that is present, `cpu` without one.

    A GPU newer or older than the table takes the closest entry that is not newer.
    """
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    if torch.version.hip is not None:
        return "gfx942"
    major, minor = torch.cuda.get_device_capability()
    capability = major * 10 + minor
    if capability == 90 and "H100" in torch.cuda.get_device_name():
        return "h100"
    known = sorted(int(spec.architecture) for spec in DEVICES.values() if spec.backend == "cuda")
    below = [architecture for architecture in known if architecture <= capability]
    return f"sm_{below[-1] if below else known[0]}"
