"""`fuserc source`: the generated kernels, on the screen, in a file, or a file for each."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fuser.commands.common import FILE_HELP, add_planning, add_program, asked, write, writing

if TYPE_CHECKING:
    from fuser.report import Plan

SUMMARY = "show the generated kernels"

HELP = f"""\
Show the source of the kernels that would run for one call of a model.

{FILE_HELP}

examples:
  fuserc source model.py --target gfx942
  fuserc source model.py -o kernels.py     all of them in one file
  fuserc source model.py -o kernels/       a file for each"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_program(parser)
    add_planning(parser)


def run(options: argparse.Namespace) -> int:
    plan: Plan = asked(options, "plan")
    sources = plan.sources()
    if options.output is not None and (
        options.output.endswith("/") or Path(options.output).is_dir()
    ):
        folder = Path(options.output)
        with writing(options.output):
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in sources.items():
                (folder / f"{name}.py").write_text(text, encoding="utf-8")
        return 0
    parts = (f"# {name}\n\n{text.strip()}\n" for name, text in sources.items())
    write("\n\n".join(parts) or "# Nothing is fused: there are no kernels.\n", options.output)
    return 0
