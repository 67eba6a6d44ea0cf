"""Random small programs of pointwise ops, reductions and views: plans, kernels and results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuser.codegen.generate import generate
from fuser.codegen.host import host_program
from fuser.device import DEVICES
from fuser.ir.graph import Op
from fuser.ir.kernel import KernelSpec
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region, Strategy
from fuser.ir.space import Affine
from fuser.runtime.executable import Executable
from fuser.runtime.interpreter import is_interpreting
from support.graphs import assert_plan_holds, plan_of

MAX_ELEMENTS = 400
UNARY: Mapping[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "scaled": lambda x: x * 2 + 1,
    "relu": torch.relu,
    "ramp": lambda x: x * torch.arange(x.shape[-1] if x.dim() else 1).sum(),
    "sorted": lambda x: x.sort(-1)[0] if x.dim() else x,
}
BINARY: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "maximum": torch.maximum,
}
Step = Callable[[list[Tensor]], Tensor]


@dataclass
class Program:
    """A straight line of steps; each takes the values so far and makes one more."""

    inputs: list[Tensor]
    steps: list[Step]
    text: list[str]
    outputs: list[int]

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        values = list(inputs)
        for step in self.steps:
            values.append(step(values))
        return tuple(values[k] for k in self.outputs)

    def __repr__(self) -> str:
        shapes = [tuple(tensor.shape) for tensor in self.inputs]
        return "\n".join([f"inputs {shapes}", *self.text, f"return {self.outputs}"])


class Builder:
    """Draws steps that apply to the values made so far."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        sizes = st.sampled_from([2, 3, 4, 6, 1])
        shape = draw(st.lists(sizes, min_size=1, max_size=3))
        self.program = Program([], [], [], [])
        for _ in range(draw(st.integers(1, 2))):
            own = [1 if draw(st.integers(0, 4)) == 4 else size for size in shape]
            self.program.inputs.append(torch.ones(own))
        self.values = list(self.program.inputs)

    def choose(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def add(self, text: str, step: Step) -> None:
        made = step(self.values)
        if made.numel() <= MAX_ELEMENTS and made.dim() <= 4:
            self.program.steps.append(step)
            self.program.text.append(f"v{len(self.values)} = {text}")
            self.values.append(made)

    def pick(self) -> int:
        """Mostly the newest value, so that programs are deep."""
        recent = range(max(0, len(self.values) - 3), len(self.values))
        return int(self.choose(reversed(recent)))

    def unary(self) -> None:
        k, name = self.pick(), self.choose(UNARY)
        self.add(f"{name}(v{k})", lambda v: UNARY[name](v[k]))

    def binary(self) -> None:
        k, name = self.pick(), self.choose(BINARY)
        others = [j for j, w in enumerate(self.values) if fits(self.values[k], w)]
        j = self.choose(others)
        self.add(f"{name}(v{k}, v{j})", lambda v: BINARY[name](v[k], v[j]))

    def reduction(self) -> None:
        k = self.pick()
        dims = range(self.values[k].dim())
        dim = self.draw(st.lists(st.sampled_from(dims), min_size=1, unique=True)) if dims else ()
        keepdim, name = self.draw(st.booleans()), self.choose(["sum", "amax", "softmax"])
        if name == "softmax":
            self.add(f"v{k}.softmax(0)", lambda v: v[k].softmax(0))
        else:
            call = getattr(torch, name)
            self.add(f"{name}(v{k}, {dim}, {keepdim})", lambda v: call(v[k], dim, keepdim=keepdim))

    def reshape(self) -> None:
        k = self.pick()
        left, sizes = self.values[k].numel(), []
        for _ in range(self.choose([1, 2, 0])):
            sizes.append(self.choose(d for d in range(1, left + 1) if left % d == 0))
            left //= sizes[-1]
        shape = [*sizes, left]
        self.add(f"v{k}.reshape({shape})", lambda v: v[k].reshape(shape))

    def permute(self) -> None:
        k = self.pick()
        order = self.draw(st.permutations(range(self.values[k].dim())))
        self.add(f"v{k}.permute({order})", lambda v: v[k].permute(order))

    def window(self) -> None:
        k = self.pick()
        if not self.values[k].dim():
            return
        dim = int(self.choose(range(self.values[k].dim())))
        size = self.values[k].shape[dim]
        start = int(self.choose(range(size)))
        name = self.choose(["narrow", "select", "flip", "pad", "expand", "cat"])
        length = int(self.choose(range(1, size - start + 1)))
        pads = [0, 0] * (self.values[k].dim() - dim - 1) + [start, 1]
        calls: Mapping[str, Step] = {
            "narrow": lambda v: v[k].narrow(dim, start, length),
            "select": lambda v: v[k].select(dim, start),
            "flip": lambda v: v[k].flip(dim),
            "pad": lambda v: F.pad(v[k], pads),
            "expand": lambda v: v[k].unsqueeze(dim).expand(*v[k].shape[:dim], 2, *v[k].shape[dim:]),
            "cat": lambda v: torch.cat([v[k], v[k].narrow(dim, start, length)], dim),
        }
        self.add(f"{name}(v{k}, {dim}, {start}, {length})", calls[name])


def fits(left: Tensor, right: Tensor) -> bool:
    try:
        left + right
    except RuntimeError:
        return False
    return True


@st.composite
def programs(draw: Any) -> Program:
    builder = Builder(draw)
    steps = [
        builder.unary,
        builder.binary,
        builder.reshape,
        builder.reduction,
        builder.window,
        builder.permute,
    ]
    for _ in range(draw(st.integers(3, 10))):
        draw(st.sampled_from(steps))()
    first = len(builder.program.inputs)
    made = range(first, len(builder.values))
    outputs = {len(builder.values) - 1}
    if made:
        outputs |= set(draw(st.lists(st.sampled_from(made), max_size=2)))
    builder.program.outputs = sorted(outputs)
    return builder.program


# What plans keep --------------------------------------------------------------------------------


def number(affine: Affine, point: Mapping[str, int]) -> int:
    return int(affine.offset) + sum(int(step) * point[axis] for axis, step in affine.terms)


def points(region: Region) -> list[dict[str, int]]:
    names = [axis.name for axis in region.space.axes]
    every = itertools.product(*(range(int(axis.size)) for axis in region.space.axes))
    return [dict(zip(names, point, strict=True)) for point in every]


def assert_computed_once(region: Region, op: Op) -> None:
    """A stored value, or a reduction's operand, is met once at each point of its domain."""
    index = region.space.index[op.name]
    used = {axis for affine in index for axis in affine.axes}
    met = {tuple(sorted((a, p[a]) for a in used)): p for p in points(region)}
    places = sorted(tuple(number(affine, p) for affine in index) for p in met.values())
    assert places == list(itertools.product(*(range(int(size)) for size in op.domain)))


def assert_spaces_hold(plan: FusionPlan) -> None:
    for region in plan.regions:
        space = region.space
        rows, row = ({axis.name for axis in side} for side in (space.parallel, space.reduced))
        both = region.strategy is Strategy.ROWS_AND_COLUMNS
        for name in region.all_ops:
            op = plan.graph.by_name[name]
            if op.reduced or name in region.outputs:
                assert_computed_once(region, op)
            if op.reduced:
                own = {a for k in op.reduced for a in region.space.index[name][k].axes}
                assert own == row or (both and own == rows)


def assert_kernels_hold(plan: FusionPlan) -> None:
    """What the planner accepts can be written, and each kernel stores its regions' outputs."""
    every = generate(plan)
    assert [name for found in every for name in found.regions] == [
        name for name in plan.order if name in plan.by_name
    ]
    for found in every:
        regions = [plan.by_name[name] for name in found.regions]
        inputs, outputs = (
            {v for r in regions for v in getattr(r, what)} for what in ("inputs", "outputs")
        )
        stored = [name for kernel in found.kernels for name in written_by(kernel)]
        assert sorted(stored) == sorted(outputs)
        scratch = {f"{name}_parts" for region in regions for name in region.ops}
        for kernel in found.kernels:
            buffers = {a.name for a in kernel.arguments if a.kind == "buffer" and not a.is_output}
            assert buffers <= inputs | outputs
            assert {a.name for a in kernel.arguments if a.kind == "workspace"} <= scratch


def written_by(kernel: KernelSpec) -> list[str]:
    return [argument.name for argument in kernel.arguments if argument.is_output]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(programs(), st.sampled_from(sorted(DEVICES)))
def test_plans_hold(program: Program, target: str) -> None:
    plan = plan_of(program, *program.inputs, target=target)
    assert_plan_holds(plan)
    assert_spaces_hold(plan)
    assert_kernels_hold(plan)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(programs())
def test_plans_over_symbolic_sizes_hold(program: Program) -> None:
    plan = plan_of(program, *program.inputs, dynamic=True)
    assert_plan_holds(plan)
    assert_kernels_hold(plan)


@pytest.mark.skipif(not is_interpreting(), reason="runs kernels in Triton's interpreter")
@settings(max_examples=80, deadline=None, derandomize=True)
@given(programs(), st.integers(0, 2**16))
def test_kernels_compute_what_the_program_does(program: Program, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(x.shape, generator=generator) for x in program.inputs]
    plan = plan_of(program, *inputs, target="cpu")
    kernels = generate(plan)
    executable = Executable(plan, kernels, host_program(plan, kernels))
    for found, wanted in zip(executable(list(inputs)), program(*inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert executable.fallbacks == {}


@settings(max_examples=75, deadline=None, derandomize=True)
@given(programs())
def test_fusing_is_never_predicted_to_cost(program: Program) -> None:
    plan = plan_of(program, *program.inputs)
    for region in plan.regions:
        assert region.cost.bytes <= region.cost.unfused_bytes
        assert region.cost.time_us <= region.cost.unfused_us + 1e-9
        assert math.isfinite(region.cost.time_us)
