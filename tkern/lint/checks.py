"""The rules, each as a search through what was read of a module."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tkern.lint import barriers
from tkern.lint.elements import Elements
from tkern.lint.source import Function, Module

__all__ = ["Found", "of_function", "of_module"]

# A rule's name, where, and what stands there.
Found = tuple[str, ast.AST, str]

_SHARED = "taichi.simt.block.SharedArray"
_BLOCK_WORDS = ("taichi.simt.block.", "taichi.block.")
_THREAD_WORDS = {
    "taichi.global_thread_idx", "taichi.simt.block.thread_idx", "taichi.simt.block.global_thread_idx",
}  # fmt: skip
_TESTS = {f"taichi.math.{name}" for name in ("isnan", "isinf")}
_INFINITE = {f"{home}.{name}" for home in ("taichi.math", "math", "numpy") for name in ("inf", "nan")}
_TEXTS = {"inf", "infinity", "nan"}


def of_module(module: Module) -> Iterator[Found]:
    """Find what is wrong with a module that has kernels, outside of their text too."""
    if not module.functions:
        return
    annotated = any(isinstance(part, ast.arg) and part.annotation for one in module.functions for part in one.nodes)
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            if annotated and any(one.name == "annotations" for one in node.names):
                yield "late-annotations", node, "from __future__ import annotations"
        elif isinstance(node, ast.Call) and module.name_of(node.func) in ("taichi.types.ndarray", "taichi.ndarray"):
            values = [*node.args, *(one.value for one in node.keywords if one.arg == "dtype")]
            for value in values:
                if module.name_of(value) in ("taichi.u1", "taichi.f64"):
                    yield "unsupported-type", value, f"an array of {ast.unparse(value)}"


def of_function(module: Module, function: Function) -> Iterator[Found]:
    """Find what is wrong with the text of one kernel, or of a function that kernels call."""
    elements = Elements(module, function)
    for node, name in elements.vector_math():
        yield "vector-math", node, f"{name} of an element"
    for node in elements.branches():
        yield "vector-condition", node, "a branch on an element"
    for node in barriers.divergent(module, function):
        yield "divergent-barrier", node, "a barrier where lanes have parted"
    yield from _sums(module, function)
    yield from _names(module, function)
    for node in function.nodes:
        if isinstance(node, ast.Compare):
            yield from _compared(node)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            if _is_condition(node.left) and _is_condition(node.right):
                yield "bool-bits", node, "& or | of two conditions"
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in function.words:
            yield "array-index", node, f"{node.value.id}[…] of an array of the words"
        elif isinstance(node, ast.Assert):
            yield "print-assert", node, "assert"
    if function.kernel:
        yield from _shape_ranges(function)
        yield from _serial_loops(function)


def _sums(module: Module, function: Function) -> Iterator[Found]:
    shared = {
        target.id
        for node in function.nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if module.name_of(node.value.func) == _SHARED
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    # Variables of a kernel that its parallel loops share.
    outside = {
        target.id
        for node in function.node.body
        if function.kernel and isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    loops = [node for node in function.node.body if function.kernel and isinstance(node, ast.For)]
    inside = {id(part) for loop in loops if not module.is_static(loop.iter) for part in ast.walk(loop)}
    for node in function.nodes:
        if not isinstance(node, ast.AugAssign):
            continue
        target = node.target
        if isinstance(target, ast.Name) and target.id in outside and id(node) in inside:
            yield "atomic-add", node, f"{target.id}, which is from outside the loop"
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            if target.value.id in shared:
                yield "shared-add", node, f"an element of {target.value.id}"
            elif target.value.id in function.arrays:
                yield "atomic-add", node, f"an element of {target.value.id}"


def _names(module: Module, function: Function) -> Iterator[Found]:
    """Find what is wrong by its name alone."""
    chosen = _chosen_by_backend(module, function)
    for node in function.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = module.name_of(node.func)
        shown = name.replace("taichi.", "ti.")
        if name.startswith("taichi.atomic_"):
            yield "atomic-add", node, shown
        elif name.startswith(("taichi.simt.", *_BLOCK_WORDS)) or name in _THREAD_WORDS:
            if name == _SHARED and any(_is_vector(module, one, function.outer) for one in node.args[1:]):
                yield "shared-vector", node, "a SharedArray of vectors"
            if id(node) not in chosen:
                yield _rule_of_word(name), node, shown
        elif name in _TESTS:
            yield "not-finite", node, f"{name.replace('taichi.', 'ti.')}()"
        elif name == "print":
            yield "print-assert", node, "print"
        elif _is_infinite(module, node):
            yield "not-finite", node, ast.unparse(node)
    for part in function.nodes:
        if isinstance(part, (ast.Name, ast.Attribute)) and not isinstance(part.ctx, ast.Store):
            if module.name_of(part) == "taichi.f64":
                yield "unsupported-type", part, "ti.f64"
            value = function.outer.get(part.id) if isinstance(part, ast.Name) else None
            if _is_infinite(module, part) or (value is not None and _is_infinite(module, value)):
                yield "not-finite", part, ast.unparse(part)


def _chosen_by_backend(module: Module, function: Function) -> set[int]:
    """Return the nodes under a compile-time condition, which may be that there is a GPU."""
    return {
        id(part)
        for node in function.nodes
        if isinstance(node, ast.If) and module.is_static(node.test)
        for part in ast.walk(node)
    }


def _rule_of_word(name: str) -> str:
    if name in _THREAD_WORDS:
        return "thread-index"
    return "subgroup" if name.startswith(("taichi.simt.subgroup.", "taichi.simt.warp.")) else "gpu-words"


def _compared(node: ast.Compare) -> Iterator[Found]:
    alike = len(node.ops) == 1 and ast.dump(node.left) == ast.dump(node.comparators[0])
    if alike and isinstance(node.ops[0], (ast.Eq, ast.NotEq)) and not isinstance(node.left, ast.Constant):
        yield "nan-compare", node, ast.unparse(node)


def _is_condition(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
        return _is_condition(node.left) and _is_condition(node.right)
    return isinstance(node, (ast.Compare, ast.BoolOp)) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )


def _is_vector(module: Module, node: ast.expr, outer: dict[str, ast.expr]) -> bool:
    if isinstance(node, ast.Name):
        node = outer.get(node.id, node)
    return isinstance(node, ast.Call) and module.name_of(node.func) in ("taichi.types.vector", "taichi.types.matrix")


def _is_infinite(module: Module, node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_infinite(module, node.operand)
    if isinstance(node, ast.Call) and module.name_of(node.func) == "float" and len(node.args) == 1:
        (text,) = node.args
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            return text.value.strip().lstrip("+-").lower() in _TEXTS
    return module.name_of(node) in _INFINITE


def _shape_ranges(function: Function) -> Iterator[Found]:
    made = {
        target.id: node.value
        for node in function.node.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in function.node.body:
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and _called(node.iter) == "range":
            for bound in node.iter.args:
                whole = made.get(bound.id, bound) if isinstance(bound, ast.Name) else bound
                if _only_shapes(whole, made) and any(isinstance(part, ast.FloorDiv) for part in ast.walk(whole)):
                    yield "shape-range", bound, ast.unparse(whole)


def _only_shapes(node: ast.expr, made: dict[str, ast.expr]) -> bool:
    """Return whether an expression has shapes in it, and nothing but them and numbers."""
    shapes, seen = 0, set[str]()
    left = [node]
    while left:
        part = left.pop()
        if isinstance(part, ast.BinOp):
            left += [part.left, part.right]
        elif isinstance(part, ast.UnaryOp):
            left.append(part.operand)
        elif isinstance(part, ast.Name) and part.id in made and part.id not in seen:
            seen.add(part.id)
            left.append(made[part.id])
        elif isinstance(part, ast.Subscript) and isinstance(part.value, ast.Attribute) and part.value.attr == "shape":
            shapes += 1
        elif not isinstance(part, ast.Constant):
            return False
    return shapes > 0


def _serial_loops(function: Function) -> Iterator[Found]:
    for node in function.node.body:
        if isinstance(node, (ast.If, ast.While)) and not (
            isinstance(node.test, ast.Call) and ast.unparse(node.test.func).endswith("static")
        ):
            for part in ast.walk(node):
                if isinstance(part, ast.For) and "static(" not in ast.unparse(part.iter):
                    yield "serial-loop", part, "a loop under an if or a while of the kernel"
                    break


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""
