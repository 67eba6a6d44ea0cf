"""A region of matrix products as one kernel over tiles of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuser.codegen.axes import AxisText, KernelAxis, SizeArguments, merge_axes
from fuser.codegen.emit.context import ProductContext
from fuser.codegen.emit.kernel import Built, Work, kernel_spec, summary_of
from fuser.codegen.product_body import OperandBody, ResultBody
from fuser.ir.dim import Dim, product
from fuser.ir.kernel import Configuration, GridAxis, KernelSpec
from fuser.ir.ops import is_contraction
from fuser.ir.space import LoopAxis
from fuser.passes.columns import result_folds
from fuser.passes.contraction import Roles, roles_of
from fuser.templates import render

BLOCKS: Mapping[str, str] = {"m": "MBLOCK", "n": "NBLOCK", "ka": "KBLOCK", "kb": "KBLOCK"}
"""The tile variables and their blocks."""

ROWS, COLUMNS, RESULT = ("o", "m", "ka"), ("o", "kb", "n"), ("o", "m", "n")
"""The variables of the bodies."""

Groups = Mapping[str, tuple[LoopAxis, ...]]
Merged = Mapping[str, tuple[KernelAxis, ...]]


@dataclass(frozen=True)
class _Written:
    """The three bodies, and the products' next sums."""

    rows: OperandBody
    columns: OperandBody
    result: ResultBody
    sums: tuple[tuple[str, str], ...]


def product_kernels(work: Work) -> tuple[KernelSpec, ...]:
    """One kernel; each program multiplies one tile and does with it what follows."""
    stored = frozenset(work.region.outputs)
    roles = roles_of(work.graph, work.ops, stored, work.region.space)
    axes = {axis.name: axis for axis in work.region.space.axes}
    inner = tuple(axes[name] for name in roles.inner)
    groups: Groups = {
        "o": tuple(axes[name] for name in roles.batch),
        "m": tuple(axes[name] for name in roles.rows),
        "n": tuple(axes[name] for name in roles.columns),
        "ka": inner,
        "kb": inner,
    }
    size = {name: product(axis.size for axis in group) for name, group in groups.items()}
    configurations = work.region.schedule.candidates[0]
    exact = _exact(size, configurations)

    def write(merged: Sequence[Merged], sizes: SizeArguments) -> _Written:
        return _write(work, roles, merged, sizes, exact)

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
        return render("product.py.jinja", context)

    built = Built(result, None, sizes, groups, merged[2], result.axis_text)
    # All on the first axis of the grid: the others have few programs.
    columns_and_batch = (GridAxis(size["n"], "NBLOCK"), GridAxis(size["o"]))
    grid = (GridAxis(size["m"], "MBLOCK", columns_and_batch),)
    counted = product(axis.size for axis in work.parallel)
    return (
        kernel_spec(work, built, work.region.name, text, grid, configurations, counted=counted),
    )


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
    sums: dict[str, str] = {}
    axes = {axis.name: axis for axis in work.region.space.axes}
    along = {
        "m": [axes[name] for name in roles.rows],
        "n": [axes[name] for name in roles.columns],
    }
    has_rows = bool(result_folds(work.ops, work.region.space))
    result = ResultBody(*shared, texts[2], sizes, sums=sums, along=along, has_rows=has_rows)
    rows, columns = (
        OperandBody(
            *shared, text, sizes,
            shape={name: BLOCKS[name] for name in variables[1:]},
            inner=next(name for name in variables if name.startswith("k")),
        )
        for text, variables in zip(texts, (ROWS, COLUMNS), strict=False)
    )  # fmt: skip
    for body in (rows, columns):
        body.names, body.pointers, body.exact = result.names, result.pointers, exact
    result.exact = exact
    products: list[tuple[str, str]] = []
    for op in filter(is_contraction, work.ops):
        index = work.region.space.index[op.name]
        row, column = roles.operands(op)
        left, right = rows.tile(row, index), columns.tile(column, index)
        sums[op.name] = result.names.fresh(f"{op.name}_sum")
        precision = op.attribute("precision")
        how = f', input_precision="{precision}"' if precision in ("ieee", "tf32") else ""
        products.append((sums[op.name], f"tl.dot({left}, {right}, {sums[op.name]}{how})"))
    for op in work.stored:
        result.store(op)
    return _Written(rows, columns, result, tuple(products))
