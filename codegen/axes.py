"""From loop axes to kernel variables: fewer axes, their decomposition, sizes as arguments.

Axes that every access of a kernel walks together are merged, so that a region over contiguous
tensors becomes one linear loop with no division in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fuser.ir.dim import Dim, is_equal, multiply, product
from fuser.ir.space import Affine, LoopAxis


@dataclass
class SizeArguments:
    """The symbolic numbers that a kernel takes as arguments, in order of first use."""

    names: dict[str, Dim] = field(default_factory=dict)

    def text(self, dim: Dim) -> str:
        """The number itself, or the argument's name."""
        if isinstance(dim, int):
            return str(dim)
        for name, known in self.names.items():
            if is_equal(known, dim):
                return name
        name = f"size_{len(self.names)}"
        self.names[name] = dim
        return name


@dataclass(frozen=True, slots=True)
class KernelAxis:
    """One or more loop axes walked as one: `name` runs over `size`; `parts` are outermost first."""

    name: str
    size: Dim
    parts: tuple[LoopAxis, ...]

    @property
    def level(self) -> str:
        """The tile variable that the axis is a part of; none for `o`, which is a plain number."""
        variable = self.name.rstrip("0123456789")
        return "" if variable == "o" else variable


def merge_axes(
    axes: Sequence[LoopAxis], accesses: Iterable[Affine], prefix: str
) -> tuple[KernelAxis, ...]:
    """Neighbouring axes become one where every access treats them as one."""
    forms = list(accesses)
    groups: list[list[LoopAxis]] = []
    for axis in axes:
        if groups and all(_walks_together(form, groups[-1][-1], axis) for form in forms):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return tuple(
        KernelAxis(
            f"{prefix}{k}" if len(groups) > 1 else prefix, product(a.size for a in g), tuple(g)
        )
        for k, g in enumerate(groups)
    )


def _walks_together(form: Affine, outer: LoopAxis, inner: LoopAxis) -> bool:
    terms = dict(form.terms)
    outer_step, inner_step = terms.get(outer.name), terms.get(inner.name)
    if outer_step is None or inner_step is None:
        return outer_step is None and inner_step is None
    return is_equal(outer_step, multiply(inner_step, inner.size))


class AxisText:
    """Writes affine forms over merged axes."""

    def __init__(self, axes: Sequence[KernelAxis], sizes: SizeArguments) -> None:
        self.axes = tuple(axes)
        self.sizes = sizes
        # Of a merged group only the innermost part's step matters: the others follow from it.
        self.innermost = {axis.parts[-1].name: axis.name for axis in axes}
        self.levels = {part.name: axis.level for axis in axes for part in axis.parts}
        self.inner_parts = {part.name for axis in axes for part in axis.parts[:-1]}

    def affine(self, form: Affine) -> str:
        """The form as Triton text, `0` for nothing."""
        parts = []
        for axis, step in form.terms:
            if axis in self.inner_parts:
                continue
            name = self.innermost[axis]
            parts.append(name if step == 1 else f"{self.sizes.text(step)} * {name}")
        if form.offset != 0 or not parts:
            parts.append(self.sizes.text(form.offset))
        return " + ".join(parts)

    def decomposition(self, linear: str, axes: Sequence[KernelAxis]) -> list[str]:
        """Lines that set each axis from the linear tile variable."""
        if len(axes) <= 1:
            return []
        lines: list[str] = []
        inner: Dim = 1
        for position in range(len(axes) - 1, -1, -1):
            axis = axes[position]
            text = linear if inner == 1 else f"{linear} // {self.sizes.text(inner)}"
            if position > 0:
                grouped = text if inner == 1 else f"({text})"
                text = f"{grouped} % {self.sizes.text(axis.size)}"
            lines.append(f"{axis.name} = {text}  # of {self.sizes.text(axis.size)}")
            inner = multiply(inner, axis.size)
        return lines
