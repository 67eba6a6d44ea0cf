"""The contexts of the kernel templates: each is the whole contract of a template file."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.codegen.reduction_body import Pass


@dataclass(frozen=True, slots=True)
class PointwiseContext:
    """`pointwise.py.jinja`: one tile axis `x` over all elements."""

    name: str
    summary: tuple[str, ...]
    parameters: tuple[str, ...]
    x_size: str
    x_lines: tuple[str, ...]
    body: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TiledContext:
    """`pointwise_tiled.py.jinja`: tile [XBLOCK, RBLOCK] over two axes, `o` over all others."""

    name: str
    summary: tuple[str, ...]
    parameters: tuple[str, ...]
    x_size: str
    r_size: str
    x_lines: tuple[str, ...]
    r_lines: tuple[str, ...]
    o_lines: tuple[str, ...]
    body: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RowContext:
    """`reduction_row.py.jinja`: tile [XBLOCK, RBLOCK] with the whole row in it."""

    name: str
    summary: tuple[str, ...]
    parameters: tuple[str, ...]
    x_size: str
    r_size: str
    x_lines: tuple[str, ...]
    r_lines: tuple[str, ...]
    body: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoopedContext:
    """`reduction_looped.py.jinja`: tile [XBLOCK, RBLOCK], the row in passes of RBLOCK."""

    name: str
    summary: tuple[str, ...]
    parameters: tuple[str, ...]
    x_size: str
    r_size: str
    x_lines: tuple[str, ...]
    r_lines: tuple[str, ...]
    passes: tuple[Pass, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class ProductContext:
    """`product.py.jinja`: tile [MBLOCK, NBLOCK] of the result, the inner axis in a loop.

    `sums` are (accumulator, its next value) of each product; `before` is what operands need before
    the loop, `inside` what they need in it, `after` what is done with the sums.
    """

    name: str
    summary: tuple[str, ...]
    parameters: tuple[str, ...]
    m_size: str
    n_size: str
    k_size: str
    o_lines: tuple[str, ...]
    before: tuple[str, ...]
    ka_lines: tuple[str, ...]
    kb_lines: tuple[str, ...]
    inside: tuple[str, ...]
    sums: tuple[tuple[str, str], ...]
    after: tuple[str, ...]


@dataclass(frozen=True)
class PersistentProductContext(ProductContext):
    """`product_persistent.py.jinja`: programs walk such tiles, of `o_size` products one after the
    other; `after` is done for each part of the columns, of the sums' same part."""

    o_size: str


@dataclass(frozen=True, slots=True)
class PartialContext:
    """`reduction_partial.py.jinja`: each program folds one part of the row;
    `reduction_walking.py.jinja`: each program walks whole rows, and folds its part of them all.

    `partials` are (pointer parameter, what is left of the accumulators) of each workspace.
    """

    name: str
    summary: tuple[str, ...]
    parameters: tuple[str, ...]
    x_size: str
    r_size: str
    parts: int
    x_lines: tuple[str, ...]
    r_lines: tuple[str, ...]
    body: Pass
    partials: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CombineContext:
    """`reduction_combine.py.jinja`: folds the parts that the other kernel left, then the rest."""

    name: str
    summary: tuple[str, ...]
    parameters: tuple[str, ...]
    x_size: str
    parts: int
    x_lines: tuple[str, ...]
    body: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SharedContext:
    """`shared.py.jinja`: `parts` are functions, of which `choice` calls one for each program.

    `ends` are lines that count the programs of regions whose sizes change.
    """

    name: str
    summary: tuple[str, ...]
    parts: tuple[str, ...]
    parameters: tuple[str, ...]
    ends: tuple[str, ...]
    choice: tuple[str, ...]
