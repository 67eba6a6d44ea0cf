"""`fuserc verify`: every fused result against fp64 and eager, for all calls of a program."""

from __future__ import annotations

import argparse
import sys

from fuser.commands.common import FILE_HELP, PROGRAM, add_program
from fuser.errors import FusionMismatch

SUMMARY = "compare fused results with fp64 and eager"

HELP = f"""\
Run a model fused and unfused, and compare each fused result with an fp64 run of its operations. It
may be no further away than eager is, with an allowance for rounding. All calls are checked. On a
CPU the kernels run in Triton's interpreter, which is slow: prefer small inputs.

{FILE_HELP}

examples:
  fuserc verify model.py
  fuserc verify model.py:make_small --device cpu"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_program(parser)


def run(options: argparse.Namespace) -> int:
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
