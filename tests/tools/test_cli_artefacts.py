"""Plans as artefacts on the command line: what kernels compile to, and how two plans differ."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fuser
from fuser.cli import main
from fuser.device import DEVICES
from fuser.ir.kernel import Resources
from fuser.report import Plan
from support.plans import kernels, small_plan

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """\
import torch

def scaled(x, weight):
    return torch.sigmoid(x * weight + 1.0)

def make(device):
    return scaled, (torch.ones(4, 8, device=device), torch.ones(8, device=device))
"""

REQUIRED = {
    "": "target regions opaque edges passes totals",
    "regions 0": "name kind strategy ops inputs outputs bytes unfused_bytes flops",
    "regions 0 ops 0": "name op source",
    "regions 0 predicted": "registers shared_bytes occupancy time_us bound",
    "regions 0 compiled": "registers spills shared_bytes",
    "edges 0": "producer consumer fused reason",
    "passes 0": "name ms",
    "totals": "ops kernels opaque_calls bytes unfused_bytes predicted_us unfused_us peak_bytes "
    "eager_peak_bytes",
}
"""What other tools read of a plan with resources: place to names of fields."""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Carry out a command line in this process; exit code, standard output, standard error."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("TRITON_INTERPRET", os.environ.get("TRITON_INTERPRET", "0"))

    def carry_out(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return carry_out


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stands for `fuser.api`; collects the targets that plans are asked for."""
    asked: list[str] = []
    fake = types.ModuleType("fuser.api")

    def plan(model: Any, *args: Any, target: str, **options: Any) -> Plan:
        asked.append(target)
        return Plan(small_plan(), (kernels("region_0", "scale", "shift"),))

    monkeypatch.setattr(fake, "plan", plan, raising=False)
    monkeypatch.setitem(sys.modules, "fuser.api", fake)
    monkeypatch.setattr(fuser, "api", fake, raising=False)
    return asked


def one_line(err: str) -> str:
    assert err.startswith("fuserc: ")
    assert err.count("\n") == 1
    return err


RESOURCES = {"scale": Resources(24, 0, 0), "shift": Resources(40, 2, 512)}


def compiled_offline(plan: Plan, on_kernel: Callable[[str], None] | None = None) -> Plan:
    """Stands for `Plan.with_resources`."""
    for name in plan.sources():
        if on_kernel is not None:
            on_kernel(name)
    return dataclasses.replace(plan, resources=RESOURCES)


def test_plan_shows_what_the_kernels_compile_to(
    program: Path, run: Run, api: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plan, "with_resources", compiled_offline)
    words = ["plan", program, "--target", "sm_90", "--resources"]
    code, out, err = run(*words)
    assert (code, err, api) == (0, "", ["sm_90"])
    needs = small_plan().regions[0].cost.needs
    assert f"registers {needs.registers} predicted, 40 compiled, 2 spilled; shared memory " in out
    assert "       compiled shift: 40 registers, 2 spilled, 512 B shared memory\n" in out
    compiled = json.loads(run(*words, "--format", "json")[1])["regions"][0]["compiled"]
    assert (compiled["registers"], compiled["spills"], compiled["shared_bytes"]) == (40, 2, 512)
    assert "predicted, 40 compiled, 2 spilled" in run(*words, "--format", "dot")[1]


def test_a_terminal_shows_how_far_compiling_is(
    program: Path, run: Run, api: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plan, "with_resources", compiled_offline)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    code, out, err = run("plan", program, "--target", "sm_90", "--resources")
    assert code == 0
    assert "compiling" not in out
    assert "compiling" in err
    assert "2/2" in err


def test_resources_for_the_machine_without_a_gpu_are_refused_at_once(
    program: Path, run: Run, api: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuser.commands.plan.present_target", lambda: "cpu")
    code, _, err = run("plan", program, "--resources")
    assert code == 2
    others = ", ".join(name for name in DEVICES if name != "cpu")
    assert f"Add --target with one of {others}; fix: see `fuserc plan --help`" in one_line(err)
    assert api == []


def test_diff_compares_two_files(run: Run, tmp_path: Path) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    Plan(small_plan("sm_90")).to_json(before)
    Plan(small_plan("sm_80")).to_json(after)
    assert run("diff", before, before) == (0, "no difference\n", "")
    code, out, err = run("diff", before, after)
    assert (code, err) == (1, "")
    assert out.startswith("plan\n  target                 sm_90 -> sm_80\n")
    assert run("diff", before, after, "--verbose")[0] == 1


def test_diff_names_the_file_that_is_no_plan(run: Run, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    Plan(small_plan()).to_json(good)
    bad.write_text('{"schema": 99}')
    code, out, err = run("diff", good, bad)
    assert (code, out) == (2, "")
    assert f"{bad}: the plan has schema 99" in one_line(err)


def test_a_program_is_compiled_for_a_gpu_that_is_not_here(program: Path) -> None:
    words = ["plan", str(program), "--target", "sm_90", "--device", "cpu", "--resources"]
    kept = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "fuser", *words, "--format", "json"],
        env=kept | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    plan = json.loads(done.stdout)
    for place, names in REQUIRED.items():
        found = plan
        for step in place.split():
            found = found[int(step) if step.isdecimal() else step]
        assert set(names.split()) <= found.keys(), place
    compiled = plan["regions"][0]["compiled"]
    assert 8 <= compiled["registers"] <= 255
    assert compiled["spills"] == 0
    assert [kernel["name"] for kernel in compiled["kernels"]] == ["region_0"]
