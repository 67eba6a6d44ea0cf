"""What a user asks of a plan: rules on which ops must, must not or should have been fused.

In: texts such as `op:softmax`, `module:encoder.layer.*.mlp` and `line:model.py:120`. Out: frozen
rules, and with `apply` the ops and edges of one graph that they are about. Nothing here decides
what is fused: the partitioner obeys `Requests`, and `check_asserted` looks at the finished plan.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import TypeAlias

from fuser.errors import AssertFusedError, InvalidArgument
from fuser.ir.graph import Graph, Op
from fuser.ir.plan import FusionPlan
from fuser.log import warn_once

SHOWN_NAMES = 4
"""Near matches that a warning names."""

PATTERN_EXPECTED = (
    "an op ('softmax' or 'op:exp_2'), a module path ('module:encoder.layer.*.mlp') or a source "
    "line ('line:model.py:120' or 'line:model.py:120-131')"
)

Edge: TypeAlias = tuple[str, str]
"""Names of an op and of one that reads its result."""


class PatternKind(Enum):
    """What a pattern looks at."""

    OP = "op"
    MODULE = "module"
    LINE = "line"


class RuleKind(Enum):
    """What a rule asks for; the value is the public function that makes it."""

    MUST_FUSE = "must_fuse"
    NO_FUSE = "no_fuse"
    ASSERT_FUSED = "assert_fused"


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which ops a rule is about.

    An op pattern is compared with the op's name, its kind and the name of its torch call, with or
    without namespace and overload; `*` and `?` stand for any characters. In a module path `*`
    stands for one part of the path and `**` for any number; modules inside a matching one match
    too. A file is given by its name or the end of its path.
    """

    kind: PatternKind
    text: str

    def matches(self, op: Op) -> bool:
        if self.kind is PatternKind.OP:
            return any(fnmatchcase(name, self.text) for name in _names(op))
        if self.kind is PatternKind.MODULE:
            return _module_expression(self.text).fullmatch(op.source.module) is not None
        file, first, last = _lines(self.text)
        is_file = op.source.file == file or op.source.file.endswith(f"/{file}")
        return is_file and first <= op.source.line <= last

    def select(self, graph: Graph) -> tuple[str, ...]:
        """Names of the matching ops. Of a module or line, what runs as its original call is left
        out unless there is nothing else."""
        found = [op for op in graph.ops if self.matches(op)]
        if self.kind is not PatternKind.OP:
            found = [op for op in found if not op.is_opaque] or found
        return tuple(op.name for op in found)

    def near(self, graph: Graph) -> tuple[str, ...]:
        """What the graph has that is spelled like this pattern."""
        if self.kind is PatternKind.LINE:
            return _lines_near(self.text, graph)
        known: dict[str, None] = {}
        for op in graph.ops:
            names = _names(op) if self.kind is PatternKind.OP else (op.source.module,)
            known.update(dict.fromkeys(names))
        known.pop("", None)
        close = difflib.get_close_matches(self.text, known, n=SHOWN_NAMES, cutoff=0.5)
        if self.kind is PatternKind.OP:
            # A function that was taken apart, such as softmax, is still there as a line.
            close += _lines_that_say(self.text, graph)
        return tuple(close[:SHOWN_NAMES])

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.text}"


@dataclass(frozen=True, slots=True)
class FusionRule:
    """One request. With one pattern it is about each matching op and any of its neighbours, with
    two about every edge between an op of the first and one of the second, whichever reads."""

    kind: RuleKind
    first: Pattern
    second: Pattern | None = None

    def __str__(self) -> str:
        patterns = [self.first] if self.second is None else [self.first, self.second]
        return f"{self.kind.value}({', '.join(repr(str(pattern)) for pattern in patterns)})"


def must_fuse(a: str, b: str | None = None) -> FusionRule:
    """Fuse, whatever the predicted gain: every edge between `a` and `b`, or each `a` with at least
    one op that it reads or that reads it. Planning raises `MustFuseError` where a hard limit
    stands against it."""
    return _rule(RuleKind.MUST_FUSE, a, b)


def no_fuse(a: str, b: str | None = None) -> FusionRule:
    """Keep apart: never `a` and `b` of one edge in one kernel, or each `a` in a kernel of its
    own."""
    return _rule(RuleKind.NO_FUSE, a, b)


def assert_fused(a: str, b: str | None = None) -> FusionRule:
    """Change nothing, but raise `AssertFusedError` when the plan does not fuse every edge between
    `a` and `b`, or leaves an `a` without any neighbour in its kernel."""
    return _rule(RuleKind.ASSERT_FUSED, a, b)


def parse_pattern(text: str, function: str = "rule") -> Pattern:
    """The pattern that a text stands for; a word without a colon is an op."""
    if not isinstance(text, str) or not text.strip():
        raise _malformed(function, text)
    head, colon, rest = text.strip().partition(":")
    if not colon:
        return Pattern(PatternKind.OP, head)
    kinds = {kind.value: kind for kind in PatternKind}
    if head not in kinds or not rest:
        raise _malformed(function, text)
    pattern = Pattern(kinds[head], rest)
    if pattern.kind is PatternKind.LINE and _LINE.fullmatch(rest) is None:
        raise _malformed(function, text)
    return pattern


def check_rules(function: str, rules: object) -> tuple[FusionRule, ...]:
    """The rules as a tuple; raises `InvalidArgument` for anything else than rules."""
    is_many = isinstance(rules, Iterable) and not isinstance(rules, str)
    found = tuple(rules) if isinstance(rules, Iterable) and is_many else (rules,)
    if not is_many or not all(isinstance(rule, FusionRule) for rule in found):
        raise InvalidArgument(
            function=function,
            argument="rules",
            value=rules,
            expected="a list of what fuser.must_fuse, fuser.no_fuse and fuser.assert_fused return",
        )
    return found


# Rules on one graph -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Requests:
    """The rules as the ops and edges of one graph, each group in program order."""

    forbidden: frozenset[Edge] = frozenset()
    alone: frozenset[str] = frozenset()
    pairs: tuple[tuple[FusionRule, Edge], ...] = ()
    accompanied: tuple[tuple[FusionRule, str], ...] = ()
    asserted_pairs: tuple[tuple[FusionRule, Edge], ...] = ()
    asserted_ops: tuple[tuple[FusionRule, str], ...] = ()


def apply(rules: Sequence[FusionRule], graph: Graph, warn: bool = True) -> Requests:
    """What the rules ask of this graph; with `warn`, one warning for each that asks nothing."""
    ops: dict[RuleKind, list[tuple[FusionRule, str]]] = {kind: [] for kind in RuleKind}
    pairs: dict[RuleKind, list[tuple[FusionRule, Edge]]] = {kind: [] for kind in RuleKind}
    for rule in rules:
        if rule.second is None:
            names = rule.first.select(graph)
            ops[rule.kind] += [(rule, name) for name in names]
            is_idle = not names
        else:
            found = _edges_between(rule.first, rule.second, graph)
            pairs[rule.kind] += [(rule, edge) for edge in found]
            is_idle = not found
        if is_idle and warn:
            warn_once(("rule", rule), _nothing(rule, graph))
    return Requests(
        forbidden=frozenset(edge for _, edge in pairs[RuleKind.NO_FUSE]),
        alone=frozenset(name for _, name in ops[RuleKind.NO_FUSE]),
        pairs=tuple(pairs[RuleKind.MUST_FUSE]),
        accompanied=tuple(ops[RuleKind.MUST_FUSE]),
        asserted_pairs=tuple(pairs[RuleKind.ASSERT_FUSED]),
        asserted_ops=tuple(ops[RuleKind.ASSERT_FUSED]),
    )


def check_asserted(requests: Requests, plan: FusionPlan) -> None:
    """Raise `AssertFusedError` for the first rule that the plan does not keep."""
    broken: dict[FusionRule, dict[str, None]] = {}
    verdicts = {(verdict.producer, verdict.consumer): verdict for verdict in plan.verdicts}
    for rule, edge in requests.asserted_pairs:
        if not verdicts[edge].fused:
            broken.setdefault(rule, {})[f"{edge[0]} -> {edge[1]}: {verdicts[edge].text}"] = None
    for rule, name in requests.asserted_ops:
        around = [verdict for edge, verdict in verdicts.items() if name in edge]
        if any(verdict.fused for verdict in around):
            continue
        lines = [f"{v.producer} -> {v.consumer}: {v.text}" for v in around]
        lines = lines or [f"{name}: nothing in this graph reads it or is read by it"]
        broken.setdefault(rule, {}).update(dict.fromkeys(lines))
    for rule, edges in broken.items():
        raise AssertFusedError(rule=str(rule), edges=tuple(edges))


def _edges_between(first: Pattern, second: Pattern, graph: Graph) -> list[Edge]:
    left, right = set(first.select(graph)), set(second.select(graph))
    found: dict[Edge, None] = {}
    for op in graph.ops:
        for value in op.reads:
            producer = graph.producers.get(value)
            if producer is None:
                continue
            edge = (producer.name, op.name)
            if (edge[0] in left and edge[1] in right) or (edge[0] in right and edge[1] in left):
                found[edge] = None
    return list(found)


def _nothing(rule: FusionRule, graph: Graph) -> str:
    patterns = [pattern for pattern in (rule.first, rule.second) if pattern is not None]
    absent = [pattern for pattern in patterns if not pattern.select(graph)]
    text = f"{rule} changes nothing in {graph.name}: "
    if not absent:
        return text + "no op of the one pattern reads an op of the other"
    parts = []
    for pattern in absent:
        near = pattern.near(graph)
        parts.append(f"'{pattern}' matches no op" + (f" (near: {', '.join(near)})" if near else ""))
    return text + ", ".join(parts)


def _names(op: Op) -> tuple[str, ...]:
    """What an op is called: its own name, its kind, and its torch call in three lengths."""
    call = op.call.name
    parts = call.split(".")
    kind = () if op.is_opaque else (op.kind,)
    return tuple(dict.fromkeys((op.name, *kind, call, ".".join(parts[:2]), *parts[1:2])))


def _lines_near(text: str, graph: Graph) -> tuple[str, ...]:
    """The nearest lines of the file, or of the one that is spelled most like it."""
    wanted, first, _ = _lines(text)
    lines: dict[str, set[int]] = {}
    for op in graph.ops:
        if op.source.file:
            lines.setdefault(_base(op.source.file), set()).add(op.source.line)
    files = difflib.get_close_matches(_base(wanted), lines, n=1)
    return tuple(
        f"{file}:{line}"
        for file in files
        for line in sorted(lines[file], key=lambda line: (abs(line - first), line))[:SHOWN_NAMES]
    )


def _base(file: str) -> str:
    return file.rsplit("/", 1)[-1]


def _lines_that_say(word: str, graph: Graph) -> list[str]:
    """Line patterns for the code that has this word, or the one that is spelled most like it."""
    lines: dict[str, dict[str, None]] = {}
    for op in graph.ops:
        for said in set(re.findall(r"[a-z_]\w+", op.source.code)):
            where = f"line:{_base(op.source.file)}:{op.source.line}"
            lines.setdefault(said, {})[where] = None
    return [line for said in difflib.get_close_matches(word, lines, n=1) for line in lines[said]]


_LINE = re.compile(r"(?P<file>.+):(?P<first>\d+)(-(?P<last>\d+))?")


@functools.lru_cache(maxsize=256)
def _lines(text: str) -> tuple[str, int, int]:
    found = _LINE.fullmatch(text)
    assert found is not None
    first = int(found["first"])
    return found["file"], first, int(found["last"] or first)


@functools.lru_cache(maxsize=256)
def _module_expression(glob: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*|\*|\?)", glob)
    wild = {"**": r".*", "*": r"[^.]*", "?": r"[^.]"}
    return re.compile("".join(wild.get(part, re.escape(part)) for part in parts) + r"(\..*)?")


def _rule(kind: RuleKind, a: str, b: str | None) -> FusionRule:
    second = None if b is None else parse_pattern(b, kind.value)
    return FusionRule(kind, parse_pattern(a, kind.value), second)


def _malformed(function: str, value: object) -> InvalidArgument:
    hint = ""
    if isinstance(value, str) and _LINE.fullmatch(value) and not value.startswith("line:"):
        hint = f"; a source line is written 'line:{value}'"
    return InvalidArgument(
        function=function, argument="pattern", value=value, expected=PATTERN_EXPECTED + hint
    )


__all__ = [
    "Edge",
    "FusionRule",
    "Pattern",
    "PatternKind",
    "Requests",
    "RuleKind",
    "apply",
    "assert_fused",
    "check_asserted",
    "check_rules",
    "must_fuse",
    "no_fuse",
    "parse_pattern",
]
