"""A region of matrix products as one kernel over tiles of the result.

There are two families of kernels, by pointers and by tensor descriptors. Both have the bodies of
`codegen/product_body.py`; a family says how operands are loaded, and which template the lines go
into.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fuser.codegen.axes import AxisText, KernelAxis, SizeArguments, merge_axes
from fuser.codegen.emit.context import PersistentProductContext, ProductContext
from fuser.codegen.emit.kernel import Built, Work, kernel_spec, summary_of
from fuser.codegen.product_body import DescribedOperandBody, OperandBody, ResultBody
from fuser.ir.dim import Dim, product
from fuser.ir.kernel import Configuration, GridAxis, KernelSpec
from fuser.ir.ops import is_contraction
from fuser.ir.space import LoopAxis
from fuser.passes.columns import result_folds
from fuser.passes.contraction import COLUMNS, RESULT, ROWS, Roles, roles_of
from fuser.passes.windows import BLOCKS
from fuser.templates import render

Groups = Mapping[str, tuple[LoopAxis, ...]]
Merged = Mapping[str, tuple[KernelAxis, ...]]


class _Family(Protocol):
    """What the two kinds of kernels differ in."""

    @property
    def operands(self) -> type[OperandBody]: ...

    @property
    def sums(self) -> str:
        """What follows the loop is computed from, of an accumulator."""

    @property
    def most(self) -> str | None:
        """The block that has the number of programs, where those walk tiles."""

    def text(self, context: ProductContext, batch: str) -> str:
        """The kernel's text, for a number of products."""


class _Pointers:
    """A program for each tile."""

    operands = OperandBody
    sums = "{}"
    most = None

    def text(self, context: ProductContext, batch: str) -> str:
        return render("product.py.jinja", context)


class _Descriptors:
    """Programs walk tiles, and work on their sums in parts."""

    operands = DescribedOperandBody
    sums = "fn.part_of({}, part, PARTS)"
    most = "PROGRAMS"

    def text(self, context: ProductContext, batch: str) -> str:
        fields = {field.name: getattr(context, field.name) for field in dataclasses.fields(context)}
        persistent = PersistentProductContext(**fields, o_size=batch)
        return render("product_persistent.py.jinja", persistent)


@dataclass(frozen=True)
class _Written:
    """The three bodies, and the products' next sums."""

    rows: OperandBody
    columns: OperandBody
    result: ResultBody
    sums: tuple[tuple[str, str], ...]


def product_kernels(work: Work) -> tuple[KernelSpec, ...]:
    """One kernel; each program multiplies one tile and does with it what follows."""
    return (_kernel(work, _Pointers()),)


def described_product_kernels(work: Work) -> tuple[KernelSpec, ...]:
    """One kernel; each program walks tiles, of which descriptors read the operands. Beside it that
    by pointers, for what is not aligned."""
    schedule = work.region.schedule.otherwise
    assert schedule is not None
    otherwise = _kernel(replace(work, region=replace(work.region, schedule=schedule)), _Pointers())
    return (replace(_kernel(work, _Descriptors()), otherwise=otherwise),)


def _kernel(work: Work, family: _Family) -> KernelSpec:
    stored = frozenset(work.region.outputs)
    roles = roles_of(work.graph, work.ops, stored, work.region.space)
    groups = roles.groups(work.region.space)
    size = {name: product(axis.size for axis in group) for name, group in groups.items()}
    configurations = work.region.schedule.candidates[0]
    exact = _exact(size, configurations)

    def write(merged: Sequence[Merged], sizes: SizeArguments) -> _Written:
        return _write(work, family, roles, merged, sizes, exact)

    separate = {
        name: tuple(KernelAxis(f"{name}{k}", a.size, (a,)) for k, a in enumerate(group))
        for name, group in groups.items()
    }
    trial = write([separate] * 3, SizeArguments())
    bodies = (trial.rows, trial.columns, trial.result)
    every = [form for body in bodies for form in body.accesses]
    merged = []
    for variables, body in zip((ROWS, COLUMNS, RESULT), bodies, strict=True):
        # Programs have the batch once, for all bodies.
        merged.append({
            name: merge_axes(groups[name], every if name == "o" else body.accesses, name)
            for name in variables
        })  # fmt: skip
    sizes = SizeArguments()
    written = write(merged, sizes)
    rows, columns, result = written.rows, written.columns, written.result

    def lines(body: Any, which: int, *names: str) -> tuple[str, ...]:
        return tuple(
            line
            for name in names
            for line in body.axis_text.decomposition(name, merged[which][name])
        )

    def text(parameters: tuple[str, ...]) -> str:
        context = ProductContext(
            name=work.region.name,
            summary=summary_of(work, "tiles of a product"),
            parameters=parameters,
            m_size=sizes.text(size["m"]),
            n_size=sizes.text(size["n"]),
            k_size=sizes.text(size["ka"]),
            o_lines=lines(result, 2, "o"),
            before=(
                *lines(rows, 0, "m"), *lines(columns, 1, "n"),
                *rows.lines.outer, *columns.lines.outer,
            ),
            ka_lines=lines(rows, 0, "ka"),
            kb_lines=lines(columns, 1, "kb"),
            inside=(*rows.lines.inner, *columns.lines.inner),
            sums=written.sums,
            after=(*lines(result, 2, "m", "n"), *result.lines.outer),
        )  # fmt: skip
        return family.text(context, sizes.text(size["o"]))

    built = Built(result, None, sizes, groups, merged[2], result.axis_text)
    # All on the first axis of the grid: the others have few programs.
    columns_and_batch = (GridAxis(size["n"], "NBLOCK"), GridAxis(size["o"]))
    grid = (GridAxis(size["m"], "MBLOCK", columns_and_batch, family.most),)
    counted = product(axis.size for axis in work.parallel)
    return kernel_spec(
        work, built, work.region.name, text, grid, configurations,
        counted=counted, windows=rows.windows,
    )  # fmt: skip


def _exact(size: Mapping[str, Dim], configurations: Sequence[Configuration]) -> frozenset[str]:
    """The variables whose size every tile divides."""
    found = set()
    for name, block in BLOCKS.items():
        whole = size[name]
        if isinstance(whole, int) and all(whole % c.block(block) == 0 for c in configurations):
            found.add(name)
    return frozenset(found)


def _write(
    work: Work,
    family: _Family,
    roles: Roles,
    merged: Sequence[Merged],
    sizes: SizeArguments,
    exact: frozenset[str],
) -> _Written:
    """The bodies over axes that are merged as given: rows, columns, result."""
    texts = [
        AxisText([axis for name in variables for axis in axes[name]], sizes)
        for variables, axes in zip((ROWS, COLUMNS, RESULT), merged, strict=True)
    ]
    shared = (work.graph, work.region.space, work.rounding)
    groups = roles.groups(work.region.space)
    sums: dict[str, str] = {}
    has_rows = bool(result_folds(work.ops, work.region.space))
    result = ResultBody(*shared, texts[2], sizes, sums=sums, along=groups, has_rows=has_rows)
    rows, columns = (
        family.operands(
            *shared, text, sizes,
            shape={name: BLOCKS[name] for name in variables[1:]}, groups=groups,
        )
        for text, variables in zip(texts, (ROWS, COLUMNS), strict=False)
    )  # fmt: skip
    columns.windows = rows.windows
    for body in (rows, columns):
        body.names, body.pointers, body.exact = result.names, result.pointers, exact
    result.exact = exact
    products: list[tuple[str, str]] = []
    for op in filter(is_contraction, work.ops):
        index = work.region.space.index[op.name]
        row, column = roles.operands(op)
        left, right = rows.tile(row, index), columns.tile(column, index)
        accumulator = result.names.fresh(f"{op.name}_sum")
        sums[op.name] = family.sums.format(accumulator)
        precision = op.attribute("precision")
        how = f', input_precision="{precision}"' if precision in ("ieee", "tf32") else ""
        products.append((accumulator, f"tl.dot({left}, {right}, {accumulator}{how})"))
    for op in work.stored:
        result.store(op)
    return _Written(rows, columns, result, tuple(products))
