"""Who takes part in a comparison: fuser in its precisions, and its competitors.

In: names from the command line. Out: for each name how a program is compiled. Programs are handed
over as they are; nothing is tuned for one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from benchmarks.names import COMPETITORS, PRECISIONS

Program = Callable[..., Any]


@dataclass(frozen=True)
class Candidate:
    """`wrap(program)` compiles at the first call. `options` are fuser's own, None for others.
    `has_graphs` where calls replay CUDA graphs already."""

    name: str
    wrap: Callable[[Program], Program]
    options: Mapping[str, Any] | None = None
    has_graphs: bool = False


def candidates(precisions: Sequence[str], against: Sequence[str]) -> tuple[Candidate, ...]:
    """fuser in each of `precisions`, then `against`, in their order."""
    return (
        *(_fuser(precision) for precision in precisions),
        *(
            Candidate(name, _competitor(name), has_graphs=name.endswith("-graphs"))
            for name in against
        ),
    )


def _fuser(precision: str) -> Candidate:
    import fuser

    options = MappingProxyType({"precision": precision})
    return Candidate(
        PRECISIONS[precision], lambda program: fuser.compile(program, **options), options
    )


def _competitor(name: str) -> Callable[[Program], Program]:
    import torch

    # CUDA graphs are left to the suite about the host: elsewhere they would add copies of inputs.
    modes = {
        "inductor": None,
        "inductor-max": "max-autotune-no-cudagraphs",
        "inductor-graphs": "reduce-overhead",
    }
    if name == "eager":
        return lambda program: program
    if name == "fuser-graphs":
        import fuser

        return lambda program: fuser.compile(program, mode="reduce-overhead")
    assert name in COMPETITORS
    return lambda program: torch.compile(program, mode=modes[name])
