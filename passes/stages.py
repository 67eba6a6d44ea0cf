"""The passes over a row that a looped reduction takes.

In: ops in program order. Out: which pass each op belongs to, and what each pass has to compute.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fuser.ir.graph import Op
from fuser.passes.online import Rounds, Rule, Shifted, casts, shifted_sums


def reduction_stages(ops: Sequence[Op], rounds: Rounds = casts) -> dict[str, int]:
    """For each op, how many passes over the row must be complete before it can be computed.

    For a reduction that is the pass that accumulates it; its readers come one later. A shifted sum
    that gains by it is accumulated in the pass that finds its shift.
    """
    return _stages_and_online(ops, rounds)[0]


def online_sums(ops: Sequence[Op], rounds: Rounds = casts) -> Mapping[str, Shifted]:
    """The shifted sums that are accumulated in the pass that finds their shift."""
    return _stages_and_online(ops, rounds)[1]


def _stages_and_online(
    ops: Sequence[Op], rounds: Rounds = casts
) -> tuple[dict[str, int], Mapping[str, Shifted]]:
    shifted = shifted_sums(ops, rounds)
    stages = _stages(ops, shifted)
    ready = _Ready(ops, stages)
    return stages, {
        name: each for name, each in shifted.items() if stages[name] < ready.after(each.shift.value)
    }


def accumulators(ops: Sequence[Op]) -> int:
    """The most values that a pass keeps for each element that a lane has of a tile."""
    stages, online = _stages_and_online(ops)
    kept: dict[int, int] = {}
    for op in ops:
        if op.reduced:
            several = 3 if op.name in online and online[op.name].rule is Rule.SQUARE else 1
            kept[stages[op.name]] = kept.get(stages[op.name], 0) + several
    return max(kept.values(), default=0)


def _stages(ops: Sequence[Op], shifted: Mapping[str, Shifted]) -> dict[str, int]:
    stages: dict[str, int] = {}
    ready = _Ready(ops, stages)
    for op in ops:
        stages[op.name] = max((ready.after(value) for value in op.reads), default=0)
        each = shifted.get(op.name)
        if each is not None:
            known = ready.after(each.shift.value)
            others = max(ready.after(value) for value in _beside_shift(each))
            if known > 0 and others < known:
                stages[op.name] = known - 1
    return stages


class _Ready:
    """The passes that must be complete before a value can be read."""

    def __init__(self, ops: Sequence[Op], stages: Mapping[str, int]) -> None:
        self.reduced = {op.name for op in ops if op.reduced}
        self.stages = stages

    def after(self, value: str) -> int:
        """0 for what the ops do not compute."""
        return self.stages.get(value, 0) + (value in self.reduced)


def _beside_shift(each: Shifted) -> list[str]:
    """What a shifted sum is made of in its pass: all operands on the way but the shift."""
    inside = {op.name for op in each.chain}
    found = [each.values.value]
    for op in each.chain[:-1]:
        found += [value for value in op.reads if value not in inside]
    return found


def needed_in_passes(ops: Sequence[Op], stored: Collection[str]) -> tuple[frozenset[str], ...]:
    """For each pass over the row, the ops whose operands it reads: they are computed again in
    every pass that needs them. Reductions of earlier passes are done by then."""
    stages, online = _stages_and_online(ops)
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
            each = online.get(name)
            if each is not None:
                needed |= {op.name for op in each.chain}
            for value in by_name[name].reads if each is None else _beside_shift(each):
                if value in by_name and not by_name[value].reduced:
                    waiting.append(value)
        found.append(frozenset(needed))
    return tuple(found)
