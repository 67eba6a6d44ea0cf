"""The command `make opinfo`, or `python -m opinfo` with `tests` on PYTHONPATH.

In: the words of the command line. Out: a line for each operator with its calls by outcome, a JSON
file of all outcomes, and the exit code: 0 when no call failed, 1 when one did, 2 when the command
cannot be carried out.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HELP = """\
Run PyTorch's own samples of its operators through fuser and compare them with eager and float64:
values, gradients, element types, shapes, strides, shared memory, changed arguments, exceptions.

examples:
  make opinfo                                        all operators, two processes
  make opinfo ARGS="--only softmax --dtypes float32,bfloat16"
  make opinfo ARGS="-o opinfo.json --jobs 8"
  make opinfo ARGS="--table opinfo.json --into docs/opinfo.md"

The file named with -o is whole after each operator: a run that is stopped keeps what it had, and
--resume takes from it what is done and did not fail. Without a GPU, TRITON_INTERPRET=1 has to be
set, as make does."""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m opinfo", description=HELP, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", metavar="RE", default="", help="operators whose names it finds")
    parser.add_argument("--dtypes", default="", help="element types, with commas between them")
    parser.add_argument("--sample", type=int, default=4, metavar="N",
                        help="at most N of an operator's samples (default 4)")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default 2)")
    parser.add_argument("--limit", type=float, default=60, metavar="SECONDS",
                        help="for one call (default 60)")  # fmt: skip
    parser.add_argument("--device", default="", help="default: the GPU where there is one")
    parser.add_argument("--dynamic", action="store_true", help="sizes are symbols")
    parser.add_argument("-o", "--output", metavar="FILE", help="where outcomes go, as JSON")
    parser.add_argument(
        "--resume", action="store_true", help="leave out what FILE has without a failure"
    )
    parser.add_argument("--table", metavar="FILE", help="show outcomes as Markdown and run nothing")
    parser.add_argument("--into", metavar="DOCUMENT", help="put the table between its marks there")
    given = parser.parse_args(words)
    try:
        matches = re.compile(given.only).search
    except re.error as error:
        parser.error(f"--only: {error}")
    if given.table:
        return _table(parser, given.table, given.into)

    import torch

    from opinfo.cases import DTYPES, tasks
    from opinfo.check import FAILED
    from opinfo.progress import progress
    from opinfo.results import Results
    from opinfo.workers import Settings, outcomes

    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        parser.error("generated kernels run on a CPU only with TRITON_INTERPRET=1")
    dtypes = given.dtypes.split(",") if given.dtypes else DTYPES
    if unknown := [d for d in dtypes if not isinstance(getattr(torch, d, None), torch.dtype)]:
        parser.error(f"--dtypes: torch has no element type {unknown[0]!r}")
    if given.resume and not given.output:
        parser.error("--resume needs -o FILE")
    settings = Settings(device, given.sample, given.limit, given.dynamic or None)
    results = Results(settings, given.output, given.resume)
    chosen = [t for t in tasks(matches, dtypes, device) if t not in results.outcomes]
    if not chosen:
        parser.error("no operator with such a name and type is left to run")
    with tempfile.TemporaryDirectory() as cache, progress(len(chosen)) as show:
        os.environ.setdefault("FUSER_CACHE_DIR", cache)
        for task, found in outcomes(chosen, settings, given.jobs):
            results.add(task, found)
            show(task, found)
    failed = sum(o.status == FAILED for found in results.outcomes.values() for o in found)
    print(results.summary())
    return 1 if failed else 0


def _table(parser: argparse.ArgumentParser, source: str, document: str | None) -> int:
    from opinfo.table import placed, table

    try:
        text = table(Path(source).read_text(encoding="utf-8"))
        if document is None:
            print(text)
        else:
            path = Path(document)
            path.write_text(placed(path.read_text(encoding="utf-8"), text), encoding="utf-8")
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
