"""Differences from eager that were looked into and are none of fuser's, one call each.

In: an operator, an element type and a call's name. Out: why it differs, or nothing. A call in this
list that agrees again costs nothing; one that is not in it counts as failed.
"""

from __future__ import annotations

from opinfo.cases import Task

__all__ = ["reason_of"]

_TWO_VALUES = (
    "rows of two values: their gradient is zero but for what the epsilon adds, so that what any"
    " float32 computation gives is the rounding of terms that cancel"
)

_KNOWN = {
    ("native_batch_norm", "float32", "sample 5 strided"): _TWO_VALUES,
    ("_native_batch_norm_legit", "float32", "sample 5 strided"): _TWO_VALUES,
    ("nn_functional_group_norm", "float32", "sample 20"): _TWO_VALUES,
}


def reason_of(task: Task, name: str) -> str:
    return _KNOWN.get((task.operator, task.dtype, name), "")
