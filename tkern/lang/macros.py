"""What lets plain Python objects stand in a kernel's text.

Taichi turns a kernel's text into its own expressions as it reads it. A Python object met on the way is used as it is
(a compile-time object), and a plain Python function is called then and there (a macro): its operators build
expressions. ``handle`` and ``macro`` mark the two so that Taichi passes them through without a warning.
"""

from typing import Any, Callable, TypeVar

import taichi as ti

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def macro(function: F) -> F:
    """Mark a Python function that is called while a kernel's text is read."""
    function._is_wrapped_kernel = True  # type: ignore[attr-defined]
    return function


def handle(cls: C) -> C:
    """Mark a class whose instances may be named in a kernel's text and carry expressions as attributes."""
    cls._data_oriented = True  # type: ignore[attr-defined]
    cls._is_wrapped_kernel = True  # type: ignore[attr-defined]  # it may be made in a kernel's text
    return cls


@ti.func
def value(x):
    """Return ``x`` evaluated once, into a variable of its own, however often the result is used."""
    return x


@macro
def variable(x):
    """Return a new variable that starts as ``x`` and may be assigned to, for an attribute of a handle."""
    return ti.lang.impl.expr_init(x)


@macro
def builder():
    """Return what Taichi's own functions need to build an expression in the kernel that is being read."""
    return ti.lang.impl.get_runtime().compiling_callable.ast_builder()
