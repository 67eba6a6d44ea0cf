# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# (a kernel's arguments are tiles, for which Triton has no types)
"""Sums whose shift is known only at the end of the loop that forms them.

In: tiles [X, R] of a block of rows. A lane takes COUNT neighbours of a row together, its chunk, so
that running shifts cost one exponential or division for each chunk and no exchange between lanes:
accumulators are [X, R // COUNT]. Out: totals with eager's infinities and NaN. The functions serve
a GPU and Triton's interpreter alike.
"""

import triton
import triton.language as tl

from fuser.runtime.interpreter import is_interpreting

if is_interpreting():
    from fuser.runtime.interpreter_functions import divide, exp, max, maximum, sum  # noqa: A004
else:
    from fuser.runtime.device_arithmetic import divide, maximum
    from fuser.runtime.device_math import exp
    from fuser.runtime.device_reductions import max, sum  # noqa: A004
INTERPRETS = tl.constexpr(is_interpreting())

__all__ = [
    "accumulate_chunks",
    "accumulate_rescaled",
    "accumulate_spread",
    "largest_of_chunks",
    "largest_of_part",
    "mean_of_chunks",
    "mean_of_part",
    "refined_mean",
    "rescaled_part",
    "rescaled_sum",
    "shift_of",
    "spread_chunks",
    "spread_of_part",
    "spread_sum",
]


@triton.jit
def _chunks(x, COUNT: tl.constexpr):
    return tl.reshape(x, [x.shape[0], x.shape[1] // COUNT, COUNT])


@triton.jit
def spread_chunks(x, COUNT: tl.constexpr):
    """One value a chunk to each of its elements."""
    wide = tl.broadcast_to(tl.expand_dims(x, 2), [x.shape[0], x.shape[1], COUNT])
    return tl.reshape(wide, [x.shape[0], x.shape[1] * COUNT])


@triton.jit
def accumulate_chunks(accumulator, value, COUNT: tl.constexpr):
    """accumulator + the sum of each chunk"""
    return accumulator + sum(_chunks(value, COUNT), 2)


# Sums of exponentials: the running shift is the largest value so far.


@triton.jit
def largest_of_chunks(largest, value, COUNT: tl.constexpr):
    """The largest so far and of each chunk; NaN wins"""
    return maximum(largest, max(_chunks(value, COUNT), 2))


@triton.jit
def _is_infinite(x):
    return (x == float("inf")) | (x == float("-inf"))


@triton.jit
def shift_of(largest):
    """What exponentials of values up to `largest` are shifted by: itself, if finite"""
    return tl.where(_is_infinite(largest), 0, largest)


@triton.jit
def _scale(largest, shift):
    # Where nothing but -inf has come, the sum is zero and its scale must be as well: exp(-inf).
    return exp(tl.where(largest == float("inf"), 0, largest) - shift)


@triton.jit
def accumulate_rescaled(total, before, largest, value, COUNT: tl.constexpr):
    """A sum of exponentials shifted by `before`, and of each chunk of `value` by `largest`"""
    return total * _scale(before, shift_of(largest)) + sum(_chunks(value, COUNT), 2)


@triton.jit
def rescaled_sum(total, largest, shift):
    """What chunks have summed up, of each row and shifted by `shift`"""
    return sum(total * _scale(largest, shift), 1, True)


@triton.jit
def largest_of_part(largest):
    """What chunks have found, of each row"""
    return max(largest, 1, True)


@triton.jit
def rescaled_part(total, largest):
    """What chunks have summed up, of each row and shifted by its own largest value"""
    return rescaled_sum(total, largest, shift_of(max(largest, 1, True)))


# Sums of squares: the running shift is the mean so far.


@triton.jit
def _add_and_compare(count, largest, more, value):
    return count + more, tl.maximum(largest, value)


@triton.jit
def _count_and_largest(count, value):
    # In one reduction, so that the count gets the layout of the values.
    if INTERPRETS:
        return sum(count, 2), max(value, 2)
    else:
        return tl.reduce((count, value), 2, _add_and_compare)


@triton.jit
def accumulate_spread(count, mean, squares, value, mask, COUNT: tl.constexpr):
    """How many values each chunk has had, their mean and the squares of their distance from it"""
    inside = _chunks(tl.broadcast_to(mask, value.shape), COUNT)
    chunk = _chunks(value, COUNT)
    # The first chunk is shifted by one of its own values, later ones by the mean before them: of
    # the squares at most a few bits cancel, wherever the values lie.
    candidates = tl.where(inside, chunk, float("-inf"))
    new, first = _count_and_largest(inside.to(count.dtype), candidates)
    shift = tl.where(count == 0, tl.where(new == 0, 0, first), mean)
    distance = tl.where(inside, chunk - tl.expand_dims(shift, 2), 0)
    drift = sum(distance, 2)
    count += new
    step = divide(drift, tl.where(count == 0, 1, count))
    squares += sum(distance * distance, 2) - drift * step
    return count, shift + step, squares


@triton.jit
def _moved(mean, drift, count):
    # Where the mean is infinite, or a distance from it is, no step leads to a better one.
    step = divide(drift, count)
    return tl.where(step - step == 0, mean + step, mean)


@triton.jit
def mean_of_chunks(count, mean, centre):
    """The mean of each row's values from that of its chunks; `centre` is near it

    Distances from a mean that is not quite one sum up to what it is off by, so that equal values
    have exactly themselves as their mean.
    """
    gap = tl.where(count == 0, 0, mean - centre)
    return _moved(centre, sum(count * gap, 1, True), sum(count, 1, True))


@triton.jit
def spread_sum(count, mean, squares, centre):
    """The squares of all values' distance from `centre`, the mean of their row"""
    gap = tl.where(count == 0, 0, mean - centre)
    # Rounding may leave less than nothing. NaN stays.
    return maximum(sum(squares + count * gap * gap, 1, True), 0)


@triton.jit
def mean_of_part(count, mean):
    """The mean of each row's values from that of its chunks; 0 of none"""
    return mean_of_chunks(count, mean, mean_of_chunks(count, mean, tl.full([], 0, mean.dtype)))


@triton.jit
def spread_of_part(count, mean, squares):
    """The squares of all values' distance from their mean, of each row"""
    return spread_sum(count, mean, squares, mean_of_part(count, mean))


@triton.jit
def refined_mean(mean, distance, count):
    """The mean of a row in registers from each value's distance from about the mean"""
    return _moved(mean, sum(distance, 1, True), tl.full([], count, mean.dtype))
