"""The user's rules: how they are written, what they match, and that plans keep them."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuser
from fuser import driver, log
from fuser.errors import AssertFusedError, InvalidArgument, MustFuseError
from fuser.ir.graph import Source
from fuser.ir.plan import FusionPlan
from fuser.ir.region import Reason
from fuser.ir.rules import (
    FusionRule,
    Pattern,
    PatternKind,
    apply,
    assert_fused,
    must_fuse,
    no_fuse,
    parse_pattern,
)
from fuser.passes.pipeline import plan_graph
from support.graphs import assert_plan_holds, graph_of, verdict_on
from support.plans import Sketch, small_graph

Program = Callable[..., Any]
X = torch.randn(4, 6)


def planned(program: Program, *rules: FusionRule, target: str = "sm_90") -> FusionPlan:
    plan = plan_graph(graph_of(program, X), target, rules=rules)
    assert_plan_holds(plan)
    return plan


def groups(plan: FusionPlan) -> list[list[str]]:
    """The kinds of the ops of each region."""
    return [[plan.graph.by_name[name].kind for name in region.ops] for region in plan.regions]


def refused(program: Program, *rules: FusionRule) -> MustFuseError:
    with pytest.raises(MustFuseError) as caught:
        planned(program, *rules)
    return caught.value


# Patterns ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "rest"),
    [
        ("softmax", PatternKind.OP, "softmax"),
        ("op:exp_2", PatternKind.OP, "exp_2"),
        ("aten.mm.default", PatternKind.OP, "aten.mm.default"),
        ("module:encoder.layer.*.mlp", PatternKind.MODULE, "encoder.layer.*.mlp"),
        ("line:model.py:120", PatternKind.LINE, "model.py:120"),
        ("line:nets/model.py:120-131", PatternKind.LINE, "nets/model.py:120-131"),
    ],
)
def test_a_text_is_a_pattern(text: str, kind: PatternKind, rest: str) -> None:
    assert parse_pattern(text) == Pattern(kind, rest)


@pytest.mark.parametrize("text", ["", "  ", "op:", "layer:x", "line:model.py", "model.py:12", 3])
def test_a_malformed_pattern_is_an_argument_not_accepted(text: Any) -> None:
    with pytest.raises(InvalidArgument, match="no_fuse: pattern="):
        no_fuse(text)


def test_a_bare_line_is_told_how_it_is_written() -> None:
    with pytest.raises(InvalidArgument, match=r"'line:model\.py:12'"):
        must_fuse("model.py:12")


@pytest.mark.parametrize("name", ["mul", "op:mul", "aten.mul", "aten.mul.default", "m?l", "*l"])
def test_an_op_has_several_names(name: str) -> None:
    assert parse_pattern(name).select(small_graph()) == ("mul",)


def test_an_original_call_is_named_by_its_call_alone() -> None:
    assert parse_pattern("mm").select(small_graph()) == ("mm",)
    assert parse_pattern("opaque").select(small_graph()) == ()


@pytest.mark.parametrize(
    ("glob", "module", "is_match"),
    [
        ("encoder.layer.*.mlp", "encoder.layer.11.mlp", True),
        ("encoder.layer.*.mlp", "encoder.layer.11.mlp.act", True),
        ("encoder.layer.*.mlp", "encoder.layer.11.attention.mlp", False),
        ("encoder.**.mlp", "encoder.layer.11.attention.mlp", True),
        ("encoder", "encoder", True),
        ("encoder", "encoder2", False),
        ("encoder", "", False),
        ("layer.?", "layer.1", True),
        ("layer.?", "layer.11", False),
    ],
)
def test_a_module_matches_with_what_is_inside_it(glob: str, module: str, is_match: bool) -> None:
    sketch = Sketch()
    graph = sketch.graph(sketch.pointwise("exp", sketch.input("x", 4)))
    (op,) = graph.ops
    object.__setattr__(op, "source", Source(module=module))
    assert parse_pattern(f"module:{glob}").matches(op) is is_match


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("line:model.py:12", ("add",)),
        ("line:model.py:12-13", ("add", "tanh")),
        ("line:someone/model.py:12", ("add",)),
        ("line:odel.py:12", ()),
        ("line:model.py:99", ()),
        # The product runs as its original call, so of the lines it is left out ...
        ("line:model.py:10-12", ("mul", "add")),
        # ... unless it is all that is there.
        ("line:model.py:11", ("mm",)),
    ],
)
def test_a_line_matches_the_ops_it_made(text: str, names: tuple[str, ...]) -> None:
    assert parse_pattern(text).select(small_graph()) == names


def test_rules_are_values() -> None:
    rule = must_fuse("exp", "module:a.*")
    assert str(rule) == "must_fuse('op:exp', 'module:a.*')"
    assert rule == must_fuse("op:exp", "module:a.*")
    assert len({rule, must_fuse("exp", "module:a.*"), must_fuse("exp")}) == 2
    assert pickle.loads(pickle.dumps(rule)) == rule


# no_fuse ----------------------------------------------------------------------------------------


def test_an_edge_is_not_fused_in_whatever_order_it_is_named() -> None:
    for rule in (no_fuse("exp", "sin"), no_fuse("sin", "exp")):
        plan = planned(lambda x: x.cos().exp().sin().tanh(), rule)
        assert groups(plan) == [["cos", "exp"], ["sin", "tanh"]]
        verdict = verdict_on(plan, "exp", "sin")
        assert (verdict.reason, verdict.detail) == (Reason.FORBIDDEN, "")
        assert verdict.gain_us > 1


def test_two_ops_stay_apart_although_a_third_could_join_them() -> None:
    plan = planned(lambda x: (lambda y: y.sin() + y)(x.exp()), no_fuse("exp", "add"))
    assert groups(plan) == [["exp"], ["sin", "add"]]
    # The kernel that `sin` is in cannot have `exp`, because `add` is in it as well.
    assert verdict_on(plan, "exp", "sin").text == f"{Reason.FORBIDDEN.value} (exp, add)"


def test_an_op_stays_alone() -> None:
    plan = planned(lambda x: x.cos().exp().sin(), no_fuse("exp"))
    assert groups(plan) == [["cos"], ["exp"], ["sin"]]


def test_a_constant_that_stays_apart_is_stored() -> None:
    def program(x: Tensor) -> Tensor:
        return x * torch.arange(6)

    assert len(planned(program).regions) == 1
    plan = planned(program, no_fuse("iota", "mul"))
    assert sorted(groups(plan)) == [["iota"], ["mul"]]
    assert verdict_on(plan, "iota", "mul").reason is Reason.FORBIDDEN


# must_fuse --------------------------------------------------------------------------------------


def test_what_would_save_nothing_is_fused_on_demand() -> None:
    """One pass over all of x for the sum, and the scaled x stored: no time is saved on the CPU."""
    graph = graph_of(lambda x: x.exp().sin(), X)
    apart = plan_graph(graph, "sm_90", rules=[no_fuse("exp", "sin")])
    assert len(apart.regions) == 2
    plan = plan_graph(graph, "sm_90", rules=[must_fuse("exp", "sin")])
    assert len(plan.regions) == 1


def test_what_was_asked_for_comes_before_what_saves_more() -> None:
    """Of two readers that reduce over different axes, the producer can join only one."""

    def program(x: Tensor) -> Any:
        y = x.exp()
        return y.sum(0), y.sum(1)

    for name, other in (("sum", "sum_1"), ("sum_1", "sum")):
        graph = graph_of(program, X)
        first, second = [op.name for op in graph.ops if op.kind == "sum"]
        wanted = first if name == "sum" else second
        plan = plan_graph(graph, "sm_90", rules=[must_fuse("exp", f"op:{wanted}")])
        assert plan.region_of["exp"] is plan.region_of[wanted], other


def test_what_stands_between_comes_along() -> None:
    plan = planned(
        lambda x: (lambda y: y / y.sum(1, keepdim=True))(x.exp()), must_fuse("exp", "divide")
    )
    assert groups(plan) == [["exp", "sum", "divide"]]


def test_an_op_gets_one_neighbour_at_least() -> None:
    def program(x: Tensor) -> Tensor:
        return x.exp().sum(0).amax(0)

    plan = planned(program, no_fuse("exp", "sum"))
    assert groups(plan) == [["exp"], ["sum"], ["amax"]]
    assert groups(planned(program, must_fuse("sum"))) == [["exp", "sum"], ["amax"]]
    error = refused(program, must_fuse("sum"), no_fuse("exp", "sum"))
    assert "other_reduction" in str(error) or "forbidden" in str(error)


@pytest.mark.parametrize(
    ("program", "rule", "limit"),
    [
        (lambda x: x.sum(0).amax(0), must_fuse("sum", "amax"), "other_reduction"),
        (lambda x: x.sum(0).amax(0), must_fuse("amax"), "other_reduction"),
        (lambda x: x.exp()[[1, 0]], must_fuse("exp", "index"), "data_dependent_read"),
        (lambda x: x.exp().cumsum(0), must_fuse("exp", "cumsum"), "opaque_reader"),
        (lambda x: x.cumsum(0).exp(), must_fuse("exp", "cumsum"), "opaque_producer"),
        (lambda x: x.cumsum(0).exp(), must_fuse("cumsum"), "opaque"),
        (lambda x: x.cumsum(0).exp(), must_fuse("exp"), "no_neighbour"),
        (lambda x: (lambda y: y + y.cumsum(0))(x.exp()), must_fuse("exp", "add"), "cycle"),
    ],
)
def test_a_hard_limit_is_an_error_that_names_it(
    program: Program, rule: FusionRule, limit: str
) -> None:
    error = refused(program, rule)
    assert error.fields["limit_name"] == limit
    assert error.fields["rule"] == str(rule)
    assert str(rule) in str(error)


def test_a_length_limit_is_one_too() -> None:
    def program(x: Tensor) -> Tensor:
        for _ in range(60):
            x = x.sin().cos()
        return x

    error = refused(program, must_fuse("sin", "cos"))
    assert error.fields["limit_name"] == "too_many_ops"
    assert error.fields["detail"] == "120 > 96"


def test_two_rules_against_each_other_are_an_error() -> None:
    error = refused(lambda x: x.exp().sin(), must_fuse("exp"), no_fuse("sin"))
    assert (error.fields["producer"], error.fields["consumer"]) == ("exp", "sin")
    assert error.fields["limit_name"] == "forbidden"


# assert_fused -----------------------------------------------------------------------------------


def test_an_assertion_changes_nothing_where_it_holds() -> None:
    plan = planned(lambda x: x.exp().sin(), assert_fused("exp", "sin"), assert_fused("exp"))
    assert groups(plan) == [["exp", "sin"]]


@pytest.mark.parametrize("rule", [assert_fused("sum", "amax"), assert_fused("amax")])
def test_an_assertion_lists_what_was_not_fused_and_why(rule: FusionRule) -> None:
    with pytest.raises(AssertFusedError) as caught:
        planned(lambda x: x.sum(0).amax(0), rule)
    (edge,) = caught.value.fields["edges"]  # type: ignore[misc]
    assert edge == "sum -> amax: the two reduce over different axes (amax over [6])".replace(
        "sum ->", f"{edge.split()[0]} ->"
    )
    assert str(edge) in str(caught.value)


def test_an_op_without_neighbours_is_not_fused() -> None:
    with pytest.raises(AssertFusedError, match="nothing in this graph reads it"):
        planned(lambda x: x.exp(), assert_fused("exp"))


# Warnings ---------------------------------------------------------------------------------------


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    monkeypatch.setattr(log, "_warned", set())
    caplog.set_level(logging.WARNING, logger="fuser")
    return lambda: [record.getMessage() for record in caplog.records if "fuser" in record.name]


def test_a_rule_that_matches_nothing_warns_once_with_near_names(warnings: Any) -> None:
    graph = small_graph()
    for _ in range(2):
        apply([no_fuse("tahn"), no_fuse("module:layers.1"), must_fuse("line:model.py:9")], graph)
    first, second, third = warnings()
    assert first.startswith("no_fuse('op:tahn') changes nothing in small: 'op:tahn' matches no op")
    assert "(near: tanh" in first
    assert "(near: layers.0)" in second
    assert "(near: model.py:10, model.py:11" in third


def test_a_function_that_was_taken_apart_is_found_by_its_line(warnings: Any) -> None:
    fuser.plan(lambda x: F.softmax(x, 1), X, target="sm_90", rules=[no_fuse("softmx")])
    (text,) = warnings()
    assert "line:test_rules.py:" in text


def test_two_patterns_without_an_edge_between_them_warn(warnings: Any) -> None:
    apply([no_fuse("mul", "amax")], small_graph())
    assert "no op of the one pattern reads an op of the other" in warnings()[0]


def test_a_backward_graph_does_not_warn(warnings: Any) -> None:
    plan_graph(small_graph(), "sm_90", "backward", rules=[no_fuse("nothing_like_it")])
    assert warnings() == []


# Public functions -------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.Tanh()
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.act(x) * 2)


def kernel_counts(plans: Sequence[fuser.Plan]) -> list[int]:
    return [len(plan.regions) for plan in plans]


def test_plan_takes_rules_by_module_and_line() -> None:
    net = Net()
    assert len(fuser.plan(net, X, target="sm_90").regions) == 1
    for rule in (fuser.no_fuse("module:act"), fuser.no_fuse("tanh", "mul")):
        for given in ({"rules": [rule]}, {"options": {"rules": [rule]}}):
            assert len(fuser.plan(net, X, target="sm_90", **given).regions) == 2  # type: ignore[arg-type]


def test_compile_takes_rules() -> None:
    net = Net()
    compiled = fuser.compile(net, rules=[fuser.no_fuse("module:act")])
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), net(X))
    assert kernel_counts(fuser.plans(compiled)) == [2]


def test_torch_compile_takes_rules() -> None:
    torch.compiler.reset()
    options: dict[str, Any] = {"rules": [fuser.no_fuse("tanh", "mul")]}
    compiled = torch.compile(Net(), backend="fuser", options=options)
    with torch.no_grad():
        compiled(X)
    assert kernel_counts(fuser.plans(compiled)) == [2]


@pytest.mark.parametrize("is_checked", ["0", "1"])
@pytest.mark.parametrize(
    ("rule", "code"),
    [(must_fuse("sum", "amax"), "must-fuse"), (assert_fused("amax"), "assert-fused")],
)
def test_a_broken_rule_reaches_the_user(
    rule: FusionRule, code: str, is_checked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSER_CHECK", is_checked)
    compiled = fuser.compile(lambda x: x.sum(0).amax(0), rules=[rule])
    with pytest.raises(Exception, match=rf"\[{code}\]"):
        compiled(X)


@pytest.mark.parametrize("rules", ["softmax", no_fuse("exp"), ["exp"], [no_fuse("exp"), None], 3])
def test_rules_are_a_list_of_rules(rules: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"a list of what fuser\.must_fuse"):
        fuser.compile(lambda x: x, rules=rules)


def test_options_with_rules_are_hashable() -> None:
    options = driver.options_from({"rules": [no_fuse("exp")]})
    assert options.rules == (no_fuse("exp"),)
    assert hash(options) == hash(driver.options_from({"rules": (no_fuse("exp"),)}))
