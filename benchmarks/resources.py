"""`python -m benchmarks.resources`: predicted registers and shared memory beside compiled ones.

In: a target, which need not be present. Out: Markdown with the errors of predictions by kind of
kernel, and a row for each kernel of the programs in `resources_corpus`. Nothing is run: programs
are traced with fake tensors, forward and backward, and their kernels are compiled offline.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from benchmarks.resources_corpus import PROGRAMS, Program
from benchmarks.table import replaced
from fuser.capture.backend import Backend, CompileContext
from fuser.codegen.generate import kernels_of as generated
from fuser.device import device_spec
from fuser.driver import Options, plan_module
from fuser.dump.stages import NO_STAGES
from fuser.errors import FuserError, UsageError
from fuser.ir.kernel import Configuration, KernelSpec, Resources
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Strategy
from fuser.passes.kernel_model import kernels_of
from fuser.passes.resources import predict, register_limit
from fuser.runtime.offline import compile_many

COMMAND = "python -m benchmarks.resources"

DESCRIPTION = """\
Compare predicted registers and shared memory with what the compiler allocates, for a GPU that need
not be here. Each kernel is compiled with the tile that the planner prefers, the next smaller one
and the smallest. Constants of the model are fitted to every other program; errors are shown for
those and for the rest.

examples:
  python -m benchmarks.resources
  python -m benchmarks.resources --target sm_80 --only softmax
  python -m benchmarks.resources --write docs/budgets.md

With --write the tables replace those between `<!-- table: resources TARGET -->` and
`<!-- end: resources TARGET -->`. Two processes take two to three minutes."""


@dataclass(frozen=True)
class Job:
    """One kernel with one tile, and what is predicted for it."""

    program: str
    phase: str
    strategy: Strategy
    is_second: bool
    ops: int
    spec: KernelSpec
    """With the tile as its only configuration."""
    hints: tuple[tuple[str, int], ...]
    is_preferred: bool
    is_fitted: bool
    """Whether the program is one of those that the model's constants are fitted to."""
    registers: int
    shared_bytes: int

    @property
    def tile(self) -> Configuration:
        return self.spec.configurations[0]

    @property
    def identity(self) -> tuple[str, Configuration]:
        """Equal for jobs that compile to the same."""
        return self.spec.key, self.tile


@dataclass(frozen=True)
class Row:
    """A job and what the compiler allocated."""

    job: Job
    found: Resources

    @property
    def error(self) -> float:
        """Relative error of the predicted registers."""
        return abs(self.job.registers - self.found.registers) / self.found.registers

    @property
    def is_exact(self) -> bool:
        return self.job.shared_bytes == self.found.shared_bytes


# Plans ------------------------------------------------------------------------------------------


def captured(program: Program) -> list[tuple[fx.GraphModule, CompileContext]]:
    """The graphs that the compiler would be given for one call, and for its backward."""
    graphs: list[tuple[fx.GraphModule, CompileContext]] = []

    def record(module: fx.GraphModule, _: Sequence[Any], context: CompileContext) -> Any:
        graphs.append((module, context))
        return module

    torch.compiler.reset()
    backend = Backend(record, fall_back=False)
    run: Callable[..., Any] = torch.compile(
        program.run, backend=backend, dynamic=program.dynamic, fullgraph=True
    )
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    with mode, torch.set_grad_enabled(program.gradients):
        results = run(*program.make())
        if program.gradients:
            outputs = [results] if isinstance(results, torch.Tensor) else list(results)
            outputs = [output for output in outputs if output.requires_grad]
            torch.autograd.backward(outputs, [torch.empty_like(output) for output in outputs])
    return graphs


def jobs_of(program: Program, target: str, is_fitted: bool) -> list[Job]:
    """The kernels of a program with some of their tiles."""
    found: list[Job] = []
    for module, context in captured(program):
        plan, _, _ = plan_module(module, target, context.phase, Options(), NO_STAGES)
        found += _jobs(program.name, is_fitted, plan)
    return found


def _jobs(name: str, is_fitted: bool, plan: FusionPlan) -> Iterator[Job]:
    """Each region's own kernels, also where it shares a launch."""
    graph, device = plan.graph, device_spec(plan.target)
    place = graph.position.__getitem__
    for region in plan.regions:
        entry = generated(graph, region)
        ops = [graph.by_name[op] for op in sorted(region.all_ops, key=place)]
        modelled = kernels_of(graph, ops, region.outputs, region.space, region.schedule)
        for number, (spec, kernel) in enumerate(zip(entry.kernels, modelled, strict=True)):
            tiles = spec.configurations
            for tile in dict.fromkeys((*tiles[:2], tiles[-1])):
                registers, shared = predict(kernel, tile, device)
                yield Job(
                    program=name,
                    phase=plan.phase,
                    strategy=region.strategy,
                    is_second=number > 0,
                    ops=len(ops),
                    spec=replace(spec, configurations=(tile,)),
                    hints=tuple(graph.hints.items()),
                    is_preferred=tile == tiles[0],
                    is_fitted=is_fitted,
                    registers=min(registers, register_limit(tile, device)),
                    shared_bytes=shared,
                )


def _plan_numbered(request: tuple[int, str]) -> list[Job]:
    """One program by its number, for a worker: functions in it cannot be sent to one."""
    number, target = request
    return jobs_of(PROGRAMS[number], target, number % 2 == 1)


def _compile(request: tuple[Job, str]) -> Resources | str:
    job, target = request
    (found,) = compile_many([job.spec], target, dict(job.hints))
    return found


def rows_for(target: str, only: re.Pattern[str], workers: int) -> list[Row]:
    """Plan and compile the programs whose names match; each distinct kernel and tile once."""
    if device_spec(target).backend == "cpu":
        raise UsageError(message="kernels for the cpu are interpreted.", command=COMMAND)
    numbers = [k for k, program in enumerate(PROGRAMS) if only.search(program.name)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context) as pool:
        _say(f"planning {len(numbers)} programs for {target}")
        jobs: dict[tuple[str, Configuration], Job] = {}
        for planned in pool.map(_plan_numbered, [(number, target) for number in numbers]):
            for job in planned:
                jobs.setdefault(job.identity, job)
        _say(f"compiling {len(jobs)} kernels and tiles")
        found = pool.map(_compile, [(job, target) for job in jobs.values()], chunksize=4)
        rows: list[Row] = []
        for job, result in zip(jobs.values(), found, strict=True):
            if isinstance(result, str):
                _say(f"{job.program} {job.spec.name} {tile_text(job.tile)}: {result}")
            else:
                rows.append(Row(job, result))
    return rows


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# Tables -----------------------------------------------------------------------------------------


def report(rows: Sequence[Row], target: str) -> str:
    """Medians by strategy and over all, and a row for the preferred tile of each kernel."""
    lines = [
        f"{target}, Triton {triton.__version__} and its ptxas, torch {torch.__version__}: "
        f"{len({row.job.spec.key for row in rows})} kernels of "
        f"{len({row.job.program for row in rows})} programs.",
        "",
        *_head(
            "kernel", "tiles", "fitted half", "other half", "other half, preferred tiles",
            "worst tenth", "shared memory exact",
        ),
    ]  # fmt: skip
    for strategy in Strategy:
        lines += _summary(strategy.value, [r for r in rows if r.job.strategy is strategy])
    lines += _summary("**all**", rows)
    lines += [
        "",
        "Median relative errors of registers, without tiles that spill, whose figure is the "
        "hardware's limit; the worst tenth of all tiles begins at its figure.",
        "",
        "<details><summary>The preferred tile of every kernel</summary>",
        "",
        *_head(
            "program", "graph", "kernel", "ops", "tile", "warps", "registers predicted",
            "compiled", "shared bytes predicted", "compiled", "spilled words",
        ),
    ]  # fmt: skip
    lines += [_row(row) for row in rows if row.job.is_preferred]
    return "\n".join([*lines, "", "</details>"])


def _summary(name: str, rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    fitting = [row for row in rows if not row.found.spills]
    other = [row for row in fitting if not row.job.is_fitted]
    exact = sum(row.is_exact for row in rows)
    errors = sorted(row.error for row in fitting)
    cells = [
        name,
        str(len(rows)),
        _median(row.error for row in fitting if row.job.is_fitted),
        _median(row.error for row in other),
        _median(row.error for row in other if row.job.is_preferred),
        f"{errors[len(errors) * 9 // 10]:.0%}" if errors else "",
        f"{exact} of {len(rows)}",
    ]
    return [_line(cells)]


def _median(errors: Iterable[float]) -> str:
    found = list(errors)
    return f"{statistics.median(found):.1%}" if found else ""


def _row(row: Row) -> str:
    job, found = row.job, row.found
    kind = job.strategy.value.replace("_", " ") + (", second" if job.is_second else "")
    return _line([
        job.program, job.phase, kind, str(job.ops), tile_text(job.tile), str(job.tile.num_warps),
        str(job.registers), str(found.registers), str(job.shared_bytes), str(found.shared_bytes),
        str(found.spills),
    ])  # fmt: skip


def tile_text(tile: Configuration) -> str:
    return " x ".join(str(size) for _, size in tile.blocks)


def _head(*names: str) -> list[str]:
    return [_line(names), "|---" * len(names) + "|"]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# Command ----------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        COMMAND, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="sm_90", help="a GPU of fuser.device (default: sm_90)")
    parser.add_argument("--only", default="", metavar="RE", help="programs whose name matches")
    parser.add_argument("--workers", default=2, type=int, metavar="N", help="processes (default 2)")
    parser.add_argument("--write", metavar="FILE.md", help="replace the target's tables in a file")
    options = parser.parse_args(words)
    try:
        rows = rows_for(options.target, _pattern(options.only), max(1, options.workers))
        if not rows:
            raise UsageError(message=f"no program matches {options.only!r}.", command=COMMAND)
        text = report(rows, options.target)
        if options.write is None:
            print(text)
        else:
            replaced(options.write, f"resources {options.target}", text)
    except FuserError as error:
        print(f"benchmarks.resources: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(message=f"--only {text}: {error}.", command=COMMAND) from None


if __name__ == "__main__":
    sys.exit(main())
