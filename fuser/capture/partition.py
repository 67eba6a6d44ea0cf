"""The forward and the backward graph of AOTAutograd's joint graph.

In: the joint graph. Out: both, the least possible saved between them: PyTorch's min-cut
partitioner, told what it does not know about generated kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx
from torch._functorch.partitioners import min_cut_rematerialization_partition

from fuser.capture.rematerialise import recompute_normalised_rows
from fuser.capture.seeds import recompute_from_seeds, share_seeds

__all__ = ["partition"]


def partition(joint: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    """Forward and backward; changes the joint graph."""
    share_seeds(joint)
    recompute_from_seeds(joint)
    recompute_normalised_rows(joint)
    return min_cut_rematerialization_partition(joint, inputs, **options)
