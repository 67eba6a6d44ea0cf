"""`fuserc diff`: what changed between two plans that were saved as JSON."""

from __future__ import annotations

import argparse
from pathlib import Path

from fuser.errors import UsageError

SUMMARY = "what changed between two plans"

HELP = """\
Show what changed between two plans that `fuserc plan --format json` wrote: regions that vanished,
appeared, or have other operations, tiles, bytes, times, registers or notes; edges that are decided
otherwise; and the totals. Lines of the program, names of kernels, times of passes and gains of
edges are not compared.

examples:
  fuserc plan model.py --target sm_90 --format json -o before.json
  fuserc diff before.json after.json
  fuserc diff before.json after.json --verbose     all of it, however long

exit codes: 0 the plans are the same; 1 they differ; 2 one of them cannot be read."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="A.json", help="the plan to start from")
    parser.add_argument("after", metavar="B.json", help="the plan to compare with it")
    parser.add_argument("-v", "--verbose", action="store_true", help="list every change")


def run(options: argparse.Namespace) -> int:
    from fuser.dump.diff import diff
    from fuser.dump.diff_text import diff_text
    from fuser.dump.to_json import load

    for path in (options.before, options.after):
        if not Path(path).is_file():
            raise UsageError(message=f"{path}: there is no such file", command=options.command)
    difference = diff(load(options.before), load(options.after))
    print(diff_text(difference, verbose=options.verbose))
    return 0 if difference.is_empty else 1
