"""Compare the syntax trees of changed files with a commit's, with names mapped and docstrings ignored.

``python tests/same_program.py COMMIT [FILE…]`` shows that a change of words and names changes nothing else. It lists:

* ``different``: a file whose tree differs in anything except docstrings and names. Nothing else may be on this list.
* ``merged``: two variables of one scope, or a variable and a global, that have the same name now.
* ``split``: a variable that has several new names. Look whether each use has the right one.
* ``renamed``: attributes, keyword arguments, functions and classes, which other files may use.
* ``text``: strings that are no docstrings: messages, keys, columns.

The status is 1 if a file is different or names are merged.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

SCOPES = (
    *(ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
FIELDS = {
    ast.Attribute: "attr", ast.keyword: "arg", ast.FunctionDef: "name", ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
}  # fmt: skip
"""The field of a node with a name that other files may use."""
NAMES = {"id", "arg", "attr", "name", "asname", "kind", "type_comment"}
"""Fields that are no part of a tree's form."""


def is_text(node: ast.AST) -> bool:
    """Return whether a statement is a string alone: a docstring of a module, class, function or attribute."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def parsed(source: str) -> ast.Module:
    """Return the tree of a source without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [statement for statement in body if not is_text(statement)] or [ast.Pass()]  # type: ignore[attr-defined]
            if not isinstance(node, ast.Module) and len(node.body) > 1:  # type: ignore[attr-defined]
                node.body = [item for item in node.body if not isinstance(item, ast.Pass)]  # type: ignore[attr-defined]
    return tree


@dataclass(eq=False)
class Scope:
    """A scope, the names that it binds, and the scope around it."""

    node: ast.AST
    outer: Scope | None
    names: set[str] = field(default_factory=set)


def walk(node: ast.AST, scope: Scope, uses: list[tuple[ast.AST, Scope]]) -> None:
    """Append each node below ``node`` and its scope to ``uses``, in an order that depends only on the tree's form."""
    uses.append((node, scope))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope.names.add(node.name)
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        scope.names.add(node.id)
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        scope.names.add(node.name)
    if isinstance(node, ast.alias):
        scope.names.add((node.asname or node.name).split(".")[0])
    if isinstance(node, SCOPES) and not isinstance(node, ast.Module):
        inner = Scope(node, scope)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inner.names.update(item.arg for item in ast.walk(node.args) if isinstance(item, ast.arg))
        outside = (ast.expr, ast.arguments) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ()
        for child in ast.iter_child_nodes(node):
            walk(child, scope if isinstance(child, outside) and not isinstance(child, ast.arguments) else inner, uses)
        return
    if isinstance(node, ast.NamedExpr):  # binds outside of comprehensions
        outer = scope
        while isinstance(outer.node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) and outer.outer:
            outer = outer.outer
        outer.names.add(node.target.id)
        uses.append((node.target, outer))
        walk(node.value, scope, uses)
        return
    for child in ast.iter_child_nodes(node):
        walk(child, scope, uses)


def binding(name: str, scope: Scope) -> Scope | None:
    """Return the scope that binds a name used in ``scope``, or ``None`` for a builtin."""
    outer: Scope | None = scope
    while outer is not None:
        if name in outer.names and (outer is scope or not isinstance(outer.node, ast.ClassDef)):
            return outer
        outer = outer.outer
    return None


def form(node: ast.AST) -> tuple[object, ...]:
    """Return what must be equal of two nodes, apart from names, texts and their children."""
    values: list[object] = [type(node).__name__]
    for key, value in ast.iter_fields(node):
        if isinstance(value, ast.AST) or (isinstance(node, ast.Constant) and isinstance(value, str)):
            continue
        if isinstance(value, list):
            values.append((key, len(value), all(isinstance(item, ast.AST) for item in value)))
        elif key not in NAMES or (key == "name" and isinstance(node, ast.alias)):
            values.append((key, repr(value)))
    return tuple(values)


def compared(old: str, new: str) -> Iterator[tuple[str, str]]:
    """Yield a kind of difference, and its description, for two sources."""
    sides = []
    for source in (old, new):
        tree = parsed(source)
        uses: list[tuple[ast.AST, Scope]] = []
        walk(tree, Scope(tree, None), uses)
        sides.append(uses)
    scopes: dict[Scope, Scope] = {}
    was = defaultdict(set)
    becomes = defaultdict(set)
    for left, right in zip_longest(*sides):
        if left is None or right is None or form(left[0]) != form(right[0]):
            line = getattr((right or left)[0], "lineno", "?")
            yield "different", f"line {line}: {ast.unparse((right or left)[0])[:120]}"
            return
        (node, scope), (other, other_scope) = left, right
        scopes.setdefault(scope, other_scope)
        if isinstance(node, ast.Name | ast.arg):
            names = [item.id if isinstance(item, ast.Name) else item.arg for item in (node, other)]  # type: ignore[attr-defined]
            before, after = (binding(name, where) for name, where in zip(names, (scope, other_scope), strict=True))
            was[after, names[1]].add((before, names[0], getattr(other, "lineno", 0)))
            is_same = names[0] == names[1] if before is None else scopes.get(before) is after
            becomes[before, names[0]].add((names[1], is_same))
        elif isinstance(node, ast.Constant) and node.value != other.value:  # type: ignore[attr-defined]
            yield "text", f"line {node.lineno}: {node.value!r} → {other.value!r}"  # type: ignore[attr-defined]
        elif type(node) in FIELDS:
            names = [getattr(item, FIELDS[type(node)]) for item in (node, other)]  # type: ignore[index]
            if names[0] != names[1]:
                yield "renamed", f"{type(node).__name__} {names[0]} → {names[1]}"
    for (_, name), sources in was.items():
        if len({(scope, source) for scope, source, _ in sources}) > 1:
            lines = sorted(line for *_, line in sources)
            yield "merged", f"{name}, lines {lines}: was {sorted({source for _, source, _ in sources})}"
    for (_, name), targets in becomes.items():
        if len({target for target, _ in targets}) > 1:
            yield "split", f"{name} → {sorted({target for target, _ in targets})}"
        elif not all(same for _, same in targets):
            yield "merged", f"{name} → {sorted({target for target, _ in targets})} is another scope's or a builtin"


def main() -> int:
    """Compare the changed files, print the differences, and return the status."""
    commit, *chosen = sys.argv[1:] or ["HEAD"]
    command = ["git", "diff", "--name-only", "--relative", commit, "--", *(chosen or ["*.py"])]
    paths = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    is_other = False
    for path in paths:
        old = subprocess.run(["git", "show", f"{commit}:./{path}"], capture_output=True, text=True, check=False)
        if old.returncode or not Path(path).exists():
            print(f"{path}: added or removed")
            continue
        for kind, text in dict.fromkeys(compared(old.stdout, Path(path).read_text(encoding="utf-8"))):
            is_other |= kind in ("different", "merged")
            print(f"{path}: {kind}: {text}")
    return is_other


if __name__ == "__main__":
    sys.exit(main())
