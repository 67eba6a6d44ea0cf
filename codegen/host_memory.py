"""What the host program keeps in which memory, and how long.

In: a plan and the kernels of its regions. Out: the last reader of each value, the memory that each
region allocates, and which of it is memory that the step before has just left. A buffer changes
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

__all__ = ["Buffer", "Memory"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that a region allocates: for a value that it stores, or scratch memory."""

    region: str
    name: str
    type: TensorType
    is_scratch: bool


@dataclass(frozen=True)
class Memory:
    """The lifetimes in one plan; `kernels` holds the kernels of each region."""

    plan: FusionPlan
    kernels: Mapping[str, tuple[KernelSpec, ...]]
    overwrites: bool = True

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    def reads(self, step: str) -> tuple[str, ...]:
        """The values that a step of the plan reads."""
        if step not in self.plan.by_name:
            return tuple(argument.value for argument in self.graph.by_name[step].arguments)
        region = self.plan.by_name[step]
        return (*region.inputs, *self.passed(step))

    def passed(self, region: str) -> tuple[str, ...]:
        """The values that a region's kernels are given and do not store."""
        made = set(self.plan.by_name[region].outputs)
        arguments = (a for spec in self.kernels.get(region, ()) for a in spec.arguments)
        return tuple(a.name for a in arguments if a.kind == "buffer" and a.name not in made)

    @cached_property
    def last_use(self) -> Mapping[str, int]:
        """The position in the plan's order of the last step that reads a value."""
        found: dict[str, int] = {}
        for position, step in enumerate(self.plan.order):
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
        found = {v for name in self.plan.by_name for v in self.reads(name)}
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

    def buffers(self, region: Region) -> tuple[Buffer, ...]:
        """What a region allocates, in that order."""
        types = {name: self.graph.values[name].type for name in region.outputs}
        found = [Buffer(region.name, name, kind, False) for name, kind in types.items()]
        device = types[region.outputs[0]].device
        scratch = {
            a.name: TensorType(a.dtype, (a.size,), (1,), device)
            for spec in self.kernels.get(region.name, ())
            for a in spec.arguments
            if a.kind == "workspace"
        }
        found += [Buffer(region.name, name, kind, True) for name, kind in scratch.items()]
        return tuple(found)

    @cached_property
    def taken_over(self) -> Mapping[Buffer, Buffer]:
        """For buffers that are not new memory: the ones that they take the place of."""
        seen = {a.value for op in self.graph.ops if op.is_opaque for a in op.arguments}
        taken: dict[Buffer, Buffer] = {}
        alive: list[Buffer] = []
        for position, step in enumerate(self.plan.order):
            region = self.plan.by_name.get(step)
            left = [b for b in alive if self._end(b) < position]
            alive = [b for b in alive if b not in left]
            if region is None:
                continue
            for buffer in self.buffers(region):
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
            return self.position[buffer.region]
        return self.last_use.get(buffer.name, len(self.plan.order))

    @cached_property
    def position(self) -> Mapping[str, int]:
        """Each step's place in the plan's order."""
        return {step: position for position, step in enumerate(self.plan.order)}
