"""What is known of a module from its text: its names, its kernels, and which comments allow what."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tkern.lint.rules import CPU, GPU

__all__ = ["Allowed", "Function", "Module", "lines_reached", "names_in", "read"]

_ALLOW = re.compile(r"#\s*tkern:\s*allow\b[ \t]*(?P<rule>[\w-]*)[ \t:]*(?P<why>.*)")


@dataclass
class Allowed:
    """A comment that allows ``rule`` on a ``line``."""

    line: int
    column: int
    rule: str
    why: str
    used: bool = False


@dataclass(frozen=True)
class Function:
    """A function that Taichi reads: a kernel, or one that kernels call; ``nodes`` is all that is in it.

    ``arrays`` are its parameters that are arrays, ``words`` those of them that are ``t.Array`` and alike. ``outer`` is
    what the names it has from around it were assigned.
    """

    node: ast.FunctionDef
    nodes: tuple[ast.AST, ...]
    kernel: bool
    arrays: frozenset[str]
    words: frozenset[str]
    outer: dict[str, ast.expr]


@dataclass
class Module:
    """A module's text and what was read from it. ``backends`` are those that it is meant for."""

    path: Path
    lines: list[str]
    nodes: tuple[ast.AST, ...]
    backends: frozenset[str]
    imported: dict[str, str]
    functions: list[Function]
    allowed: list[Allowed]

    def name_of(self, node: ast.AST) -> str:
        """Return the full dotted name of ``ti.exp``: "taichi.exp"; "" of what is no name, the name itself if local."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.imported.get(node.id, node.id), *reversed(parts)])

    def is_static(self, node: ast.AST) -> bool:
        """Return whether ``node`` is a call of ``ti.static``."""
        return isinstance(node, ast.Call) and self.name_of(node.func) == "taichi.static"


def read(path: Path, text: str) -> Module:
    """Read a module. Raises SyntaxError where its text is no Python."""
    tree = ast.parse(text, filename=str(path))
    nodes = tuple(ast.walk(tree))
    imported = dict(_imports(nodes))
    stem = path.stem
    backends = CPU if stem.endswith("_cpu") else GPU if stem.endswith("_gpu") else CPU | GPU
    module = Module(path, text.splitlines(), nodes, backends, imported, [], _comments(text))
    module.functions += _functions(module, tree, {})
    return module


def lines_reached(module: Module, first_line: int) -> set[int]:
    """Return the lines of the kernel that begins at ``first_line``, and of the functions it calls by their names."""
    left = [one for one in module.functions if _first_line(one.node) <= first_line <= one.node.body[0].lineno]
    reached: set[int] = set()
    lines: set[int] = set()
    while left:
        one = left.pop()
        if id(one) in reached:
            continue
        reached.add(id(one))
        lines |= set(range(_first_line(one.node), (one.node.end_lineno or one.node.lineno) + 1))
        called = names_in(one.node) | {node.attr for node in one.nodes if isinstance(node, ast.Attribute)}
        left += [other for other in module.functions if not other.kernel and other.node.name in called]
    return lines


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(mark.lineno for mark in node.decorator_list)])


def names_in(node: ast.AST) -> set[str]:
    """Return the names that stand in ``node``."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _functions(module: Module, scope: ast.AST, outer: dict[str, ast.expr]) -> Iterator[Function]:
    """Find the functions that Taichi reads inside ``scope``, which has the names of ``outer`` around it."""
    inside = {**outer, **_assigned(scope)}
    left = list(ast.iter_child_nodes(scope))
    while left:
        node = left.pop(0)
        if not isinstance(node, ast.FunctionDef):
            left += ast.iter_child_nodes(node)
            continue
        marks = {module.name_of(mark) for mark in node.decorator_list}
        if marks & {"taichi.kernel", "taichi.func", "taichi.real_func", "taichi.pyfunc"}:
            yield _function(module, node, "taichi.kernel" in marks, inside)
        else:
            hidden = {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
            yield from _functions(module, node, {name: v for name, v in inside.items() if name not in hidden})


def _assigned(scope: ast.AST) -> dict[str, ast.expr]:
    """Return what the names of a scope are assigned, not those of the functions in it."""
    found: dict[str, ast.expr] = {}
    left = list(ast.iter_child_nodes(scope))
    while left:
        node = left.pop(0)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, node.value)
        elif not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.expr)):
            left += ast.iter_child_nodes(node)
    return found


def _function(module: Module, node: ast.FunctionDef, kernel: bool, outer: dict[str, ast.expr]) -> Function:
    parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    words = {
        one.arg
        for one in parameters
        if isinstance(one.annotation, ast.Attribute) and one.annotation.attr in ("Array", "Integers", "Rows")
    }
    arrays = words | {one.arg for one in parameters if _is_array(module, one.annotation, outer)}
    nodes = tuple(ast.walk(node))
    own = {part.id for part in nodes if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    own |= {one.arg for one in parameters}
    seen = {name: value for name, value in outer.items() if name not in own}
    return Function(node, nodes, kernel, frozenset(arrays), frozenset(words), seen)


def _is_array(module: Module, annotation: ast.expr | None, outer: dict[str, ast.expr]) -> bool:
    if isinstance(annotation, ast.Name):
        annotation = outer.get(annotation.id)
    called = annotation.func if isinstance(annotation, ast.Call) else None
    return called is not None and module.name_of(called).endswith("types.ndarray")


def _imports(nodes: tuple[ast.AST, ...]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for one in node.names:
                yield (one.asname, one.name) if one.asname else (one.name.split(".")[0], one.name.split(".")[0])
        elif isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                yield one.asname or one.name, f"{node.module}.{one.name}"


def _comments(text: str) -> list[Allowed]:
    found: list[Allowed] = []
    if "tkern:" not in text:
        return found
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        said = _ALLOW.match(token.string)
        if said:
            alone = not token.line[: token.start[1]].strip()
            found.append(Allowed(token.start[0] + alone, token.start[1] + 1, said["rule"], said["why"].strip()))
    return found
