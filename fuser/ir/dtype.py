"""Element types: names as torch spells them, width in bytes, and the type a kernel computes in."""

from __future__ import annotations

from enum import Enum


class DType(Enum):
    """One element type. `value` is torch's name for it; `short` is the name in printed graphs."""

    BOOL = "bool"
    UINT8 = "uint8"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    OTHER = "other"

    @property
    def short(self) -> str:
        return _SHORT.get(self, self.value)

    @property
    def bytes(self) -> int:
        return _BYTES.get(self, 8)

    @property
    def is_float(self) -> bool:
        return self in _FLOATS

    @property
    def is_half(self) -> bool:
        """Whether a kernel computes in float32 and rounds when a value leaves it."""
        return self in (DType.FLOAT16, DType.BFLOAT16) or self in _FLOAT8

    @property
    def is_float8(self) -> bool:
        """Whether torch has casts and copies of it alone, and a kernel has its bits as bytes."""
        return self in _FLOAT8

    @property
    def is_integer(self) -> bool:
        return self in _INTEGERS

    @property
    def is_generated(self) -> bool:
        """Whether generated kernels can load, compute and store it."""
        return self in _FLOATS or self in _INTEGERS or self is DType.BOOL

    @property
    def triton(self) -> str:
        """The type of an element in memory (booleans are bytes there, and so are float8s)."""
        if self in _FLOAT8:
            return "tl.uint8"
        return "tl.int1" if self is DType.BOOL else f"tl.{self.value}"

    @property
    def compute(self) -> DType:
        """The type a kernel holds the value in: float32 for the half types, else its own."""
        return DType.FLOAT32 if self.is_half else self


_FLOAT8 = frozenset({DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2})
_FLOATS = _FLOAT8 | {DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64}
_INTEGERS = frozenset({DType.UINT8, DType.INT8, DType.INT16, DType.INT32, DType.INT64})
_BYTES = {
    DType.BOOL: 1,
    DType.UINT8: 1,
    DType.INT8: 1,
    DType.FLOAT8_E4M3FN: 1,
    DType.FLOAT8_E5M2: 1,
    DType.INT16: 2,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
    DType.INT32: 4,
    DType.FLOAT32: 4,
    DType.COMPLEX128: 16,
}
_SHORT = {
    DType.BOOL: "b8",
    DType.UINT8: "u8",
    DType.INT8: "i8",
    DType.INT16: "i16",
    DType.INT32: "i32",
    DType.INT64: "i64",
    DType.FLOAT16: "f16",
    DType.BFLOAT16: "bf16",
    DType.FLOAT32: "f32",
    DType.FLOAT64: "f64",
    DType.FLOAT8_E4M3FN: "f8e4m3",
    DType.FLOAT8_E5M2: "f8e5m2",
    DType.COMPLEX64: "c64",
    DType.COMPLEX128: "c128",
}


def dtype_from_name(name: str) -> DType:
    """`torch.float32` or `float32` to `DType.FLOAT32`; anything unknown to `DType.OTHER`."""
    try:
        return DType(name.removeprefix("torch."))
    except ValueError:
        return DType.OTHER
