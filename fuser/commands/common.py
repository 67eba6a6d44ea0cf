"""What the commands share: words about program files, common options, planning, and output.

In: the words of a command line that argparse has taken apart. Out: what the compiler says of the
chosen call, or text on the screen or in a file. Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from fuser.device import DEVICES, device_spec
from fuser.errors import UsageError

PROGRAM = "fuserc"

FILE_HELP = """\
FILE is a Python file with a function `make(device)` that returns a model, or any function on
tensors, and a list with the arguments of each call, as tuples:

    import torch

    def make(device):
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU()).to(device)
        return model, [(torch.randn(32, 64, device=device),)]

A single tuple in place of the list is one call. FILE:NAME takes the function NAME instead."""


def described(text: str) -> dict[str, Any]:
    """Settings of a parser whose help is this text, line by line."""
    return {"description": text, "formatter_class": argparse.RawDescriptionHelpFormatter}


def add_program(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE[:NAME]", help="the program; see above")
    parser.add_argument(
        "--device", help="where its tensors are made (default: cuda if there is one, else cpu)"
    )


def add_planning(parser: argparse.ArgumentParser) -> None:
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


def asked(options: argparse.Namespace, function: Literal["plan", "explain"]) -> Any:
    """What that function of `fuser` returns for the chosen call of the program."""
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
                command=options.command,
            )
        from fuser import api

        return getattr(api, function)(
            program.model,
            *program.calls[options.call],
            target=options.target,
            dynamic=True if options.dynamic else None,
        )


@contextlib.contextmanager
def writing(output: str) -> Iterator[None]:
    """Turn a failure to write into the error that names the place."""
    try:
        yield
    except OSError as error:
        raise UsageError(message=f"cannot write {output}: {error.strerror}.") from error


def write(text: str, output: str | None) -> None:
    """The text to a file, or to the screen where none is named."""
    if output is None:
        sys.stdout.write(text)
        return
    with writing(output):
        Path(output).write_text(text, encoding="utf-8")
