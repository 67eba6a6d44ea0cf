"""`fuserc minify`: a smaller program that still compiles wrongly."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fuser.commands.common import FILE_HELP, add_program, writing

SUMMARY = "make a program that is compiled wrongly smaller"

HELP = f"""\
Take calls away from a program whose compiled result differs from eager, or that does not compile,
for as long as it still fails, and write what is left as a program file. Each trial compiles and
runs the program, so it takes a while. Inputs that matter are saved beside the file.

{FILE_HELP}

examples:
  fuserc minify model.py -o small.py
  fuserc bisect small.py                   which step of the compiler is at fault"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_program(parser)
    parser.add_argument(
        "-o", "--output", metavar="OUT", required=True, help="the file for the smaller program"
    )


def run(options: argparse.Namespace) -> int:
    from fuser.program_file import load_program

    program = load_program(options.file, options.device, will_run=True)
    from fuser.verification.minify import minify

    def show(trials: int, calls: int) -> None:
        print(f"trial {trials}: {calls} calls", file=sys.stderr)

    for call in program.calls:
        found = minify(program.model, call, {}, on_trial=show)
        if found is not None:
            path = Path(options.output)
            with writing(options.output):
                found.write(path)
            print(f"{found.calls} of {found.calls_before} calls are left in {path}:")
            print(found.failure)
            return 0
    print("nothing to make smaller: every call computes what eager does", file=sys.stderr)
    return 1
