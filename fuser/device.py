"""What the planner knows of each GPU: a frozen table, and the entry for the GPU that is present.

Figures are per device and in base units (bytes, operations and seconds unless the name says
otherwise). Sources: NVIDIA's A100, H100, H200 and B200 data sheets and the compute-capability table
of the CUDA programming guide; AMD's MI300X data sheet. `copy_rate` is what a copy reaches, about
nine tenths of the data sheet (4.27 of 4.8 TB/s was measured on an H200).
"""

from __future__ import annotations

from dataclasses import dataclass

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
    max_registers_per_thread: int
    shared_bytes_per_block: int
    threads_per_processor: int
    copy_rate: float
    vector_rate: float
    l2_bytes: int
    launch_us: float


DEVICES: dict[str, DeviceSpec] = {
    spec.target: spec
    for spec in (
        DeviceSpec("sm_80", "NVIDIA A100", "cuda", 80, 32, 108, 65536, 255, 166912, 2048,
                   1.75e12, 19.5e12, 40 << 20, 3.0),
        DeviceSpec("sm_89", "NVIDIA L40S", "cuda", 89, 32, 142, 65536, 255, 101376, 1536,
                   0.77e12, 91.6e12, 96 << 20, 3.0),
        DeviceSpec("sm_90", "NVIDIA H200", "cuda", 90, 32, 132, 65536, 255, 232448, 2048,
                   4.27e12, 67e12, 50 << 20, 2.5),
        DeviceSpec("sm_100", "NVIDIA B200", "cuda", 100, 32, 148, 65536, 255, 232448, 2048,
                   7.2e12, 80e12, 126 << 20, 2.5),
        DeviceSpec("gfx942", "AMD MI300X", "hip", "gfx942", 64, 304, 131072, 512, 65536, 2048,
                   4.7e12, 163e12, 256 << 20, 4.0),
        # The interpreter has no parallelism to budget: what counts there is the number of blocks.
        DeviceSpec("cpu", "Triton interpreter", "cpu", 0, 32, 1, 65536, 255, 232448, 2048,
                   2.0e9, 2.0e9, 1 << 20, 1000.0),
    )
}  # fmt: skip


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
    known = sorted(int(spec.architecture) for spec in DEVICES.values() if spec.backend == "cuda")
    below = [architecture for architecture in known if architecture <= capability]
    return f"sm_{below[-1] if below else known[0]}"
