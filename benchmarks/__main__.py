"""The command `python -m benchmarks`: measure a suite, or show what was measured.

In: the words of the command line. Out: the exit code, 0 when all is well, 1 when a row failed, 2
when the command cannot be carried out, with one line on stderr that says why. Nothing heavy is
imported before it is needed, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from benchmarks.names import COMPETITORS, PRECISIONS, SUITES
from benchmarks.results import COMMAND
from fuser.errors import FuserError, UsageError, did_you_mean

PRODUCTS = "product|linear|swiglu|qkv"
"""Matches the names of all workloads with a matrix product, and no others."""

CACHES = ("FUSER_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")

MAIN_HELP = f"""\
Measure fuser on the GPU that is present, beside PyTorch and torch.compile in the same process.

suites:
{chr(10).join(f"  {name:<12} {text}" for name, text in SUITES.items())}

examples:
  {COMMAND} kernels --against eager,inductor -o kernels.json
  {COMMAND} kernels --only softmax --precision fused,eager
  {COMMAND} table kernels.json                  the figures as Markdown
  {COMMAND} table kernels.json --into docs/hardware.md
  {COMMAND} chart kernels.json -o kernels.svg   the same as bars

Suites need a GPU; table and chart do not. Every compiler starts with empty caches, so first calls
are cold. Each suite has more to say: {COMMAND} kernels --help

exit codes: 0 all is well; 1 a row failed; 2 the command cannot be carried out as written."""

KERNELS_HELP = f"""\
Small programs whose floor is known: the bytes that a perfect kernel moves at the rate of a copy in
this run, or its products at the rate of a large product. A figure is milliseconds on the device
with a cold L2 cache; in parentheses floor / time, of which 1.00 is perfect. Rows with a floor under
0.05 ms also have the time of a call that CUDA graphs replay. fuser's results are compared with
eager and float64 first. The JSON has more: the host's time, the first call's, the kernels, ratios,
and the geometric mean over the rows.

competitors for --against:
{chr(10).join(f"  {name:<16} {text}" for name, text in COMPETITORS.items())}

examples:
  {COMMAND} kernels                             fuser and eager, all rows
  {COMMAND} kernels --against eager,inductor -o kernels.json
  {COMMAND} kernels --only '^layer_norm|adamw' --against inductor,inductor-max
  {COMMAND} kernels --only '{PRODUCTS}' --against eager,inductor-max
  {COMMAND} kernels --precision fused,eager     also rounding each op as eager does

The file named with -o is whole after each row: a run that is stopped keeps what it had."""

OVERHEAD_HELP = f"""\
What a call costs beside its kernels. One program has eight tensors and four kernels too small to
matter; its time is split into Dynamo's guards, the way from there to fuser's host program, the
same launches by themselves, and the rest. Another is eight layers of width 512 for one row.

examples:
  {COMMAND} overhead -o overhead.json
  {COMMAND} overhead --only mlp --against fuser-graphs,inductor-graphs
  {COMMAND} table overhead.json --into docs/overhead.md"""

PREDICTION_HELP = f"""\
Each generated kernel by itself, on the inputs that it has in its program and with a cold L2 cache,
beside the time that the planner predicted for it. Programs are those of the suite kernels, at full
size and with a quarter of the rows. The summary has the rank correlation of the two times and the
median of measured / predicted; `{COMMAND} chart` draws one over the other.

examples:
  {COMMAND} prediction -o prediction.json
  {COMMAND} prediction --only softmax"""

TABLE_HELP = f"""\
Write a result as Markdown tables, under a line with the machine, the versions and the commit.

examples:
  {COMMAND} table kernels.json
  {COMMAND} table kernels.json --into docs/hardware.md

With --into the tables replace those between `<!-- table: SUITE -->` and `<!-- end: SUITE -->`."""

CHART_HELP = f"""\
Draw a result: for kernels a bar for each program and candidate, for prediction measured times over
predicted ones. The suffix of the output chooses the format: svg, png or pdf.

examples:
  {COMMAND} chart kernels.json -o kernels.svg
  {COMMAND} chart prediction.json -o prediction.png"""


def main(words: Sequence[str] | None = None) -> int:
    try:
        options = _parser().parse_args(words)
        code: int = options.run(options)
    except FuserError as error:
        text = " ".join(re.sub(r"\.?\n  fix: ", "; fix: ", str(error)).split())
        print(f"benchmarks: {text}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("benchmarks: stopped; rows that were finished are in the output", file=sys.stderr)
        return 130
    return code


class _Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, with the nearest word that exists."""

    def error(self, message: str) -> NoReturn:
        chosen = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if chosen:
            message += "." + did_you_mean(chosen[1], re.findall(r"[\w-]+", chosen[2]))
        raise UsageError(message=message, command=self.prog)


def _parser() -> _Parser:
    parser = _Parser(prog=COMMAND, **_description(MAIN_HELP))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    kernels = commands.add_parser("kernels", **_suite("kernels", KERNELS_HELP))
    _add_candidates(kernels, "eager")
    overhead = commands.add_parser("overhead", **_suite("overhead", OVERHEAD_HELP))
    _add_candidates(overhead, "fuser-graphs,eager,inductor,inductor-graphs")
    prediction = commands.add_parser("prediction", **_suite("prediction", PREDICTION_HELP))
    for suite, sub in (("kernels", kernels), ("overhead", overhead), ("prediction", prediction)):
        sub.add_argument(
            "--only", default="", metavar="RE", help="rows whose name contains a match"
        )
        sub.add_argument("-o", "--output", metavar="FILE", help="write the figures as JSON")
        sub.add_argument(
            "--commit", default="", help="the commit to record where Git is not at hand"
        )
        sub.set_defaults(run=_measure, suite=suite)

    table = commands.add_parser(
        "table", help="write a result as Markdown", **_description(TABLE_HELP)
    )
    table.add_argument("result", metavar="RESULT.json")
    table.add_argument("--into", metavar="FILE.md", help="replace the suite's tables in a file")
    table.set_defaults(run=_table)

    chart = commands.add_parser("chart", help="draw a result", **_description(CHART_HELP))
    chart.add_argument("result", metavar="RESULT.json")
    chart.add_argument("-o", "--output", metavar="FILE", required=True, help="svg, png or pdf")
    chart.set_defaults(run=_chart)
    return parser


def _description(text: str) -> dict[str, Any]:
    return {"description": text, "formatter_class": argparse.RawDescriptionHelpFormatter}


def _suite(name: str, text: str) -> dict[str, Any]:
    return {"help": f"measure {SUITES[name]}", **_description(text)}


def _add_candidates(parser: argparse.ArgumentParser, against: str) -> None:
    parser.add_argument(
        "--against", default=against, metavar="NAMES", type=_names(COMPETITORS),
        help=f"competitors, separated by commas; '' for none (default: {against})",
    )  # fmt: skip
    parser.add_argument(
        "--precision", default="fused", metavar="NAMES", type=_names(PRECISIONS),
        help=f"fuser's precisions: {', '.join(PRECISIONS)} or both (default: fused)",
    )  # fmt: skip


def _names(known: Any) -> Any:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"there is no {name!r} among {', '.join(known)}.{did_you_mean(name, known)}"
                )
        return names

    return parse


# Commands ----------------------------------------------------------------------------------------


def _measure(options: argparse.Namespace) -> int:
    try:
        only = re.compile(options.only)
    except re.error as error:
        raise UsageError(
            message=f"--only {options.only}: not a regular expression: {error}.",
            command=f"{COMMAND} {options.suite}",
        ) from None
    with _empty_caches():
        _need_gpu(options.suite)
        from benchmarks.request import Request

        request = Request(
            suite=options.suite,
            only=only,
            precisions=getattr(options, "precision", ()),
            against=getattr(options, "against", ()),
            output=options.output,
            commit=options.commit,
        )
        code: int = importlib.import_module(f"benchmarks.{options.suite}").run(request)
        return code


def _need_gpu(suite: str) -> None:
    import torch

    if not torch.cuda.is_available():
        raise UsageError(
            message=f"{suite} needs a GPU and PyTorch {torch.__version__} sees none: times in "
            "Triton's interpreter would mean nothing. `table` and `chart` work without one.",
            command=COMMAND,
        )


@contextlib.contextmanager
def _empty_caches() -> Iterator[None]:
    """Folders of this run for everything that the compilers keep, set before they are imported."""
    with tempfile.TemporaryDirectory(prefix="benchmarks-", ignore_cleanup_errors=True) as folder:
        before = {name: os.environ.get(name) for name in CACHES}
        os.environ.update({name: os.path.join(folder, name.lower()) for name in CACHES})
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _table(options: argparse.Namespace) -> int:
    from benchmarks.results import read
    from benchmarks.table import replaced, tables

    data = read(options.result)
    if options.into is None:
        print(tables(data))
    else:
        replaced(options.into, data["suite"], tables(data))
    return 0


def _chart(options: argparse.Namespace) -> int:
    from benchmarks.chart import draw
    from benchmarks.results import read

    draw(read(options.result), options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
