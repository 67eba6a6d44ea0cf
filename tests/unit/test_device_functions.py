"""Every elementwise device function against torch: special values, their pairs, random values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from fuser.runtime import device_functions, device_math
from fuser.runtime.interpreter import is_interpreting
from support.device_functions import (
    CAN_RUN,
    DEVICE,
    DEVICE_MODULES,
    FLOATS,
    IMPLEMENTATIONS,
    INTEGERS,
    TRITON_TYPES,
    Find,
    assert_same,
    find_in,
    random_values,
    sample_pairs,
    samples,
)

if not CAN_RUN:
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)

# Units in the last place that a GPU's library may differ by from the one that torch was built with.
LIBRARY_STEPS = {"pow": 16, "sigmoid": 2}
OPTIONS = {"enable_reflect_ftz": False, "enable_fp_fusion": False}


@pytest.fixture(params=IMPLEMENTATIONS)
def find(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Find:
    return find_in(request.param, monkeypatch)


@triton.jit
def apply_one(
    source, result, size, FUNCTION: tl.constexpr, TYPE: tl.constexpr, BLOCK: tl.constexpr
):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < size
    value = FUNCTION(tl.load(source + offsets, mask=mask, other=0))
    tl.static_assert(value.dtype == TYPE)
    tl.store(result + offsets, value, mask=mask)


@triton.jit
def apply_two(
    left, right, result, size, FUNCTION: tl.constexpr, TYPE: tl.constexpr, BLOCK: tl.constexpr
):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(left + offsets, mask=mask, other=0)
    y = tl.load(right + offsets, mask=mask, other=0)
    value = FUNCTION(x, y)
    tl.static_assert(value.dtype == TYPE)
    tl.store(result + offsets, value, mask=mask)


@triton.jit
def apply_with(
    source, result, size, FUNCTION: tl.constexpr, CONSTANT: tl.constexpr, TYPE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    offsets = tl.arange(0, BLOCK)
    mask = offsets < size
    value = FUNCTION(tl.load(source + offsets, mask=mask, other=0), CONSTANT)
    tl.static_assert(value.dtype == TYPE)
    tl.store(result + offsets, value, mask=mask)


@triton.jit
def apply_first(
    source, result, size, FUNCTION: tl.constexpr, CONSTANT: tl.constexpr, TYPE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    offsets = tl.arange(0, BLOCK)
    mask = offsets < size
    value = FUNCTION(CONSTANT, tl.load(source + offsets, mask=mask, other=0))
    tl.static_assert(value.dtype == TYPE)
    tl.store(result + offsets, value, mask=mask)


@triton.jit
def choose(condition, left, right, result, size, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < size
    is_left = tl.load(condition + offsets, mask=mask, other=0)
    x = tl.load(left + offsets, mask=mask, other=0)
    y = tl.load(right + offsets, mask=mask, other=0)
    tl.store(result + offsets, FUNCTION(is_left, x, y), mask=mask)


def launch(
    kernel: Any, inputs: list[torch.Tensor], function: Any, dtype: torch.dtype, *constants: Any
) -> torch.Tensor:
    size = inputs[0].numel()
    result = torch.empty(size, dtype=dtype, device=DEVICE)
    constants = (*constants, TRITON_TYPES[dtype], triton.next_power_of_2(size))
    kernel[(1,)](*inputs, result, size, function, *constants, **OPTIONS)
    return result


def is_in_use(find: Find, name: str) -> bool:
    """Whether the function under test is the one that kernels call on this machine."""
    return find(name) is getattr(device_functions, name)


def library_steps(name: str) -> int:
    # On the CPU, torch's result for an element depends on its place in the vector.
    return LIBRARY_STEPS.get(name, 1 if is_interpreting() else 4)


# **** the lists of names ****


def test_both_sides_export_the_same_names() -> None:
    names = [name for module in DEVICE_MODULES for name in module.__all__]
    assert len(set(names)) == len(names)
    assert set(names) <= set(dir(device_functions))
    if is_interpreting():
        from fuser.runtime import interpreter_functions

        assert sorted(names) == sorted(interpreter_functions.__all__)


def test_each_function_says_what_it_is_in_torch() -> None:
    for module in DEVICE_MODULES:
        for name in module.__all__:
            text = getattr(module, name).fn.__doc__
            assert text, name
            assert "\n" not in text, name


# **** floats ****

TORCH = {
    "divide": torch.true_divide,
    "trunc_divide": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
}
EXACT = ["abs", "ceil", "floor", "frac", "neg", "reciprocal", "round", "sign", "sqrt", "trunc"]
TWO_REAL = {"atan2", "hypot"}
EXACT_PAIRS = [
    *("copysign", "divide", "floor_divide", "fmod", "nextafter", "remainder", "trunc_divide"),
]
EXTREMES = ["fmax", "fmin", "maximum", "minimum"]


def reference(name: str) -> Any:
    return TORCH.get(name) or getattr(torch, name)


@pytest.mark.parametrize("name", sorted({*device_math.__all__, *EXACT} - TWO_REAL))
def test_function_of_one_float(find: Find, name: str) -> None:
    for dtype in FLOATS:
        x = samples(dtype)
        # torch's square root on the CPU is not always correctly rounded.
        is_exact = name in EXACT and (name != "sqrt" or is_in_use(find, name))
        steps = 0 if is_exact else library_steps(name)
        assert_same(launch(apply_one, [x], find(name), dtype), reference(name)(x), steps)


@pytest.mark.parametrize(
    "name", [*EXACT_PAIRS, "trunc_divide", *EXTREMES, *sorted(TWO_REAL), "pow"]
)
def test_function_of_two_floats(find: Find, name: str) -> None:
    is_exact = name in EXACT_PAIRS or name in EXTREMES or name == "trunc_divide"
    for dtype in FLOATS:
        x, y = sample_pairs(dtype)
        if not is_in_use(find, name):
            if name in ("fmax", "fmin"):  # the interpreter's own let NaN win
                x, y = x.nan_to_num(), y.nan_to_num()
            if name in ("fmod", "remainder"):
                y = torch.where((x / y).isinf(), 1, y)
        actual = launch(apply_two, [x, y], find(name), dtype)
        # On the CPU, torch takes either zero as the larger, depending on its place in the vector.
        signed_zeros = name not in EXTREMES or not is_interpreting()
        steps = 0 if is_exact else library_steps(name)
        assert_same(actual, reference(name)(x, y), steps, signed_zeros)


@pytest.mark.parametrize("name", ["isfinite", "isinf", "isnan", "logical_not", "signbit"])
def test_question_about_one_value(find: Find, name: str) -> None:
    for dtype in (*FLOATS, *INTEGERS):
        x = samples(dtype)
        actual = launch(apply_one, [x], find(name), torch.bool)
        assert_same(actual, reference(name)(x))


def test_ldexp_by_integers_of_any_width(find: Find) -> None:
    for dtype in FLOATS:
        x = samples(dtype)
        for integer in (torch.int8, torch.int32, torch.int64):
            y = random_values(torch.int8, x.numel(), 4).to(integer).to(DEVICE)
            expected = (x.double() * torch.exp2(y.double())).to(dtype)
            assert_same(launch(apply_two, [x, y], find("ldexp"), dtype), expected)


def test_floor_divide_agrees_with_the_remainder(find: Find) -> None:
    x, y = torch.tensor([1.0, -1.0], device=DEVICE), torch.tensor([0.1, 0.1], device=DEVICE)
    assert launch(apply_two, [x, y], find("floor_divide"), torch.float32).tolist() == [9.0, -10.0]


# **** integers and bools ****


@pytest.mark.parametrize("name", ["abs", "bitwise_not", "ceil", "floor", "neg", "round", "sign"])
def test_function_of_one_integer(find: Find, name: str) -> None:
    for dtype in INTEGERS:
        if name == "bitwise_not" and dtype == torch.uint8 and not is_in_use(find, name):
            continue  # the interpreter's own `~` fails with NumPy 2
        x = samples(dtype)
        expected = x if name in ("ceil", "floor", "round") else reference(name)(x)
        assert_same(launch(apply_one, [x], find(name), dtype), expected)


BITWISE = ["bitwise_and", "bitwise_or", "bitwise_xor"]
SHIFTS = ["shift_left", "shift_right"]
DIVISIONS = ["floor_divide", "trunc_divide", "remainder", "fmod"]


@pytest.mark.parametrize("name", [*DIVISIONS, *SHIFTS, *BITWISE, *EXTREMES, "pow"])
def test_function_of_two_integers(find: Find, name: str) -> None:
    for dtype in INTEGERS:
        x, y = sample_pairs(dtype, allow_traps=name not in DIVISIONS)
        actual = launch(apply_two, [x, y], find(name), dtype)
        assert_same(actual, reference(name)(x, y))


def test_smallest_integer_over_minus_one_wraps_around(find: Find) -> None:
    for dtype in INTEGERS:
        if not dtype.is_signed:
            continue
        x = torch.full((5,), torch.iinfo(dtype).min, dtype=dtype, device=DEVICE)
        y = torch.full_like(x, -1)
        for name in ("floor_divide", "trunc_divide"):
            assert_same(launch(apply_two, [x, y], find(name), dtype), x)
        for name in ("remainder", "fmod"):
            assert_same(launch(apply_two, [x, y], find(name), dtype), torch.zeros_like(x))


def test_integer_division_by_zero_does_not_trap(find: Find) -> None:
    for dtype in INTEGERS:
        x = samples(dtype)
        for name in DIVISIONS:
            launch(apply_two, [x, torch.zeros_like(x)], find(name), dtype)


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logic_takes_any_type(find: Find, name: str) -> None:
    for dtype in (*FLOATS, *INTEGERS, torch.bool):
        x, y = sample_pairs(dtype)
        assert_same(launch(apply_two, [x, y], find(name), torch.bool), reference(name)(x, y))


@pytest.mark.parametrize("name", [*BITWISE, "maximum", "minimum"])
def test_function_of_two_bools(find: Find, name: str) -> None:
    x, y = sample_pairs(torch.bool)
    assert_same(launch(apply_two, [x, y], find(name), torch.bool), reference(name)(x, y))


def test_not_of_a_bool(find: Find) -> None:
    x = samples(torch.bool)
    for name in ("bitwise_not", "logical_not"):
        assert_same(launch(apply_one, [x], find(name), torch.bool), ~x)


def test_where_takes_any_type(find: Find) -> None:
    for dtype in (*FLOATS, *INTEGERS, torch.bool):
        x, y = sample_pairs(dtype)
        for condition in (x != y, x):
            actual = torch.empty_like(x)
            block = triton.next_power_of_2(x.numel())
            choose[(1,)](condition, x, y, actual, x.numel(), find("where"), block)
            assert_same(actual, torch.where(condition != 0, x, y))


# **** literals ****

LITERALS: list[tuple[str, torch.dtype, Any]] = [
    *(("pow", torch.float32, exponent) for exponent in (0, 1.0, 2, 3.0, -1, -2.0, 0.5, -0.5, 1.5)),
    *(("pow", torch.float64, exponent) for exponent in (2.0, 0.5, 2.5)),
    *(("pow", torch.int16, exponent) for exponent in (0, 1, 2, 3, 5)),
    *(("divide", dtype, 3.0) for dtype in FLOATS),
    *(("floor_divide", dtype, 0.1) for dtype in FLOATS),
    *(("trunc_divide", dtype, -7) for dtype in FLOATS),
    ("divide", torch.float32, 0.0),
    ("floor_divide", torch.float32, 0.0),
    ("floor_divide", torch.int32, -7),
    ("trunc_divide", torch.int8, 3),
    ("remainder", torch.float64, 3.0),
    ("remainder", torch.int64, 5),
    ("fmod", torch.uint8, 7),
    ("shift_left", torch.int32, 3),
    ("shift_right", torch.uint8, 9),
    ("bitwise_and", torch.int8, -2),
    ("atan2", torch.float32, 1.0),
]


@pytest.mark.parametrize(("name", "dtype", "constant"), LITERALS)
def test_second_operand_can_be_a_literal(
    find: Find, name: str, dtype: torch.dtype, constant: Any
) -> None:
    x = samples(dtype)
    expected = reference(name)(x, torch.full_like(x, constant) if name == "atan2" else constant)
    actual = launch(apply_with, [x], find(name), dtype, constant)
    if name.endswith("divide") and dtype.is_floating_point and not is_in_use(find, name):
        return  # a GPU multiplies with the reciprocal, and eager on the CPU does not
    is_rounded = name == "atan2" or (name == "pow" and constant in (1.5, 2.5, -0.5, 0.5, 3.0))
    assert_same(actual, expected, library_steps(name) if is_rounded else 0)


def test_first_operand_can_be_a_literal(find: Find) -> None:
    for name, dtype, constant in (
        ("divide", torch.float32, 1.0),
        ("copysign", torch.float64, -0.7),
        ("maximum", torch.int16, -3),
        ("pow", torch.float64, 2.0),
        ("shift_left", torch.int64, 1),
    ):
        x = samples(dtype)
        expected = reference(name)(torch.full_like(x, constant), x)
        steps = library_steps(name) if name == "pow" else 0
        assert_same(launch(apply_first, [x], find(name), dtype, constant), expected, steps)


def test_maximum_and_minimum_with_a_literal_clamp(find: Find) -> None:
    for dtype in FLOATS:
        x = samples(dtype)
        signed_zeros = is_in_use(find, "maximum")
        for name, clamp in (("maximum", torch.clamp_min), ("minimum", torch.clamp_max)):
            actual = launch(apply_with, [x], find(name), dtype, 0)
            assert_same(actual, clamp(x, 0), signed_zeros=signed_zeros)


# **** casts ****


def test_to_bool_is_true_for_nan(find: Find) -> None:
    for dtype in (*FLOATS, *INTEGERS, torch.bool):
        x = samples(dtype)
        assert_same(launch(apply_one, [x], find("to_bool"), torch.bool), x.to(torch.bool))


def _in_range(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    wide = x.double()
    return x[(wide > float(limits.min) - 1) & (wide < float(limits.max))].contiguous()


@pytest.mark.parametrize("name", ["float_to_int", "convert"])
def test_float_to_integer(find: Find, name: str) -> None:
    for source in FLOATS:
        for target in INTEGERS:
            x = _in_range(samples(source), target)
            actual = launch(apply_with, [x], find(name), target, TRITON_TYPES[target])
            assert_same(actual, x.to(target))


def test_float_to_uint8_wraps_around(find: Find) -> None:
    x = torch.tensor([-1.0, 256.5, 300.0, -200.0], device=DEVICE)
    actual = launch(apply_with, [x], find("float_to_int"), torch.uint8, tl.uint8)
    assert actual.tolist() == [255, 0, 44, 56]


def test_convert_between_any_two_types(find: Find) -> None:
    for source in TRITON_TYPES:
        x = samples(source)
        for target, triton_type in TRITON_TYPES.items():
            is_to_integer = source.is_floating_point and target in INTEGERS
            values = _in_range(x, target) if is_to_integer else x
            actual = launch(apply_with, [values], find("convert"), target, triton_type)
            assert_same(actual, values.to(target))


def test_wide_types_round_twice_on_the_way_to_a_narrow_float(find: Find) -> None:
    integers = torch.tensor([-31129599, 2**31 - 65, 33619969], device=DEVICE)
    floats = torch.tensor([1 + 2**-8 + 2**-40, 1 + 2**-11 + 2**-40], device=DEVICE).double()
    for x in (integers, integers.to(torch.int32), floats):
        for target in (torch.bfloat16, torch.float16):
            actual = launch(apply_with, [x], find("convert"), target, TRITON_TYPES[target])
            assert_same(actual, x.to(target))


def test_round_to_a_narrower_type_and_back(find: Find) -> None:
    for source in FLOATS:
        x = samples(source)
        for target in (torch.bfloat16, torch.float16):
            actual = launch(apply_with, [x], find("round_to"), source, TRITON_TYPES[target])
            assert_same(actual, x.to(target).to(source))
