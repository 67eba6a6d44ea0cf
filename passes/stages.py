"""The passes over a row that a looped reduction takes.

In: ops in program order. Out: which pass each op belongs to, and what each pass has to compute.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fuser.ir.graph import Argument, Op


def reduction_stages(ops: Sequence[Op]) -> dict[str, int]:
    """For each op, how many passes over the row must be complete before it can be computed.

    For a reduction that is the pass that accumulates it; its readers come one later.
    """
    stages: dict[str, int] = {}
    kinds = {op.name: op for op in ops}
    for op in ops:
        stage = 0
        for operand in op.operands:
            if isinstance(operand, Argument) and operand.value in stages:
                ready = stages[operand.value] + (1 if kinds[operand.value].reduced else 0)
                stage = max(stage, ready)
        stages[op.name] = stage
    return stages


def needed_in_passes(ops: Sequence[Op], stored: Collection[str]) -> tuple[frozenset[str], ...]:
    """For each pass over the row, the ops whose operands it reads: they are computed again in
    every pass that needs them. Reductions of earlier passes are done by then."""
    stages = reduction_stages(ops)
    by_name = {op.name: op for op in ops}
    last = max((stages[op.name] for op in ops if op.reduced or op.name in stored), default=0)
    found: list[frozenset[str]] = []
    for stage in range(last + 1):
        waiting = [
            op.name for op in ops if stages[op.name] == stage and (op.reduced or op.name in stored)
        ]
        needed: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in needed:
                continue
            needed.add(name)
            for value in by_name[name].reads:
                if value in by_name and not by_name[value].reduced:
                    waiting.append(value)
        found.append(frozenset(needed))
    return tuple(found)
