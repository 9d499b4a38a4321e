"""The command line: ``tkern devices | list | lint | parity | bench | plot | msl | report``.

Exit codes: 0 all held, 1 something did not, 2 asked for what is not there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tkern.errors import BackendUnavailable, OptionError, TkernError
from tkern.progress import steps

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = _parser().parse_args(argv)
    # Tables in a pipe or a log are not cut at the 80 columns that rich takes where there is no terminal.
    console = Console(width=None if sys.stdout is not None and sys.stdout.isatty() else 110)
    try:
        code: int = arguments.command(arguments, console)
    except (OptionError, BackendUnavailable, OSError) as error:
        Console(stderr=True).print(f"tkern: {error}", style="red", markup=False, highlight=False)
        return 2
    except TkernError as error:
        Console(stderr=True).print(f"tkern: {error}", style="red", markup=False, highlight=False)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tkern", description="Neural-net backward kernels, each written once, held against an oracle and measured."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    devices = commands.add_parser("devices", help="which backends this machine has, and why not the others")
    devices.set_defaults(command=_devices)

    listing = commands.add_parser("list", help="the ops, their cases, and what each costs")
    _add_kernels(listing)
    listing.set_defaults(command=_list)

    lint = commands.add_parser("lint", help="read kernels for what Taichi does not do as they say, before it compiles")
    lint.add_argument("files", nargs="*", metavar="FILE", help="Python files or folders; the built-in ops by default")
    lint.add_argument("--json", metavar="OUT", help="write the findings")
    lint.set_defaults(command=_lint)

    parity = commands.add_parser("parity", help="hold every kernel on every backend against the oracle")
    _add_selection(parity)
    parity.add_argument("--json", metavar="FILE", help="write everything that was found")
    parity.add_argument("--plot", metavar="FILE", help="draw error over tolerance, op × backend × case (PNG, SVG, PDF)")
    parity.set_defaults(command=_parity)

    bench = commands.add_parser("bench", help="measure the ops beside their peers and the machine's roof")
    _add_selection(bench)
    bench.add_argument("--peer", nargs="+", default=[], metavar="PEER", help="numpy, torch; all installed by default")
    bench.add_argument("--shapes", choices=("quick", "standard"), default="quick", help="default: %(default)s")
    bench.add_argument("--out", metavar="DIR", default="bench/out", help="for results.csv, summary.json (%(default)s)")
    bench.set_defaults(command=_bench)

    plot = commands.add_parser("plot", help="draw the results.csv of a folder")
    plot.add_argument("folder", metavar="DIR", help="where results.csv is")
    plot.add_argument("--out", metavar="DIR", help="where the pictures go (default: DIR)")
    plot.set_defaults(command=_plot)

    msl = commands.add_parser("msl", help="make every kernel's MSL, and check that Metal can take it; needs no Mac")
    msl.add_argument("ops", nargs="*", metavar="OP", help="ops by name; all by default (see tkern list)")
    _add_kernels(msl)
    msl.add_argument("--out", metavar="DIR", help="keep the SPIR-V, the MSL and msl.json there")
    msl.add_argument("--once", action="store_true", help="one configuration of each kernel instead of all")
    msl.set_defaults(command=_msl)

    report = commands.add_parser("report", help="one file to send: devices, parity, a quick bench and versions")
    _add_selection(report)
    report.add_argument("--out", metavar="FILE", required=True, help="a JSON file, without personal data")
    report.set_defaults(command=_report)
    return parser


def _add_kernels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kernels", action="append", default=[], metavar="FILE.py", help="add a module of your own ops"
    )


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ops", nargs="*", metavar="OP", help="ops by name; all by default (see tkern list)")
    parser.add_argument("--backend", nargs="+", default=[], metavar="BACKEND", help="default: all this machine has")
    _add_kernels(parser)


def _devices(arguments: argparse.Namespace, console: Console) -> int:
    from tkern import report, runtime

    with steps(len(runtime.NAMES), "devices") as bar:
        found = []
        for name in runtime.NAMES:
            bar.step(name)
            found.append(runtime.backend(name))
    report.show_devices(found, console)
    return 0


def _list(arguments: argparse.Namespace, console: Console) -> int:
    from tkern import registry, report

    report.show_ops(registry.all_ops(arguments.kernels).values(), console)
    return 0


def _lint(arguments: argparse.Namespace, console: Console) -> int:
    from tkern import lint
    from tkern.lint import show

    out = _output_file(arguments.json, "--json")
    files = lint.files_of(arguments.files) if arguments.files else lint.own_files()
    findings = lint.check_files(files)
    show.show(findings, len(files), console)
    if out is not None:
        out.write_text(json.dumps([one.as_json() for one in findings], indent=2) + "\n", encoding="utf-8")
        console.print(f"written: {out}")
    return 1 if findings else 0


def _is_clean(files: list[str], console: Console) -> bool:
    """Return whether the built-in ops and the user's ``files`` are ones to compile, printing what speaks against it."""
    from tkern import lint
    from tkern.lint import show

    # What is not there is for the registry to say, in its own words.
    read = [*lint.own_files(), *lint.files_of(file for file in files if Path(file).exists())]
    findings = lint.check_files(read)
    if findings:
        show.show(findings, len(read), console)
    return not findings


def _parity(arguments: argparse.Namespace, console: Console) -> int:
    from tkern import parity, registry, report

    found_in = _output_file(arguments.json, "--json")
    picture = _output_file(arguments.plot, "--plot", (".png", ".svg", ".pdf"))
    if not _is_clean(arguments.kernels, console):
        return 1
    ops = registry.select(registry.all_ops(arguments.kernels), arguments.ops)
    results = parity.run(ops, _chosen(arguments.backend))
    report.show_parity(results, console)
    if found_in is not None:
        found = {"held": all(r.held for r in results), "ops": [r.as_json() for r in results]}
        found_in.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        console.print(f"written: {found_in}")
    if picture is not None:
        from tkern import plot

        plot.draw_parity(results, picture)
        console.print(f"drawn: {picture}")
    return 0 if all(result.held for result in results) else 1


def _bench(arguments: argparse.Namespace, console: Console) -> int:
    from tkern import bench, registry, report, runtime

    out = _output_folder(arguments.out, "--out")
    if not _is_clean(arguments.kernels, console):
        return 1
    ops = registry.select(registry.all_ops(arguments.kernels), arguments.ops)
    backends = _chosen(arguments.backend) if arguments.backend else _timed_by_default(console)
    for name in backends:
        if runtime.find(name).in_software and arguments.shapes != "quick":
            console.print(f"{name} is a device in software: it is timed at the quick shapes")
    rows = bench.run(ops, backends, bench.known_peers(arguments.peer), arguments.shapes)
    report.show_bench(rows, console)
    for path in bench.write(rows, out):
        console.print(f"written: {path}")
    return 0


def _plot(arguments: argparse.Namespace, console: Console) -> int:
    from tkern import plot

    folder = Path(arguments.folder)
    results = folder / "results.csv"
    if not results.is_file():
        raise OptionError(argument="DIR", expected="a folder with results.csv (tkern bench --out DIR)", got=str(folder))
    for path in plot.draw_results(results, _output_folder(arguments.out or str(folder), "--out")):
        console.print(f"drawn: {path}")
    return 0


def _msl(arguments: argparse.Namespace, console: Console) -> int:
    from tkern import metal, registry
    from tkern.msl import table

    out = None if arguments.out is None else _output_folder(arguments.out, "--out")
    registry.select(registry.all_ops(arguments.kernels), arguments.ops)
    found = metal.check(arguments.ops, arguments.kernels, out, once=arguments.once)
    table.show(found, console)
    if out is not None:
        console.print(f"written: {out}")
    return 0 if all(one.held for one in found) else 1


def _report(arguments: argparse.Namespace, console: Console) -> int:
    from tkern import machine_report, registry, report

    out = _output_file(arguments.out, "--out")
    assert out is not None
    if not _is_clean(arguments.kernels, console):
        return 1
    ops = registry.select(registry.all_ops(arguments.kernels), arguments.ops)
    found = machine_report.make(ops, _chosen(arguments.backend))
    report.show_devices(found.devices, console)
    report.show_parity(found.parity, console)
    report.show_bench(found.bench, console)
    out.write_text(found.text(), encoding="utf-8")
    console.print(f"written: {out}")
    return 0 if found.held else 1


def _chosen(names: list[str]) -> list[str]:
    from tkern import runtime

    if not names:
        return [backend.name for backend in runtime.backends() if backend.available]
    return [runtime.find(name).name for name in dict.fromkeys(names)]


def _timed_by_default(console: Console) -> list[str]:
    from tkern import runtime

    found = [backend for backend in runtime.backends() if backend.available]
    for backend in found:
        if backend.in_software:
            console.print(f"{backend.name} is not timed: {backend.device} is software (--backend {backend.name} does)")
    return [backend.name for backend in found if not backend.in_software]


def _output_file(path: str | None, argument: str, endings: tuple[str, ...] = ()) -> Path | None:
    """Return a path that can be written, checked before the work that fills it is done."""
    if path is None:
        return None
    target = Path(path)
    if endings and target.suffix.lower() not in endings:
        raise OptionError(argument=argument, expected="a file that ends in " + ", ".join(endings), got=path)
    if target.is_dir():
        raise OptionError(argument=argument, expected="a file", got=f"the folder {path}")
    _output_folder(str(target.parent), argument)
    return target


def _output_folder(path: str, argument: str) -> Path:
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(argument=argument, expected="a folder that can be made", got=f"{path} ({error})") from error
    return folder


if __name__ == "__main__":
    sys.exit(main())
