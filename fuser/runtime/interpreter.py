"""Triton's interpreter, made exact for the types that NumPy does not have.

In: the interpreter as Triton ships it. It holds bfloat16 and float8 values as plain bits, truncates
where a GPU rounds, loses the carry of a rounding, takes bits for values between bfloat16 and the
integers or float64, and adds, compares and multiplies the bits themselves. Out: the same
interpreter with those conversions and operations replaced; nothing else of Triton is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

__all__ = ["convert_bits", "is_interpreting", "repair"]

Array = np.ndarray[Any, np.dtype[Any]]
Function = Callable[..., Any]

_TORCH_TYPES: dict[Any, torch.dtype] = {
    tl.bfloat16: torch.bfloat16,
    tl.float16: torch.float16,
    tl.float32: torch.float32,
    tl.float64: torch.float64,
    tl.float8e5: torch.float8_e5m2,
    tl.float8e4nv: torch.float8_e4m3fn,
}
_BITS_TYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def is_interpreting() -> bool:
    """Whether kernels run in the interpreter, which Triton decided when it was imported.

    A library function shows that decision. The setting itself may have changed since, and then a
    kernel is decorated one way and the library functions that it calls the other way.
    """
    return not isinstance(tl.zeros, triton.JITFunction)


def repair() -> None:
    """Replaces the interpreter's faulty conversions and operations. A second call does nothing."""
    if not is_interpreting():
        return
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    for owner, name, replacement in (
        (interpreter, "_convert_float", _exact_convert_float),
        (builder, "cast_impl", _exact_cast),
        (builder, "binary_op", _exact_binary),
        (builder, "create_dot", _exact_dot),
        (interpreter.ReduceOps, "sum", _exact_sum),
        (interpreter.GridExecutor, "__call__", _quiet_call),
        (interpreter, "_patch_lang_tensor", _index_by_one_element),
    ):
        original = getattr(owner, name, None)
        if original is not None and not hasattr(original, "_repairs"):
            repaired = wraps(original)(replacement(original))
            repaired._repairs = name  # type: ignore[attr-defined]
            setattr(owner, name, repaired)
    if not hasattr(builder, "get_bf16"):
        builder.get_bf16 = _bfloat16_constant


def convert_bits(bits: Array, source: Any, target: Any) -> Array:
    """Values of one float type to another, both as bits: to nearest even, as Triton's GPU code."""
    values = _as_torch(bits, source)
    if source == tl.float64 and target == tl.bfloat16:
        values = torch.from_numpy(_round_to_odd(values.numpy()))
    if target in (tl.float8e5, tl.float8e4nv):
        limit = torch.finfo(_TORCH_TYPES[target]).max
        values = values.float().clamp(-limit, limit)  # Triton's conversion saturates
    converted = values.to(_TORCH_TYPES[target])
    width = converted.element_size()
    signed = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
    return converted.view(signed).numpy().view(_BITS_TYPES[width])


def _as_torch(bits: Array, source: Any) -> torch.Tensor:
    signed = np.dtype(f"int{8 * bits.itemsize}")
    # Triton broadcasts by read-only views, about which torch would warn.
    writable = np.require(bits, requirements=["C", "W"]).reshape(bits.shape)
    return torch.from_numpy(writable.view(signed)).view(_TORCH_TYPES[source])


def _round_to_odd(values: Array) -> Array:
    """float64 to float32 such that rounding the result to a narrower type rounds only once."""
    rounded = values.astype(np.float32)
    bits = rounded.view(np.int32)
    is_even_and_inexact = (rounded != values) & ~np.isnan(values) & (bits & 1 == 0)
    toward_zero = np.abs(rounded) > np.abs(values)
    return (
        np.where(is_even_and_inexact, bits + np.where(toward_zero, -1, 1), bits)
        .astype(np.int32)
        .view(np.float32)
    )


def _widened(handle: Any) -> Array:
    """A handle's values as numbers: float32 in place of bfloat16's bits."""
    if handle.dtype.scalar == tl.bfloat16:
        return convert_bits(handle.data, tl.bfloat16, tl.float32).view(np.float32)
    data: Array = handle.data
    return data


def _narrowed(values: Array) -> Array:
    return convert_bits(values.astype(np.float32, copy=False), tl.float32, tl.bfloat16)


def _bfloat16_constant(self: Any, value: float) -> Any:
    from triton.runtime.interpreter import TensorHandle

    return TensorHandle(_narrowed(np.array([value], dtype=np.float32)), tl.bfloat16)


def _exact_convert_float(original: Function) -> Function:
    from triton.runtime.interpreter import _ir

    def convert(data: Array, source: Any, target: Any, rounding_mode: Any) -> Array:
        known = source in _TORCH_TYPES and target in _TORCH_TYPES
        if not known or rounding_mode == _ir.ROUNDING_MODE.RTZ:
            result: Array = original(data, source, target, rounding_mode)
            return result
        return convert_bits(data, source, target)

    return convert


def _exact_cast(original: Function) -> Function:
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype

    def cast(self: Any, handle: Any, target_type: Any) -> Any:
        source, target = handle.dtype.scalar, target_type.scalar
        if source == target or tl.bfloat16 not in (source, target):
            return original(self, handle, target_type)
        if target != tl.bfloat16:
            return TensorHandle(_widened(handle).astype(_get_np_dtype(target)), target)
        if source == tl.float64:
            return TensorHandle(convert_bits(handle.data, source, target), target)
        return TensorHandle(_narrowed(handle.data), target)

    return cast


def _exact_binary(original: Function) -> Function:
    from triton.runtime.interpreter import TensorHandle

    def binary(self: Any, left: Any, right: Any, operation: Function) -> Any:
        if tl.bfloat16 not in (left.dtype.scalar, right.dtype.scalar):
            return original(self, left, right, operation)
        result = operation(_widened(left), _widened(right))
        is_comparison = result.dtype == np.bool_
        return TensorHandle(result if is_comparison else _narrowed(result), tl.bfloat16)

    return binary


def _exact_dot(original: Function) -> Function:
    from triton.runtime.interpreter import TensorHandle

    def dot(self: Any, left: Any, right: Any, *rest: Any, **options: Any) -> Any:
        wide = [
            TensorHandle(_widened(operand), tl.float32)
            if operand.dtype.scalar == tl.bfloat16
            else operand
            for operand in (left, right)
        ]
        return original(self, *wide, *rest, **options)

    return dot


def _exact_sum(original: Function) -> Function:
    def sum_of(self: Any, tile: Any) -> Any:
        if tile.dtype != tl.bfloat16:
            return original(self, tile)
        total = np.sum(_widened(tile.handle), axis=self.axis, keepdims=self.keep_dims)
        return self.to_tensor(_narrowed(np.asarray(total)), tl.bfloat16)

    return sum_of


def _quiet_call(original: Function) -> Function:
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        # A GPU says nothing about 0 / 0 in a masked lane; NumPy would warn.
        with np.errstate(all="ignore"):
            return original(self, *arguments, **options)

    return call


def _index_by_one_element(original: Function) -> Function:
    def patch(tensor: Any, scope: Any) -> None:
        # A scalar is an array of one, which NumPy 2.4 no longer turns into a number by itself.
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda scalar: int(scalar.handle.data.item()))

    return patch
