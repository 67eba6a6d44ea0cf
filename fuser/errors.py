"""Every error that fuser raises on purpose: one class for each cause, all under `FuserError`.

In: what was seen (names, values, numbers), as keyword arguments. Out: a text that says what went
wrong and what to do about it. No other module composes the text of an error, so wording, codes
and hints are reviewed in this file alone. It imports neither torch nor anything of fuser's.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Literal

__all__ = [
    "AssertFusedError",
    "CaptureError",
    "FuserError",
    "FusionMismatch",
    "InvalidArgument",
    "InvalidPlan",
    "InvariantError",
    "KernelCompilationError",
    "MissingPackage",
    "MustFuseError",
    "ProgramFileError",
    "SourceGenerationError",
    "UnknownTarget",
    "UsageError",
    "did_you_mean",
]

Number = bool | int | float | complex


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` for the nearest known word, or nothing when none is near."""
    nearest = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


class FuserError(Exception):
    """Base of the catalogue; catch it to catch everything fuser raises on purpose.

    A subclass sets `code`, `template` and `hint`; the last two are `str.format` texts over the
    keyword arguments of its constructor, which stay readable as `error.fields`.
    """

    code: ClassVar[str] = "error"
    template: ClassVar[str] = "{message}"
    hint: ClassVar[str] = ""
    exit_code: ClassVar[int] = 1

    fields: Mapping[str, object]

    def __init__(self, **fields: object) -> None:
        self.fields = MappingProxyType(dict(fields))
        lines = [f"[{self.code}] {self.template.format(**fields)}"]
        if self.hint:
            lines.append(f"  fix: {self.hint.format(**fields)}")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:
        # Kernels are compiled in worker processes. By default an exception is rebuilt from its
        # positional `args`, which a keyword-only constructor cannot take.
        return (_rebuild, (type(self), str(self), dict(self.fields)))


def _rebuild(kind: type[FuserError], text: str, fields: dict[str, object]) -> FuserError:
    """Rebuild a pickled error from its finished text, without composing that text again."""
    error = kind.__new__(kind)
    Exception.__init__(error, text)
    error.fields = MappingProxyType(fields)
    return error


class InvalidArgument(FuserError):
    """An argument of a public function, or the value of a knob, is not one it accepts."""

    code = "invalid-argument"
    template = "{function}: {argument}={shown} is not accepted."
    hint = "pass {expected}.{suggestion}"

    def __init__(
        self,
        *,
        function: str,
        argument: str,
        value: object,
        expected: str,
        known: Iterable[str] = (),
    ) -> None:
        super().__init__(
            function=function,
            argument=argument,
            value=value,
            shown=_shorten(repr(value)),
            expected=expected,
            suggestion=did_you_mean(value, known) if isinstance(value, str) else "",
        )


class UnknownTarget(FuserError):
    """A plan was asked for a GPU that the table of devices does not hold."""

    code = "unknown-target"
    template = "there is no target {target!r}.{suggestion}"
    hint = "use one of: {known}."

    def __init__(self, *, target: str, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(
            target=target,
            known=", ".join(names) or "(the table of targets is empty)",
            suggestion=did_you_mean(target, names),
        )


class UsageError(FuserError):
    """The command line cannot be carried out as it was written; `fuserc` exits with 2."""

    code = "usage"
    template = "{message}"
    hint = "see `{command} --help`."
    exit_code = 2

    def __init__(self, *, message: str, command: str = "fuserc") -> None:
        super().__init__(message=message, command=command)


ProgramFileProblem = Literal["missing", "import-failed", "no-make", "make-failed", "wrong-result"]


class ProgramFileError(FuserError):
    """The program file given to `fuserc` could not be turned into a model and its inputs."""

    code = "program-file"
    template = "{path}: {sentence}{detail}"
    hint = (
        "give a Python file that defines `make(device)`, which returns `(model, calls)`, where "
        "calls is a list with the arguments of each call as a tuple."
    )
    exit_code = 2

    SENTENCES: ClassVar[Mapping[ProgramFileProblem, str]] = MappingProxyType(
        {
            "missing": "there is no such file",
            "import-failed": "importing the file failed",
            "no-make": "the file does not define a function `make`",
            "make-failed": "calling `make(device)` failed",
            "wrong-result": "`make(device)` did not return a model and a list of argument tuples",
        }
    )

    def __init__(self, *, path: str, problem: ProgramFileProblem, detail: str = "") -> None:
        super().__init__(
            path=path,
            problem=problem,
            sentence=self.SENTENCES[problem],
            detail=f": {detail}" if detail else ".",
        )


CaptureProblem = Literal["graph-break", "model-raised"]


class CaptureError(FuserError):
    """`fuser.plan` could not see the model as one graph: it broke, or the model raised."""

    code = "capture"
    template = "{sentence}: {reason}{location}"
    hint = "{advice}"

    SENTENCES: ClassVar[Mapping[CaptureProblem, str]] = MappingProxyType(
        {
            "graph-break": "the model cannot be captured as one graph",
            "model-raised": "the model raised while it was being captured",
        }
    )
    ADVICE: ClassVar[Mapping[CaptureProblem, str]] = MappingProxyType(
        {
            "graph-break": (
                "plan the part without the break, or move the data-dependent Python out of the "
                "model; `fuser.compile` accepts the model as it is and works around the break."
            ),
            "model-raised": (
                "call the model with the same arguments without fuser; when that works, the "
                "reason above names the operation that capture does not support."
            ),
        }
    )

    def __init__(
        self, *, reason: str, problem: CaptureProblem = "graph-break", source_line: str = ""
    ) -> None:
        super().__init__(
            reason=reason,
            problem=problem,
            source_line=source_line,
            sentence=self.SENTENCES[problem],
            advice=self.ADVICE[problem],
            location=f"\n  at: {source_line}" if source_line else "",
        )


class FusionMismatch(FuserError):
    """A fused region is further from the fp64 run of its operations than eager and rounding allow.

    Errors are absolute distances from `reference_value`. The index and the three values belong
    to the element with the largest excess.
    """

    code = "fusion-mismatch"
    template = (
        "region {region} ({operations}) is wrong{location}\n"
        "  worst element: {index}\n"
        "  fused:  {fused_value!r}  (error {fused_error:.3e})\n"
        "  eager:  {eager_value!r}  (error {eager_error:.3e})\n"
        "  fp64:   {reference_value!r}{detail}"
    )
    hint = (
        "run with FUSER_DUMP=DIR to keep this region's kernel, and report it together with the "
        "output of `fuserc env`."
    )

    def __init__(
        self,
        *,
        region: str,
        operations: Sequence[str],
        source_line: str,
        index: Sequence[int],
        fused_value: Number,
        eager_value: Number,
        reference_value: Number,
        fused_error: float,
        eager_error: float,
        detail: str = "",
    ) -> None:
        super().__init__(
            region=region,
            operations=", ".join(operations),
            source_line=source_line,
            location=f", from {source_line}" if source_line else "",
            index=list(index),
            fused_value=fused_value,
            eager_value=eager_value,
            reference_value=reference_value,
            fused_error=fused_error,
            eager_error=eager_error,
            detail=f"\n  {detail}" if detail else "",
        )


class KernelCompilationError(FuserError):
    """Triton refused a generated kernel, or the compiler behind it failed."""

    code = "kernel-compilation"
    template = "kernel {kernel} does not compile{location}: {cause}"
    hint = "this is a fault of fuser's; run with FUSER_DUMP=DIR and report the kernel's source."

    def __init__(self, *, kernel: str, cause: BaseException | str, source_path: str = "") -> None:
        # Kept as text: a compiler's exception need not survive the trip from a worker process.
        text = cause if isinstance(cause, str) else f"{type(cause).__name__}: {cause}"
        super().__init__(
            kernel=kernel,
            cause=text,
            source_path=source_path,
            location=f" ({source_path})" if source_path else "",
        )


class MustFuseError(FuserError):
    """A `must_fuse` rule of the user's asks for a kernel that a hard limit does not allow."""

    code = "must-fuse"
    template = "{rule} cannot be kept for {subject}: {limit}{shown_detail}."
    hint = (
        "drop the rule or make it narrower; the limit `{limit_name}` is a hard one. "
        "`print(fuser.explain(model, ...))` without the rule shows what is fused."
    )

    def __init__(
        self,
        *,
        rule: str,
        producer: str,
        consumer: str = "",
        limit_name: str,
        limit: str,
        detail: str = "",
    ) -> None:
        super().__init__(
            rule=rule,
            producer=producer,
            consumer=consumer,
            subject=f"{producer} -> {consumer}" if consumer else producer,
            limit_name=limit_name,
            limit=limit,
            detail=detail,
            shown_detail=f" ({detail})" if detail else "",
        )


class AssertFusedError(FuserError):
    """An `assert_fused` rule of the user's does not hold for the finished plan."""

    code = "assert-fused"
    template = "{rule} does not hold: these were not fused{quoted}"
    hint = (
        "`fuser.must_fuse` with the same patterns asks for the fusion or says which limit stands "
        "against it; else change the model where the reasons point, or drop the assertion."
    )

    def __init__(self, *, rule: str, edges: Sequence[str]) -> None:
        quoted = "".join(f"\n  {edge}" for edge in edges)
        super().__init__(rule=rule, edges=tuple(edges), quoted=quoted)


class InvariantError(FuserError):
    """A graph, region or plan broke one of its own rules (looked for when FUSER_CHECK is on)."""

    code = "invariant"
    template = "{stage}broken rule: {rule}\n  subject: {subject}{quoted}"
    hint = "this is a fault of the named stage, not of the model; report it with the lines above."

    def __init__(
        self,
        *,
        rule: str,
        subject: str,
        neighbourhood: Sequence[str] | str = (),
        stage: str = "",
    ) -> None:
        given = neighbourhood
        lines = given.splitlines() if isinstance(given, str) else list(given)
        super().__init__(
            rule=rule,
            subject=subject,
            neighbourhood=tuple(lines),
            stage=f"after {stage}: " if stage else "",
            quoted="".join(f"\n  | {line}" for line in lines),
        )


class InvalidPlan(FuserError):
    """A plan cannot be read or used: wrong schema, wrong version, or made for something else."""

    code = "invalid-plan"
    template = "{location}{reason}"
    hint = "make the plan again with this version of fuser, for the same model and target."

    def __init__(self, *, reason: str, location: str = "") -> None:
        super().__init__(reason=reason, location=f"{location}: " if location else "")


class MissingPackage(FuserError):
    """A form of output needs a package that is not installed."""

    code = "missing-package"
    template = "{feature} needs the package {package!r}, which is not installed."
    hint = "pip install 'fuser-compiler[{extra}]'"

    def __init__(self, *, feature: str, package: str, extra: str) -> None:
        super().__init__(feature=feature, package=package, extra=extra)


class SourceGenerationError(FuserError):
    """Code generation produced text that is not a valid kernel, found before Triton sees it."""

    code = "source-generation"
    template = "kernel {kernel}: {reason}{quoted}"
    hint = "this is a fault of the template or of the expression table; report the kernel's region."

    def __init__(self, *, kernel: str, reason: str, source: str = "", line: int = 0) -> None:
        super().__init__(
            kernel=kernel,
            reason=reason,
            source=source,
            line=line,
            quoted=_quote_source(source, line),
        )


def _shorten(text: str, limit: int = 200) -> str:
    """Cut a representation that would bury the message, such as that of a whole model."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _quote_source(source: str, line: int, around: int = 3) -> str:
    """Return the numbered lines near `line` (counted from 1), the line itself marked."""
    if not source or line < 1:
        return ""
    lines = source.splitlines()
    first = max(1, line - around)
    last = min(len(lines), line + around)
    return "".join(
        f"\n  {'>' if number == line else ' '} {number:4d} | {lines[number - 1]}"
        for number in range(first, last + 1)
    )
