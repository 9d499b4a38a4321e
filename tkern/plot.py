"""Pictures: from results.csv alone (times beside peers, share of the roof, time against size), and of parity."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from tkern.errors import OptionError
from tkern.parity import OpResult
from tkern.progress import steps

__all__ = ["draw_parity", "draw_results"]

# One colour for each implementation, the same in every picture; tkern's own stand out from the peers' greys.
_COLORS = {"tkern": "#0b6e4f", "tkern-kernel": "#6bbf59", "numpy": "#8d99ae", "torch": "#ef8354"}
_LABELS = {"tkern": "tkern", "tkern-kernel": "tkern, kernels alone", "numpy": "NumPy", "torch": "PyTorch"}
_STYLE: Any = {
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "svg.hashsalt": "tkern",
}

_Line = dict[str, Any]
# Cases of one panel of the parity map: as many as stay legible.
_MOST_COLUMNS = 40


def draw_results(results: Path, out: Path) -> list[Path]:
    """Draw a results.csv as times, roof and size, PNG and SVG each, into ``out``; return their paths."""
    lines = _read(results)
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    pictures = (("times", _draw_times), ("roof", _draw_roof), ("size", _draw_size))
    with plt.rc_context(_STYLE), steps(len(pictures), "plot") as bar:
        for name, draw in pictures:
            bar.step(name)
            written += _save(draw(lines), out / f"{name}.png", out / f"{name}.svg")
    return written


def draw_parity(results: Iterable[OpResult], path: Path) -> None:
    """Draw error over tolerance as a heat map, a row for each op and backend, a column for each case."""
    results = list(results)
    with plt.rc_context(_STYLE):
        _save(_parity_map(results), path)


def _parity_map(results: list[OpResult]) -> Figure:
    # Ops that share cases (a forward and its backward) share a panel; a panel of very many cases goes on in the next.
    families: dict[str, list[OpResult]] = {}
    for result in results:
        families.setdefault(result.op.removesuffix("_backward"), []).append(result)
    panels = []
    for family in families.values():
        cases = list(dict.fromkeys(case.case for result in family for case in result.cases))
        panels += [(family, cases[k : k + _MOST_COLUMNS]) for k in range(0, max(1, len(cases)), _MOST_COLUMNS)]
    heights = [0.42 * sum(len({c.backend for c in r.cases}) for r in family) + 2.2 for family, _ in panels]
    width = 3.6 + 0.46 * max(len(cases) for _, cases in panels)
    figure, grid = plt.subplots(
        len(panels), 1, figsize=(width, sum(heights)), height_ratios=heights, layout="constrained", squeeze=False
    )
    for axes, (family, cases) in zip(grid[:, 0], panels, strict=True):
        image = _draw_map(axes, family, cases)
    grid[0, 0].set_title("parity: largest error over tolerance of each case (– not tried there)")
    bar = figure.colorbar(image, ax=list(grid[:, 0]), pad=0.01, fraction=0.03, aspect=30)
    bar.ax.axhline(1.0, color="black", linewidth=1.2)
    bar.set_ticks([1e-3, 1e-2, 1e-1, 1, 10], labels=["0.001", "0.01", "0.1", "1 (limit)", "10"])
    return figure


def _draw_map(axes: Axes, results: list[OpResult], cases: list[str]) -> Any:
    rows = [(r.op, b) for r in results for b in dict.fromkeys(c.backend for c in r.cases)]
    ratios = {(c.op, c.backend, c.case): c.ratio for r in results for c in r.cases}
    grid = np.array([[ratios.get((op, backend, case), np.nan) for case in cases] for op, backend in rows])
    limit = 0.75  # where an error equal to the tolerance lies between 10⁻³ and 10, in logarithms
    stops = [(0.0, "#f3faf6"), (limit, "#3a9d73"), (limit, "#f2a541"), (1.0, "#b3001b")]
    colors = LinearSegmentedColormap.from_list("held", stops).with_extremes(bad="#eeeeee")
    shown = np.where(np.isinf(grid), 100.0, np.maximum(grid, 1e-3))
    # Green up to the tolerance; what did not hold is orange to red.
    image = axes.imshow(shown, cmap=colors, norm=LogNorm(1e-3, 10.0), aspect="auto")
    for i, j in np.ndindex(grid.shape):
        if np.isnan(grid[i, j]):
            text = "–"
        else:
            text = "∞" if np.isinf(grid[i, j]) else f"{grid[i, j]:.2f}" if grid[i, j] < 10 else f"{grid[i, j]:.0e}"
        axes.text(j, i, text, ha="center", va="center", fontsize=7.5, color="white" if grid[i, j] > 1 else "#222222")
    axes.set_xticks(range(len(cases)), cases, rotation=40, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_yticks(range(len(rows)), [f"{op} · {backend}" for op, backend in rows])
    axes.tick_params(length=0)
    return image


def _draw_times(lines: list[_Line]) -> Figure:
    figure, panels = _panels(lines, rows_each=lambda mine: len(_shapes(mine)) * (len(_by(mine)) + 0.8))
    for axes, (title, mine) in panels:
        names, shapes = _by(mine), _shapes(mine)
        for i, shape in enumerate(shapes):
            for k, name in enumerate(names):
                line = _find(mine, shape, name)
                if line is None:
                    continue
                at = i * (len(names) + 0.8) + k
                low, high = line["ms"] - line["ms_q20"], line["ms_q80"] - line["ms"]
                axes.barh(at, line["ms"], 0.86, color=_COLORS.get(name, "#999999"), label=_LABELS.get(name, name))
                axes.errorbar(line["ms"], at, xerr=[[low], [high]], color="#333333", linewidth=0.8, capsize=1.5)
                axes.text(line["ms_q80"] * 1.06, at, _milliseconds(line["ms"]), va="center", fontsize=8)
        middle = (len(names) - 1) / 2
        axes.set_yticks([i * (len(names) + 0.8) + middle for i in range(len(shapes))], [_times(s) for s in shapes])
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(0.5 * min(line["ms"] for line in mine), 2.6 * max(line["ms"] for line in mine))
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
        axes.set_title(title)
        axes.set_xlabel("milliseconds a call, log scale: median, bars from 20% to 80% (less is better)")
        _legend(axes)
    return figure


def _draw_roof(lines: list[_Line]) -> Figure:
    figure, panels = _panels(lines, rows_each=lambda mine: len(_shapes(mine)) * (len(_by(mine)) + 0.8))
    for axes, (title, mine) in panels:
        names, shapes = _by(mine), _shapes(mine)
        for i, shape in enumerate(shapes):
            for k, name in enumerate(names):
                line = _find(mine, shape, name)
                if line is None:
                    continue
                at = i * (len(names) + 0.8) + k
                share = _share(line)
                axes.barh(at, share, 0.86, color=_COLORS.get(name, "#999999"), label=_LABELS.get(name, name))
                axes.text(share + 0.012, at, f"{share:.2f}", va="center", fontsize=8)
        axes.axvline(1.0, color="#333333", linewidth=1.2, linestyle="--")
        middle = (len(names) - 1) / 2
        axes.set_yticks([i * (len(names) + 0.8) + middle for i in range(len(shapes))], [_times(s) for s in shapes])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.12 * max(1.0, *(_share(line) for line in mine)))
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
        axes.set_title(f"{title}: a copy moves {mine[0]['roof_gbps']:.1f} GB/s")
        axes.set_xlabel(
            "share of the roof: least time by the measured copy over time (1 is the copy; a cache beats it)"
        )
        _legend(axes)
    return figure


def _draw_size(lines: list[_Line]) -> Figure:
    figure, panels = _panels(lines, rows_each=lambda mine: 16)
    for axes, (title, mine) in panels:
        for name in _by(mine):
            points = sorted((line["elements"], line["ms"]) for line in mine if line["by"] == name)
            color, label = _COLORS.get(name, "#999999"), _LABELS.get(name, name)
            axes.plot(*zip(*points, strict=True), "o", color=color, label=label, markersize=4.5)
            # One size may come in several shapes: the line goes through their geometric mean.
            sizes = sorted({size for size, _ in points})
            means = [float(np.exp(np.mean([np.log(ms) for n, ms in points if n == size]))) for size in sizes]
            axes.plot(sizes, means, "-", color=color, linewidth=1.4)
        least = sorted({(line["elements"], line["ms"] * _share(line)) for line in mine if line["by"] == "tkern"})
        axes.plot(*zip(*least, strict=True), "--", color="#333333", linewidth=1.2, label="roof")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(which="major")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_title(title)
        axes.set_xlabel("elements of x")
        axes.set_ylabel("milliseconds a call")
        _legend(axes)
    return figure


def _panels(lines: list[_Line], rows_each: Any) -> tuple[Figure, list[tuple[Axes, tuple[str, list[_Line]]]]]:
    groups = list(dict.fromkeys((line["op"], line["backend"]) for line in lines))
    parts = [[line for line in lines if (line["op"], line["backend"]) == group] for group in groups]
    heights = [1.3 + 0.2 * rows_each(part) for part in parts]
    figure, grid = plt.subplots(
        len(groups), 1, figsize=(8.6, sum(heights)), height_ratios=heights, layout="constrained", squeeze=False
    )
    titled = [
        (f"{op} on {backend} ({part[0]['device']})", part) for (op, backend), part in zip(groups, parts, strict=True)
    ]
    return figure, list(zip(grid[:, 0], titled, strict=True))


def _read(results: Path) -> list[_Line]:
    with results.open(newline="", encoding="utf-8") as file:
        lines: list[_Line] = [dict(line) for line in csv.DictReader(file)]
    try:
        for line in lines:
            for name in ("ms", "ms_q20", "ms_q80", "bytes", "flops", "roof_gbps", "roof_gflops"):
                line[name] = float(line[name]) if line[name] else None
            line["elements"] = int(line["elements"])
    except (KeyError, ValueError, TypeError) as error:
        raise OptionError(
            argument="DIR", expected="a results.csv that tkern bench wrote", got=f"{results} ({error!r})"
        ) from error
    if not lines:
        raise OptionError(argument="DIR", expected="a results.csv with results", got=f"{results}, which has none")
    return lines


def _share(line: _Line) -> float:
    least = line["bytes"] / line["roof_gbps"] / 1e6
    if line["roof_gflops"]:
        least = max(least, line["flops"] / line["roof_gflops"] / 1e6)
    return float(least / line["ms"])


def _find(lines: list[_Line], shape: str, by: str) -> _Line | None:
    return next((line for line in lines if line["shape"] == shape and line["by"] == by), None)


def _by(lines: list[_Line]) -> list[str]:
    return list(dict.fromkeys(line["by"] for line in lines))


def _shapes(lines: list[_Line]) -> list[str]:
    return list(dict.fromkeys(line["shape"] for line in lines))


def _times(shape: str) -> str:
    return shape.replace("x", " × ")


def _milliseconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    axes.legend(once.values(), once.keys(), loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8.5)


def _save(figure: Figure, *paths: Path) -> Sequence[Path]:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        # No date in an SVG: the same numbers give the same file.
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=150, metadata=metadata)
    plt.close(figure)
    return paths
