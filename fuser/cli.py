"""The command `fuserc`: show, explain or compare plans, show kernels, check a model.

In: the words of the command line. Out: the exit code, 0 when all is well, 1 when a check fails or
plans differ, 2 when the command cannot be carried out as written, with one line on stderr that says
why. `fuser.commands` has a module for each command.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import NoReturn

from fuser.commands import bisect, diff, env, explain, minify, plan, source, verify
from fuser.commands.common import PROGRAM, described
from fuser.errors import (
    FuserError,
    InvalidArgument,
    InvalidPlan,
    ProgramFileError,
    UnknownTarget,
    UsageError,
    did_you_mean,
)

__all__ = ["main"]

USAGE_EXIT_CODE = 2

# Errors of the catalogue that mean, on a command line, that a word of it is wrong.
USAGE_ERRORS = (UsageError, ProgramFileError, UnknownTarget, InvalidArgument, InvalidPlan)

COMMANDS: Mapping[str, ModuleType] = MappingProxyType(
    {
        "plan": plan,
        "explain": explain,
        "diff": diff,
        "source": source,
        "verify": verify,
        "bisect": bisect,
        "minify": minify,
        "env": env,
    }
)
"""The commands in the order in which help lists them."""

HELP = """\
fuser decides which operations of a PyTorch model run together and writes a Triton kernel for each
group. This command shows what it decides and checks that the results are right; it needs no GPU.

examples:
  fuserc plan model.py                     what is fused on this machine, and why
  fuserc plan model.py --target sm_90      the same for a GPU that need not be here
  fuserc plan model.py --format json       for a script, or to compare two versions of a model
  fuserc plan model.py --format html -o plan.html       one page to look at, offline
  fuserc explain model.py                  why values were not fused, and what that costs
  fuserc diff before.json after.json       what changed from one plan to another
  fuserc source model.py -o kernels/       the generated kernels, one file each
  fuserc verify model.py                   every fused result against fp64 and eager
  fuserc bisect model.py                   the pass, region, op and line that make it wrong
  fuserc minify model.py -o small.py       a smaller program that is still wrong
  fuserc env                               versions, GPUs and settings, for a bug report

exit codes: 0 all is well; 1 a check fails, or plans differ; 2 the command cannot be carried out as
written."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line (that of the process by default) and return the exit code."""
    try:
        options = _parser().parse_args(arguments)
        run: Callable[[argparse.Namespace], int] = options.run
        code = run(options)
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
    parser = _Parser(prog=PROGRAM, **described(HELP))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        added = commands.add_parser(name, help=command.SUMMARY, **described(command.HELP))
        command.add_options(added)
        added.set_defaults(run=command.run, command=added.prog)
    return parser


def _one_line(error: FuserError) -> str:
    text = re.sub(r"\.?\n  fix: ", "; fix: ", str(error)).replace("?; fix:", "? fix:")
    return " ".join(text.split())
