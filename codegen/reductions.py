"""How each reduction of the op table folds a tile: identity, accumulation, final reduction."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class Fold:
    """`function` names the pair `fn.accumulate_<function>` and `fn.<function>`.

    `identity` is the neutral element by compute type, as Triton text.
    """

    function: str
    zero: str = ""
    is_argument: bool = False

    def identity(self, dtype: DType) -> str:
        if self.zero:
            return self.zero
        lowest = self.function in ("max", "argmax")
        if dtype.is_float:
            return 'float("-inf")' if lowest else 'float("inf")'
        bits = 8 * dtype.bytes
        if dtype is DType.UINT8:
            return "0" if lowest else "255"
        return str(-(2 ** (bits - 1)) if lowest else 2 ** (bits - 1) - 1)


FOLDS = {
    "sum": Fold("sum", "0"),
    "product": Fold("sum", "0"),
    "prod": Fold("prod", "1"),
    "amax": Fold("max"),
    "amin": Fold("min"),
    "any": Fold("any", "False"),
    "all": Fold("all", "True"),
    "argmax": Fold("argmax", is_argument=True),
    "argmin": Fold("argmin", is_argument=True),
}
