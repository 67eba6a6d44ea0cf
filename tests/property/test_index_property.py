"""Random chains of views, as torch views of numbered elements and as our maps of their indices.

If the two ever name different elements, some fused kernel reads the wrong ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, SearchStrategy

from fuser.capture.views import MOVES, VIEWS
from fuser.ir.dim import Dim, divide
from fuser.ir.index_map import IDENTITY, IndexMap, Shape, Step
from fuser.ir.space import Affine, Index, NotLinear, SplitAxis, through
from support.graphs import follow, ravel

MAX_ELEMENTS = 160
SIZES = st.sampled_from([2, 3, 4, 6, 1])
CALLS = {**VIEWS, **MOVES}


@dataclass(frozen=True)
class View:
    """One view call: its target and the arguments after the tensor, by parameter name."""

    target: str
    arguments: Mapping[str, Any]

    def apply(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.target == "aten.view.default":
            # The numbering is what counts here, not whether memory allows a view.
            return tensor.reshape(self.arguments["size"])
        _, name, overload = self.target.split(".")
        call = getattr(getattr(torch.ops.aten, name), overload)
        viewed: torch.Tensor = call(tensor, **self.arguments)
        return viewed

    def step(self, shape: Shape, reader: Shape) -> Step:
        return CALLS[self.target](shape, reader, self.arguments)


def either_sign(draw: Any, position: int, rank: int) -> int:
    return position - rank if draw(st.booleans()) else position


@st.composite
def permutations(draw: Any, shape: tuple[int, ...]) -> View:
    rank = len(shape)
    order = draw(st.permutations(range(rank)))
    return View("aten.permute.default", {"dims": [either_sign(draw, k, rank) for k in order]})


@st.composite
def transposes(draw: Any, shape: tuple[int, ...]) -> View:
    dims = st.integers(-len(shape), len(shape) - 1)
    return View("aten.transpose.int", {"dim0": draw(dims), "dim1": draw(dims)})


@st.composite
def reshapes(draw: Any, shape: tuple[int, ...]) -> View:
    left = math.prod(shape)
    sizes: list[int] = []
    for _ in range(draw(st.sampled_from([1, 0, 2]))):
        divisors = [size for size in range(2, left) if left % size == 0] or [1]
        sizes.append(draw(st.sampled_from(divisors)))
        left //= sizes[-1]
    return View("aten.view.default", {"size": [*sizes, left]})


@st.composite
def expansions(draw: Any, shape: tuple[int, ...]) -> View:
    sizes = [draw(st.sampled_from([1, 2, 3])) if size == 1 else size for size in shape]
    lead = draw(st.sampled_from([[], [1], [2]]))
    return View("aten.expand.default", {"size": [*lead, *sizes]})


@st.composite
def slices(draw: Any, shape: tuple[int, ...]) -> View:
    dim = draw(st.integers(0, len(shape) - 1))
    # Lengths that divide each other, at any start: those lie in a row, across rows, or on rows.
    length = draw(st.sampled_from([n for n in (2, 3, 4, 6, 1, shape[dim]) if n <= shape[dim]]))
    start = draw(st.one_of(st.just(0), st.integers(0, shape[dim] - length)))
    arguments = {
        "dim": either_sign(draw, dim, len(shape)),
        "start": start - shape[dim] if draw(st.booleans()) else start,
        "end": start + length,
        "step": draw(st.sampled_from([1, 1, 2, 3])),
    }
    return View("aten.slice.Tensor", arguments)


@st.composite
def selections(draw: Any, shape: tuple[int, ...]) -> View:
    dim = draw(st.integers(0, len(shape) - 1))
    index = draw(st.integers(-shape[dim], shape[dim] - 1))
    return View("aten.select.int", {"dim": either_sign(draw, dim, len(shape)), "index": index})


@st.composite
def squeezes(draw: Any, shape: tuple[int, ...]) -> View:
    if draw(st.booleans()):
        return View("aten.squeeze.default", {})
    dims = draw(st.lists(st.integers(0, len(shape) - 1), unique=True))
    return View("aten.squeeze.dims", {"dim": dims})


@st.composite
def unsqueezes(draw: Any, shape: tuple[int, ...]) -> View:
    return View("aten.unsqueeze.default", {"dim": draw(st.integers(-len(shape) - 1, len(shape)))})


@st.composite
def flips(draw: Any, shape: tuple[int, ...]) -> View:
    dims = draw(st.lists(st.integers(0, len(shape) - 1), unique=True))
    return View("aten.flip.default", {"dims": [either_sign(draw, k, len(shape)) for k in dims]})


def views(shape: tuple[int, ...]) -> SearchStrategy[View]:
    anywhere = [reshapes(shape), expansions(shape), unsqueezes(shape)]
    if not shape:
        return st.one_of(anywhere)
    inside = [permutations, transposes, slices, selections, squeezes, flips]
    return st.one_of([*anywhere, *(build(shape) for build in inside)])


@dataclass
class Seen:
    """Numbered elements seen through views, and the map that stands for the same views."""

    shape: tuple[int, ...]
    tensor: torch.Tensor
    map: IndexMap
    steps: list[Step]

    def look(self, view: View) -> bool:
        """Look through one more view, unless that shows too many elements."""
        seen = view.apply(self.tensor)
        if seen.numel() > MAX_ELEMENTS or seen.dim() > 5:
            return False
        self.steps.append(view.step(tuple(self.tensor.shape), tuple(seen.shape)))
        self.map, self.tensor = self.map.after(self.steps[-1]), seen
        return True


def numbered(shape: tuple[int, ...]) -> Seen:
    return Seen(shape, torch.arange(math.prod(shape)).reshape(shape), IDENTITY, [])


@st.composite
def any_chain(draw: Any) -> Seen:
    seen = numbered(tuple(draw(st.lists(SIZES, max_size=3))))
    for _ in range(draw(st.integers(1, 6))):
        if not seen.look(draw(views(tuple(seen.tensor.shape)))):
            break
    return seen


@st.composite
def windows_between_reshapes(draw: Any) -> Seen:
    """What goes wrong goes wrong between two reshapes: rows, as a line, partly, as other rows."""
    seen = numbered(draw(st.sampled_from([(24,), (6, 4), (3, 3), (2, 3, 4), (4, 3, 3)])))
    for _ in range(draw(st.integers(1, 2))):
        seen.look(draw(reshapes(tuple(seen.tensor.shape))))
        for _ in range(draw(st.integers(1, 2))):
            here = tuple(seen.tensor.shape)
            seen.look(draw(st.one_of(slices(here), flips(here), permutations(here))))
    seen.look(draw(reshapes(tuple(seen.tensor.shape))))
    return seen


CHAINS = st.one_of(any_chain(), windows_between_reshapes(), windows_between_reshapes())


def indices(shape: torch.Size) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, shape)))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(CHAINS)
def test_a_map_names_the_elements_that_the_view_shows(seen: Seen) -> None:
    for index in itertools.product(*map(range, seen.tensor.shape)):
        expected = int(seen.tensor[index])
        assert ravel(follow(seen.map, index), seen.shape) == expected
        place = index
        for step in reversed(seen.steps):
            place = follow(IndexMap((step,)), place)
        assert ravel(place, seen.shape) == expected


class Axes:
    """Loop axes over a shape, split where a reshape asks for it, as the planner splits them."""

    def __init__(self, shape: tuple[int, ...], splits: Mapping[str, Dim]) -> None:
        self.splits = splits
        self.sizes: dict[str, Dim] = {}
        self.index: Index = tuple(self.axis(f"d{k}", size) for k, size in enumerate(shape))

    def axis(self, name: str, size: Dim) -> Affine:
        if size == 1:
            return Affine()
        inner = self.splits.get(name)
        if inner is None:
            self.sizes[name] = size
            return Affine(((name, 1),))
        outer = divide(size, inner)
        assert outer is not None
        assert 1 < int(inner) < int(size), f"{name} of {size} was asked to split at {inner}"
        left = self.axis(f"{name}o", outer)
        return left.scaled(inner, 0).plus(self.axis(f"{name}i", inner))


def linear_form(index_map: IndexMap, shape: tuple[int, ...]) -> tuple[Axes, Index] | None:
    """The viewed tensor's index over loop axes of the reader's shape, where it is linear."""
    splits: dict[str, Dim] = {}
    while True:
        axes = Axes(shape, splits)
        try:
            return axes, through(index_map, axes.index, axes.sizes)
        except SplitAxis as split:
            splits[split.axis] = split.inner
        except NotLinear:
            return None


def numbers(affine: Affine, point: Mapping[str, int]) -> int:
    return int(affine.offset) + sum(int(step) * point[axis] for axis, step in affine.terms)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(CHAINS)
def test_linear_forms_over_split_axes_name_the_same_elements(seen: Seen) -> None:
    found = linear_form(seen.map, tuple(seen.tensor.shape))
    if found is None:
        return
    axes, index = found
    for values in itertools.product(*(range(int(size)) for size in axes.sizes.values())):
        point = dict(zip(axes.sizes, values, strict=True))
        read = tuple(numbers(affine, point) for affine in axes.index)
        place = tuple(numbers(affine, point) for affine in index)
        assert all(0 <= k < size for k, size in zip(place, seen.shape, strict=True))
        assert ravel(place, seen.shape) == int(seen.tensor[read])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_views_without_a_reshape_are_always_linear(data: DataObject) -> None:
    seen = numbered(tuple(data.draw(st.lists(SIZES, min_size=1, max_size=3))))
    for _ in range(data.draw(st.integers(1, 5))):
        here = tuple(seen.tensor.shape)
        if not seen.look(
            data.draw(st.one_of(permutations(here), slices(here), flips(here), expansions(here)))
        ):
            break
    assert len(seen.map.steps) <= 1
    assert linear_form(seen.map, tuple(seen.tensor.shape)) is not None
