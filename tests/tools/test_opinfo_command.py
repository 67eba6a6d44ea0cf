"""The command `make opinfo`: its file, its table, hung and lost calls, and its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuser.runtime.interpreter import is_interpreting
from opinfo.__main__ import main
from opinfo.cases import Task
from opinfo.check import Outcome
from opinfo.results import Results, read
from opinfo.table import END, START, placed, table
from opinfo.workers import Settings

SETTINGS = Settings("cpu", 2, 60.0)


def _written(path: Path) -> str:
    results = Results(SETTINGS, str(path), resumes=False)
    results.add(Task("sin", "float32"), [Outcome("sample 0", "fused", kernels=1)] * 3)
    results.add(Task("mm", "float32"), [Outcome("sample 0", "fused", products=("aten.mm",))])
    results.add(
        Task("put", "int64"),
        [Outcome("a", "mixed", "", ("aten.put.default",)), Outcome("b", "failed", "why")],
    )
    results.add(Task("sort", "int64"), [Outcome("a", "opaque", "", ("aten.sort.default",))])
    return path.read_text()


def test_the_file_reads_back_and_failures_run_again(tmp_path: Path) -> None:
    path = tmp_path / "o.json"
    facts, outcomes = read(_written(path))
    assert facts["samples"] == 2
    assert outcomes[Task("put", "int64")][0].calls == ("aten.put.default",)
    resumed = Results(SETTINGS, str(path), resumes=True)
    assert set(resumed.outcomes) == set(outcomes) - {Task("put", "int64")}
    with pytest.raises(ValueError, match="no outcomes"):
        read(json.dumps({"schema": 0}))


def test_the_table_counts_the_five_families(tmp_path: Path) -> None:
    lines = table(_written(tmp_path / "o.json")).splitlines()
    (whole,) = (line for line in lines if line.startswith("| all |"))
    # Three of five are kernels, four with the product; the sort is of another kind.
    assert whole == "| all | 4 | 7 | 4 | 1 | 1 |  |  |  |  | 1 | 60 % (80 %) |"
    assert "| `put` |  | 1 |  |  |  |  |  | 1 | 0 % | `put.default` |" in lines


def test_the_table_goes_between_its_marks() -> None:
    assert placed(f"a {START} old {END} b", "new") == f"a {START}\nnew\n{END} b"
    with pytest.raises(ValueError, match="no line"):
        placed("a", "new")


@pytest.mark.parametrize(
    "words",
    [["--only", "("], ["--dtypes", "float31"], ["--resume"], ["--only", "no such operator"]],
)
def test_what_cannot_be_carried_out_exits_with_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--device", "cpu"])
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not is_interpreting(), reason="TRITON_INTERPRET is not set")
def test_a_run_in_processes_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "o.json")
    words = ["--only", "^(sin|neg)$", "--dtypes", "float32", "--sample", "1", "-o", path]
    assert main([*words, "--device", "cpu"]) == 0
    assert "sin float32: 3 fused" in capsys.readouterr().out
    assert len(read(Path(path).read_text())[1]) == 2
