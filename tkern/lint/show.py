"""What ``tkern lint`` prints: each finding with its line, what Taichi does there, and what to write instead."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from tkern.lint import RULES, Finding

__all__ = ["show"]


def show(findings: Sequence[Finding], files: int, console: Console) -> None:
    """Print the findings and a last line that counts them. Each rule is explained once, where it is met first."""
    told: set[str] = set()
    for one in findings:
        at = Text(f"{one.path}:{one.line}:{one.column}: ", style="bold")
        console.print(at + Text(one.rule, style="red") + Text(f"  {one.what}"), soft_wrap=True)
        code = one.text.strip()
        indent = len(one.text) - len(one.text.lstrip())
        console.print(Text(f"    {code}"), soft_wrap=True)
        console.print(Text("    " + " " * max(0, one.column - 1 - indent) + "^", style="red"), soft_wrap=True)
        rule = RULES.get(one.rule)
        if rule is not None and one.rule not in told:
            console.print(Text(f"    Taichi: {rule.what}"), soft_wrap=True)
            console.print(Text(f"    Write:  {rule.cure}", style="green"), soft_wrap=True)
            console.print(Text(f"    Seen:   {rule.seen}", style="dim"), soft_wrap=True)
        told.add(one.rule)
    count = f"{len(findings)} finding{'' if len(findings) == 1 else 's'}" if findings else "nothing found"
    console.print(f"{files} file{'' if files == 1 else 's'} read: {count}", highlight=False)
