"""Every row of the op table against torch's schemas and the functions that kernels call."""

from __future__ import annotations

import ast
import re
import string
from typing import Any

import pytest
import torch
import torch._prims  # registers torch.ops.prims

from fuser.codegen.reductions import FOLDS
from fuser.ir.ops import BY_KIND, BY_TARGET, TABLE, Group, OpSpec, Promotion
from fuser.runtime import device_functions

ROWS = [pytest.param(row, id=f"{number}-{row.kind}") for number, row in enumerate(TABLE)]
WRITTEN = (Group.POINTWISE, Group.CREATION)


def overload(target: str) -> Any:
    """torch's call of this name, or None."""
    namespace, name, kind = target.split(".")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return getattr(packet, kind, None)


def takes_a_tensor(call: Any) -> bool:
    return any("Tensor" in str(argument.type) for argument in call._schema.arguments)


def placeholders(expression: str) -> set[int]:
    return {int(field) for _, field, _, _ in string.Formatter().parse(expression) if field}


def expressions(row: OpSpec) -> list[str]:
    return [text for text in (row.expression, row.bool_expression) if text]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_stands_for_calls_of_torch(row: OpSpec) -> None:
    assert [target for target in row.targets if overload(target) is None] == []
    assert len(set(row.targets)) == len(row.targets)


@pytest.mark.parametrize("row", ROWS)
def test_operands_and_options_are_parameters_of_the_calls(row: OpSpec) -> None:
    for call in filter(None, map(overload, row.targets)):
        if row.group is not Group.CREATION and not takes_a_tensor(call):
            continue
        parameters = {argument.name for argument in call._schema.arguments}
        assert set(row.operands) <= parameters, call
        # An option that one overload lacks has the value that the row asks for.
        assert {name for name, _ in row.requires} <= parameters | {"alpha", "rounding_mode"}, call


@pytest.mark.parametrize("row", ROWS)
def test_expressions_use_every_operand_and_no_other(row: OpSpec) -> None:
    if row.group in WRITTEN:
        assert placeholders(row.expression) == set(range(len(row.operands)))
        assert placeholders(row.bool_expression) <= set(range(len(row.operands)))
    assert set(row.keeps) <= set(range(len(row.operands)))


@pytest.mark.parametrize("row", ROWS)
def test_expressions_are_python_over_known_names(row: OpSpec) -> None:
    for expression in expressions(row) if row.group in WRITTEN else []:
        names = [f"operand_{k}" for k in range(len(row.operands))]
        tree = ast.parse(expression.format(*names), mode="eval")
        found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert found <= {*names, "fn", "tl", "index"}


@pytest.mark.parametrize("row", ROWS)
def test_functions_exist(row: OpSpec) -> None:
    for name in re.findall(r"\bfn\.(\w+)", " ".join(expressions(row))):
        assert callable(getattr(device_functions, name))


@pytest.mark.parametrize("row", ROWS)
def test_rows_that_compute_on_booleans_say_how(row: OpSpec) -> None:
    if row.promotion is Promotion.TO_BOOL and row.group in WRITTEN:
        assert row.bool_expression
    assert row.weight >= 1


def test_each_reduction_has_its_fold() -> None:
    folding = (Group.REDUCTION, Group.CONTRACTION)
    assert {row.kind for row in TABLE if row.group in folding} == set(FOLDS)
    for fold in FOLDS.values():
        for name in (fold.function, f"accumulate_{fold.function}"):
            assert callable(getattr(device_functions, name))


def test_each_row_of_a_target_can_be_reached() -> None:
    """A row is shadowed where an earlier one asks for no more than it does."""
    for target, rows in BY_TARGET.items():
        for position, row in enumerate(rows):
            for earlier in rows[:position]:
                assert not set(earlier.requires) <= set(row.requires), (target, row.kind)


def test_the_rows_of_a_kind_compute_the_same() -> None:
    for row in TABLE:
        first = BY_KIND[row.kind]
        assert (row.expression, row.group, row.promotion, row.keeps) == (
            first.expression,
            first.group,
            first.promotion,
            first.keeps,
        ), row
