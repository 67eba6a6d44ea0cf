"""The command `fuserc`: show or compare plans, show kernels, check a model, describe the machine.

In: the words of the command line. Out: the exit code, 0 when all is well, 1 when a check fails or
plans differ, 2 when the command cannot be carried out as written, with one line on stderr that says
why. Nothing heavy is imported before a command needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fuser.device import DEVICES, device_spec, present_target
from fuser.errors import (
    FuserError,
    FusionMismatch,
    InvalidArgument,
    InvalidPlan,
    ProgramFileError,
    UnknownTarget,
    UsageError,
    did_you_mean,
)

if TYPE_CHECKING:
    from fuser.report import Plan

__all__ = ["main"]

PROGRAM = "fuserc"
USAGE_EXIT_CODE = 2

# Errors of the catalogue that mean, on a command line, that a word of it is wrong.
USAGE_ERRORS = (UsageError, ProgramFileError, UnknownTarget, InvalidArgument, InvalidPlan)

FILE_HELP = """\
FILE is a Python file with a function `make(device)` that returns a model, or any function on
tensors, and a list with the arguments of each call, as tuples:

    import torch

    def make(device):
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU()).to(device)
        return model, [(torch.randn(32, 64, device=device),)]

A single tuple in place of the list is one call. FILE:NAME takes the function NAME instead."""

MAIN_HELP = """\
fuser decides which operations of a PyTorch model run together and writes a Triton kernel for each
group. This command shows what it decides and checks that the results are right; it needs no GPU.

examples:
  fuserc plan model.py                     what is fused on this machine, and why
  fuserc plan model.py --target sm_90      the same for a GPU that need not be here
  fuserc plan model.py --format json       for a script, or to compare two versions of a model
  fuserc plan model.py --format html -o plan.html       one page to look at, offline
  fuserc diff before.json after.json       what changed from one plan to another
  fuserc source model.py -o kernels/       the generated kernels, one file each
  fuserc verify model.py                   every fused result against fp64 and eager
  fuserc env                               versions, GPUs and settings, for a bug report

exit codes: 0 all is well; 1 a check fails, or plans differ; 2 the command cannot be carried out as
written."""

PLAN_HELP = f"""\
Show what would run for one call of a model: each kernel with its operations and the lines of the
program that they come from, the operations that stay calls to PyTorch, and the reason for each
value that is not fused. Nothing is run, and nothing compiled but with --resources, which compiles
each kernel for the target and adds its registers, spills and shared memory.

{FILE_HELP}

examples:
  fuserc plan model.py
  fuserc plan model.py --target sm_100 --verbose
  fuserc plan model.py:make_small --dynamic --format json -o plan.json
  fuserc plan model.py --target sm_90 --resources
  fuserc plan model.py --format dot | dot -Tsvg > plan.svg"""

DIFF_HELP = """\
Show what changed between two plans that `fuserc plan --format json` wrote: regions that vanished,
appeared, or have other operations, bytes, times or registers; edges that are decided otherwise; and
the totals. Lines of the program, names of kernels and times of passes are not compared.

examples:
  fuserc plan model.py --target sm_90 --format json -o before.json
  fuserc diff before.json after.json
  fuserc diff before.json after.json --verbose     all of it, however long

exit codes: 0 the plans are the same; 1 they differ; 2 one of them cannot be read."""

SOURCE_HELP = f"""\
Show the source of the kernels that would run for one call of a model.

{FILE_HELP}

examples:
  fuserc source model.py --target gfx942
  fuserc source model.py -o kernels.py     all of them in one file
  fuserc source model.py -o kernels/       a file for each"""

VERIFY_HELP = f"""\
Run a model fused and unfused, and compare each fused result with an fp64 run of its operations. It
may be no further away than eager is, with an allowance for rounding. All calls are checked. On a
CPU the kernels run in Triton's interpreter, which is slow: prefer small inputs.

{FILE_HELP}

examples:
  fuserc verify model.py
  fuserc verify model.py:make_small --device cpu"""

ENV_HELP = """\
Print the versions, the GPUs and the settings in force, with what each setting does. Paste it into a
bug report."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line (that of the process by default) and return the exit code."""
    try:
        options = _parser().parse_args(arguments)
        command: Callable[[argparse.Namespace], int] = options.run
        code = command(options)
        sys.stdout.flush()
        return code
    except USAGE_ERRORS as error:
        print(f"{PROGRAM}: {_one_line(error)}", file=sys.stderr)
        return USAGE_EXIT_CODE
    except FuserError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough. Without this, Python would complain once
        # more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class _Parser(argparse.ArgumentParser):
    """Reports a mistake as an error of the catalogue, with the nearest word that exists."""

    def error(self, message: str) -> NoReturn:
        chosen = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if chosen:
            message += "." + did_you_mean(chosen[1], re.findall(r"[\w-]+", chosen[2]))
        raise UsageError(message=message, command=self.prog)


def _parser() -> _Parser:
    parser = _Parser(prog=PROGRAM, **_description(MAIN_HELP))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    plan = commands.add_parser(
        "plan", help="show what is fused, and why", **_description(PLAN_HELP)
    )
    _add_program(plan)
    _add_planning(plan)
    plan.add_argument(
        "--format", choices=("text", "json", "dot", "html"), default="text", help="default: text"
    )
    plan.add_argument(
        "-v", "--verbose", action="store_true", help="list every refused edge and each pass's time"
    )
    plan.add_argument(
        "--resources",
        action="store_true",
        help="compile the kernels for the target and show what each needs",
    )
    plan.set_defaults(run=_plan)

    diff = commands.add_parser(
        "diff", help="what changed between two plans", **_description(DIFF_HELP)
    )
    diff.add_argument("before", metavar="A.json", help="the plan to start from")
    diff.add_argument("after", metavar="B.json", help="the plan to compare with it")
    diff.add_argument("-v", "--verbose", action="store_true", help="list every change")
    diff.set_defaults(run=_diff)

    source = commands.add_parser(
        "source", help="show the generated kernels", **_description(SOURCE_HELP)
    )
    _add_program(source)
    _add_planning(source)
    source.set_defaults(run=_source)

    verify = commands.add_parser(
        "verify", help="compare fused results with fp64 and eager", **_description(VERIFY_HELP)
    )
    _add_program(verify)
    verify.set_defaults(run=_verify)

    env = commands.add_parser(
        "env", help="describe this machine, for a bug report", **_description(ENV_HELP)
    )
    env.set_defaults(run=_env)
    return parser


def _description(text: str) -> dict[str, Any]:
    return {"description": text, "formatter_class": argparse.RawDescriptionHelpFormatter}


def _add_program(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE[:NAME]", help="the program; see above")
    parser.add_argument(
        "--device", help="where its tensors are made (default: cuda if there is one, else cpu)"
    )


def _add_planning(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target", help=f"one of {', '.join(DEVICES)} (default: the GPU that is present)"
    )
    parser.add_argument(
        "--dynamic", action="store_true", help="plan for sizes that change from call to call"
    )
    parser.add_argument(
        "--call", type=int, default=0, metavar="N", help="plan the N-th call, counted from 0"
    )
    parser.add_argument("-o", "--output", metavar="OUT", help="write to OUT, not to the terminal")


# Commands ---------------------------------------------------------------------------------------


def _plan(options: argparse.Namespace) -> int:
    if options.resources:
        _check_compiles(options.target)
    plan = _make_plan(options, "plan")
    if options.resources:
        plan = _with_resources(plan)
    if options.format == "text" and options.output is None:
        plan.show(verbose=options.verbose)
    elif options.format == "text":
        with _writing(options.output), Path(options.output).open("w", encoding="utf-8") as stream:
            plan.show(stream, verbose=options.verbose)
    else:
        forms = {
            "json": plan.to_json,
            "dot": plan.to_dot,
            "html": lambda: plan.to_html(model=Path(options.file.partition(":")[0]).stem),
        }
        _write(forms[options.format](), options.output)
    return 0


def _check_compiles(target: str | None) -> None:
    if (target or present_target()) == "cpu":
        others = ", ".join(name for name in DEVICES if name != "cpu")
        raise UsageError(
            message="--resources needs a GPU to compile for, which need not be here: kernels for "
            f"the cpu are interpreted. Add --target with one of {others}",
            command=f"{PROGRAM} plan",
        )


def _with_resources(plan: Plan) -> Plan:
    """The plan with its kernels compiled; a line on a terminal shows how far that is."""
    if not sys.stderr.isatty():
        return plan.with_resources()
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("compiling"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(plan.sources()))
        return plan.with_resources(lambda name: progress.update(task, advance=1, description=name))


def _diff(options: argparse.Namespace) -> int:
    from fuser.dump.diff import diff
    from fuser.dump.diff_text import diff_text
    from fuser.dump.to_json import load

    for path in (options.before, options.after):
        if not Path(path).is_file():
            raise UsageError(message=f"{path}: there is no such file", command=f"{PROGRAM} diff")
    difference = diff(load(options.before), load(options.after))
    print(diff_text(difference, verbose=options.verbose))
    return 0 if difference.is_empty else 1


def _source(options: argparse.Namespace) -> int:
    sources = _make_plan(options, "source").sources()
    if options.output is not None and (
        options.output.endswith("/") or Path(options.output).is_dir()
    ):
        folder = Path(options.output)
        with _writing(options.output):
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in sources.items():
                (folder / f"{name}.py").write_text(text, encoding="utf-8")
        return 0
    parts = (f"# {name}\n\n{text.strip()}\n" for name, text in sources.items())
    _write("\n\n".join(parts) or "# Nothing is fused: there are no kernels.\n", options.output)
    return 0


def _verify(options: argparse.Namespace) -> int:
    from fuser.program_file import load_program

    program = load_program(options.file, options.device, will_run=True)
    from fuser import api

    failures = 0
    for number, call in enumerate(program.calls):
        if len(program.calls) > 1:
            print(f"call {number}:")
        try:
            print(api.verify(program.model, *call))
        except FusionMismatch as mismatch:
            print(f"{PROGRAM}: {mismatch}", file=sys.stderr)
            failures += 1
    return 1 if failures else 0


def _env(_: argparse.Namespace) -> int:
    from fuser.env_report import report

    print(report())
    return 0


def _make_plan(options: argparse.Namespace, command: str) -> Plan:
    from fuser.program_file import load_program

    if options.target is not None:
        device_spec(options.target)
    # What the program itself prints would get into the JSON.
    with contextlib.redirect_stdout(sys.stderr):
        program = load_program(options.file, options.device)
        count = len(program.calls)
        if not 0 <= options.call < count:
            raise UsageError(
                message=f"--call {options.call}: {options.file} makes {count} "
                f"{'call' if count == 1 else f'calls, numbered 0 to {count - 1}'}.",
                command=f"{PROGRAM} {command}",
            )
        from fuser import api

        plan: Plan = api.plan(
            program.model,
            *program.calls[options.call],
            target=options.target,
            dynamic=True if options.dynamic else None,
        )
        return plan


# Texts and files --------------------------------------------------------------------------------


def _one_line(error: FuserError) -> str:
    text = re.sub(r"\.?\n  fix: ", "; fix: ", str(error)).replace("?; fix:", "? fix:")
    return " ".join(text.split())


@contextlib.contextmanager
def _writing(output: str) -> Iterator[None]:
    """Turn a failure to write into the error that names the place."""
    try:
        yield
    except OSError as error:
        raise UsageError(message=f"cannot write {output}: {error.strerror}.") from error


def _write(text: str, output: str | None) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    with _writing(output):
        Path(output).write_text(text, encoding="utf-8")
