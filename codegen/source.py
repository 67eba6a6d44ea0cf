"""Finished kernel text: blank lines tidied, parsed, checked for names nothing defines, keyed."""

from __future__ import annotations

import ast
import builtins
import hashlib
import re

from fuser.errors import SourceGenerationError


def checked_source(kernel: str, text: str) -> str:
    """The text, if it is a module that defines `kernel` and uses no unknown name."""
    text = re.sub(r"[ \t]+\n", "\n", text)
    text = re.sub(r"\n{4,}", "\n\n\n", text.strip() + "\n")
    text = re.sub(r"\n\n+(?=[ \t])", "\n", text)
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise SourceGenerationError(
            kernel=kernel,
            reason=f"not valid Python: {error.msg}",
            source=text,
            line=error.lineno or 0,
        ) from error
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    defined = {function.name for function in functions}
    if kernel not in defined:
        raise SourceGenerationError(kernel=kernel, reason="defines no kernel", source=text, line=0)
    for function in functions:
        _check_names(kernel, function, defined, text)
    return text


def _check_names(kernel: str, function: ast.FunctionDef, defined: set[str], text: str) -> None:
    known = defined | {argument.arg for argument in function.args.args}
    known |= {"triton", "tl", "fn", *dir(builtins)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.add(node.id)
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id not in known:
            raise SourceGenerationError(
                kernel=kernel, reason=f"uses {node.id}, which nothing defines", source=text,
                line=node.lineno,
            )  # fmt: skip


def program_key(text: str) -> str:
    """A digest of what a kernel module does: equal for equal programs with other names."""
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if not isinstance(node, ast.Expr)]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            _Renamer(node).visit(node)
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:24]


class _Renamer(ast.NodeTransformer):
    """Numbers a function's own names in order; compile-time parameters keep theirs."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self.numbers: dict[str, str] = {}
        self.own = {a.arg for a in function.args.args if a.annotation is None}
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.own.add(node.id)

    def number(self, name: str) -> str:
        if name not in self.own:
            return name
        return self.numbers.setdefault(name, f"v{len(self.numbers)}")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = "kernel"
        self.generic_visit(node)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self.number(node.arg)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.number(node.id)
        return node
