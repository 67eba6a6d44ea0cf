"""`bisect`, `minify` and the shadow run: each kind of planted fault is found, named and kept."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuser
from fuser import cli, config
from fuser.errors import FusionMismatch
from fuser.ir.graph import Graph
from fuser.program_file import load_program
from fuser.verification.bisect import find_culprit
from fuser.verification.culprit import Culprit
from fuser.verification.minify import failure_of, minify
from support.planted import (
    add_rewrite,
    decompose,
    edit_host,
    edit_kernels,
    edit_row,
    forget_offsets,
    use_generate,
)


@pytest.fixture(autouse=True)
def _fresh(device: str) -> Iterator[None]:
    """Programs make their tensors on the device of the test."""
    torch.compiler.reset()
    with torch.device(device) if device != "cpu" else contextlib.nullcontext():
        yield


def program(x: Tensor, y: Tensor) -> Tensor:
    a = F.hardsigmoid(x) * y
    a = a[:, 1:] + torch.tanh(a[:, :-1])  # the line of the view and of tanh
    b = torch.maximum(a, a.sigmoid())  # the line of the maximum
    return b - b.sum(1, keepdim=True)


def arguments() -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    return torch.randn(5, 12), torch.randn(5, 12)


def found() -> Culprit:
    culprit = find_culprit(program, arguments(), {})
    assert culprit is not None
    assert str(culprit).startswith("stage ")
    return culprit


def line_of(text: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    return f"{Path(__file__).name}:{1 + next(k for k, line in enumerate(lines) if text in line)}"


# Bisection --------------------------------------------------------------------------------------


def test_nothing_is_found_where_all_is_right() -> None:
    assert find_culprit(program, arguments(), {}) is None


def test_a_right_training_step_has_no_culprit() -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))
    steps: list[str] = []
    assert find_culprit(model, (torch.randn(4, 6),), {}, on_step=steps.append) is None
    assert "kernel of backward graph 0" in steps


def test_a_wrong_decomposition_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    decompose(monkeypatch, torch.ops.aten.hardsigmoid.default, lambda x: (x + 3) / 7)
    culprit = found()
    assert culprit.stage == "capture"
    assert "hardsigmoid" in culprit.kind
    assert line_of("F.hardsigmoid(x) * y") in culprit.source


def test_a_wrong_gradient_of_a_decomposition_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = lambda grad, x: grad * 0.2  # noqa: E731
    decompose(monkeypatch, torch.ops.aten.hardsigmoid_backward.default, wrong)
    x, y = arguments()
    culprit = find_culprit(program, (x.requires_grad_(), y), {})
    assert culprit is not None
    assert (culprit.stage, culprit.detail) == ("capture", "gradient of argument 0 of the call")
    assert "hardsigmoid" in culprit.kind


def test_a_wrong_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_offsets(monkeypatch)
    culprit = found()
    assert (culprit.stage, culprit.kind) == ("import", "add")
    assert line_of("the line of the view") in culprit.source


def test_a_wrong_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def maximum_to_minimum(graph: Graph) -> Graph:
        ops = [
            dataclasses.replace(
                op,
                kind="minimum",
                call=dataclasses.replace(op.call, target=torch.ops.aten.minimum.default),
            )
            if op.kind == "maximum"
            else op
            for op in graph.ops
        ]
        return dataclasses.replace(graph, ops=tuple(ops))

    add_rewrite(monkeypatch, maximum_to_minimum)
    culprit = found()
    assert (culprit.stage, culprit.kind) == ("maximum_to_minimum", "minimum")
    assert line_of("the line of the maximum") in culprit.source


def test_a_pass_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Graph) -> Graph:
        raise ZeroDivisionError("planted")

    add_rewrite(monkeypatch, broken)
    culprit = found()
    assert (culprit.stage, culprit.detail) == ("broken", "ZeroDivisionError: planted")


def test_a_wrong_row_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    edit_row(monkeypatch, "tanh", "fn.tanh({0}) + 0.125")
    culprit = found()
    assert (culprit.stage, culprit.kind, culprit.detail) == ("kernel", "tanh", "")
    assert culprit.region
    assert line_of("the line of the view and of tanh") in culprit.source


def test_what_is_wrong_only_together_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(text: str) -> str:
        return text.replace("fn.sigmoid(", "0.5 * fn.sigmoid(") if "fn.tanh(" in text else text

    assert edit_kernels(monkeypatch, edit) == []
    culprit = found()
    assert (culprit.stage, culprit.kind) == ("kernel", "sigmoid")
    assert "right alone" in culprit.detail
    assert "tanh" in culprit.detail


def test_a_wrong_store_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first row is not stored, whatever the kernel.
    store = re.compile(r"(tl\.store\(.*), (x_mask|r_mask)")
    edit_kernels(monkeypatch, lambda text: store.sub(r"\1, (x > 0) & \2", text))
    assert found().stage == "kernel"


def test_a_wrong_host_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(text: str) -> str:
        head, mark, results = text.partition("    return (\n")
        return head + mark + re.sub(r"(\w+),", r"\1 + 1,", results, count=1)

    edit_host(monkeypatch, edit)
    culprit = found()
    assert (culprit.stage, culprit.kind) == ("host program", "sub")


def test_code_that_cannot_be_generated_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("planted")

    use_generate(monkeypatch, broken)
    culprit = found()
    assert culprit.stage == "partition or code generation"
    assert "planted" in culprit.detail


# Smaller programs -------------------------------------------------------------------------------


def test_a_program_that_fails_becomes_smaller_and_still_fails(
    device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    edit_row(monkeypatch, "tanh", "fn.tanh({0}) + 0.125")
    smaller = minify(program, arguments(), {})
    assert smaller is not None
    assert smaller.calls == 1
    assert smaller.calls_before > 5
    assert smaller.is_random
    path = tmp_path / "small.py"
    smaller.write(path)
    assert "tanh" in path.read_text()
    assert not path.with_suffix(".pt").exists()
    again = load_program(str(path), device)
    assert failure_of(again.model, again.calls[0])
    monkeypatch.undo()
    assert not failure_of(again.model, again.calls[0])


def test_inputs_that_matter_are_kept(
    device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Only right where nothing is above 50, which random inputs are not.
    edit_row(monkeypatch, "sigmoid", "tl.where({0} > 50, 0.5, fn.sigmoid({0}))")
    x = torch.full((3, 4), 60.0)
    smaller = minify(lambda x: (x * 1.5).sigmoid() + 1, (x,), {})
    assert smaller is not None
    assert not smaller.is_random
    path = tmp_path / "small.py"
    smaller.write(path)
    again = load_program(str(path), device)
    assert failure_of(again.model, again.calls[0])


def test_a_right_program_cannot_be_made_smaller() -> None:
    assert minify(program, arguments(), {}) is None


# Commands ---------------------------------------------------------------------------------------

FILE = """
import torch

def make(device):
    torch.manual_seed(0)
    return lambda x: torch.tanh(x).sum(1) + 1, [(torch.randn(4, 6, device=device),)]
"""


def test_commands_find_and_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, small = tmp_path / "model.py", tmp_path / "small.py"
    file.write_text(FILE)
    assert cli.main(["bisect", str(file)]) == 0
    assert "every step computes what eager does" in capsys.readouterr().out
    assert cli.main(["minify", str(file), "-o", str(small)]) == 1
    assert not small.exists()
    edit_row(monkeypatch, "tanh", "fn.tanh({0}) + 0.125")
    assert cli.main(["bisect", str(file)]) == 1
    shown = capsys.readouterr().out
    assert "stage   kernel" in shown
    assert "(tanh)" in shown
    assert "model.py:6" in shown
    assert cli.main(["minify", str(file), "-o", str(small)]) == 0
    assert "1 of 3 calls are left" in capsys.readouterr().out
    assert cli.main(["bisect", str(small)]) == 1


# The shadow run ---------------------------------------------------------------------------------


def test_a_shadowed_program_computes_the_same() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2))
    x = torch.randn(3, 6)
    with config.scope(shadow=True):
        compiled = fuser.compile(model)
        result = compiled(x)
        result.sum().backward()
    torch.testing.assert_close(result, model(x))
    assert model[0].weight.grad is not None


def test_the_first_difference_is_raised_with_a_program(
    device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    edit_row(monkeypatch, "tanh", "fn.tanh({0}) + 0.125")
    with config.scope(shadow=True, cache_dir=tmp_path):
        compiled = fuser.compile(program)
        with pytest.raises(FusionMismatch, match="to see it again: fuserc verify") as raised:
            compiled(*arguments())
    (file,) = re.findall(r"fuserc verify (\S+\.py)", str(raised.value))
    again = load_program(file, device)
    culprit = find_culprit(again.model, again.calls[0], {})
    assert culprit is not None
    assert culprit.kind == "tanh"


def test_nothing_is_checked_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    edit_row(monkeypatch, "tanh", "fn.tanh({0}) + 0.125")
    compiled = fuser.compile(program)
    assert not torch.allclose(compiled(*arguments()), program(*arguments()))
