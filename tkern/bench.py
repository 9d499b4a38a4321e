"""Measure every op beside its peers and the machine's roof, in one run, and write results.csv and summary.json.

What is timed is declared in the ops' ``cases.py``. An op is compared with the oracle before it is timed; a row
without a passing check is not written. Two rows stand for tkern:

``tkern``         the public function, from checking the arguments to finished results in fresh arrays
``tkern-kernel``  the kernels alone, writing into buffers that are kept

The two are timed in turns; an op with ``variants``, other ways to call it, has a row for each (``tkern from x``).
Compile time stands apart: the backend is started without its cache, so a first launch compiles. The roof is measured
before the ops and after them, and the better of both counts.

Peers do what a user of theirs would do, on the same inputs: NumPy on the CPU, PyTorch's autograd on the backend's
device where it has one.
"""

from __future__ import annotations

import csv
import datetime
import functools
import importlib.metadata
import importlib.util
import json
import math
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

import tkern
from tkern import runtime
from tkern.arrays import DTYPES
from tkern.compare import FLOORS
from tkern.errors import OptionError, TkernError
from tkern.parity import Truth, compare_outputs, truth_of
from tkern.progress import steps
from tkern.roof import Roof, measure_roof, synchronize_torch
from tkern.spec import Inputs, Op, Shape, as_outputs
from tkern.timing import Timing, measure, measure_all

__all__ = ["PEERS", "Row", "run", "summarize", "write"]

PEERS = ("numpy", "torch")
_KERNEL = "tkern-kernel"
# MiB of the copy that is the roof: far beyond the last cache, but short on a device in software.
ROOF_SIZES = {"cpu": 128, "cuda": 1024, "metal": 256, "vulkan": 256}
_SOFTWARE_ROOF = 32


@dataclass(frozen=True)
class Row:
    """One line of results.csv. Times in milliseconds, rates in 10⁹ a second, sizes in elements."""

    op: str
    backend: str
    by: str  # "tkern", "tkern-kernel", a variant ("tkern from x"), or a peer
    shape: str
    dims: str
    elements: int
    ms: float
    ms_q20: float
    ms_q80: float
    repeats: int
    calls: int  # in each repeat: one on the CPU, on a GPU as many as take 5 ms
    compile_s: float | None  # what the first launch took beyond a later one; 0 where the kernel was compiled before
    bytes: float
    flops: float
    gbps: float
    gflops: float
    roof: float | None  # the share of the roof, for tkern's rows
    roof_gbps: float
    roof_gflops: float | None
    roof_by: str
    error: float | None  # largest error over tolerance of the check before timing
    device: str
    versions: str
    date: str


def run(ops: Iterable[Op], backends: Iterable[str], peers: Iterable[str], which: str) -> list[Row]:
    """Time ``ops`` on ``backends`` beside ``peers`` at the "quick" or "standard" shapes; return the rows.

    A peer that is not installed, or has no such device, is left out. Raises TkernError where a result is wrong.
    """
    ops, backends, peers = list(ops), list(backends), [peer for peer in peers if _installed(peer)]
    rows: list[Row] = []
    total = len(backends) * (2 + sum(len(op.shapes(which)) * (1 + len(peers)) for op in ops))
    with steps(total, "bench") as bar:
        for backend in backends:
            with runtime.compiling(backend) as found:
                device, software = found.device or backend, found.in_software
                megabytes = _SOFTWARE_ROOF if software else ROOF_SIZES[backend]
                bar.step(f"{backend}: roof")
                roof = measure_roof(backend, megabytes)
                timed: list[Row] = []
                for op in ops:
                    for shape in op.shapes("quick" if software else which):
                        timed += _time_shape(op, shape, backend, device, peers, bar.step)
                bar.step(f"{backend}: roof again")
                roof = roof.better(measure_roof(backend, megabytes))
                rows += [_under(row, roof) for row in timed]
    return rows


def summarize(rows: Iterable[Row]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return ``{op: {backend: {"vs": {peer: ratio}, "roof": fraction, "cases": n}}}``, each a geometric mean.

    ``vs`` is the peer's time over that of tkern's public function; ``roof`` is the kernels' share of the roof.
    """
    rows = list(rows)
    summary: dict[str, dict[str, dict[str, Any]]] = {}
    for op, backend in dict.fromkeys((row.op, row.backend) for row in rows):
        mine = [row for row in rows if (row.op, row.backend) == (op, backend)]
        own = {row.shape: row.ms for row in mine if row.by == "tkern"}
        ratios = {
            peer: _geometric_mean([row.ms / own[row.shape] for row in mine if row.by == peer])
            for peer in dict.fromkeys(row.by for row in mine)
            if not peer.startswith("tkern")
        }
        share = _geometric_mean([row.roof for row in mine if row.by == _KERNEL and row.roof is not None])
        summary.setdefault(op, {})[backend] = {"vs": ratios, "roof": share, "cases": len(own)}
    return summary


def write(rows: list[Row], folder: Path) -> tuple[Path, Path]:
    """Write results.csv and summary.json into ``folder``, making it if need be; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    results, summary = folder / "results.csv", folder / "summary.json"
    with results.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    summary.write_text(json.dumps(summarize(rows), indent=2) + "\n", encoding="utf-8")
    return results, summary


def known_peers(names: Iterable[str]) -> list[str]:
    """Check peer names from the command line; all of them where none is named."""
    names = list(names)
    for name in names:
        if name not in PEERS:
            raise OptionError(argument="--peer", expected="one of " + ", ".join(PEERS), got=repr(name))
        if not _installed(name):
            raise OptionError(argument="--peer", expected="a package that is installed", got=repr(name))
    return names or list(PEERS)


def _time_shape(
    op: Op, shape: Shape, backend: str, device: str, peers: list[str], say: Callable[[str], None]
) -> list[Row]:
    say(f"{op.name} on {backend}: {shape.name}")
    host = op.make(np.random.default_rng(list(shape.name.encode())), shape.dims)
    cost = op.cost(shape.dims)
    inputs = _on_device(host, backend)
    launch = op.prepare(**inputs, backend=backend)
    begun = time.perf_counter()
    launch.run()
    runtime.synchronize()
    first = time.perf_counter() - begun
    truth = truth_of(op, host)
    error = _check(op, shape, backend, truth, as_outputs(op.run(**inputs)))

    def row(by: str, timing: Timing, **extra: Any) -> Row:
        values: dict[str, Any] = {"compile_s": None, "roof": None, "error": None, **extra}
        return Row(
            op=op.name,
            backend=backend,
            by=by,
            shape=shape.name,
            dims=" ".join(f"{name}={size}" for name, size in shape.dims.items()),
            elements=shape.elements,
            ms=timing.median,
            ms_q20=timing.low,
            ms_q80=timing.high,
            repeats=timing.repeats,
            calls=timing.calls,
            bytes=cost.bytes,
            flops=cost.flops,
            gbps=cost.bytes / timing.median / 1e6,
            gflops=cost.flops / timing.median / 1e6,
            roof_gbps=math.nan,
            roof_gflops=None,
            roof_by="",
            device=device,
            versions=_versions(),
            date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            **values,
        )

    functions = [lambda: op.run(**inputs), launch.run]
    timings = measure_all(functions, runtime.synchronize, device=backend != "cpu")
    compiled = max(0.0, first - 1e-3 * timings[1].median)
    rows = [
        row(by, timing, compile_s=compiled, error=error) for by, timing in zip(("tkern", _KERNEL), timings, strict=True)
    ]
    for name, change in op.variants.items():
        changed = change(inputs)
        _check(op, shape, backend, truth, as_outputs(op.run(**changed)))
        timing = measure(functools.partial(op.run, **changed), runtime.synchronize, device=backend != "cpu")
        rows.append(row(f"tkern {name}", timing))
    for peer in peers:
        say(f"{op.name} on {backend}: {shape.name} by {peer}")
        given = _for_peer(peer, host, backend)
        if peer in op.peers and given is not None:
            wait = synchronize_torch if peer == "torch" else runtime.synchronize
            on_device = peer == "torch" and backend != "cpu"
            rows.append(row(peer, measure(op.peers[peer](given), wait, device=on_device)))
    return rows


def _under(row: Row, roof: Roof) -> Row:
    """Return a row with the roof it was measured under."""
    ours = row.by in ("tkern", _KERNEL)
    return replace(
        row,
        roof=roof.fraction(row.ms, row.bytes, row.flops) if ours else None,
        roof_gbps=roof.copy,
        roof_gflops=roof.product,
        roof_by=roof.copy_by + (f", {roof.product_by}" if roof.product_by else ""),
    )


def _check(op: Op, shape: Shape, backend: str, truth: Truth, outputs: tuple[Any, ...]) -> float:
    given = tuple(None if output is None else _to_numpy(output) for output in outputs)
    found = compare_outputs(op, truth, given, FLOORS[backend][0])
    for one in found:
        if not one.held:
            raise TkernError(f"{op.name} on {backend} at {shape.name} is wrong and was not timed: {one}")
    return max(one.ratio for one in found)


def _on_device(host: Inputs, backend: str) -> Inputs:
    """Return the inputs where a user of that backend keeps them: NumPy on the CPU, device arrays on a GPU."""
    if backend == "cpu":
        return host
    torch = _torch_with_cuda() if backend == "cuda" else None

    def move(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        if torch is not None:
            return torch.from_numpy(value).cuda()
        import taichi as ti

        array = ti.ndarray(getattr(ti, DTYPES[value.dtype.name]), value.shape)
        array.from_numpy(value)
        return array

    return {name: move(value) for name, value in host.items()}


def _for_peer(peer: str, host: Inputs, backend: str) -> Inputs | None:
    if peer == "numpy":
        return host
    import torch

    place = "cpu"
    if backend in ("cuda", "vulkan") and torch.cuda.is_available():
        place = "cuda"
    elif backend == "metal" and torch.backends.mps.is_available():
        place = "mps"
    return {k: torch.from_numpy(v).to(place) if isinstance(v, np.ndarray) else v for k, v in host.items()}


def _to_numpy(array: Any) -> np.ndarray:
    if isinstance(array, np.ndarray):
        return array
    if hasattr(array, "detach"):
        return np.asarray(array.detach().cpu())
    return np.asarray(array.to_numpy())


def _installed(peer: str) -> bool:
    return importlib.util.find_spec(peer) is not None


def _torch_with_cuda() -> Any:
    if not _installed("torch"):
        return None
    import torch

    return torch if torch.cuda.is_available() else None


def _versions() -> str:
    names = [name for name in ("taichi", "numpy", "torch") if _installed(name)]
    found = [f"tkern {tkern.__version__}", f"python {platform.python_version()}"]
    return ", ".join(found + [f"{name} {importlib.metadata.version(name)}" for name in names])


def _geometric_mean(values: list[float]) -> float | None:
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else None
