"""`fuserc explain`: why each value is fused with its reader or is not, by line of the program."""

from __future__ import annotations

import argparse

from fuser.commands.common import FILE_HELP, add_planning, add_program, asked, write

SUMMARY = "say why values were or were not fused"

HELP = f"""\
Say for each value that one operation hands to another whether the two share a kernel, and why,
under the line of the program that reads it. Lines where fusing would have saved most come first,
with the predicted time and, where there is one, a way to get it. Values to and from operations that
stay calls to PyTorch are counted at the end. Nothing is run: this is what
`print(fuser.explain(...))` says.

{FILE_HELP}

examples:
  fuserc explain model.py
  fuserc explain model.py --target sm_90
  fuserc explain model.py:make_small --dynamic --call 1
  fuserc plan model.py                     the kernels that these decisions lead to"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_program(parser)
    add_planning(parser)


def run(options: argparse.Namespace) -> int:
    write(f"{asked(options, 'explain')}\n", options.output)
    return 0
