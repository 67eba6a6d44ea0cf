"""Spearman's rank correlation.

In: two sequences of numbers. Out: 1 where one is an increasing function of the other, -1 where it
is a decreasing one; equal numbers share the mean of their ranks.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """None where it is not defined: fewer than two pairs, or one side all equal."""
    if len(first) < 2 or len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return statistics.correlation(ranks(first), ranks(second))


def ranks(values: Sequence[float]) -> list[float]:
    """The position of each value in sorted order, counted from 1."""
    ordered = sorted(values)
    first = {value: position for position, value in reversed(list(enumerate(ordered, 1)))}
    return [first[value] + (ordered.count(value) - 1) / 2 for value in values]
