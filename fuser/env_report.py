"""What a bug report needs to say about a machine: versions, GPUs, driver and settings.

In: the running process. Out: `environment()`, plain data that `json.dumps` accepts, and
`report()`, the same as text. Nothing here may raise because something is missing or broken: a
report is most needed on the machine where torch does not import.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from fuser import config
from fuser.errors import InvalidArgument

__all__ = ["environment", "report"]

DISTRIBUTION = "fuser-compiler"
LIBRARIES = ("torch", "triton", "numpy", "networkx", "jinja2", "sympy", "rich")
ABSENT = "not installed"


def environment() -> dict[str, Any]:
    """Return versions, platform, GPUs, driver and settings as nested plain data."""
    gpus, note = _gpus()
    return {
        "versions": {
            "fuser": _own_version(),
            "python": platform.python_version(),
            **{name: _version(name) for name in LIBRARIES},
        },
        "platform": platform.platform(),
        "gpus": gpus,
        "gpu_note": note,
        "driver": _driver_version(),
        "knobs": _knobs(),
    }


def report() -> str:
    """Return `environment()` as text, one fact on a line."""
    facts = environment()
    lines = ["versions"]
    lines += _aligned(facts["versions"])
    lines += ["machine"]
    machine = {"platform": facts["platform"], "driver": facts["driver"] or "none found"}
    for index, gpu in enumerate(facts["gpus"]):
        machine[f"gpu {index}"] = (
            f"{gpu['name']}, {gpu['architecture']}, {gpu['memory_gib']} GiB, "
            f"{gpu['multiprocessors']} multiprocessors"
        )
    if not facts["gpus"]:
        machine["gpu"] = facts["gpu_note"]
    lines += _aligned(machine)
    lines += ["settings"]
    for knob in facts["knobs"]:
        shown = knob["value"] if knob["value"] not in (None, "") else "(empty)"
        lines.append(f"  {knob['env']} = {shown}  [{knob['origin']}]")
        lines.append(f"      {knob['doc']}")
    return "\n".join(lines)


def _aligned(facts: dict[str, str]) -> list[str]:
    width = max(map(len, facts))
    return [f"  {name:<{width}}  {value}" for name, value in facts.items()]


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ABSENT


def _own_version() -> str:
    installed = _version(DISTRIBUTION)
    if installed != ABSENT:
        return installed
    # From a checkout that was not installed. The package is in `sys.modules` already; importing
    # it here would make this module depend on the layers above it.
    return str(getattr(sys.modules["fuser"], "__version__", "unknown (not installed)"))


def _gpus() -> tuple[list[dict[str, Any]], str]:
    """Return the GPUs, and the reason when there are none."""
    try:
        torch = importlib.import_module("torch")
        if not torch.cuda.is_available():
            return [], f"none usable by torch {torch.__version__}"
        found = []
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            if torch.version.hip:
                architecture = str(properties.gcnArchName)
            else:
                architecture = f"sm_{properties.major}{properties.minor}"
            found.append(
                {
                    "name": str(properties.name),
                    "architecture": architecture,
                    "memory_gib": round(properties.total_memory / 2**30, 1),
                    "multiprocessors": int(properties.multi_processor_count),
                }
            )
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return [], f"torch cannot be asked: {type(error).__name__}: {error}"
    return found, ""


def _driver_version() -> str:
    """Return the version of the NVIDIA driver, or an empty text."""
    kernel_module = Path("/sys/module/nvidia/version")
    try:
        return kernel_module.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        pass  # Sandboxes often hide this file and still provide the tool below.
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.splitlines()[0].strip() if done.stdout.strip() else ""


def _knobs() -> list[dict[str, Any]]:
    rows = []
    for knob in config.KNOBS:
        try:
            setting = config.current(knob)
            value, origin = setting.value, setting.origin
        except InvalidArgument as error:
            value, origin = f"invalid: {error.fields['shown']}", "environment"
        rows.append(
            {
                "name": knob.name,
                "env": knob.env,
                "value": str(value) if isinstance(value, Path) else value,
                "origin": origin,
                "keyed": knob.keyed,
                "doc": knob.doc,
            }
        )
    return rows
