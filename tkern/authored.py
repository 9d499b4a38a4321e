"""Errors of a kernel's text, told at the author's line instead of in the depth of Taichi.

Taichi names the line of what it refuses while it reads a kernel, nothing where its code generators refuse, and at some
texts it ends the process. So a kernel of a user's file is first read for those (:mod:`tkern.lint`), and what is raised
while it is compiled becomes a :class:`tkern.errors.KernelError`.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tkern import runtime
from tkern.errors import KernelError, TkernError

__all__ = ["compiling", "declaring"]

_PACKAGE = Path(__file__).parent
_AT = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in [^\n]+:\n')


@contextlib.contextmanager
def compiling(function: Callable[..., Any]) -> Iterator[None]:
    """Compile the kernel of ``function`` in this block. Raises KernelError for what Taichi would refuse or die of."""
    file, first = _place(function)
    if not Path(file).is_relative_to(_PACKAGE):
        _refuse_endings(file, first)
    refused: tuple[type[Exception], ...] = (RuntimeError, *_taichi_errors())
    try:
        yield
    except TkernError:
        raise
    except refused as error:
        raise _told(error, file, first) from error


@contextlib.contextmanager
def declaring(build: Callable[..., Any]) -> Iterator[None]:
    """Declare a kernel in this block, by ``build``. Raises KernelError for what Taichi refuses of it then."""
    try:
        yield
    except TkernError:
        raise
    except _taichi_errors() as error:
        raise _told(error, *_place(build)) from error


def _refuse_endings(file: str, first: int) -> None:
    from tkern import lint

    backend = runtime.current()
    for one in lint.at_kernel(file, first):
        rule = lint.RULES.get(one.rule)
        if rule is not None and backend in rule.ends:
            what = f"{one.what}: {rule.what}"
            raise KernelError(what, file=file, line=one.line, text=one.text, rule=rule.name, cure=rule.cure)


def _told(error: BaseException, file: str, first: int) -> KernelError:
    """Return what Taichi raised as an error at the author's line."""
    from tkern import lint

    whole = str(error)
    said = next((line.strip() for line in reversed(whole.splitlines()) if line.strip()), type(error).__name__)
    rule = lint.rule_of(whole)
    places = [(at["file"], int(at["line"])) for at in _AT.finditer(whole)]
    # The innermost line of the author's: what he called of the language may be deeper.
    places = [at for at in places if not Path(at[0]).is_relative_to(_PACKAGE / "lang")] or places
    near = [
        one
        for one in (*lint.at_kernel(file, first), *lint.of_file(file)[1])
        if rule is not None and one.rule == rule.name
    ]
    if places:
        where, line = places[-1]
    elif near:
        where, line = file, near[0].line
    else:
        where, line = file, first
    text = linecache.getline(where, line).rstrip()
    named = None if rule is None else rule.name
    what = f"Taichi says: {said}" if rule is None else f"Taichi says: {said}. {rule.what}"
    cure = "" if rule is None else rule.cure
    return KernelError(what, file=where, line=line, text=text, said=said, rule=named, cure=cure)


def _place(function: Callable[..., Any]) -> tuple[str, int]:
    code = inspect.unwrap(function).__code__
    return code.co_filename, code.co_firstlineno


def _taichi_errors() -> tuple[type[Exception], ...]:
    """Return what Taichi raises of a text: from Python, and from C++ as it is."""
    taichi = sys.modules["taichi"]
    core = taichi._lib.core
    return taichi.TaichiCompilationError, core.TaichiTypeError, core.TaichiSyntaxError, core.TaichiIndexError
