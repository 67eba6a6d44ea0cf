"""`fuserc explain`: what it prints, for which call, and what it says of mistakes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import fuser
from fuser.cli import main

PROGRAM = """\
import torch

def halves(x):
    y = torch.exp(x) * 0.5
    return y.sum(0).amax(0), y.cumsum(0).tanh()

def make(device):
    return halves, [(torch.ones(4, 8, device=device),), (torch.ones(16, 32, device=device),)]

def make_other():
    return halves, (torch.ones(3, 8),)

def make_printing():
    def printed(x):
        print(x.sum().item())
        return x.exp()
    return printed, (torch.ones(3),)
"""

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


def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.exp(x) * 0.5
    return y.sum(0).amax(0), y.cumsum(0).tanh()


def without_lines(report: str) -> list[str]:
    """The report without the places of the program, which is another file here."""
    return sorted(line for line in report.splitlines() if ".py:" not in line)


def test_it_prints_what_fuser_explain_prints(program: Path, run: Run) -> None:
    code, out, err = run("explain", program, "--target", "sm_90", "--device", "cpu")
    assert (code, err) == (0, "")
    expected = fuser.explain(halves, torch.ones(4, 8), target="sm_90")
    assert without_lines(out) == without_lines(str(expected))
    assert "program.py:4 y = torch.exp(x) * 0.5" in out
    assert "aten.cumsum.default: no generated form" in out
    assert out.endswith("\n")
    assert max(map(len, out.splitlines())) <= 100


def test_the_call_the_sizes_and_the_file_are_chosen(
    program: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[tuple[int, ...], str | None, bool | None]] = []

    def explain(model: object, x: torch.Tensor, target: str | None, dynamic: bool | None) -> str:
        print("the model speaks while it is traced")
        calls.append((tuple(x.shape), target, dynamic))
        return "because"

    monkeypatch.setattr("fuser.api.explain", explain)
    words = ("explain", program, "--device", "cpu")
    assert run(*words) == (0, "because\n", "the model speaks while it is traced\n")
    assert run(*words, "--call", 1, "--dynamic", "--target", "gfx942")[0] == 0
    assert run("explain", f"{program}:make_other")[0] == 0
    assert calls == [
        ((4, 8), None, None), ((16, 32), "gfx942", True), ((3, 8), None, None),
    ]  # fmt: skip
    assert run(*words, "-o", tmp_path / "why.txt")[1] == ""
    assert (tmp_path / "why.txt").read_text() == "because\n"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["required: FILE", "`fuserc explain --help`"]),
        (["no_such.py"], ["no_such.py: there is no such file"]),
        (["PROGRAM:mak"], ["does not define a function 'mak'", "Did you mean 'make'?"]),
        (["PROGRAM", "--call", "2"], ["2 calls, numbered 0 to 1", "`fuserc explain --help`"]),
        (["PROGRAM", "--target", "sm_91"], ["no target 'sm_91'"]),
        (["PROGRAM", "--format", "json"], ["unrecognized arguments: --format"]),
        (["PROGRAM", "-o", "/no/such/folder/why.txt"], ["cannot write /no/such/folder/why.txt"]),
    ],
    ids=["no-file", "file", "function", "call", "target", "option", "output"],
)
def test_a_mistake_is_one_line_and_exit_code_two(
    words: list[str], parts: list[str], program: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuser.api.explain", lambda *_, **__: "because")
    given = [word.replace("PROGRAM", str(program)) for word in words]
    code, out, err = run("explain", *given)
    assert (code, out) == (2, "")
    assert err.startswith("fuserc: ")
    assert err.count("\n") == 1
    assert [part for part in parts if part not in err] == []


def test_a_model_that_is_not_one_graph_is_an_error_with_its_line(program: Path, run: Run) -> None:
    code, out, err = run("explain", f"{program}:make_printing", "--target", "sm_90")
    assert (code, out) == (1, "")
    assert "fuserc: " in err
    assert "program.py:" in err
    assert "  fix: " in err
    assert "Traceback" not in err
