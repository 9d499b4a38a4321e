"""Which names of a kernel's text are elements of rows: 16-vectors on a CPU, floats on a GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tkern.lint.source import Function, Module

__all__ = ["Elements"]

# What makes an element, and what gives one back for one.
_MAKERS = {"taichi.Vector", "tkern.lang.rows_cpu.load", "tkern.lang.rows_cpu.load_some", "tkern.lang.rows_cpu.Vector"}
_KEEPERS = {
    *(f"taichi.{name}" for name in ("select", "max", "min", "sqrt", "floor", "ceil", "round", "cast", "exp", "log")),
    *(f"tkern.lang.safe.{name}" for name in ("both", "either", "vector_exp")),
}
_NO_VECTORS = {
    *(f"taichi.{name}" for name in (
        "exp", "log", "sin", "cos", "tan", "tanh", "asin", "acos", "atan2", "abs", "rsqrt", "pow",
    )),
    *(f"taichi.math.{name}" for name in ("exp", "log", "log2", "sin", "cos", "tan", "tanh", "asin", "acos", "pow")),
    "abs",
}  # fmt: skip


class Elements:
    """The elements of one function, found by following its assignments until no more names are added."""

    def __init__(self, module: Module, function: Function) -> None:
        self._module = module
        self._nodes = function.nodes
        self._outer = function.outer
        self._assigned = list(self._assignments())
        self._lines = self._assigned_from(("read", "shared_row"))
        # The words (``t``) are what the function around the kernel is called with, whatever it is named.
        self._names: set[str] = set()
        while True:
            found = {name for name, value in self._assigned if self.is_element(value)}
            if found <= self._names:
                break
            self._names |= found

    def is_element(self, node: ast.expr) -> bool:
        """Return whether ``node`` is an element, or a condition of elements."""
        if isinstance(node, ast.Name):
            return node.id in self._names
        if isinstance(node, ast.BinOp):
            return self.is_element(node.left) or self.is_element(node.right)
        if isinstance(node, ast.UnaryOp):
            return self.is_element(node.operand)
        if isinstance(node, ast.BoolOp):
            return any(self.is_element(value) for value in node.values)
        if isinstance(node, ast.Compare):
            return any(self.is_element(part) for part in (node.left, *node.comparators))
        if isinstance(node, ast.IfExp):
            return self.is_element(node.body) or self.is_element(node.orelse)
        return isinstance(node, ast.Call) and self._is_call_of_one(node)

    def vector_math(self) -> Iterator[tuple[ast.AST, str]]:
        """Find what Taichi cannot do with a vector on a CPU, and what it is called."""
        for node in self._nodes:
            if isinstance(node, ast.Call):
                name = self._module.name_of(node.func)
                if name in _NO_VECTORS and any(self.is_element(one) for one in node.args):
                    yield node, name.replace("taichi.", "ti.")
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and self.is_element(node.operand):
                yield node, "-"
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and self.is_element(node.right):
                yield node, "** of a power that is an element"

    def branches(self) -> Iterator[ast.AST]:
        """Find the branches on a condition of elements."""
        for node in self._nodes:
            if isinstance(node, (ast.If, ast.While, ast.IfExp)) and self.is_element(node.test):
                yield node.test

    def _is_call_of_one(self, node: ast.Call) -> bool:
        name = self._module.name_of(node.func)
        if name in _MAKERS or self._is_vector_type(name):
            return True
        if name in _KEEPERS:
            return any(self.is_element(one) for one in node.args)
        if not isinstance(node.func, ast.Attribute):
            return False
        of = node.func.value
        if node.func.attr == "at":
            return (isinstance(of, ast.Name) and of.id in self._lines) or _is_method(of, ("read", "shared_row"))
        return node.func.attr == "only" and any(self.is_element(one) for one in node.args)

    def _is_vector_type(self, name: str) -> bool:
        made = self._outer.get(name)
        return isinstance(made, ast.Call) and self._module.name_of(made.func) == "taichi.types.vector"

    def _assigned_from(self, methods: tuple[str, ...]) -> set[str]:
        return {name for name, value in self._assigned if _is_method(value, methods)}

    def _assignments(self) -> Iterator[tuple[str, ast.expr]]:
        for node in self._nodes:
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                yield node.target.id, node.value
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    yield from _pairs(target, node.value)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, its in zip(target.elts, value.elts, strict=False):
            yield from _pairs(one, its)


def _is_method(node: ast.AST, names: tuple[str, ...]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names
