"""The command `python -m benchmarks`: its words, its result files, its tables and its charts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from fuser.errors import UsageError
from support.benchmarks import load

ROOT = Path(__file__).resolve().parents[2]

ORIGIN = {
    "date": "2026-01-02",
    "commit": "abc1234",
    "environment": {
        "versions": {"torch": "2.11.0", "triton": "3.6.0"},
        "gpus": [{"name": "NVIDIA H200"}],
    },
}


def figure(milliseconds: float, is_host_hidden: bool = True) -> dict[str, Any]:
    return {
        "ms": milliseconds,
        "fraction": 0.1 / milliseconds,
        "spread_ms": 0.001,
        "host_us": 30.0,
        "is_host_hidden": is_host_hidden,
        "first_call_s": 1.5,
    }


def kernels_header() -> dict[str, Any]:
    rates = {"copy_bytes_per_second": 4.2e12, "product_flops_per_second": 7e14}
    return ORIGIN | rates | {"candidates": ["fuser", "eager"]}


def kernels_rows() -> list[dict[str, Any]]:
    rows = {
        "softmax": {"fuser": figure(0.125), "eager": figure(0.5) | {"replay_ms": 0.45}},
        "adamw": {"fuser": figure(0.2), "eager": figure(1.0, is_host_hidden=False)},
        "rotary": {"fuser": {"error": "ValueError: no"}, "eager": figure(0.4)},
    }
    return [{"name": n, "floor_ms": 0.1, "candidates": c} for n, c in rows.items()]


def prediction_rows() -> list[dict[str, Any]]:
    fixed = {"workload": "softmax", "divisor": 4, "phase": "inference", "region": "region_0"}
    fixed |= {"regions": 1, "kind": "reduction", "is_host_hidden": True}
    times = [(10.0, 12.0, "flat"), (100.0, 90.0, "flat"), (50.0, 200.0, "split")]
    rows = [
        {**fixed, "predicted_us": p, "measured_us": m, "strategy": strategy}
        for p, m, strategy in times
    ]
    return [*rows, {"workload": "adamw", "divisor": 1, "error": "ValueError: no"}]


def overhead_rows() -> list[dict[str, Any]]:
    split = {"kernels": 4, "original_calls": 0}
    split |= {"guards_us": 5.0, "entry_us": 6.0, "launches_us": 7.0, "rest_us": 8.0}
    split |= {"beyond_us": 14.0, "indirect_launches": {}}
    times = {"host_us": 26.0, "call_us": 30.0}
    found = {"fuser": times | split, "eager": times, "inductor": {"error": "ValueError: no"}}
    return [{"name": "four_kernels", "candidates": found}]


def result(tmp_path: Path, suite: str) -> Path:
    """A small file as the suite writes it."""
    header = kernels_header() | {
        "target": "sm_90",
        "launch_us": 2.5,
        "predicted_copy_bytes_per_second": 4.27e12,
    }
    rows = {"kernels": kernels_rows, "overhead": overhead_rows, "prediction": prediction_rows}
    path = tmp_path / f"{suite}.json"
    written = load("results").Results(suite, header, load(suite).summary, str(path))
    written.add(*rows[suite]())
    return path


def run(*words: object) -> int:
    code: int = load("__main__").main([str(word) for word in words])
    return code


# Words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["", "kernels", "overhead", "prediction", "table", "chart"])
def test_help_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run(*command.split(), "--help")
    out = capsys.readouterr().out
    assert end.value.code == 0
    assert f"python -m benchmarks {command or 'kernels'}" in out
    assert "examples:" in out
    assert max(map(len, out.splitlines())) <= 100


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom benchmarks.__main__ import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    pass\n"
        "sys.exit(str({'torch', 'triton', 'rich', 'matplotlib'} & set(sys.modules) or '') or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("suite", ["kernels", "overhead", "prediction"])
def test_a_suite_without_a_gpu_says_so(
    suite: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(suite) == 2
    err = capsys.readouterr().err
    assert f"{suite} needs a GPU" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["required: COMMAND"]),
        (["kernel"], ["invalid choice: 'kernel'", "Did you mean 'kernels'?"]),
        (["kernels", "--against", "eager,indutcor"], ["no 'indutcor'", "mean 'inductor'?"]),
        (["kernels", "--precision", "fast"], ["no 'fast' among fused, eager"]),
        (["kernels", "--only", "("], ["--only (: not a regular expression"]),
        (["table", "nothing.json"], ["nothing.json: there is no such file"]),
        (["table", __file__], ["this is not JSON"]),
        (["chart", "nothing.json"], ["required: -o"]),
    ],
)
def test_a_wrong_word_is_one_line_and_exit_code_two(
    words: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert [part for part in parts if part not in captured.err] == []


def test_candidates_are_parsed_in_order_and_once() -> None:
    words = ["kernels", "--against", "inductor, eager,inductor", "--precision", "eager,fused"]
    options = load("__main__")._parser().parse_args(words)
    assert options.against == ("inductor", "eager")
    found = load("candidates").candidates(options.precision, options.against)
    assert [item.name for item in found] == ["fuser-eager", "fuser", "inductor", "eager"]
    defaults = load("__main__")._parser().parse_args(["overhead"])
    assert defaults.against == ("fuser-graphs", "eager", "inductor", "inductor-graphs")
    assert defaults.precision == ("fused",)


def test_names_that_match_nothing_are_a_usage_error() -> None:
    request = load("request").Request("kernels", re.compile("soft"))
    assert request.selected(["softmax", "adamw"]) == ["softmax"]
    with pytest.raises(UsageError, match="no row has such a name: adamw, rotary"):
        request.selected(["adamw", "rotary"])


# Files --------------------------------------------------------------------------------------------


def test_a_result_file_is_whole_after_each_row(tmp_path: Path) -> None:
    results, kernels = load("results"), load("kernels")
    path = tmp_path / "kernels.json"
    written = results.Results("kernels", kernels_header(), kernels.summary, str(path))
    assert results.read(str(path))["rows"] == []
    for number, row in enumerate(kernels_rows(), 1):
        written.add(row)
        data = results.read(str(path))
        assert len(data["rows"]) == data["summary"]["rows"] == number
    assert data["summary"]["geometric_mean"]["fuser"] == pytest.approx((0.8 * 0.5) ** 0.5)
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        load("results").Results("kernels", {}, lambda rows: {}, str(tmp_path / "no" / "x.json"))


def test_the_origin_of_a_run_names_the_commit_and_can_be_saved() -> None:
    origin = load("results").origin("abc")
    assert origin["commit"] == "abc"
    assert load("results").origin()["commit"]
    assert json.loads(json.dumps(origin)) == origin


@pytest.mark.parametrize("text", ["[]", "{}", '{"schema": 2, "suite": "models"}', '{"rows": []}'])
def test_other_json_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    assert run("table", path) == 2
    assert "measure again" in capsys.readouterr().err


# Tables and charts --------------------------------------------------------------------------------

SHOWN = {
    "kernels": [
        "NVIDIA H200, torch 2.11.0, Triton 3.6.0, commit abc1234, 2026-01-02",
        "| workload | floor | fuser | eager |\n|---|---|---|---|\n",
        "| softmax | 0.100 | 0.125 (0.80) | 0.500 (0.20), replayed 0.450 |\n",
        "| adamw | 0.100 | 0.200 (0.50) | 1.000 (0.10) with host time |\n",
        "| rotary | 0.100 | failed | 0.400 (0.25) |\n",
        "| geometric mean of 2 |  | **0.63** | **0.14** |\n",
        "| softmax | 30 us, 1.50 s | 30 us, 1.50 s |\n",
        "- rotary: fuser: ValueError: no\n",
    ],
    "overhead": [
        "| four_kernels | fuser | 26.0 | 30.0 |\n",
        "| four_kernels | inductor | failed |  |\n",
        "| four_kernels | 4 | 0 | 5.0 | 6.0 | 7.0 | 8.0 | 14.0 |\n",
    ],
    "prediction": [
        "| flat | 2 | 1.00 | 1.05 | 1.20 |\n",
        "| split | 1 |  | 4.00 | 4.00 |\n",
        "| all | 3 | 0.50 | 1.20 | 4.00 |\n",
        "| softmax | 1/4 | inference region_0 | split | 50.0 | 200.0 |\n",
        "- adamw 1/1 : ValueError: no\n",
    ],
}


@pytest.mark.parametrize("suite", SHOWN)
def test_a_result_becomes_markdown(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("table", result(tmp_path, suite)) == 0
    out = capsys.readouterr().out
    assert [part for part in SHOWN[suite] if part not in out] == []
    for line in out.splitlines():  # every row has as many cells as its head
        assert not line.startswith("|") or line.endswith("|")


def test_a_table_goes_between_the_marks_of_a_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = result(tmp_path, "kernels")
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- table: kernels -->\nold\n<!-- end: kernels -->\nafter\n")
    for _ in range(2):  # the second time changes nothing
        assert run("table", path, "--into", document) == 0
        text = document.read_text()
        assert text.startswith("before\n<!-- table: kernels -->\nNVIDIA H200")
        assert text.endswith("\n<!-- end: kernels -->\nafter\n")
        assert "old" not in text
        assert text.count("| softmax |") == 2
    document.write_text("no marks\n")
    assert run("table", path, "--into", document) == 2
    assert "<!-- table: kernels -->" in capsys.readouterr().err
    assert document.read_text() == "no marks\n"


@pytest.mark.parametrize(
    ("suite", "page"),
    [("kernels", "hardware"), ("prediction", "hardware"), ("overhead", "overhead")],
)
def test_the_figures_of_each_suite_have_a_place(suite: str, page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert text.count(f"<!-- table: {suite} -->") == text.count(f"<!-- end: {suite} -->") == 1


@pytest.mark.parametrize("suite", ["kernels", "prediction"])
def test_a_result_becomes_a_chart(suite: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = result(tmp_path, suite)
    pictures = []
    for name in ("first.svg", "second.svg"):
        assert run("chart", path, "-o", tmp_path / name) == 0
        pictures.append((tmp_path / name).read_text())
    assert pictures[0] == pictures[1]
    texts = " ".join(ElementTree.fromstring(pictures[0]).itertext())
    expected = {"kernels": ["softmax", "rotary", "fuser, mean 0.63"], "prediction": ["flat", "0.5"]}
    assert [part for part in (*expected[suite], "NVIDIA H200") if part not in texts] == []
    assert run("chart", path, "-o", tmp_path / "chart.png") == 0
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("suite", "name", "part"),
    [
        ("kernels", "chart.gif", "has to end in .svg, .png, .pdf"),
        ("kernels", "missing/chart.svg", "cannot write"),
        ("overhead", "chart.svg", "overhead has no chart"),
    ],
)
def test_a_chart_that_cannot_be_drawn_is_one_line(
    suite: str, name: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert run("chart", result(tmp_path, suite), "-o", tmp_path / name) == 2
    assert part in capsys.readouterr().err
