"""The catalogue of errors: each class's text, its hint, and that it survives pickling."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuser import errors
from fuser.errors import FuserError

ROOT = Path(__file__).resolve().parents[2]

MISMATCH = errors.FusionMismatch(
    region="r3",
    operations=["mul", "gelu"],
    source_line="model.py:41",
    index=(0, 17),
    fused_value=1.5,
    eager_value=1.25,
    reference_value=1.2500001,
    fused_error=0.25,
    eager_error=1e-7,
)

# One example of each class, with what its text has to contain.
EXAMPLES: list[tuple[FuserError, list[str]]] = [
    (
        errors.InvalidArgument(
            function="fuser.compile",
            argument="precision",
            value="eagre",
            expected="'eager' or 'fast'",
            known=["eager", "fast"],
        ),
        ["fuser.compile", "precision='eagre'", "pass 'eager' or 'fast'", "Did you mean 'eager'?"],
    ),
    (
        errors.UnknownTarget(target="sm_9O", known=["sm_90", "sm_80", "gfx942"]),
        ["'sm_9O'", "Did you mean 'sm_90'?", "gfx942, sm_80, sm_90"],
    ),
    (
        errors.UsageError(message="--target needs a value", command="fuserc plan"),
        ["--target needs a value", "`fuserc plan --help`"],
    ),
    (
        errors.ProgramFileError(path="net.py", problem="no-make"),
        ["net.py", "does not define a function `make`", "(model, calls)"],
    ),
    (
        errors.ProgramFileError(path="net.py", problem="make-failed", detail="KeyError: 'w'"),
        ["calling `make(device)` failed: KeyError: 'w'"],
    ),
    (
        errors.CaptureError(reason="call to print", source_line="net.py:7"),
        ["one graph: call to print", "at: net.py:7", "`fuser.compile`"],
    ),
    (
        errors.CaptureError(reason="ValueError: bad shape", problem="model-raised"),
        ["raised while it was being captured: ValueError: bad shape", "without fuser"],
    ),
    (
        MISMATCH,
        [
            "region r3 (mul, gelu) is wrong, from model.py:41",
            "worst element: [0, 17]",
            "1.5  (error 2.500e-01)",
            "1.25  (error 1.000e-07)",
            "1.2500001",
            "FUSER_DUMP",
        ],
    ),
    (
        errors.KernelCompilationError(
            kernel="k_gelu", cause=RuntimeError("out of shared memory"), source_path="k_gelu.py"
        ),
        ["k_gelu does not compile (k_gelu.py): RuntimeError: out of shared memory"],
    ),
    (
        errors.InvariantError(
            stage="partition",
            rule="every operation is in exactly one region",
            subject="%4",
            neighbourhood=["%3 = mul %1 %2", "%4 = gelu %3"],
        ),
        ["after partition: broken rule", "subject: %4", "| %3 = mul %1 %2\n  | %4 = gelu %3"],
    ),
    (
        errors.InvalidPlan(reason="version 9 is unknown", location="plan.json"),
        ["plan.json: version 9 is unknown"],
    ),
    (
        errors.SourceGenerationError(
            kernel="k", reason="`y` is undefined", source="a = 1\nb = y\nc = b\n", line=2
        ),
        ["kernel k: `y` is undefined", ">    2 | b = y", "     1 | a = 1"],
    ),
    (
        errors.MustFuseError(
            rule="must_fuse('a', 'b')",
            producer="a",
            consumer="b",
            limit_name="CYCLE",
            limit="it would wait for itself",
            detail="through mm",
        ),
        ["must_fuse('a', 'b')", "a -> b", "it would wait for itself (through mm)", "`CYCLE`"],
    ),
    (
        errors.AssertFusedError(rule="assert_fused('a', 'b')", edges=["a -> b: other axes"]),
        ["assert_fused('a', 'b') does not hold", "\n  a -> b: other axes"],
    ),
    (
        errors.MissingPackage(feature="a plan as HTML", package="plotly", extra="html"),
        ["a plan as HTML needs the package 'plotly'", "fuser-compiler[html]"],
    ),
]


def all_classes() -> list[type[FuserError]]:
    found: list[type[FuserError]] = []
    waiting = [FuserError]
    while waiting:
        children = waiting.pop().__subclasses__()
        found += [child for child in children if child.__module__ == "fuser.errors"]
        waiting += children
    return found


@pytest.mark.parametrize(
    ("error", "parts"), EXAMPLES, ids=[f"{i}-{e.code}" for i, (e, _) in enumerate(EXAMPLES)]
)
def test_the_text_names_the_cause_and_what_to_do(error: FuserError, parts: list[str]) -> None:
    text = str(error)
    assert text.startswith(f"[{error.code}] ")
    assert "\n  fix: " in text
    assert [part for part in parts if part not in text] == []
    assert not re.search(r"\{\w+\}", text), "a placeholder was left in the text"


@pytest.mark.parametrize("error", [error for error, _ in EXAMPLES], ids=lambda error: error.code)
def test_an_error_survives_the_trip_from_a_worker_process(error: FuserError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.fields == error.fields


def test_every_class_has_an_example_a_docstring_and_its_own_code() -> None:
    classes = all_classes()
    assert {type(error) for error, _ in EXAMPLES} == set(classes)
    assert {kind.__name__ for kind in classes} < set(errors.__all__)
    assert all(kind.__doc__ and re.fullmatch(r"[a-z]+(-[a-z]+)*", kind.code) for kind in classes)
    assert len({kind.code for kind in classes}) == len(classes)


def test_an_error_without_optional_facts_leaves_no_loose_ends() -> None:
    texts = [
        str(errors.UnknownTarget(target="x", known=[])),
        str(errors.InvariantError(rule="acyclic", subject="plan")),
        str(errors.InvalidPlan(reason="not JSON")),
        str(errors.SourceGenerationError(kernel="k", reason="no output")),
        str(errors.KernelCompilationError(kernel="k", cause="killed")),
        str(errors.ProgramFileError(path="f.py", problem="missing")),
    ]
    loose = ("None", " :", "()", "\n\n", "  |")
    heads = [text.partition("\n  fix: ")[0] for text in texts]
    assert [head for head in heads if any(part in head for part in loose)] == []


def test_a_long_value_does_not_bury_the_message() -> None:
    error = errors.InvalidArgument(
        function="fuser.plan", argument="model", value="x" * 5000, expected="a module"
    )
    assert len(str(error)) < 400
    assert error.fields["value"] == "x" * 5000


def test_braces_in_a_value_are_kept_as_they_are() -> None:
    error = errors.KernelCompilationError(kernel="k{0}", cause="expected '{' before '}'")
    assert "k{0}" in str(error)
    assert "expected '{' before '}'" in str(error)


def test_usage_errors_exit_with_two() -> None:
    assert errors.UsageError(message="x").exit_code == 2
    assert errors.ProgramFileError(path="x", problem="missing").exit_code == 2
    assert MISMATCH.exit_code == 1


def test_did_you_mean_is_silent_without_a_near_word() -> None:
    assert errors.did_you_mean("softmax", ["gelu", "tanh"]) == ""
    assert errors.did_you_mean("sofmax", ["softmax", "gelu"]) == " Did you mean 'softmax'?"


def test_the_catalogue_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    # The file is run by itself: importing `fuser.errors` would run `fuser/__init__.py` first.
    program = (
        "import runpy, sys\n"
        f"runpy.run_path({str(ROOT / 'fuser' / 'errors.py')!r})\n"
        "sys.exit(bool({'torch', 'triton', 'fuser'} & set(sys.modules)))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path, timeout=60).returncode == 0
