"""Docstrings as Markdown, and what stands in a module's text: names, parameters, docstrings.

Everything is read from the source, nothing is imported: the text is the same on every Python, and Taichi is not
started.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tkern.errors import TkernError

__all__ = ["Definition", "Source", "markdown", "source_of"]

_ROOT = Path(__file__).parent
_ROLE = re.compile(r":(?:func|class|mod|meth|data):`~?([^`]+)`")
_CODE = re.compile(r"(``.+?``|`[^`\n]+`)", re.DOTALL)
# ``word``, ``word``   what it means
_ITEM = re.compile(r"^(?P<words>``.*?``(?:,? ?(?:with |; )?``.*?``)*)\s{2,}(?P<meaning>\S.*)$")
# What Markdown would take for a mark; *word* is one here too.
_MARKS = re.compile(r"(<|(?<!\*\w)(?<!\w)\*(?!\w+\*))")
_PARTS = re.compile(r"\n(?=(?:Parameters|Returns|Raises|Source)\b)")


@dataclass(frozen=True)
class Definition:
    """A function, class or method as its text has it: ``signature`` has names and defaults, no annotations."""

    name: str
    signature: str
    doc: str
    bases: tuple[str, ...] = ()
    members: tuple[Definition, ...] = ()


@dataclass(frozen=True)
class Source:
    """A module's docstring, its public names (``__all__``, or what has no underscore), and its definitions by name.

    ``imported`` are the names that it has from other modules, and which.
    """

    name: str
    doc: str
    public: tuple[str, ...]
    definitions: dict[str, Definition]
    imported: dict[str, str]

    def find(self, name: str) -> Definition:
        """Return a definition. Raises TkernError where there is none, or it has no docstring."""
        found = self.definitions.get(name)
        if found is None or not found.doc:
            raise TkernError(f"{self.name}.{name} is public and has no docstring")
        return found


@functools.cache
def source_of(module: str) -> Source:
    """Return what stands in a module of tkern. Raises TkernError where it has no docstring."""
    place = _ROOT.joinpath(*module.split(".")[1:])
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not file.is_file():
        raise TkernError(f"there is no module {module}")
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    doc = ast.get_docstring(tree)
    if not doc:
        raise TkernError(f"{module} has no docstring")
    definitions = {one.name: one for one in _definitions(tree.body, text)}
    listed = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.get_source_segment(text, node.targets[0]) == "__all__"
    ]
    public = tuple(listed[0]) if listed else tuple(name for name in definitions if not name.startswith("_"))
    imported = {
        one.asname or one.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for one in node.names
    }
    return Source(module, doc, public, definitions, imported)


def markdown(doc: str) -> str:
    """Return a docstring as Markdown; its first line is a paragraph of its own."""
    blocks: list[str] = []
    literal = False
    for block in re.split(r"\n\s*\n", doc.strip("\n")):
        if (literal and block.startswith("    ")) or block.startswith("==="):
            blocks.append("```\n" + _undented(block) + "\n```")
            continue
        literal = block.rstrip().endswith("::")
        if literal:
            block = re.sub(r"::\s*$", ":", block)
        blocks += _items(block) if _is_list(block) else [_prose(part) for part in _PARTS.split(block)]
    return "\n\n".join(blocks)


def _definitions(body: list[ast.stmt], text: str) -> Iterator[Definition]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield Definition(node.name, _signature(node, text), ast.get_docstring(node) or "")
        elif isinstance(node, ast.ClassDef):
            bases = tuple(ast.get_source_segment(text, base) or "" for base in node.bases)
            members = tuple(one for one in _definitions(node.body, text) if not one.name.startswith("_") and one.doc)
            yield Definition(node.name, _made_with(node, text), ast.get_docstring(node) or "", bases, members)


def _signature(node: ast.FunctionDef, text: str) -> str:
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    given: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    parts = [
        _parameter(one.arg, default, text) for one, default in zip(plain, given + list(arguments.defaults), strict=True)
    ]
    parts = [part for part in parts if part not in ("self", "cls")]
    if arguments.vararg is not None:
        parts.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [
        _parameter(one.arg, default, text)
        for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg is not None:
        parts.append(f"**{arguments.kwarg.arg}")
    marks = {ast.get_source_segment(text, mark) for mark in node.decorator_list}
    return "" if "property" in marks else f"({', '.join(parts)})"


def _made_with(node: ast.ClassDef, text: str) -> str:
    """Return what a class is made with: its fields, or what its __init__ takes."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            return _signature(part, text)
    fields = [part for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)]
    return f"({', '.join(_parameter(_name(part), part.value, text) for part in fields)})" if fields else ""


def _name(node: ast.AnnAssign) -> str:
    return node.target.id if isinstance(node.target, ast.Name) else ""


def _parameter(name: str, default: ast.expr | None, text: str) -> str:
    if default is None:
        return name
    # A default that a call makes, as field(default_factory=dict), is no text to show.
    shown = "…" if isinstance(default, ast.Call) else ast.get_source_segment(text, default)
    return f"{name}={shown}"


def _undented(block: str) -> str:
    lines = block.splitlines()
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return "\n".join(line[indent:] for line in lines)


def _is_list(block: str) -> bool:
    return block.startswith("``") and any(_ITEM.match(line) for line in block.splitlines())


def _items(block: str) -> list[str]:
    """Return a list of words and what they mean; a line without a meaning goes with the next, or stands alone."""
    items: list[list[str]] = []
    open_words = ""
    for line in block.splitlines():
        found = _ITEM.match(line)
        if line.startswith("``") and found:
            items.append([f"{open_words}{found['words']}", found["meaning"]])
            open_words = ""
        elif line.startswith("``") and line.rstrip().endswith(","):
            open_words += line.strip() + " "
        elif line.startswith("``"):
            items.append([f"{open_words}{line.strip()}", ""])
            open_words = ""
        elif items:
            items[-1][1] += " " + line.strip()
    return ["\n".join(f"- {_inline(words)}{': ' if meaning else ''}{_inline(meaning)}" for words, meaning in items)]


def _prose(block: str) -> str:
    text = _inline("\n".join(line.strip() for line in block.splitlines()))
    return re.sub(r"^(Parameters|Returns|Raises|Source):", r"**\1:**", text)


def _inline(text: str) -> str:
    """Return text with its code as Markdown's, and what Markdown would take for marks taken for itself."""
    parts = _CODE.split(_ROLE.sub(r"``\1``", text))
    return "".join(
        "`" + " ".join(part.strip("`").split()) + "`" if n % 2 else _MARKS.sub(r"\\\1", part)
        for n, part in enumerate(parts)
    )
