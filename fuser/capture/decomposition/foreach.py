"""The `_foreach_*` list ops of optimisers, tensor by tensor.

In: the lists of one call. Out: the per-tensor op for each element, so that what an optimiser does
to one tensor fuses and later meets the other tensors in one kernel. (The fused optimiser kernels
are no list ops; AOTAutograd cannot trace them without amsgrad, so they never come here.)
"""

# mypy: disable-error-code="no-any-return"
# (`torch.ops` is untyped, so a call of an aten op is Any to the type checker)

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fuser.capture.decomposition.common import Rule, as_rules, aten


def _norm(x: Tensor, order: float = 2, **options: Any) -> Tensor:
    return aten.linalg_vector_norm.default(x, order, **options)


def _addcmul(x: Tensor, a: Tensor, b: Tensor, value: Any = 1) -> Tensor:
    return aten.addcmul.default(x, a, b, value=value)


def _addcdiv(x: Tensor, a: Tensor, b: Tensor, value: Any = 1) -> Tensor:
    return aten.addcdiv.default(x, a, b, value=value)


# List ops whose elements are computed by an op of another name or signature.
_ELEMENTS: dict[str, Callable[..., Any]] = {
    "addcdiv": _addcdiv,
    "addcmul": _addcmul,
    "max": aten.amax.default,
    "norm": _norm,
}
# Against a number, maximum is a clamp.
_AGAINST_NUMBERS: dict[str, Callable[..., Any]] = {
    "maximum": aten.clamp_min.default,
    "minimum": aten.clamp_max.default,
}


def _each(function: Callable[..., Any]) -> Rule:
    """Apply `function` to the k-th element of every list argument, for each k."""

    def apply(*arguments: Any, **options: Any) -> list[Tensor]:
        length = next(len(a) for a in arguments if isinstance(a, (list, tuple)))

        def element(argument: Any, k: int) -> Any:
            return argument[k] if isinstance(argument, (list, tuple)) else argument

        return [function(*(element(a, k) for a in arguments), **options) for k in range(length)]

    return apply


def _element(name: str, overload: str) -> Callable[..., Any] | None:
    if overload.startswith("Scalar") and name in _AGAINST_NUMBERS:
        return _AGAINST_NUMBERS[name]
    return _ELEMENTS.get(name) or getattr(aten, name, None)


def _rules() -> Iterator[tuple[Any, Rule]]:
    # Not `dir(aten)`, which has only what was used before.
    known = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    prefix = "aten::_foreach_"
    for name in sorted(n.removeprefix(prefix) for n in known if n.startswith(prefix)):
        packet = getattr(aten, f"_foreach_{name}")
        for overload_name in packet.overloads():
            overload = getattr(packet, overload_name)
            # `addcdiv.Tensor` takes its scalars from a tensor, whose elements are not known here.
            unknown = name.startswith("addc") and overload_name == "Tensor"
            if overload._schema.is_mutable or unknown:
                continue
            element = _element(name, overload_name)
            if element is not None:
                yield overload, _each(element)


RULES = as_rules(dict(_rules()))
