"""`fuserc plan`: what is fused and why, as text, JSON, DOT or a page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fuser.commands.common import FILE_HELP, add_planning, add_program, asked, write, writing
from fuser.device import DEVICES, present_target
from fuser.errors import UsageError

if TYPE_CHECKING:
    from fuser.report import Plan

SUMMARY = "show what is fused, and why"

HELP = f"""\
Show what would run for one call of a model: each kernel with its operations and the lines of the
program that they come from, what it is predicted to need, the operations that stay calls to
PyTorch, and the reason for each value that is not fused. Nothing is run, and nothing compiled but
with --resources: then each kernel is compiled for the target, and its registers, spills and shared
memory stand beside those that were predicted. A kernel that spills gets a smaller tile there, or
its region is cut, as when the model runs. `fuserc explain` says more about the reasons.

{FILE_HELP}

examples:
  fuserc plan model.py
  fuserc plan model.py --target sm_100 --verbose
  fuserc plan model.py:make_small --dynamic --format json -o plan.json
  fuserc plan model.py --target sm_90 --resources
  fuserc plan model.py --format dot | dot -Tsvg > plan.svg
  fuserc explain model.py                  why a value was not fused, and what that costs"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_program(parser)
    add_planning(parser)
    parser.add_argument(
        "--format", choices=("text", "json", "dot", "html"), default="text", help="default: text"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="list every refused edge and each pass's time"
    )
    parser.add_argument(
        "--resources",
        action="store_true",
        help="compile the kernels for the target and show what each needs",
    )


def run(options: argparse.Namespace) -> int:
    if options.resources:
        _check_compiles(options.target, options.command)
    plan: Plan = asked(options, "plan")
    if options.resources:
        plan = _with_resources(plan)
    if options.format == "text":
        _show(plan, options.output, options.verbose)
        return 0
    forms = {
        "json": plan.to_json,
        "dot": plan.to_dot,
        "html": lambda: plan.to_html(model=Path(options.file.partition(":")[0]).stem),
    }
    write(forms[options.format](), options.output)
    return 0


def _show(plan: Plan, output: str | None, verbose: bool) -> None:
    from fuser.dump.to_text import write_text

    parts = plan.kernels, plan.resources, plan.peaks
    if output is None:
        write_text(plan.fusion, sys.stdout, *parts, verbose=verbose)
        return
    with writing(output), Path(output).open("w", encoding="utf-8") as stream:
        write_text(plan.fusion, stream, *parts, verbose=verbose)


def _check_compiles(target: str | None, command: str) -> None:
    if (target or present_target()) == "cpu":
        others = ", ".join(name for name in DEVICES if name != "cpu")
        raise UsageError(
            message="--resources needs a GPU to compile for, which need not be here: kernels for "
            f"the cpu are interpreted. Add --target with one of {others}",
            command=command,
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

        def compiled(name: str) -> None:
            # A kernel that spills is compiled again with another tile, which nobody could foresee.
            done = progress.tasks[0].completed + 1
            total = max(done, len(plan.sources()))
            progress.update(task, completed=done, total=total, description=name)

        return plan.with_resources(compiled)
