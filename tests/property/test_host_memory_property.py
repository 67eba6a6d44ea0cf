"""No memory of a host program ever holds two values that are both still needed.

The programs of random plans run on tokens in place of tensors: a token knows the value that was
last written to it, and whatever reads a value has to find it there.
"""

from __future__ import annotations

import itertools
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuser.codegen import host_memory
from fuser.codegen.generate import generate
from fuser.codegen.host import host_program
from fuser.ir.graph import Argument, Effect, Graph
from fuser.ir.kernel import KernelSpec, RegionKernels
from fuser.ir.plan import FusionPlan
from fuser.passes.canonicalize import merge_equal_ops, remove_unused_ops
from fuser.passes.pipeline import plan_graph
from support.plans import Sketch, tensor, transposed
from support.runtime import on_gpu

SIZES = (32, 64)


class Token:
    """What stands for a tensor."""

    def __init__(self, machine: Machine, value: str, numel: int) -> None:
        self.value = value
        self.is_seen = False
        """Whether an original call has seen it, and may have kept it."""
        self.address = 16 * next(machine.addresses)
        machine.allocated += numel
        machine.peak = max(machine.peak, machine.allocated)
        weakref.finalize(self, machine.free, numel)

    def data_ptr(self) -> int:
        return self.address

    def is_contiguous(self) -> bool:
        return True

    def stride(self) -> None:
        return None

    def storage_offset(self) -> int:
        return 0


class Machine:
    """Runs the host program of a plan on tokens."""

    def __init__(self, plan: FusionPlan, kernels: tuple[RegionKernels, ...]) -> None:
        self.graph = plan.graph
        self.allocated = self.peak = 0
        self.addresses = itertools.count(1)
        self.program = host_program(plan, kernels)
        names: dict[str, Any] = {
            "planned_layout": lambda token, stride: token,
            "current_gpu": lambda: 0,
            "current_stream": lambda device: 77,
            "has_hooks": lambda: False,
            "empty_on_gpu": self.empty,
        }
        for name, _ in self.program.bindings:
            names[name] = self.called
        for entry in kernels:
            for spec in entry.kernels:
                names[spec.name] = self.launcher(spec)
        exec(self.program.source, names)
        names["empty_strided"] = self.empty
        names["as_strided"] = lambda token, *_: token
        self.call: Callable[[list[Any]], tuple[Any, ...]] = names["call"]
        self.calls = (op for name in plan.order for op in self.graph.ops if op.name == name)

    def free(self, numel: int) -> None:
        self.allocated -= numel

    def empty(self, size: tuple[int, ...], *_: Any, **__: Any) -> Token:
        numel = 1
        for part in size:
            numel *= part
        return Token(self, "", numel)

    def launcher(self, spec: KernelSpec) -> Callable[..., None]:
        on_one_gpu = bool(self.program.gpu)

        def launch(*given: Any) -> None:
            if on_one_gpu:
                stream, misaligned, *given = given  # type: ignore[assignment]
                assert (stream, misaligned) == (77, 0)
            count = len(spec.arguments)
            buffers = [
                (argument, token)
                for argument, token in zip(spec.arguments, given, strict=False)
                if argument.kind != "size"
            ]
            if on_one_gpu:
                addresses = given[count : count + len(buffers)]
                assert list(addresses) == [token.address for _, token in buffers]
            for argument, token in buffers:
                if argument.kind == "buffer" and not argument.is_output:
                    assert token.value == argument.name
            for argument, token in buffers:
                if argument.is_output or argument.kind == "workspace":
                    assert not token.is_seen
                    token.value = argument.name

        return launch

    def called(self, *tokens: Token) -> Token:
        op = next(op for op in self.calls if op.is_opaque)
        assert [token.value for token in tokens] == [a.value for a in op.arguments]
        for token in tokens:
            token.is_seen = True
        (result,) = op.results
        fresh = Token(self, result.name, int(result.type.numel))
        fresh.is_seen = True
        return fresh

    def run(self) -> None:
        given = [Token(self, item.name, 0) for item in self.graph.inputs]
        results = self.call(given)
        wanted = [output.argument for output in self.graph.outputs]
        assert [token.value for token in results] == [a.value for a in wanted if a is not None]
        assert len({id(token) for token in results}) == len({a.value for a in wanted if a})


def random_graph(seed: int, size: int) -> Graph:
    """Chains over few shapes and types, broken by reductions, views and original calls."""
    rng = random.Random(seed)
    sketch = Sketch()
    values = {n: [sketch.input(f"x{n}_{k}", n, n) for k in range(2)] for n in SIZES}

    for _ in range(size):
        n = rng.choice(SIZES)

        def pick(n: int = n) -> Argument:
            return rng.choice(values[n][-2:])

        choice = rng.random()
        if choice < 0.7:
            total = sketch.reduction("sum", pick(), rng.choice([0, 1]), keepdim=True)
            values[n].append(sketch.pointwise("mul", pick(), total))
        elif choice < 0.8:
            values[n].append(sketch.pointwise("add", pick(), transposed(pick())))
        elif choice < 0.85:
            effect = rng.choice([Effect.NONE, Effect.ORDERED, Effect.BARRIER])
            target = rng.choice(["aten.mm.default", "aten.cumsum.default"])
            values[n] += sketch.call(target, pick(), results=[tensor(n, n)], effect=effect)
        else:
            values[n].append(sketch.pointwise(rng.choice(["add", "maximum"]), pick(), pick()))
    return sketch.graph(*(v for n in SIZES for v in (values[n][-1], rng.choice(values[n]))))


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_values_do_not_get_into_each_others_way(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = 0

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(st.integers(0, 2**32), st.integers(4, 40))
    def check(seed: int, size: int) -> None:
        nonlocal taken
        graph = remove_unused_ops(merge_equal_ops(random_graph(seed, size)))
        plan = plan_graph(graph if device == "cpu" else on_gpu(graph), "sm_90")
        kernels = generate(plan)
        machine = Machine(plan, kernels)
        machine.run()
        taken += machine.program.source.count("in the memory of")
        with monkeypatch.context() as patch:
            patch.setattr(host_memory.Memory, "taken_over", {})
            plain = Machine(plan, kernels)
        plain.run()
        assert machine.peak == plain.peak

    check()
    assert taken > 30
