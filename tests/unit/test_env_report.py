"""The report for bug reports: complete, plain data, and alive when the machine is broken."""

from __future__ import annotations

import importlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fuser import config, env_report


def test_the_report_is_plain_data_with_every_fact() -> None:
    facts = env_report.environment()
    assert json.loads(json.dumps(facts)) == facts
    assert set(facts["versions"]) == {"fuser", "python", *env_report.LIBRARIES}
    assert env_report.ABSENT not in facts["versions"].values()
    assert [row["env"] for row in facts["knobs"]] == [knob.env for knob in config.KNOBS]
    assert facts["gpus"] or facts["gpu_note"]


def test_the_text_shows_each_setting_with_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSER_CHECK", "1")
    monkeypatch.delenv("FUSER_LOGS", raising=False)
    with config.scope(dump_dir="here"):
        text = env_report.report()
    assert "FUSER_CHECK = True  [environment]" in text
    assert "FUSER_DUMP = here  [scope]" in text
    assert "FUSER_LOGS = (empty)  [default]" in text
    assert all(knob.doc in text for knob in config.KNOBS)


def test_an_invalid_setting_is_reported_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSER_CHECK", "maybe")
    assert "FUSER_CHECK = invalid: 'maybe'" in env_report.report()


def test_a_torch_that_does_not_import_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise OSError(f"lib{name}.so is missing")

    monkeypatch.setattr(importlib, "import_module", fail)
    facts = env_report.environment()
    assert facts["gpus"] == []
    assert "libtorch.so is missing" in facts["gpu_note"]
    assert "libtorch.so is missing" in env_report.report()


def test_gpus_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = {"name": "GPU X", "architecture": "sm_90", "memory_gib": 80.0, "multiprocessors": 132}
    monkeypatch.setattr(env_report, "_gpus", lambda: ([gpu], ""))
    monkeypatch.setattr(env_report, "_driver_version", lambda: "580.1")
    text = env_report.report()
    assert "GPU X, sm_90, 80.0 GiB, 132 multiprocessors" in text
    assert "580.1" in text


def test_a_missing_driver_tool_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.setattr(Path, "read_text", fail)
    assert env_report._driver_version() == ""
