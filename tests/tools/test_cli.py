"""The command line: what it prints, where, and with which exit code."""

from __future__ import annotations

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
from fuser.cli import COMMANDS, main
from fuser.device import DEVICES
from fuser.dump.to_text import to_text
from fuser.errors import CaptureError, FusionMismatch
from fuser.report import Plan
from support.plans import kernels, small_plan

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """\
import torch

def scaled(x, weight):
    return torch.sigmoid(x * weight + 1.0)

def make(device):
    return scaled, [(torch.ones(4, 8, device=device), torch.ones(8, device=device)),
                    (torch.ones(2, 8, device=device), torch.ones(8, device=device))]

def make_other():
    return scaled, (torch.ones(3, 8), torch.ones(8))
"""

MISMATCH = FusionMismatch(
    region="region_0",
    operations=["mul"],
    source_line="model.py:3",
    index=(0,),
    fused_value=1.0,
    eager_value=2.0,
    reference_value=2.0,
    fused_error=1.0,
    eager_error=0.0,
)


@pytest.fixture(autouse=True)
def restored_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command owns its process; these tests share theirs with others."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("TRITON_INTERPRET", os.environ.get("TRITON_INTERPRET", "0"))


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Carry out a command line in this process; exit code, standard output, standard error."""

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


class FakeApi(types.ModuleType):
    """Stands for `fuser.api` and records how it is called."""

    def __init__(self) -> None:
        super().__init__("fuser.api")
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.result: Any = Plan(small_plan(), (kernels("region_0", "scale", "shift"),))

    def plan(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        print("the model speaks while it is traced")
        self.calls.append((args, kwargs))
        return self.answer()

    def verify(self, model: Any, *args: Any) -> Any:
        self.calls.append((args, {}))
        return self.answer()

    def answer(self) -> Any:
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    fake = FakeApi()
    monkeypatch.setitem(sys.modules, "fuser.api", fake)
    monkeypatch.setattr(fuser, "api", fake, raising=False)
    return fake


def one_line(err: str) -> str:
    assert err.startswith("fuserc: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err


# Mistakes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["required: COMMAND", "`fuserc --help`"]),
        (["pln", "x.py"], ["invalid choice: 'pln'", "Did you mean 'plan'?"]),
        (["plan"], ["required: FILE", "`fuserc plan --help`"]),
        (["plan", "x.py", "--format", "jsn"], ["invalid choice: 'jsn'", "Did you mean 'json'?"]),
        (["plan", "x.py", "--target", "sm_9O"], ["no target 'sm_9O'", "mean 'sm_90'?", "gfx942"]),
        (["plan", "x.py", "--call", "two"], ["argument --call", "'two'"]),
        (["env", "--loud"], ["unrecognized arguments: --loud"]),
        (["plan", "no_such.py"], ["no_such.py: there is no such file"]),
        (["verify", "no_such.py:make"], ["no_such.py: there is no such file"]),
        (["plan", str(ROOT)], ["there is no such file"]),
        (["plan", __file__, "--device", "gpu"], ["--device gpu", "cpu or cuda"]),
        (["plan", "x.py", "--resources", "--target", "cpu"], ["--resources", "--target", "sm_90"]),
        (["diff", "a.json"], ["required: B.json", "`fuserc diff --help`"]),
        (["diff", "no_a.json", "no_b.json"], ["no_a.json: there is no such file"]),
    ],
    ids=[
        "no-command",
        "command",
        "no-file",
        "format",
        "target",
        "call",
        "option",
        "file",
        "file-with-name",
        "folder",
        "device",
        "resources-of-nothing",
        "diff-of-one",
        "diff-of-no-file",
    ],
)
def test_a_wrong_word_is_one_line_and_exit_code_two(
    words: list[str], parts: list[str], run: Run
) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert [part for part in parts if part not in one_line(err)] == []


def test_a_wrong_file_is_one_line_and_exit_code_two(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("def make():\n    raise ValueError('one\\ntwo')\n")
    code, out, err = run("plan", path)
    assert (code, out) == (2, "")
    expected = f"{path}: calling `make(device)` failed: ValueError: one two (line 2); fix: "
    assert expected in one_line(err)


def test_a_function_that_the_file_lacks_gets_a_suggestion(program: Path, run: Run) -> None:
    code, _, err = run("plan", f"{program}:make_othre")
    assert code == 2
    assert "does not define a function 'make_othre'" in one_line(err)
    assert "Did you mean 'make_other'?" in err


@pytest.mark.parametrize("number", [-1, 2])
def test_a_call_that_the_file_lacks_is_refused(
    number: int, program: Path, run: Run, api: FakeApi
) -> None:
    code, _, err = run("plan", program, "--call", number)
    assert code == 2
    assert "makes 2 calls, numbered 0 to 1" in one_line(err)
    assert api.calls == []


def test_a_place_that_cannot_be_written_is_named(
    program: Path, run: Run, api: FakeApi, tmp_path: Path
) -> None:
    for words in (["plan"], ["plan", "--format", "json"], ["source"]):
        code, _, err = run(*words, program, "-o", tmp_path / "missing" / "plan.txt")
        assert code == 2
        assert "cannot write" in err.splitlines()[-1]
        assert "Traceback" not in err


# Commands, with a stand-in for the compiler -----------------------------------------------------


def test_plan_prints_the_text_and_nothing_of_the_program(
    program: Path, run: Run, api: FakeApi
) -> None:
    code, out, err = run("plan", program)
    assert code == 0
    plan = api.result
    assert out == to_text(plan.fusion, plan.kernels, peaks=plan.peaks) + "\n"
    assert err == "the model speaks while it is traced\n"
    (args, kwargs) = api.calls[0]
    assert [tuple(x.shape) for x in args] == [(4, 8), (8,)]
    assert kwargs == {"target": None, "dynamic": None}


def test_plan_passes_its_options_on(program: Path, run: Run, api: FakeApi) -> None:
    code, out, _ = run("plan", program, "--target", "sm_80", "--dynamic", "--call", 1, "-v")
    assert code == 0
    assert "passes:" in out
    (args, kwargs) = api.calls[0]
    assert args[0].shape == (2, 8)
    assert kwargs == {"target": "sm_80", "dynamic": True}


@pytest.mark.parametrize("form", ["text", "json", "dot"])
def test_plan_writes_each_form_to_the_screen_or_a_file(
    form: str, program: Path, run: Run, api: FakeApi, tmp_path: Path
) -> None:
    code, out, _ = run("plan", program, "--format", form)
    assert code == 0
    output = tmp_path / "plan.out"
    assert run("plan", program, "--format", form, "-o", output)[:2] == (0, "")
    assert output.read_text() == out
    if form == "json":
        assert json.loads(out)["graph"] == "small"
    if form == "dot":
        assert out.startswith('digraph "small"')


def test_source_prints_the_kernels_or_writes_a_file_for_each(
    program: Path, run: Run, api: FakeApi, tmp_path: Path
) -> None:
    code, out, _ = run("source", program)
    assert code == 0
    assert out == "# scale\n\n# source of scale\n\n\n# shift\n\n# source of shift\n"
    assert run("source", program, "-o", f"{tmp_path}/kernels/")[:2] == (0, "")
    assert sorted(path.name for path in (tmp_path / "kernels").iterdir()) == [
        "scale.py",
        "shift.py",
    ]
    assert (tmp_path / "kernels" / "scale.py").read_text() == "# source of scale\n"
    assert run("source", program, "-o", tmp_path / "all.py")[:2] == (0, "")
    assert (tmp_path / "all.py").read_text() == out


def test_source_says_when_there_is_none(program: Path, run: Run, api: FakeApi) -> None:
    api.result = Plan(small_plan())
    assert run("source", program)[1] == "# Nothing is fused: there are no kernels.\n"


def test_verify_runs_every_call(program: Path, run: Run, api: FakeApi) -> None:
    api.result = "all is well"
    code, out, _ = run("verify", program, "--device", "cpu")
    assert (code, out) == (0, "call 0:\nall is well\ncall 1:\nall is well\n")
    assert [args[0].shape[0] for args, _ in api.calls] == [4, 2]
    assert run("verify", f"{program}:make_other")[1] == "all is well\n"


def test_verify_exits_with_one_after_all_calls_when_a_result_is_wrong(
    program: Path, run: Run, api: FakeApi
) -> None:
    api.result = MISMATCH
    code, _, err = run("verify", program)
    assert code == 1
    assert len(api.calls) == 2
    assert err.count("region region_0 (mul) is wrong, from model.py:3") == 2
    assert "Traceback" not in err


def test_another_error_of_the_catalogue_exits_with_one(
    program: Path, run: Run, api: FakeApi
) -> None:
    api.result = CaptureError(reason="call to print", source_line="program.py:3")
    code, _, err = run("plan", program)
    assert code == 1
    assert "one graph: call to print" in err
    assert "  fix: " in err


def test_env_describes_the_machine(run: Run) -> None:
    code, out, _ = run("env")
    assert code == 0
    assert "versions" in out
    assert "FUSER_CACHE_DIR" in out


# The command itself, in a process of its own -----------------------------------------------------


def start(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *words],
        env=kept | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_teaches_and_imports_nothing_heavy(command: str) -> None:
    words = [word for word in (command, "--help") if word]
    code = (
        "import sys\nfrom fuser.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit as end:\n    code = end.code\n"
        "heavy = {'torch', 'triton', 'networkx', 'sympy', 'rich', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(f'{code} {heavy}' if code or heavy else 0)\n"
    )
    done = start("-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: fuserc")
    if command in ("plan", "explain", "source", "verify"):
        assert "def make(device):" in done.stdout
        assert f"fuserc {command} model.py" in done.stdout
    if command in ("", "plan"):
        assert "fuserc explain model.py" in done.stdout
    if command in ("plan", "explain"):
        assert all(target in done.stdout for target in DEVICES)
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_the_module_runs_as_a_program() -> None:
    done = start("-m", "fuser", "plan", "no_such.py")
    assert done.returncode == 2
    assert "there is no such file" in one_line(done.stderr)


def test_verify_tells_triton_to_interpret_before_the_program_imports_it(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("import triton\nprint(triton.knobs.runtime.interpret)\ndef make(): return 1\n")
    assert start("-m", "fuser", "verify", str(path), "--device", "cpu").stdout == "True\n"
    assert start("-m", "fuser", "plan", str(path), "--device", "cpu").stderr.startswith("False\n")


def test_a_reader_that_stops_early_causes_no_traceback() -> None:
    command = f"{sys.executable} -m fuser env | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "versions\n"
    assert done.stderr == ""


# The whole way -----------------------------------------------------------------------------------


def test_a_program_is_planned_for_a_gpu_that_is_not_here(program: Path, run: Run) -> None:
    code, out, err = run("plan", program, "--target", "sm_90", "--device", "cpu")
    assert code == 0, err
    assert "for sm_90" in out
    assert "in 1 kernel + 0 opaque calls" in out
    assert "program.py:4" in out


def test_the_kernels_of_a_program_are_python(program: Path, run: Run) -> None:
    code, out, err = run("source", program, "--target", "sm_90", "--device", "cpu")
    assert code == 0, err
    compile(out, "kernels.py", "exec")
    assert "tl.store" in out


@pytest.mark.slow
def test_a_program_is_verified_on_a_machine_without_a_gpu(program: Path) -> None:
    done = start("-m", "fuser", "verify", str(program), "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "call 0:" in done.stdout
    assert "call 1:" in done.stdout
