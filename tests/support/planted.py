"""Faults planted in the compiler, for tests of what has to find them.

Each is in one place, so that everything else is the compiler as it is.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import pytest

from fuser import driver
from fuser.capture import backend, from_fx
from fuser.codegen import body
from fuser.codegen.generate import generate
from fuser.codegen.source import program_key
from fuser.ir.graph import Graph
from fuser.ir.kernel import RegionKernels
from fuser.ir.ops import BY_KIND
from fuser.ir.plan import FusionPlan
from fuser.passes import pipeline

Edit = Callable[[str], str]


def use_generate(patch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    """Have every stage that generates kernels use `function`."""
    for stage in ("driver", "fit", "tune", "verification.kernels"):
        patch.setattr(importlib.import_module(f"fuser.{stage}"), "generate", function)


def edit_kernels(patch: pytest.MonkeyPatch, edit: Edit) -> list[str]:
    """Have every kernel's text edited; the names of those that changed."""
    changed: list[str] = []

    def generate_edited(plan: FusionPlan, *given: Any, **options: Any) -> tuple[RegionKernels, ...]:
        found = []
        for entry in generate(plan, *given, **options):
            kernels = []
            for spec in entry.kernels:
                text = edit(spec.source)
                if text != spec.source:
                    changed.append(spec.name)
                kernels.append(dataclasses.replace(spec, source=text, key=program_key(text)))
            found.append(RegionKernels(entry.regions, tuple(kernels)))
        return tuple(found)

    use_generate(patch, generate_edited)
    return changed


def edit_row(patch: pytest.MonkeyPatch, kind: str, expression: str) -> None:
    """Have a row of the op table compute something else."""
    row = dataclasses.replace(BY_KIND[kind], expression=expression)
    patch.setattr(body, "BY_KIND", {**BY_KIND, kind: row})


def edit_host(patch: pytest.MonkeyPatch, edit: Edit) -> None:
    """Have the text of every host program edited."""
    made = driver.host_program

    def edited(*given: Any, **options: Any) -> Any:
        program = made(*given, **options)
        return dataclasses.replace(program, source=edit(program.source))

    patch.setattr(driver, "host_program", edited)


def add_rewrite(patch: pytest.MonkeyPatch, rewrite: Callable[[Graph], Graph]) -> None:
    """Have the planner rewrite each graph once more."""
    patch.setattr(pipeline, "REWRITES", (*pipeline.REWRITES, rewrite))


def decompose(patch: pytest.MonkeyPatch, call: Any, into: Callable[..., Any]) -> None:
    """Have capture replace a call."""
    table = backend.decompositions
    patch.setattr(backend, "decompositions", lambda *given: {**table(*given), call: into})


def forget_offsets(patch: pytest.MonkeyPatch) -> None:
    """Have every view begin where the memory does that it is a view of."""
    right = from_fx._Importer.view

    def wrong(self: Any, *given: Any) -> Any:
        return dataclasses.replace(right(self, *given), storage_offset=0)

    patch.setattr(from_fx._Importer, "view", wrong)
