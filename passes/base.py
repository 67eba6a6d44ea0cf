"""What the planner's steps share: the dependencies between ops and the limits of a region."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.ir.graph import Effect, Graph


@dataclass(frozen=True, slots=True)
class Limits:
    """Hard limits of one kernel. A merge that would pass one is refused with that reason."""

    arguments: int = 48
    """Pointers and sizes: beyond this, parameter space and addressing registers run short."""
    ops: int = 96
    """Computed ops: longer kernels compile slowly and hide their cost."""
    live_values: int = 24
    """Tile values held at once: with 8 elements a thread each, about 200 registers."""


def dependencies(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Op name to the ops that must run before it: data first, then order of effects."""
    found: dict[str, tuple[str, ...]] = {}
    last_ordered: str | None = None
    barrier: str | None = None
    since_barrier: list[str] = []
    for op in graph.ops:
        before = [graph.producers[value].name for value in op.reads if value in graph.producers]
        if barrier is not None:
            before.append(barrier)
        if op.effect is Effect.BARRIER:
            before.extend(since_barrier)
            barrier, since_barrier = op.name, []
        elif op.effect is Effect.ORDERED:
            if last_ordered is not None:
                before.append(last_ordered)
            last_ordered = op.name
        since_barrier.append(op.name)
        found[op.name] = tuple(dict.fromkeys(before))
    return found
