"""Templates: each is used through one dataclass, knows no operation, and forgives nothing."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import pytest

from fuser.codegen.emit.context import (
    CombineContext,
    LoopedContext,
    PartialContext,
    PersistentProductContext,
    PointwiseContext,
    ProductContext,
    RowContext,
    SharedContext,
    TiledContext,
)
from fuser.codegen.host import HostContext
from fuser.ir.ops import TABLE
from fuser.templates import FOLDER, environment, render

CONTEXTS: dict[str, type[Any]] = {
    "host.py.jinja": HostContext,
    "pointwise.py.jinja": PointwiseContext,
    "pointwise_tiled.py.jinja": TiledContext,
    "product.py.jinja": ProductContext,
    "product_persistent.py.jinja": PersistentProductContext,
    "reduction_combine.py.jinja": CombineContext,
    "reduction_looped.py.jinja": LoopedContext,
    "reduction_partial.py.jinja": PartialContext,
    "reduction_row.py.jinja": RowContext,
    "reduction_walking.py.jinja": PartialContext,
    "shared.py.jinja": SharedContext,
}
# Pages are no kernels: what they may use is tested beside what writes them.
FILES = sorted(
    str(path.relative_to(FOLDER))
    for path in FOLDER.rglob("*.jinja")
    if not path.name.endswith(".html.jinja")
)
POINTWISE = PointwiseContext(
    name="region_0",
    summary=("region_0: elementwise.",),
    parameters=("a_ptr,", "b_out,"),
    x_size="64",
    x_lines=("x1 = x % 8",),
    body=("b = a", "tl.store(b_out + x, b, x_mask)"),
)


def text_of(name: str) -> str:
    return (FOLDER / name).read_text()


def undeclared(name: str) -> set[str]:
    return jinja2.meta.find_undeclared_variables(environment().parse(text_of(name)))


def test_each_template_has_its_context() -> None:
    assert sorted(CONTEXTS) == [name for name in FILES if not name.startswith("macros/")]


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_context_is_the_whole_contract(name: str) -> None:
    fields = {field.name for field in dataclasses.fields(CONTEXTS[name])}
    assert undeclared(name) == fields


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_context_names_its_template_and_cannot_change(name: str) -> None:
    context = CONTEXTS[name]
    assert f"`{name}`" in (context.__doc__ or "")
    assert context.__dataclass_params__.frozen
    assert all(field.default is dataclasses.MISSING for field in dataclasses.fields(context))


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("macros/")])
def test_macros_use_only_their_arguments(name: str) -> None:
    assert undeclared(name) == set()


@pytest.mark.parametrize("name", FILES)
def test_no_template_knows_an_operation(name: str) -> None:
    """What is computed enters as lines: a template that names an operation is one of too many."""
    words = set(re.findall(r"[a-z_]\w*", text_of(name).lower()))
    assert words.isdisjoint({row.kind for row in TABLE})
    assert words.isdisjoint({"gelu", "silu", "softmax", "layer_norm", "attention", "matmul"})
    assert "fn." not in text_of(name)


@pytest.mark.parametrize("name", FILES)
def test_templates_import_only_macros(name: str) -> None:
    found = jinja2.meta.find_referenced_templates(environment().parse(text_of(name)))
    assert all(other is not None and other.startswith("macros/") for other in found)


def test_a_kernel_is_its_lines_in_their_place() -> None:
    lines = render("pointwise.py.jinja", POINTWISE).splitlines()
    body = [line.strip() for line in lines if line.startswith("    ")]
    assert body[:4] == ["a_ptr,", "b_out,", "INDEX_TYPE: tl.constexpr,", "XBLOCK: tl.constexpr,"]
    assert body[-4:] == ["x_mask = x < 64", *POINTWISE.x_lines, *POINTWISE.body]
    assert lines[0] == '"""region_0: elementwise.'


@pytest.mark.parametrize("missing", [field.name for field in dataclasses.fields(POINTWISE)])
def test_a_missing_value_is_an_error(missing: str) -> None:
    names = [field.name for field in dataclasses.fields(POINTWISE) if field.name != missing]
    partial = dataclasses.make_dataclass("Partial", names)
    values = {name: getattr(POINTWISE, name) for name in names}
    with pytest.raises(jinja2.UndefinedError, match=missing):
        render("pointwise.py.jinja", partial(**values))


def test_a_missing_attribute_of_a_value_is_an_error() -> None:
    context = LoopedContext("k", (), (), "4", "8", (), (), passes=("not a pass",), results=())  # type: ignore[arg-type]
    with pytest.raises(jinja2.UndefinedError, match="before"):
        render("reduction_looped.py.jinja", context)


def test_every_template_is_rendered_somewhere() -> None:
    package = Path(__file__).resolve().parents[2] / "codegen"
    source = "\n".join(path.read_text() for path in package.rglob("*.py"))
    for name in CONTEXTS:
        assert f'render("{name}"' in source
