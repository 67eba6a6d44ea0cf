"""Compile kernels for a GPU that is not there, and read back what they need of it.

In: kernel specifications and a target of the device table. Out: `Resources` for each, or the
compiler's complaint. A process that interprets kernels cannot compile them, so there a worker
process without the interpreter does it: `python -m fuser.runtime.offline`, one JSON document in,
one JSON line out for each kernel.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fuser import config
from fuser.device import device_spec
from fuser.errors import KernelCompilationError
from fuser.ir.dim import evaluate
from fuser.ir.dtype import DType
from fuser.ir.kernel import Configuration, KernelSpec, Resources
from fuser.runtime.assembly import check_assembly
from fuser.runtime.cache import triton_cache
from fuser.runtime.descriptors import descriptor_type
from fuser.runtime.interpreter import is_interpreting
from fuser.runtime.launcher import WIDE_EXTENT, choose, compile_options, constants_of
from fuser.runtime.loader import load

__all__ = ["Resources", "compile_many", "compile_offline"]

Hints = Mapping[str, int]
NO_HINTS: Hints = MappingProxyType({})

_ALIGNED = [["tt.divisibility", 16]]
_POINTERS = {
    DType.BOOL: "*i1",
    DType.UINT8: "*u8",
    DType.INT8: "*i8",
    DType.INT16: "*i16",
    DType.INT32: "*i32",
    DType.INT64: "*i64",
    DType.FLOAT16: "*fp16",
    DType.BFLOAT16: "*bf16",
    DType.FLOAT32: "*fp32",
    DType.FLOAT64: "*fp64",
    DType.FLOAT8_E4M3FN: "*u8",
    DType.FLOAT8_E5M2: "*u8",
}


def compile_offline(
    spec: KernelSpec,
    target: str,
    hints: Hints = NO_HINTS,
    divisible: Collection[str] = (),
) -> Resources:
    """Compile the first configuration for `target`; raises `KernelCompilationError`.

    Pointers count as aligned to 16 bytes. `divisible` names the size arguments that are multiples
    of 16; `hints` decides, where sizes are symbolic, whether indices are 64 bits wide.
    """
    (result,) = compile_many([spec], target, hints, divisible)
    if isinstance(result, str):
        raise KernelCompilationError(kernel=spec.name, cause=result)
    return result


def compile_many(
    specs: Sequence[KernelSpec],
    target: str,
    hints: Hints = NO_HINTS,
    divisible: Collection[str] = (),
    on_result: Callable[[str], None] | None = None,
) -> list[Resources | str]:
    """The same for many kernels, in order; a text in place of resources says what went wrong.

    `on_result` is called with a kernel's name as soon as its result is there.
    """
    device_spec(target)
    jobs = [_job(spec, hints, divisible) for spec in specs]
    run = _compile_in_worker if is_interpreting() else _compile_here
    results: list[Resources | str] = []
    for spec, result in zip(specs, run(jobs, target), strict=True):
        results.append(result)
        if on_result is not None:
            on_result(spec.name)
    return results


@dataclass(frozen=True, slots=True)
class _Job:
    """One kernel with its sizes decided, as plain values that JSON can carry."""

    name: str
    source: str
    key: str
    signature: list[str]
    aligned: list[int]
    constants: dict[str, int]
    is_wide: bool
    checks_indices: bool
    num_warps: int
    num_stages: int


def _job(spec: KernelSpec, hints: Hints, divisible: Collection[str]) -> _Job:
    signature: list[str] = []
    aligned: list[int] = []
    configuration = choose(spec)
    for position, argument in enumerate(spec.arguments):
        if argument.window is not None:
            signature.append(descriptor_type(argument, configuration))
            continue
        if argument.kind != "size":
            signature.append(_POINTERS[argument.dtype])
            aligned.append(position)
            continue
        is_wide = evaluate(argument.size, hints) >= WIDE_EXTENT
        signature.append("i64" if is_wide else "i32")
        if argument.name in divisible:
            aligned.append(position)
    return _Job(
        name=spec.name,
        source=spec.source,
        key=spec.key,
        signature=signature,
        aligned=aligned,
        constants={**dict(spec.constexprs), **dict(configuration.blocks)},
        is_wide=evaluate(spec.extent, hints) >= WIDE_EXTENT,
        checks_indices=spec.checks_indices,
        num_warps=configuration.num_warps,
        num_stages=configuration.num_stages,
    )


# **** compiling ****


def _compile_here(jobs: Sequence[_Job], target: str) -> Iterator[Resources | str]:
    device = device_spec(target)
    gpu = GPUTarget(device.backend, device.architecture, device.warp_size)
    for job in jobs:
        try:
            yield _resources(_compile(job, gpu))
        except KernelCompilationError as error:
            yield str(error.fields["cause"])
        except Exception as error:
            yield f"{type(error).__name__}: {error}"


def _compile(job: _Job, target: GPUTarget) -> Any:
    configuration = Configuration(tuple(job.constants.items()), job.num_warps, job.num_stages)
    spec = KernelSpec(
        name=job.name,
        source=job.source,
        key=job.key,
        arguments=(),
        grid=(),
        configurations=(configuration,),
        extent=0,
        checks_indices=job.checks_indices,
    )
    function = load(spec)
    constants = constants_of(spec, configuration, job.is_wide)
    types = [*job.signature, *("constexpr" for _ in constants)]
    first = len(job.signature)
    source = ASTSource(
        fn=function,
        signature=dict(zip(function.arg_names, types, strict=True)),
        constexprs={(first + k,): value for k, value in enumerate(constants)},
        attrs={(position,): _ALIGNED for position in job.aligned},
    )
    options = compile_options(spec, configuration, target)
    with triton_cache():
        compiled = triton.compile(source, target=target, options=options)
    check_assembly(compiled)
    return compiled


def _resources(compiled: Any) -> Resources:
    if "amdgcn" in compiled.asm:
        text = compiled.asm["amdgcn"]
        registers = _number(r"\.vgpr_count:\s+(\d+)", text)
        spills = _number(r"\.vgpr_spill_count:\s+(\d+)", text)
    else:
        text = _resource_usage(compiled.asm["cubin"], compiled.name)
        registers = _number(r"\bREG:(\d+)", text)
        # Library functions such as sin have arrays on the stack at every tile: no spill by itself.
        has_stack = _number(r"\bSTACK:(\d+)", text) > 0
        spills = _spilled_bytes(compiled) // 4 if has_stack else 0
    return Resources(registers, spills, int(compiled.metadata.shared))


def _spilled_bytes(compiled: Any) -> int:
    """What NVIDIA's assembler says of the same kernel: bytes of registers kept in memory."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(compiled.asm["ptx"])
        file.flush()
        name = re.search(r"^\.target (\w+)", compiled.asm["ptx"], re.MULTILINE)
        assert name is not None
        knobs = triton.knobs.nvidia
        is_blackwell = name[1].startswith(("sm_10", "sm_12"))
        tool = (getattr(knobs, "ptxas_blackwell", None) if is_blackwell else None) or knobs.ptxas
        command = [
            tool.path,
            "-v",
            "--fmad=false",
            f"--gpu-name={name[1]}",
            file.name,
            "-o",
            os.devnull,
        ]
        told = subprocess.run(command, capture_output=True, text=True, check=True)
    return max(map(int, re.findall(r"(\d+) bytes spill stores", told.stderr + told.stdout)))


def _resource_usage(binary: bytes, kernel: str) -> str:
    """The line about `kernel` from NVIDIA's tool, which comes with Triton."""
    tool = triton.knobs.nvidia.cuobjdump.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        text = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return text[text.index(f"Function {kernel}:") :]


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"the compiler's report has no {pattern!r}")
    return int(found[1])


# **** the worker process ****


def _compile_in_worker(jobs: Sequence[_Job], target: str) -> Iterator[Resources | str]:
    """One process for all; should a kernel kill the compiler, another one for the rest."""
    waiting = list(jobs)
    while waiting:
        results, complaint = _run_worker(waiting, target)
        yield from results
        waiting = waiting[len(results) :]
        if waiting:
            yield f"the compiler ended without a result: {complaint}"
            waiting = waiting[1:]


def _run_worker(jobs: Sequence[_Job], target: str) -> tuple[list[Resources | str], str]:
    command = [
        *("env", "-u", "TRITON_INTERPRET", f"PYTHONPATH={os.pathsep.join(sys.path)}"),
        *(sys.executable, "-m", "fuser.runtime.offline"),
    ]
    request = {
        "target": target,
        "cache_dir": str(config.cache_dir()),
        "jobs": [asdict(job) for job in jobs],
    }
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True)
    results: list[Resources | str] = []
    for line in done.stdout.splitlines():
        result = json.loads(line)
        results.append(result if isinstance(result, str) else Resources(**result))
    complaint = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return results, complaint[0]


def _work() -> None:
    """The worker: the request on standard input, a line for each kernel on standard output."""
    # Compilers print; what they print must not get between the results.
    with os.fdopen(os.dup(1), "w") as results:
        os.dup2(2, 1)
        request = json.load(sys.stdin)
        jobs = [_Job(**job) for job in request["jobs"]]
        with config.scope(cache_dir=request["cache_dir"]):
            for result in _compile_here(jobs, request["target"]):
                shown = result if isinstance(result, str) else asdict(result)
                print(json.dumps(shown), file=results, flush=True)


if __name__ == "__main__":
    _work()
