"""Read kernels for what Taichi does not do as their text says, before it compiles them.

A kernel's text is read by Taichi, which refuses some of it with an error, ends the process at some, and compiles some
to wrong results. :mod:`tkern.lint.rules` says what, and what to write instead; here a file is read for it, in a few
milliseconds and without Taichi. A finding that is meant is allowed by a comment, on its line or the one above::

    shared = ti.simt.block.SharedArray((64,), ti.f32)  # tkern: allow gpu-words the GPU's half

A module named ``…_cpu.py`` or ``…_gpu.py`` is for that kind of backend, and read for what bites there.
"""

from __future__ import annotations

import ast
import functools
import tokenize
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tkern.errors import OptionError
from tkern.lint import checks, source
from tkern.lint.rules import RULES, Rule, rule_of

__all__ = [
    "RULES",
    "Finding",
    "Rule",
    "at_kernel",
    "check_file",
    "check_files",
    "check_text",
    "files_of",
    "of_file",
    "own_files",
    "rule_of",
]


@dataclass(frozen=True)
class Finding:
    """A rule that a kernel's text meets: where (lines and columns from 1), the line, and what stands there."""

    path: str
    line: int
    column: int
    rule: str
    what: str
    text: str

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data, with what Taichi does and the cure."""
        rule = RULES.get(self.rule)
        told = {} if rule is None else {"does": rule.what, "cure": rule.cure, "seen": rule.seen}
        return {**asdict(self), **told}


def check_text(path: Path, text: str) -> list[Finding]:
    """Return the findings of a module's text, by line. ``path`` names it, and says by its ending what it is for."""
    if "taichi" not in text and "tkern:" not in text:
        return []
    try:
        module = source.read(path, text)
    except (SyntaxError, tokenize.TokenError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        column = getattr(error, "offset", None) or 1
        what = f"no Python: {getattr(error, 'msg', error)}"
        lines = text.splitlines()
        return [Finding(str(path), line, column, "python", what, lines[line - 1] if line <= len(lines) else "")]
    return _findings(module)


def _findings(module: source.Module) -> list[Finding]:
    found = list(checks.of_module(module))
    for function in module.functions:
        found += checks.of_function(module, function)
    findings = {_finding(module, *one): None for one in found if RULES[one[0]].bites & module.backends}
    kept = [one for one in findings if not _is_allowed(module, one)]
    return sorted([*kept, *_wrong_comments(module)], key=lambda one: (one.line, one.column, one.rule))


def check_file(path: Path) -> list[Finding]:
    """Return the findings of a file. Raises OptionError where it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(argument="FILE", expected="a Python file in UTF-8", got=f"{path} ({error})") from error
    return check_text(path, text)


def check_files(paths: Iterable[str | Path]) -> list[Finding]:
    """Return the findings of files and of every .py file in folders. Raises OptionError for what is not there."""
    return [finding for path in files_of(paths) for finding in check_file(path)]


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    """Return the files that ``paths`` name, each once; a folder stands for every .py file in it."""
    found: dict[Path, None] = {}
    for given in paths:
        path = Path(given)
        if path.is_dir():
            inside = sorted(path.rglob("*.py"))
            if not inside:
                raise OptionError(argument="FILE", expected="a folder with Python files", got=str(given))
            found |= dict.fromkeys(inside)
        elif path.is_file() and path.suffix == ".py":
            found[path] = None
        else:
            raise OptionError(argument="FILE", expected="a Python file (.py) or a folder of them", got=str(given))
    return list(found)


def own_files() -> list[Path]:
    """Return the files of tkern with kernels in them: the built-in ops, and the language they are written in."""
    root = Path(__file__).parent.parent
    return files_of([root / "ops", root / "lang"])


def at_kernel(path: str, first_line: int) -> list[Finding]:
    """Return the findings in a kernel and in what it calls in its own file; none where the file cannot be read.

    ``first_line`` is the kernel's, of its decorator or its def.
    """
    module, findings = of_file(path)
    lines = set() if module is None else source.lines_reached(module, first_line)
    return [one for one in findings if one.line in lines]


@functools.cache
def of_file(path: str) -> tuple[source.Module | None, tuple[Finding, ...]]:
    """Return what was read of a file, once, and its findings; nothing where it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        module = source.read(Path(path), text)
        return module, tuple(_findings(module))
    except (OSError, ValueError, SyntaxError, tokenize.TokenError):
        return None, ()


def _finding(module: source.Module, rule: str, node: ast.AST, what: str) -> Finding:
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    text = module.lines[line - 1]
    # Python counts columns in bytes of UTF-8.
    column = len(text.encode()[:column].decode(errors="ignore")) + 1
    return Finding(str(module.path), line, column, rule, what, text)


def _is_allowed(module: source.Module, finding: Finding) -> bool:
    for one in module.allowed:
        if one.rule == finding.rule and one.line == finding.line and one.why:
            one.used = True
            return True
    return False


def _wrong_comments(module: source.Module) -> list[Finding]:
    found = []
    for one in module.allowed:
        if one.rule not in RULES:
            what = f"names no rule: {one.rule or 'nothing'}"
        elif not one.why:
            what = "gives no reason"
        elif not one.used:
            what = f"allows {one.rule} where there is none"
        else:
            continue
        line = one.line if one.line <= len(module.lines) else len(module.lines)
        found.append(Finding(str(module.path), line, one.column, "allow", what, module.lines[line - 1]))
    return found
