"""Write the reference page from docstrings, argparse's parser and the rules: ``python -m tkern.reference``.

The page is ``docs/reference.md``. It is read from the sources, so it cannot say what they do not; ``make docs`` writes
it, and a test holds the committed page against what is written now.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import tkern
from tkern import cli, oracle
from tkern.doctext import Definition, Source, markdown, source_of
from tkern.errors import OptionError, TkernError
from tkern.lint.rules import RULES

__all__ = ["PAGE", "main", "page"]

PAGE = Path(__file__).parent.parent / "docs" / "reference.md"
_HEAD = """# Reference

Written by `make docs` from the docstrings, the command line's parser and the rules of `tkern lint`; not by hand. Arrays
are given as type and shape: `float32 [N, C]`. What is left of `*` in a signature may be given by position.
"""
# For authors of kernels: the words by the module that lists them, then what an op is prepared with.
_WORDS = {
    "Rows": "tkern.lang.rows", "Tiles": "tkern.lang.tiles", "Windows": "tkern.lang.windows",
    "Patches": "tkern.lang.convs", "Taps": "tkern.lang.taps", "Sums of private rows": "tkern.lang.columns",
    "Safe mathematics": "tkern.lang.safe", "Building kernels": "tkern.lang.compiled",
}  # fmt: skip
_AUTHORS = ("tkern.spec", "tkern.launch", "tkern.arrays")


def page() -> str:
    """Return the page, Markdown that is the same on every Python. Raises TkernError for a public name undocumented."""
    parts = [*_functions(), *_errors(), *_commands(), *_rules(), *_language(), *_contract()]
    contents = [
        f"{'  ' * (len(level) - 2)}- [{title}](#{_anchor(title)})"
        for level, title in re.findall(r"^(##|###) (.+)$", "\n".join(parts), re.MULTILINE)
    ]
    return "\n\n".join([_HEAD.strip(), "\n".join(contents), *parts]) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, and return the exit code: 2 where there is no folder for it."""
    parser = argparse.ArgumentParser(prog="python -m tkern.reference", description="Write the reference page.")
    parser.add_argument("--out", metavar="FILE", default=str(PAGE), help="default: docs/reference.md of the sources")
    out = Path(parser.parse_args(argv).out)
    try:
        if not out.parent.is_dir():
            raise OptionError(argument="--out", expected="a file in a folder that is there", got=str(out))
        out.write_text(page(), encoding="utf-8")
    except (TkernError, OSError) as error:
        print(f"tkern: {error}", file=sys.stderr)
        return 2
    print(f"written: {out}")
    return 0


def _functions() -> Iterator[str]:
    yield "## Functions"
    homes: dict[str, list[str]] = {}
    for name, home in tkern._HOME.items():
        homes.setdefault(home, []).append(name)
    for home in sorted(homes, key=lambda one: (one.startswith("tkern.ops."), one)):
        source = source_of(home)
        yield f"### {'Backends' if home == 'tkern.runtime' else home.rpartition('.')[2]}"
        yield _first_line(source.doc)
        for name in sorted(homes[home]):
            # It may be defined in another module than the one it is asked from.
            defined = source if name in source.definitions else source_of(source.imported[name])
            yield _definition(defined.find(name), f"tkern.{name}")
            if name in oracle._HOME:
                told = source_of(oracle._HOME[name]).find(name)
                yield f"Oracle, in NumPy: `tkern.oracle.{name}{told.signature}`\n\n{_quoted(markdown(told.doc))}"
    yield "### Memory"
    yield _module("tkern.pool", ("release",))


def _errors() -> Iterator[str]:
    source = source_of("tkern.errors")
    yield "## Errors"
    yield markdown(source.doc)
    for name in sorted(source.public, key=lambda one: (one != "TkernError", one)):
        found = source.find(name)
        yield f"**`tkern.errors.{name}`** ({', '.join(f'`{base}`' for base in found.bases)})\n\n{markdown(found.doc)}"


def _commands() -> Iterator[str]:
    parser = cli._parser()
    yield "## Command line"
    yield (parser.description or "") + "\n\n" + markdown(source_of("tkern.cli").doc)
    for group in (action for action in parser._actions if isinstance(action, argparse._SubParsersAction)):
        told = {one.dest: one.help or "" for one in group._choices_actions}
        for name, command in group.choices.items():
            actions = [one for one in command._actions if not isinstance(one, argparse._HelpAction)]
            yield f"### tkern {name}"
            yield "```\n" + " ".join([f"tkern {name}", *(_usage(one) for one in actions)]) + "\n```"
            yield _sentence(told[name])
            if actions:
                yield "\n".join(f"- `{_usage(one).strip('[]')}`: {_help(one)}" for one in actions)


def _rules() -> Iterator[str]:
    yield "## Rules of tkern lint"
    yield markdown(source_of("tkern.lint.rules").doc)
    yield "\n".join(["| rule | what happens | write | where it was met |", "|---|---|---|---|"] + [
        f"| `{rule.name}` | {_cell(rule.what)} | {_cell(rule.cure)} | {_cell(rule.seen)} |" for rule in RULES.values()
    ])  # fmt: skip


def _language() -> Iterator[str]:
    yield "## Words of the kernel language"
    yield markdown(source_of("tkern.lang").doc)
    for title, module in _WORDS.items():
        yield f"### {title}"
        yield _module(module)


def _contract() -> Iterator[str]:
    yield "## What an op is made of"
    for module in _AUTHORS:
        yield f"### {module}"
        yield _module(module)


def _module(name: str, names: Iterable[str] = ()) -> str:
    source = source_of(name)
    shown = [_definition(source.find(one), f"{name}.{one}") for one in names or source.public if _is_shown(source, one)]
    return "\n\n".join([markdown(source.doc), *shown])


def _is_shown(source: Source, name: str) -> bool:
    """Return whether a public name has a docstring to show: a constant or an alias of a type has none."""
    return name in source.definitions


def _definition(found: Definition, shown: str) -> str:
    parts = [f"**`{shown}{found.signature}`**", markdown(found.doc)]
    if found.members:
        parts.append("\n".join(f"- `.{one.name}{one.signature}`: {_in_one_line(one)}" for one in found.members))
    return "\n\n".join(parts)


def _in_one_line(found: Definition) -> str:
    return " ".join(markdown(found.doc).split())


def _first_line(doc: str) -> str:
    return markdown(doc.strip().splitlines()[0])


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def _cell(text: str) -> str:
    return re.sub(r"([*<|]|_(?=_)|(?<=_)_)", r"\\\1", text)


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _usage(action: argparse.Action) -> str:
    """Return how an argument is written: [OP…], --out FILE, [--backend BACKEND…]."""
    what = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.choices is not None:
        what = "|".join(str(one) for one in action.choices)
    many = what + "…" if action.nargs in ("*", "+") else what
    if not action.option_strings:
        return f"[{many}]" if action.nargs in ("*", "?") else many
    written = action.option_strings[-1] if action.nargs == 0 else f"{action.option_strings[-1]} {many}"
    return written if action.required else f"[{written}]"


def _help(action: argparse.Action) -> str:
    text = (action.help or "") % {**vars(action), "prog": "tkern"}
    again = "; may be given more than once" if isinstance(action, argparse._AppendAction) else ""
    return _cell(text.rstrip(".") + again)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


if __name__ == "__main__":
    sys.exit(main())
