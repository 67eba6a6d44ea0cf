"""`fuserc bisect`: the step of the compiler, the region, the op and the line that are wrong."""

from __future__ import annotations

import argparse
import sys

from fuser.commands.common import FILE_HELP, add_program

SUMMARY = "find the pass, region, operation and line that make a result wrong"

HELP = f"""\
Walk through the steps of the compiler on the program's own tensors and compare each with the one
before: capture, import, every pass, every kernel, and the host program that launches them. The
first difference is named with its operation and its line of the program. On a CPU the kernels run
in Triton's interpreter, which is slow: prefer small inputs.

{FILE_HELP}

examples:
  fuserc bisect model.py
  fuserc bisect model.py:make_small --device cpu
  fuserc minify model.py -o small.py       then, for a report: a smaller program"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_program(parser)


def run(options: argparse.Namespace) -> int:
    from fuser.program_file import load_program

    program = load_program(options.file, options.device, will_run=True)
    from fuser.verification.bisect import find_culprit

    def show(step: str) -> None:
        print(f"looking at {step}", file=sys.stderr)

    for number, call in enumerate(program.calls):
        found = find_culprit(program.model, call, {}, on_step=show)
        if found is not None:
            print(f"call {number} is wrong:" if len(program.calls) > 1 else "wrong:")
            print(found)
            return 1
    print("every step computes what eager does")
    return 0
