"""The suite `overhead`: what a compiled call costs on the host.

In: a request. Out: a row for each of two programs whose kernels are too small to matter, with the
microseconds that each candidate's call takes, and for fuser where they go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from benchmarks.candidates import Candidate, candidates
from benchmarks.kernels import start_compilers
from benchmarks.measure import Call, Timer
from benchmarks.names import PRECISIONS
from benchmarks.overhead_launches import bare_launches, indirect_launches
from benchmarks.progress import progress
from benchmarks.request import Request
from benchmarks.results import Results, Row, error_text, origin
from fuser.capture import registry
from fuser.capture.backend import Backend


class Clock(Protocol):
    """What a row needs of a timer."""

    def busy_us(self, call: Call) -> tuple[float, float]: ...


@dataclass(frozen=True)
class Program:
    """`make(device)` gives a function or module and its arguments."""

    name: str
    make: Callable[[str], tuple[Callable[..., Any], tuple[Tensor, ...]]]


def four_kernels(
    x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor
) -> Tensor:
    """Rows and columns in turn: what reduces over different axes cannot be one kernel."""
    rows = softmax(x * a + b, -1)
    columns = softmax(rows * c + d, 0)
    rows = softmax(columns * e, -1)
    return softmax(rows * f + g, 0)


def _four_kernels(device: str) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    return four_kernels, tuple(torch.randn(64, 1024, device=device) for _ in range(8))


def _mlp(device: str) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """Eight layers for one row."""
    width = 512
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
    model = nn.Sequential(*layers).to(device, torch.bfloat16)
    return model, (torch.randn(1, width, device=device, dtype=torch.bfloat16),)


PROGRAMS = (Program("four_kernels", _four_kernels), Program("mlp", _mlp))


def run(request: Request) -> int:
    """Measure, print and save; 1 where a candidate failed, else 0."""
    names = request.selected([program.name for program in PROGRAMS])
    compared = candidates(request.precisions, request.against)
    timer = Timer()
    header = {**origin(request.commit), "candidates": [item.name for item in compared]}
    results = Results(request.suite, header, summary, request.output)
    with torch.no_grad(), progress(len(names)) as shown:
        start_compilers(compared)
        for program in PROGRAMS:
            if program.name in names:
                row = measured_row(program, compared, timer, "cuda", shown.now)
                results.add(row)
                shown.done(row_text(row))
    return 1 if results.data["summary"]["failed"] else 0


def measured_row(
    program: Program,
    compared: Sequence[Candidate],
    clock: Clock,
    device: str,
    now: Callable[[str], None],
) -> Row:
    """One program in every candidate, and the parts of fuser's call."""
    found: dict[str, Any] = {}
    for candidate in compared:
        now(f"{program.name}: {candidate.name}")
        torch.compiler.reset()
        try:
            run_once, arguments = program.make(device)
            compiled = candidate.wrap(run_once)
            for _ in range(3):
                compiled(*arguments)
            host, both = clock.busy_us(lambda: compiled(*arguments))  # noqa: B023
            found[candidate.name] = {"host_us": host, "call_us": both}
            if candidate.name == "fuser-graphs":
                found[candidate.name]["cuda_graphs"] = [
                    str(graph.cuda_graphs) for graph in registry.plans(compiled)
                ]
            if candidate.name == PRECISIONS["fused"]:
                found[candidate.name] |= parts(compiled, run_once, arguments, host, clock)
        except Exception as error:
            found[candidate.name] = {"error": error_text(error)}
    torch.compiler.reset()
    return {"name": program.name, "candidates": found}


# The parts of a call -----------------------------------------------------------------------------


def parts(
    compiled: Callable[..., Any],
    program: Callable[..., Any],
    arguments: Sequence[Tensor],
    total_us: float,
    clock: Clock,
) -> dict[str, Any]:
    """Where the microseconds of fuser's call go; `rest_us` is the host program but its launches.

    `beyond_us` is what fuser and AOTAutograd add to Dynamo's guards and the bare launches.
    """
    graphs = [graph for graph in registry.plans(compiled) if graph.plan is not None]
    launch, number = bare_launches(graphs, lambda: compiled(*arguments))
    launches = clock.busy_us(launch)[0] if number else 0.0
    guards = _time(torch.compile(program, backend=no_work), arguments, clock)
    entry = _time(torch.compile(program, backend=no_host_program()), arguments, clock)
    return {
        "kernels": sum(len(entry.kernels) for graph in graphs for entry in graph.kernels),
        "original_calls": sum(len(graph.plan.opaque) for graph in graphs),
        "indirect_launches": indirect_launches(graphs),
        "guards_us": guards,
        "entry_us": entry - guards,
        "launches_us": launches,
        "rest_us": total_us - entry - launches,
        "beyond_us": total_us - guards - launches,
    }


def _time(compiled: Callable[..., Any], arguments: Sequence[Tensor], clock: Clock) -> float:
    torch.compiler.reset()
    for _ in range(3):
        compiled(*arguments)
    return clock.busy_us(lambda: compiled(*arguments))[0]


def no_work(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that leaves Dynamo's part: its graph returns what an earlier call returned."""
    kept: list[Any] = []

    def call(*given: Any) -> Any:
        if not kept:
            kept.append(module(*given))
        return kept[0]

    return call


def no_host_program() -> Backend:
    """fuser's backend without its kernels: adds AOTAutograd's and fuser's wrappers to Dynamo's."""

    def compile_graph(module: torch.fx.GraphModule, inputs: Any, context: Any) -> Any:
        work = no_work(module, inputs)

        def run(given: list[Any]) -> Any:
            taken = list(given)
            given.clear()
            return work(*taken)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    return Backend(compile_graph)


# Summary and text --------------------------------------------------------------------------------


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "failed": {
            f"{row['name']}: {name}": item["error"]
            for row in rows
            for name, item in row["candidates"].items()
            if "error" in item
        }
    }


def row_text(row: Row) -> str:
    lines = [row["name"]]
    for name, item in row["candidates"].items():
        if "error" in item:
            lines.append(f"  {name:<16} FAILED {item['error'][:160]}")
            continue
        text = f"  {name:<16} {item['host_us']:8.1f} us host, {item['call_us']:8.1f} us a call"
        if "guards_us" in item:
            text += (
                f": guards {item['guards_us']:.1f}, entry {item['entry_us']:.1f},"
                f" {item['kernels']} launches {item['launches_us']:.1f},"
                f" rest {item['rest_us']:.1f}; beyond guards and launches {item['beyond_us']:.1f}"
            )
            text += "".join(
                f"\n    {count} launches went through Triton: {reason}"
                for reason, count in item["indirect_launches"].items()
            )
        lines.append(text)
        lines += [f"    {graph}" for graph in item.get("cuda_graphs", ())]
    return "\n".join(lines)
