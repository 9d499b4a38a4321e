"""The reference page is what the sources say, and the sources say what a reader needs."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

import tkern
from tkern import cli, doctext, errors, lint, reference
from tkern.errors import TkernError


def test_the_page_is_what_is_generated() -> None:
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), "run make docs"


def test_the_page_has_everything_public() -> None:
    page = reference.page()
    for name in tkern.__all__:
        if name not in ("errors", "oracle", "__version__"):
            assert f"**`tkern.{name}(" in page, name
    for name in errors.__all__:
        assert f"**`tkern.errors.{name}`**" in page
    for rule in lint.RULES:
        assert f"| `{rule}` |" in page
    (commands,) = (one for one in cli._parser()._actions if isinstance(one, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        section = page.split(f"### tkern {name}\n", 1)[1].split("\n#", 1)[0]
        for action in command._actions:
            if not isinstance(action, argparse._HelpAction):
                assert (action.option_strings or [action.metavar])[-1] in section


def test_every_link_of_the_contents_leads_somewhere() -> None:
    page = reference.page()
    titles = re.findall(r"^#{2,3} (.+)$", page, re.MULTILINE)
    assert len(titles) == len(set(titles))
    for title, anchor in re.findall(r"- \[(.+)\]\(#(.+)\)", page):
        assert title in titles
        assert anchor == re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize(
    "name",
    [name for name, home in tkern._HOME.items() if home.startswith("tkern.ops.") and name[0].islower()],
)
def test_a_function_of_arrays_says_what_it_takes_and_gives(name: str) -> None:
    """The shapes, types and units of arrays, what is raised, and where the mathematics is from."""
    doc = getattr(tkern, name).__doc__
    parts = dict(re.findall(r"^ *(Parameters|Returns|Raises|Source): (.*?)(?=^ *[A-Z]\w+: |\Z)", doc, re.M | re.S))
    assert set(parts) == {"Parameters", "Returns", "Raises", "Source"}
    assert re.search(r"(float32|int64|uint8)[^\[]*\[|as :func:", parts["Parameters"])
    assert re.search(r"\[.*\]|shape|None|matrix", parts["Returns"])
    assert re.search(r"\bunits?\b", doc)
    assert "ShapeError" in parts["Raises"]


def test_every_public_name_of_the_modules_shown_is_documented() -> None:
    for module in (*reference._WORDS.values(), *reference._AUTHORS, "tkern.errors", "tkern.runtime", "tkern.lint"):
        source = doctext.source_of(module)
        for name in source.public:
            if name in source.definitions:
                assert source.find(name).doc


def test_a_name_without_a_docstring_is_an_error() -> None:
    source = doctext.Source("m", "d", ("f",), {"f": doctext.Definition("f", "()", "")}, {})
    with pytest.raises(TkernError, match=r"m\.f is public and has no docstring"):
        source.find("f")


def test_docstrings_become_markdown() -> None:
    text = doctext.markdown(
        "Return ``a < b`` of :func:`~tkern.f`, a < b * c, a *word*.\n\nAs\nthere::\n\n    x = 1\n      y\n\n"
        "``one``, ``two``  what they\n                  are\n``alone``\n\nParameters: x [N].\nReturns: y."
    )
    assert text == (
        "Return `a < b` of `tkern.f`, a \\< b \\* c, a *word*.\n\nAs\nthere:\n\n```\nx = 1\n  y\n```\n\n"
        "- `one`, `two`: what they are\n- `alone`\n\n**Parameters:** x [N].\n\n**Returns:** y."
    )


def test_the_command_writes_or_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.md"
    assert reference.main(["--out", str(out)]) == 0
    assert out.read_text(encoding="utf-8").startswith("# Reference\n")
    assert reference.main(["--out", str(tmp_path / "no" / "page.md")]) == 2
    assert "a file in a folder that is there" in capsys.readouterr().err
