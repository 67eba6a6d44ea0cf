"""Rendering: a template's file name and the dataclass that is its whole input give text.

Undefined names are errors. A template may use only its context's fields and the shared macros.
Values are escaped in pages (`.html.jinja`) and stand as they are in programs.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jinja2

FOLDER = Path(__file__).parent


def _is_page(name: str | None) -> bool:
    return name is not None and name.endswith(".html.jinja")


def environment() -> jinja2.Environment:
    """The environment that every template is loaded in."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        undefined=jinja2.StrictUndefined,
        autoescape=_is_page,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


_ENVIRONMENT = environment()


def render(name: str, context: Any) -> str:
    """The text of template `name` with the fields of the `context` dataclass as its variables."""
    variables = {field.name: getattr(context, field.name) for field in dataclasses.fields(context)}
    return _ENVIRONMENT.get_template(name).render(variables)
