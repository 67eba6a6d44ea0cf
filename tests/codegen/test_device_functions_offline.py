"""Every device function compiles for every GPU architecture, on a machine that has none.

The worker is a process of its own, because a process that interprets kernels cannot compile them.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fuser.runtime import (
    device_approximate,
    device_arithmetic,
    device_logic,
    device_math,
    device_random,
    device_reductions,
)

MODULES = (
    device_math,
    device_arithmetic,
    device_approximate,
    device_logic,
    device_reductions,
    device_random,
)
ROOT = Path(__file__).parents[2]
FLOATS = ("fp32", "fp64")
INTEGERS = ("i8", "u8", "i16", "i32", "i64")
FLOATS_ONLY = {
    *device_math.__all__,
    *("copysign", "divide", "frac", "ldexp", "nextafter", "reciprocal"),
    *("float_to_int", "round_to"),
}
INTEGERS_ONLY = {
    *("bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor"),
    *("shift_left", "shift_right"),
}
DTYPES = {
    "float_to_int": ("int8", "uint8", "int32", "int64"),
    "round_to": ("bfloat16", "float16"),
    "convert": (
        *("bfloat16", "float16", "float32", "float64"),
        *("int1", "int8", "uint8", "int32", "int64"),
    ),
}
REDUCED = {"0": "tl.arange(0, 64)", "1": "tl.arange(0, 8)", "None": "0", "1, True": "rows"}

HEADER = """\
import triton
import triton.language as tl
from fuser.runtime import device_functions as fn
"""
KERNEL = """
@triton.jit
def {name}(source, result):
    rows = tl.arange(0, 8)[:, None]
    columns = tl.arange(0, 64)[None, :]
    fourths = 4 * tl.arange(0, 16)[None, :]
    eighths = 4 * tl.arange(0, 2)[:, None]
    offsets = rows * 64 + columns
    a = tl.load(source + offsets)
    b = tl.load(source + 512 + offsets)
    c = tl.load(source + 1024 + offsets)
    best = tl.load(source + 1536 + offsets)
"""
WORKER = """
import json, sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
import kernels

targets = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
assembly, failures = {}, {}
for name, element in json.loads(sys.argv[1]):
    for architecture, target in targets.items():
        is_random = name.startswith("device_random")
        if architecture != "sm_90" and element not in ("fp32", "fp64", "i8") and not is_random:
            continue  # the front end is the same; one narrow integer type shows the back end
        signature = {"source": "*" + element, "result": "*fp64"}
        source = ASTSource(fn=getattr(kernels, name), signature=signature, constexprs={})
        options = {"enable_reflect_ftz": False} if target.backend == "cuda" else {}
        try:
            built = compile(source, target=target, options=options)
        except Exception as error:
            while error.__cause__ is not None:
                error = error.__cause__
            failures[f"{name} {architecture}"] = f"{type(error).__name__}: {error}"
        else:
            if architecture == "sm_90":
                assembly[name] = built.asm["ptx"]
print(json.dumps({"assembly": assembly, "failures": failures}))
"""


def _calls(name: str, function: Any, element: str) -> Iterator[tuple[str, str]]:
    """Expressions that call the function in each way it can be called, and offsets to store at."""
    parameters = list(inspect.signature(function.fn).parameters)
    if parameters[0] == "seed":
        for dtype in ("tl.float32", "tl.float64"):
            yield f"fn.{name}(tl.load(source), 3, offsets, {dtype})", "offsets"
            yield f"fn.{name}(tl.load(source), 3, rows * 64 + fourths, {dtype}, axis=1)", "offsets"
            yield (
                f"fn.{name}(tl.load(source), 3, eighths * 4 + columns, {dtype}, axis=0)",
                "offsets",
            )
        return
    if "axis" in parameters:
        tiles, pick = ("a, columns", "[1]") if "index" in parameters else ("a", "")
        for axis, offsets in REDUCED.items():
            yield f"fn.{name}({tiles}, {axis}){pick}", offsets
        return
    if parameters == ["x"]:
        calls = [f"fn.{name}(a)"]
    elif parameters == ["x", "dtype"]:
        calls = [f"fn.{name}(a, tl.{dtype})" for dtype in DTYPES[name]]
    elif parameters == ["condition", "x", "y"]:
        calls = [f"fn.{name}({operands})" for operands in ("c != 0, a, b", "c, a, 1", "c, 1, b")]
    elif parameters == ["best", "best_index", "value", "index"]:
        calls = [f"fn.{name}(best, rows, a, columns)[1]"]
    elif name == "ldexp":
        calls = ["fn.ldexp(a, offsets)"]
    else:
        assert len(parameters) == 2, f"{name}{parameters}: this test does not know how to call it"
        calls = [f"fn.{name}({operands})" for operands in ("a, b", "a, 5", "5, b")]
    if name == "pow":
        exponents = (0, 1, 2, 3, -1, -2, 0.5, -0.5) if element in FLOATS else (0, 1, 2, 3)
        calls += [f"fn.pow(a, {exponent})" for exponent in exponents]
    yield from ((call, "offsets") for call in calls)


def _kernel(name: str, calls: list[tuple[str, str]]) -> str:
    lines = [KERNEL.format(name=name)]
    for number, (call, offsets) in enumerate(calls):
        lines.append(f"    value = ({call}).to(tl.float64)")
        lines.append(f"    tl.store(result + {512 * number} + {offsets}, value)")
    return "\n".join(lines) + "\n"


def _takes(name: str, element: str) -> bool:
    if name in device_random.__all__:
        return element == "i64"
    if name in device_approximate.__all__:
        return element == "fp32"
    if element in FLOATS:
        return name not in INTEGERS_ONLY
    return name not in FLOATS_ONLY


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    folder = tmp_path_factory.mktemp("offline")
    text, kernels = [HEADER], []
    for element in (*FLOATS, *INTEGERS):
        for module in MODULES:
            family = module.__name__.rsplit(".", 1)[-1]
            calls = [
                call
                for name in module.__all__
                if _takes(name, element)
                for call in _calls(name, getattr(module, name), element)
            ]
            if calls:
                text.append(_kernel(f"{family}_{element}", calls))
                kernels.append((f"{family}_{element}", element))
    (folder / "kernels.py").write_text("\n".join(text))
    (folder / "worker.py").write_text(WORKER)
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder / "cache")
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, folder / "worker.py", json.dumps(kernels)],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, dict[str, str]] = json.loads(done.stdout)
    return result


def test_every_function_compiles_everywhere(built: dict[str, dict[str, str]]) -> None:
    assert built["failures"] == {}


def test_divisions_are_ieee(built: dict[str, dict[str, str]]) -> None:
    for name, text in built["assembly"].items():
        if name != "device_approximate_fp32":
            assert "div.full" not in text, name
    assert "div.rn.f32" in built["assembly"]["device_arithmetic_fp32"]


def test_approximate_functions_are_single_instructions(built: dict[str, dict[str, str]]) -> None:
    text = built["assembly"]["device_approximate_fp32"]
    for instruction in ("ex2.approx.ftz", "rcp.approx.ftz", "lg2.approx", "sqrt.approx"):
        assert f"{instruction}.f32" in text
    # Subnormal numbers are kept: only where neither operand nor result can be one are they not.
    flushing = set(re.findall(r"\b(\w+(?:\.\w+)*)\.ftz\.f32", text))
    assert flushing == {"ex2.approx", "rcp.approx"}
    assert "call.uni" not in text


def test_casts_round_as_often_as_in_torch(built: dict[str, dict[str, str]]) -> None:
    """Float32 to bfloat16 and back stays, and a wide type comes to bfloat16 through float32."""
    assert "cvt.rn.bf16.f32" in built["assembly"]["device_logic_fp32"]
    for element, direct in (("fp64", "cvt.rn.bf16.f64"), ("i32", "cvt.rn.bf16.s32")):
        assert direct not in built["assembly"][f"device_logic_{element}"]
