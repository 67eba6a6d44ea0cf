"""Activations whose usual decomposition has an order or a form that costs something.

In: the arguments of the aten call. Out: pointwise ops in float32, rounded once at the end. Eager's
formulas of GELU add 1 to a function that nears -1, so for negative inputs its float32 has few
digits left; 1 + erf(x) is erfc(-x), and 1 + tanh(x) is twice the sigmoid of 2 x.
"""

# mypy: disable-error-code="no-any-return"
# (`torch.ops` is untyped, so a call of an aten op is Any to the type checker)

from __future__ import annotations

import math

from torch import Tensor
from torch._decomp import get_decompositions

from fuser.capture.decomposition.common import HALF_DTYPES, as_rules, aten, cast, wide

_gelu = get_decompositions([aten.gelu.default])[aten.gelu.default]


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    if x.dtype not in HALF_DTYPES:
        return _gelu(x, approximate=approximate)
    values = wide(x)
    if approximate == "tanh":
        cubic = values + values * values * values * 0.044715
        result = values * aten.sigmoid.default(cubic * (2 * math.sqrt(2 / math.pi)))
    else:
        result = values * 0.5 * aten.erfc.default(values * -math.sqrt(0.5))
    return cast(result, x.dtype)


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """Each half by itself goes to float32, so that a product can be made in halves."""
    left, right = aten.split.Tensor(x, x.shape[dim] // 2, dim)
    return cast(wide(left) * aten.sigmoid.default(wide(right)), x.dtype)


RULES = as_rules({aten.gelu.default: gelu, aten.glu.default: glu})
