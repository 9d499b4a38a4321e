"""What the commands print: tables for a person at a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from tkern.bench import Row, summarize
from tkern.devices import WHERE_RUN
from tkern.parity import CaseResult, OpResult
from tkern.runtime import Backend
from tkern.spec import Op

__all__ = ["show_bench", "show_devices", "show_ops", "show_parity"]


def show_devices(backends: Iterable[Backend], console: Console) -> None:
    """Print which backends there are, for each that is missing why and what would bring it, and where it was tried."""
    table = Table(title="backends on this machine", title_justify="left", box=SIMPLE)
    table.add_column("backend", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("device, or why it is missing")
    table.add_column("what was run where, of this version")
    for backend in backends:
        mark = "[green]yes[/]" if backend.available else "[yellow]no[/]"
        table.add_row(
            backend.name, mark, backend.device if backend.available else backend.why_not, WHERE_RUN[backend.name]
        )
    console.print(table)


def show_ops(ops: Iterable[Op], console: Console) -> None:
    """Print every op with what it returns, how much it is tried, and what it must cost."""
    table = Table(title="ops", title_justify="left", box=SIMPLE)
    for column in ("op", "what", "cases", "mutants", "least traffic", "peers"):
        table.add_column(column, no_wrap=column in ("op", "cases", "mutants"))
    for op in ops:
        mutants = len(op.mutants) + 2 * len(op.outputs)
        table.add_row(op.name, op.summary, str(len(op.cases)), str(mutants), op.cost_text, ", ".join(op.peers))
    console.print(table)


def show_parity(results: Iterable[OpResult], console: Console) -> None:
    """Print one line for each op and backend, the mutants, and everything that did not hold."""
    results = list(results)
    table = Table(title="parity with the float64 oracle", title_justify="left", box=SIMPLE)
    for column, justify in (
        ("op", "left"),
        ("against", "left"),
        ("cases", "right"),
        ("worst error / tolerance", "left"),
    ):
        table.add_column(column, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("")
    for result in results:
        if result.differences:
            _add_cases(table, result.op, "finite differences", result.differences)
        caught = sum(m.held for m in result.mutants)
        mark = _mark(caught == len(result.mutants))
        table.add_row(result.op, "mutants", str(len(result.mutants)), f"{caught} rejected", mark)
        for backend in dict.fromkeys(case.backend for case in result.cases):
            _add_cases(table, result.op, backend, [case for case in result.cases if case.backend == backend])
        table.add_section()
    console.print(table)
    for result in results:
        for case in [*result.differences, *result.cases]:
            if not case.held:
                console.print(
                    f"{case.op} on {case.backend}, case {case.case}: {case.problem}", style="red", markup=False
                )
        for mutant in result.mutants:
            if not mutant.held:
                console.print(
                    f"{mutant.op}: the wrong answer “{mutant.mutant}” was rejected in {mutant.rejected} of "
                    f"{mutant.tried} cases",
                    style="red",
                    markup=False,
                )


def show_bench(rows: Iterable[Row], console: Console) -> None:
    """Print a table of times for each op and backend, and the means at the end."""
    rows = list(rows)
    summary = summarize(rows)
    for op, backend in dict.fromkeys((row.op, row.backend) for row in rows):
        mine = [row for row in rows if (row.op, row.backend) == (op, backend)]
        roof = mine[0]
        product = "" if roof.roof_gflops is None else f", matrix product {roof.roof_gflops:.0f} GFLOP/s"
        title = f"{op} on {backend} ({roof.device}); roof: copy {roof.roof_gbps:.1f} GB/s{product} ({roof.roof_by})"
        table = Table(title=title, title_justify="left", box=SIMPLE)
        for column in ("shape", "by", "ms", "20–80%", "GB/s", "of roof", "tkern vs it"):
            table.add_column(column, justify="left" if column in ("shape", "by") else "right", no_wrap=True)
        for shape in dict.fromkeys(row.shape for row in mine):
            own = next(row for row in mine if row.shape == shape and row.by == "tkern")
            for k, row in enumerate(row for row in mine if row.shape == shape):
                ratio = "" if row.by.startswith("tkern") else f"{row.ms / own.ms:.3g}×"
                table.add_row(
                    shape if k == 0 else "",
                    row.by,
                    _digits(row.ms),
                    f"{_digits(row.ms_q20)}–{_digits(row.ms_q80)}",
                    f"{row.gbps:.1f}",
                    "" if row.roof is None else f"{row.roof:.2f}",
                    ratio,
                )
        console.print(table)
        means = summary[op][backend]
        vs = ", ".join(f"{ratio:.3g}× as fast as {peer}" for peer, ratio in means["vs"].items())
        console.print(
            f"geometric means over {means['cases']} shapes: {vs}; kernels at {means['roof']:.2f} of the roof; "
            f"compiling took {max(row.compile_s or 0 for row in mine):.2f} s at most\n"
        )


def _add_cases(table: Table, op: str, against: str, cases: list[CaseResult]) -> None:
    worst = max(cases, key=lambda case: case.ratio)
    held = sum(case.held for case in cases)
    cell = f"{worst.ratio:.2f} ({worst.case})"
    table.add_row(op, against, f"{held}/{len(cases)}", cell, _mark(held == len(cases)))


def _digits(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 1000 else f"{milliseconds:.3g}"


def _mark(held: bool) -> str:
    return "[green]held[/]" if held else "[bold red]NOT HELD[/]"
