"""Barriers that not every lane of a program passes, or not as often as the others.

A condition is followed back to where lanes begin to differ: the index of the outermost loop, an array's element at a
place that differs, a row's own number or total. What cannot be followed (an argument of a function) is taken for the
same on all lanes, so that a finding is one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tkern.lint.source import Function, Module, names_in

__all__ = ["divergent"]

_BARRIERS = {"taichi.simt.block.sync", "taichi.simt.block.mem_sync"}
# Words with a barrier inside, by what their object was made of.
_WORDS = {"row": ("sum", "sum2", "max"), "column_sums": ("finish",)}
# Attributes and words that differ from lane to lane, or from row to row of a program.
_DIFFERENT = {"lane", "place", "inside"}
_DIFFERENT_WORDS = {"load_scalar", "sum", "sum2", "max", "at"}


def divergent(module: Module, function: Function) -> Iterator[ast.AST]:
    """Find the barriers of a function that stand where lanes may differ."""
    yield from _Walk(module, function).walk(function.node.body, False, True)


class _Walk:
    def __init__(self, module: Module, function: Function) -> None:
        self._module = module
        self._kernel = function.kernel
        self._made = {
            target.id: node.value.func.attr
            for node in function.nodes
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            for target in node.targets
            if isinstance(target, ast.Name) and isinstance(node.value.func, ast.Attribute)
        }
        self._differ: set[str] = set()
        if function.kernel:
            for node in function.node.body:
                if isinstance(node, ast.For):
                    self._differ |= names_in(node.target)
        self._follow(function.nodes)

    def _follow(self, nodes: tuple[ast.AST, ...]) -> None:
        """Add the names that are assigned what differs, until none is added."""
        before = -1
        while before != len(self._differ):
            before = len(self._differ)
            for part in nodes:
                if isinstance(part, (ast.Assign, ast.AugAssign)) and self._differs(part.value):
                    targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                    for target in targets:
                        if isinstance(target, (ast.Name, ast.Tuple)):
                            self._differ |= names_in(target)

    def walk(self, body: list[ast.stmt], apart: bool, outermost: bool = False) -> Iterator[ast.AST]:
        """Find barriers in ``body``; ``apart`` where lanes have parted already."""
        for node in body:
            if isinstance(node, ast.If):
                parts = apart or self._branches_apart(node.test)
                yield from self._barriers(node.test, apart)
                yield from self.walk(node.body, parts)
                yield from self.walk(node.orelse, parts)
                # Lanes that left the loop or the function do not come to what follows.
                apart = apart or (parts and (_leaves(node.body) or _leaves(node.orelse)))
            elif isinstance(node, ast.For):
                parts = not (outermost and self._kernel) and self._branches_apart(node.iter)
                yield from self.walk(node.body, apart or parts)
            elif isinstance(node, ast.While):
                yield from self.walk(node.body, apart or self._branches_apart(node.test))
            else:
                yield from self._barriers(node, apart)

    def _barriers(self, node: ast.AST, apart: bool) -> Iterator[ast.AST]:
        if apart:
            yield from (part for part in ast.walk(node) if isinstance(part, ast.Call) and self._is_barrier(part))

    def _is_barrier(self, node: ast.Call) -> bool:
        if self._module.name_of(node.func) in _BARRIERS:
            return True
        if not isinstance(node.func, ast.Attribute) or not isinstance(node.func.value, ast.Name):
            return False
        return node.func.attr in _WORDS.get(self._made.get(node.func.value.id, ""), ())

    def _branches_apart(self, test: ast.expr) -> bool:
        return not self._module.is_static(test) and self._differs(test)

    def _differs(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._differ
        if isinstance(node, ast.Attribute):
            return node.attr in _DIFFERENT
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                of = node.func.value
                if node.func.attr in _DIFFERENT_WORDS and isinstance(of, ast.Name) and of.id in self._made:
                    return True
                # A word of the program gives what is the same for all its lanes: p = t.program(i, programs).
                if not self._module.name_of(node.func).startswith("taichi."):
                    return False
            return any(self._differs(one) for one in node.args)
        return any(self._differs(part) for part in ast.iter_child_nodes(node))


def _leaves(body: list[ast.stmt]) -> bool:
    return any(isinstance(node, (ast.Continue, ast.Break, ast.Return)) for node in body)
