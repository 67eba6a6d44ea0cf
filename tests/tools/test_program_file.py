"""Program files: the forms that are accepted, and a sentence for each that is not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fuser.errors import ProgramFileError, UsageError
from fuser.program_file import load_program

PROGRAM = """\
import torch

def scaled(x, weight):
    return x * weight

def make(device):
    return scaled, [(torch.ones(4, 8, device=device), torch.ones(8, device=device)),
                    (torch.ones(2, 8, device=device), torch.ones(8, device=device))]

def make_other():
    return scaled, (torch.ones(3, 8), torch.ones(8))
"""


@pytest.fixture(autouse=True)
def restored_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command owns its process; these tests share theirs with others."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("TRITON_INTERPRET", os.environ.get("TRITON_INTERPRET", "0"))


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_a_program_gives_its_model_and_calls(program: Path) -> None:
    loaded = load_program(str(program), "cpu")
    assert loaded.model.__name__ == "scaled"
    assert [tuple(x.shape for x in call) for call in loaded.calls] == [
        ((4, 8), (8,)),
        ((2, 8), (8,)),
    ]


def test_another_function_without_a_device_and_with_one_call(program: Path) -> None:
    loaded = load_program(f"{program}:make_other", "cpu")
    assert [tuple(x.shape for x in call) for call in loaded.calls] == [((3, 8), (8,))]


def test_a_program_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "a_neighbour_of_it.py").write_text("def model(x):\n    return x\n")
    path = tmp_path / "with-a-dash"
    path.write_text("from a_neighbour_of_it import model\nmake = lambda: (model, ((),))\n")
    assert load_program(str(path), "cpu").calls == (((),),)


def test_only_a_program_that_will_run_on_the_cpu_is_interpreted(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    load_program(str(program), "cpu")
    assert os.environ["TRITON_INTERPRET"] == "0"
    load_program(str(program), "cpu", will_run=True)
    assert os.environ["TRITON_INTERPRET"] == "1"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("x = 1\n", "does not define a function `make`"),
        ("make = 3\n", "does not define a function `make`"),
        ("def make(device:\n", "importing the file failed: SyntaxError"),
        ("import math\n\nmath.nothing\n", "has no attribute 'nothing' (line 3)"),
        ("raise SystemExit(0)\n", "importing the file failed: SystemExit"),
        ("def make(device):\n    return {}['w']\n", "failed: KeyError: 'w' (line 2)"),
        ("def make(a, b, c):\n    return 1\n", "calling `make(device)` failed: TypeError"),
        (
            "def make(device):\n    raise ValueError('one\\ntwo')\n",
            "ValueError: one two (line 2)",
        ),
        ("def make(device):\n    return None\n", "it returned None"),
        ("def make(device):\n    return print, [], 1\n", "it returned a tuple of 3"),
        ("def make(device):\n    return 7, [()]\n", "the first part is an int"),
        ("def make(device):\n    return print, 7\n", "the second part is an int"),
        ("def make(device):\n    return print, []\n", "the list of calls is empty"),
        ("def make(device):\n    return print, [(1,), [2]]\n", "calls holds a list of 1"),
    ],
)
def test_a_wrong_file_is_described(source: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(source)
    with pytest.raises(ProgramFileError) as caught:
        load_program(str(path), "cpu")
    assert str(caught.value).startswith(f"[program-file] {path}: ")
    assert sentence in str(caught.value)


def test_a_name_that_the_file_lacks_and_a_device_that_torch_lacks(program: Path) -> None:
    with pytest.raises(UsageError, match=r"'make_othre'\. Did you mean 'make_other'\?"):
        load_program(f"{program}:make_othre", "cpu")
    with pytest.raises(UsageError, match="--device meta: torch sees no such device here"):
        load_program(str(program), "meta")
