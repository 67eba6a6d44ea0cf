"""What the host program keeps in which memory, and how long.

In: a plan and the kernels of its steps. Out: the last reader of each value, the memory that each
step allocates, and which of it is memory that the step before has just left. A buffer changes
hands only there, where the freed one would have gone and the new one come: so there is never more
memory in use than without it. It has been seen by kernels only; what an original call has seen may
live on in a view, and what the graph returns belongs to the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fuser.codegen.in_place import stored_in_place
from fuser.ir.graph import Argument, Effect, Graph, TensorType
from fuser.ir.kernel import KernelSpec
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Region

__all__ = ["Buffer", "Memory", "StepNames"]

StepNames = tuple[str, ...]
"""One of a plan's steps: the regions that run at once, or one original call."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that a step allocates: for a value that a region stores, or scratch memory."""

    step: StepNames
    name: str
    type: TensorType
    is_scratch: bool


@dataclass(frozen=True)
class Memory:
    """The lifetimes in one plan; `kernels` holds the kernels of each of its steps."""

    plan: FusionPlan
    kernels: Mapping[StepNames, tuple[KernelSpec, ...]]
    overwrites: bool = True

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    def reads(self, step: StepNames) -> tuple[str, ...]:
        """The values that a step of the plan reads."""
        regions = self.regions(step)
        if not regions:
            return tuple(a.value for name in step for a in self.graph.by_name[name].arguments)
        return (*(value for region in regions for value in region.inputs), *self.passed(step))

    def regions(self, step: StepNames) -> tuple[Region, ...]:
        """The regions of a step: none where it is an original call."""
        return tuple(self.plan.by_name[name] for name in step if name in self.plan.by_name)

    def passed(self, step: StepNames) -> tuple[str, ...]:
        """The values that a step's kernels are given and do not store."""
        made = {value for region in self.regions(step) for value in region.outputs}
        arguments = (a for spec in self.kernels.get(step, ()) for a in spec.arguments)
        return tuple(a.name for a in arguments if a.kind == "buffer" and a.name not in made)

    @cached_property
    def last_use(self) -> Mapping[str, int]:
        """The position in the plan's steps of the last one that reads a value."""
        found: dict[str, int] = {}
        for position, step in enumerate(self.plan.steps):
            for value in self.reads(step):
                found[value] = position
        return found

    @cached_property
    def kept(self) -> frozenset[str]:
        """Values that outlive the call."""
        constants = (value.name for value in self.graph.constants)
        return frozenset({*self.graph.output_values, *constants})

    def is_whole(self, argument: Argument) -> bool:
        """Whether the view shows the value as it is."""
        same = argument.type == self.graph.values[argument.value].type
        return argument.map.is_identity and same

    @cached_property
    def read_by_stride(self) -> frozenset[str]:
        """Values from outside the kernels that are read by the strides that the plan gives them."""
        found = {v for step in self.plan.steps if self.regions(step) for v in self.reads(step)}
        views = [a for op in self.graph.ops if op.is_opaque for a in op.arguments]
        views += [output.argument for output in self.graph.outputs if output.argument is not None]
        found |= {argument.value for argument in views if not self.is_whole(argument)}
        found |= set(self.in_place.values())
        return frozenset(found - set(self.plan.region_of))

    @cached_property
    def written(self) -> frozenset[str]:
        """Values that an original call may write to."""
        writers = (op for op in self.graph.ops if op.effect is Effect.BARRIER)
        return frozenset(argument.value for op in writers for argument in op.arguments)

    def buffers(self, step: StepNames) -> tuple[Buffer, ...]:
        """What a step's regions allocate, in that order."""
        found = [
            Buffer(step, name, self.graph.values[name].type, False)
            for region in self.regions(step)
            for name in region.outputs
        ]
        scratch = {
            a.name: TensorType(a.dtype, (a.size,), (1,), found[0].type.device)
            for spec in self.kernels.get(step, ())
            for a in spec.arguments
            if a.kind == "workspace"
        }
        found += [Buffer(step, name, kind, True) for name, kind in scratch.items()]
        return tuple(found)

    @cached_property
    def taken_over(self) -> Mapping[Buffer, Buffer]:
        """For buffers that are not new memory: the ones that they take the place of."""
        seen = {a.value for op in self.graph.ops if op.is_opaque for a in op.arguments}
        taken: dict[Buffer, Buffer] = {}
        alive: list[Buffer] = []
        for position, step in enumerate(self.plan.steps):
            left = [b for b in alive if self._end(b) < position]
            alive = [b for b in alive if b not in left]
            if not self.regions(step):
                continue
            for buffer in self.buffers(step):
                if buffer.name in self.in_place and not buffer.is_scratch:
                    continue
                old = next((b for b in left if b.type == buffer.type), None)
                if old is not None:
                    taken[buffer] = old
                    left.remove(old)
                if buffer.is_scratch or buffer.name not in (self.kept | seen):
                    alive.append(buffer)
        return taken

    @cached_property
    def in_place(self) -> Mapping[str, str]:
        """Values to the inputs that they overwrite, in whose memory they are stored."""
        return stored_in_place(self.plan, self.last_use) if self.overwrites else {}

    def _end(self, buffer: Buffer) -> int:
        """The position of the last step that needs the buffer's memory."""
        if buffer.is_scratch:
            return self.position[buffer.step[0]]
        return self.last_use.get(buffer.name, len(self.plan.steps))

    @cached_property
    def position(self) -> Mapping[str, int]:
        """The place among the plan's steps of each region and original call."""
        return {name: place for place, step in enumerate(self.plan.steps) for name in step}
