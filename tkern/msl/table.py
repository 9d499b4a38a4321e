"""What ``tkern msl`` prints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from tkern.metal import Checked
from tkern.msl.rules import MOST_SHARED, MOST_THREADS, RULES

__all__ = ["show"]

_NOTES = (
    "A core runs so many threads at once as far as the MSL tells: registers are variables that are live in one line, "
    "without (with) addresses that can be made anew; a thread has 128, and * marks more, which spill. ! marks a "
    "workgroup larger than its registers allow: Metal may refuse it."
)


def show(found: Sequence[Checked], console: Console) -> None:
    """Print a line for each kernel and configuration, then every finding, then the count."""
    for op in dict.fromkeys(one.op for one in found):
        table = Table(title=f"{op}: MSL as Metal would get it", title_justify="left", box=SIMPLE)
        table.add_column("kernel", no_wrap=True)
        table.add_column("compiled with", overflow="fold")
        for column in ("threads", "bytes", "registers", "a core runs"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        for one in found:
            if one.op == op:
                mark = "[green]pass[/]" if one.held else "[bold red]FAIL[/]"
                words = one.words or one.used_by
                table.add_row(f"{one.kernel} {one.number}", words, *_estimates(one.main), mark)
        console.print(table)
    console.print(_NOTES, style="dim", markup=False, highlight=False)
    for one in found:
        for finding in one.findings:
            console.print(_text(one, finding), style="red", markup=False, highlight=False, soft_wrap=True)
    failed = sum(not one.held for one in found)
    console.print(
        f"{len(found)} kernels and configurations, {len(found) - failed} pass, {failed} fail: {len(RULES)} rules, "
        f"among them {MOST_SHARED // 1024} KiB and {MOST_THREADS} threads a workgroup",
        markup=False, highlight=False,
    )  # fmt: skip


def _estimates(main: dict[str, Any] | None) -> tuple[str, str, str, str]:
    if main is None:
        return ("", "", "", "")
    mark = "*" if main["spills"] else ""
    mark += "" if main["fits"] else "!"
    return (
        str(main["threads"]),
        str(main["shared"]),
        f"{main['registers']}{mark} ({main['live']})",
        f"{main['resident']} ({main['bound']})",
    )


def _text(one: Checked, finding: dict[str, Any]) -> str:
    file, line = finding["at"]
    where = f"{os.path.relpath(file)}:{line}" if file else one.used_by
    if file and not finding["exact"]:
        where += " (where the kernel begins)"
    if finding["msl"]:
        where += f", {finding['msl']}" + (f":{finding['line']}" if finding["line"] else "")
    return f"{one.op}: {one.kernel} {one.number}: {finding['rule']}: {finding['what']}; at {where}"
