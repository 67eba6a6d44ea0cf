"""Every device function against torch: all special values, pairs of them, and random ones.

Where kernels are interpreted, the GPU's implementations run too, with a device library made of
torch's functions: that leaves Triton's own operators and everything that is written in terms of
them. On a machine with a GPU the same tests run there, against eager on that GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from fuser.runtime import (
    device_arithmetic,
    device_functions,
    device_logic,
    device_math,
    device_reductions,
)
from fuser.runtime.interpreter import is_interpreting

if not is_interpreting() and not torch.cuda.is_available():
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)

Find = Callable[[str], Any]
DEVICE = "cpu" if is_interpreting() else "cuda"
DEVICE_MODULES = (device_math, device_arithmetic, device_logic, device_reductions)
FLOATS = (torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
TRITON_TYPES = {
    dtype: getattr(tl, "int1" if dtype == torch.bool else str(dtype).removeprefix("torch."))
    for dtype in (*FLOATS, *INTEGERS, torch.bool, torch.float16, torch.bfloat16)
}
# Units in the last place that a GPU's library may differ by from the one that torch was built with.
LIBRARY_STEPS = {"pow": 16, "sigmoid": 2}
OPTIONS = {"enable_reflect_ftz": False, "enable_fp_fusion": False}


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


@triton.jit
def reduce_rows(
    source, result, columns, IDENTITY: tl.constexpr, FUNCTION: tl.constexpr, AXIS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    tile = tl.load(source + row * columns + column, mask=column < columns, other=IDENTITY)
    value = FUNCTION(tile, AXIS, True)
    tl.static_assert(value.dtype == tile.dtype)
    if AXIS == 1:
        tl.store(result + row, value)
    elif AXIS == 0:
        tl.store(result + column, value, mask=column < columns)
    else:
        tl.store(result + tl.zeros([1, 1], tl.int32), value)


@triton.jit
def find_rows(
    source, values, indices, columns, IDENTITY: tl.constexpr, FUNCTION: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    mask = column < columns
    tile = tl.load(source + row[:, None] * columns + column, mask=mask, other=IDENTITY)
    value, index = FUNCTION(tile, column, 1)
    tl.static_assert(value.dtype == tile.dtype)
    tl.store(values + row, value)
    tl.store(indices + row, index)


@triton.jit
def fold_columns(
    source, result, count, IDENTITY: tl.constexpr, FUNCTION: tl.constexpr, TYPE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    offsets = tl.arange(0, BLOCK)
    folded = tl.full([BLOCK], IDENTITY, TYPE)
    for step in range(count):
        folded = FUNCTION(folded, tl.load(source + step * BLOCK + offsets))
    tl.static_assert(folded.dtype == TYPE)
    tl.store(result + offsets, folded)


@triton.jit
def fold_positions(
    source, values, indices, count, IDENTITY: tl.constexpr, FUNCTION: tl.constexpr,
    TYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    offsets = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], IDENTITY, TYPE)
    best_index = tl.full([BLOCK], 2147483647, tl.int32)
    for step in range(count):
        index = tl.zeros([BLOCK], tl.int32) + step
        value = tl.load(source + step * BLOCK + offsets)
        best, best_index = FUNCTION(best, best_index, value, index)
    tl.store(values + offsets, best)
    tl.store(indices + offsets, best_index)


# **** what the tests share ****


def _torch_library() -> SimpleNamespace:
    from fuser.runtime import interpreter_functions as functions

    names = [*device_math.__all__, "copysign", "ldexp", "pow", "trunc"]
    library = {name: getattr(functions, name) for name in names}
    # NumPy's fmod is exact, as a GPU's is; torch's gives NaN on the CPU for a quotient past the
    # largest float.
    return SimpleNamespace(**library, nearbyint=functions.round, fmod=lambda x, y: x % y)


@pytest.fixture(params=["device", "interpreter"] if is_interpreting() else ["device"])
def find(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Find:
    if request.param == "interpreter" or not is_interpreting():
        return lambda name: getattr(device_functions, name)
    for module in (device_math, device_arithmetic):
        monkeypatch.setattr(module, "libdevice", _torch_library())
    owners = {name: module for module in DEVICE_MODULES for name in module.__all__}
    return lambda name: getattr(owners[name], name)


def launch(
    kernel: Any, inputs: list[torch.Tensor], function: Any, dtype: torch.dtype, *constants: Any
) -> torch.Tensor:
    size = inputs[0].numel()
    result = torch.empty(size, dtype=dtype, device=DEVICE)
    constants = (*constants, TRITON_TYPES[dtype], triton.next_power_of_2(size))
    kernel[(1,)](*inputs, result, size, function, *constants, **OPTIONS)
    return result


def special_values(dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        values: list[float] = [False, True]
    elif dtype.is_floating_point:
        limits = torch.finfo(dtype)
        positive = [0.0, 0.1, 0.5, 1.0, 1.5, 2.5, 3.0, 7.0, 89.0, 2.0**24 + 2.0]
        positive += [limits.max, limits.tiny, limits.tiny * limits.eps, math.inf]
        values = [sign * value for value in positive for sign in (1, -1)] + [math.nan]
    else:
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        values = [low, low + 1, -9, -8, -3, -2, -1, 0, 1, 2, 3, 7, 8, 9, 31, 32, 63, 64, high]
        values = sorted({value for value in values if low <= value <= high})
    return torch.tensor(values, dtype=dtype)


def random_values(dtype: torch.dtype, size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        exponents = torch.rand(size, generator=generator, dtype=torch.float64) * 16 - 12
        signs = torch.randn(size, generator=generator, dtype=torch.float64)
        return (signs * torch.exp2(exponents)).to(dtype)
    high = 2 if dtype == torch.bool else torch.iinfo(dtype).max
    low = 0 if dtype == torch.bool else torch.iinfo(dtype).min
    return torch.randint(low, high, (size,), generator=generator, dtype=torch.int64).to(dtype)


def samples(dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([special_values(dtype), random_values(dtype, 459, 1)]).to(DEVICE)


def sample_pairs(dtype: torch.dtype, allow_traps: bool = True) -> list[torch.Tensor]:
    special = special_values(dtype)
    left, right = torch.cartesian_prod(special, special).unbind(1)
    left = torch.cat([left, random_values(dtype, 101, 2)])
    right = torch.cat([right, random_values(dtype, 101, 3)])
    if not allow_traps and not dtype.is_floating_point:
        is_trap = (right == 0) | (left == torch.iinfo(dtype).min) & (right == -1)
        left, right = left[~is_trap], right[~is_trap]
    return [left.contiguous().to(DEVICE), right.contiguous().to(DEVICE)]


def steps_between(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """How many representable numbers apart two floats are."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    ordered = []
    for tensor in (left, right):
        bits = tensor.view(integer).to(torch.int64)
        ordered.append(torch.where(bits < 0, torch.iinfo(integer).min - bits, bits))
    return (ordered[0] - ordered[1]).abs()


def assert_same(
    actual: torch.Tensor, expected: torch.Tensor, steps: int = 0, signed_zeros: bool = True
) -> None:
    assert actual.dtype == expected.dtype
    if not actual.dtype.is_floating_point:
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
        return
    assert torch.equal(actual.isnan(), expected.isnan())
    numbers = ~actual.isnan()
    actual, expected = actual[numbers], expected[numbers]
    worst = max(steps_between(actual, expected).tolist(), default=0)
    assert worst <= steps, f"{worst} steps apart"
    assert torch.equal(actual.isinf(), expected.isinf())
    if signed_zeros:
        zeros = (actual == 0) & (expected == 0)
        assert torch.equal(actual[zeros].signbit(), expected[zeros].signbit())


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


# **** reductions ****


def identity_of(name: str, dtype: torch.dtype) -> Any:
    if name in ("sum", "any"):
        return 0
    if name in ("prod", "all") or dtype == torch.bool:
        return int(name in ("prod", "all", "min", "argmin"))
    is_lowest = name in ("max", "argmax")
    if dtype.is_floating_point:
        return -math.inf if is_lowest else math.inf
    return torch.iinfo(dtype).min if is_lowest else torch.iinfo(dtype).max


def rows_of(dtype: torch.dtype, with_nan: bool = False) -> torch.Tensor:
    rows = random_values(dtype, 4 * 13, 5).reshape(4, 13)
    rows[1] = rows[1, 0]
    if dtype.is_floating_point:
        rows[2] = -math.inf
        if with_nan:
            rows[3, 5], rows[3, 9] = math.nan, math.nan
    return rows.to(DEVICE)


REDUCTIONS = {
    "sum": lambda x, axis: torch.sum(x, axis, keepdim=True, dtype=x.dtype),
    "max": lambda x, axis: torch.amax(x, axis, keepdim=True),
    "min": lambda x, axis: torch.amin(x, axis, keepdim=True),
}


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
@pytest.mark.parametrize("axis", [0, 1, None])
def test_reduction_of_a_tile(find: Find, name: str, axis: int | None) -> None:
    dtypes = [*FLOATS, *INTEGERS] + ([torch.bool] if name != "sum" else [])
    for dtype in dtypes:
        x = rows_of(dtype, with_nan=True)
        dimension = (0, 1) if axis is None else axis
        expected = REDUCTIONS[name](x, dimension)
        actual = torch.empty_like(expected)
        identity = identity_of(name, dtype)
        reduce_rows[(1,)](x, actual, 13, identity, find(name), axis, ROWS=4, BLOCK=16)
        steps = 4 if name == "sum" else 0
        assert_same(actual, expected, steps, signed_zeros=name != "sum")


def test_product_of_a_tile(find: Find) -> None:
    for dtype in (*FLOATS, *INTEGERS):
        x = rows_of(dtype, with_nan=True)
        expected = torch.prod(x, 1, dtype=dtype)
        actual = torch.empty_like(expected)
        reduce_rows[(1,)](x, actual, 13, 1, find("prod"), 1, ROWS=4, BLOCK=16)
        assert_same(actual, expected, 16, signed_zeros=False)


@pytest.mark.parametrize("name", ["any", "all"])
def test_any_and_all_of_a_tile(find: Find, name: str) -> None:
    x = torch.ones(4, 13, dtype=torch.bool, device=DEVICE)
    x[1], x[2, 1:], x[3, 4] = False, False, False
    for axis in (0, 1):
        expected = getattr(torch, name)(x, axis)
        actual = torch.empty_like(expected)
        identity = identity_of(name, torch.bool)
        reduce_rows[(1,)](x, actual, 13, identity, find(name), axis, ROWS=4, BLOCK=16)
        assert_same(actual, expected)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_position_of_the_extreme_of_a_row(find: Find, name: str) -> None:
    extreme = torch.max if name == "argmax" else torch.min
    for dtype in (*FLOATS, *INTEGERS, torch.bool):
        for x in (rows_of(dtype), rows_of(dtype, with_nan=True)):
            values = torch.empty(4, dtype=dtype, device=DEVICE)
            indices = torch.empty(4, dtype=torch.int32, device=DEVICE)
            identity = identity_of(name, dtype)
            find_rows[(1,)](x, values, indices, 13, identity, find(name), ROWS=4, BLOCK=16)
            assert_same(values, extreme(x, 1).values)
            is_first = (x == values[:, None]) | x.isnan()
            assert indices.tolist() == is_first.int().argmax(1).tolist()


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all"])
def test_accumulation_over_a_loop(find: Find, name: str) -> None:
    for dtype in (torch.float32, torch.int8) if name not in ("any", "all") else (torch.bool,):
        x = rows_of(dtype, with_nan=True)[:, :8].contiguous()
        actual = torch.empty(8, dtype=dtype, device=DEVICE)
        identity, function = identity_of(name, dtype), find(f"accumulate_{name}")
        fold_columns[(1,)](x, actual, 4, identity, function, TRITON_TYPES[dtype], BLOCK=8)
        options = {"dtype": dtype} if name in ("sum", "prod") else {}
        expected = getattr(torch, {"max": "amax", "min": "amin"}.get(name, name))(x, 0, **options)
        assert_same(actual, expected, 4 if name in ("sum", "prod") else 0)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_accumulation_of_positions_over_a_loop(find: Find, name: str) -> None:
    extreme = torch.max if name == "argmax" else torch.min
    for dtype in (*FLOATS, torch.int8, torch.uint8, torch.int64):
        x = rows_of(dtype, with_nan=True).T.contiguous()[:, :4].repeat(1, 2).contiguous()
        values = torch.empty(8, dtype=dtype, device=DEVICE)
        indices = torch.empty(8, dtype=torch.int32, device=DEVICE)
        identity, function = identity_of(name, dtype), find(f"accumulate_{name}")
        fold_positions[(1,)](
            x, values, indices, 13, identity, function, TRITON_TYPES[dtype], BLOCK=8
        )
        assert_same(values, extreme(x, 0).values)
        is_first = (x == values) | x.isnan()
        assert indices.tolist() == is_first.int().argmax(0).tolist()
