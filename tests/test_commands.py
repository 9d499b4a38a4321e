"""The command line: what it prints, writes and draws, and its exit codes."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tkern import bench, plot, registry, runtime, timing
from tkern.cli import main
from tkern.errors import TkernError
from tkern.spec import Op, Shape

# A user's own module: a copy of a built-in op under another name, whose kernel forgets the last output.
_BROKEN = """
from dataclasses import replace
from tkern.registry import all_ops

_op = all_ops()["rms_norm"]

def run(**inputs):
    y, rstd = _op.run(**inputs)
    return y, 0 * rstd

OPS = (replace(_op, name="broken_norm", run=run, cases=_op.cases[2:4]),)
"""


def test_devices_lists_all_four(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    for name in runtime.NAMES:
        assert name in out
    assert "…" not in out
    # And of each what was run where; the README says the same.
    assert set(runtime.devices.WHERE_RUN) == set(runtime.NAMES)
    for word in ("in CI:", "statically", "H200"):
        assert word in out


def test_list_names_every_op_and_its_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for name, op in registry.all_ops().items():
        assert name in out
        for word in op.cost_text.split():
            assert word in out


def test_parity_writes_json_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, picture = tmp_path / "deep" / "parity.json", tmp_path / "parity.png"
    code = main(["parity", "rms_norm", "--backend", "cpu", "--json", str(found), "--plot", str(picture)])
    out = capsys.readouterr().out
    assert code == 0
    assert "held" in out
    assert "NOT HELD" not in out
    data = json.loads(found.read_text())
    assert data["held"] is True
    (op,) = data["ops"]
    assert {case["backend"] for case in op["cases"]} == {"cpu"}
    assert {case["case"] for case in op["cases"]} == {case.name for case in registry.all_ops()["rms_norm"].cases}
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_parity_of_a_wrong_kernel_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(_BROKEN)
    picture = tmp_path / "parity.svg"
    command = ["parity", "broken_norm", "--kernels", str(file), "--backend", "cpu", "--plot", str(picture)]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "NOT HELD" in out
    assert "rstd: error" in out
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["parity", "rms_norm", "no_such_op"], "rms_norm, rms_norm_backward, softmax_backward, got 'no_such_op'"),
        (["parity", "--backend", "tpu"], "expected one of cpu, metal, vulkan, cuda, got 'tpu'"),
        (["bench", "--peer", "jax"], "--peer: expected one of numpy, torch, got 'jax'"),
        (["plot", "/nowhere"], "DIR: expected a folder with results.csv"),
        (["list", "--kernels", "/nowhere.py"], "--kernels: expected a Python file, got /nowhere.py"),
    ],
)
def test_what_is_not_there_exits_with_2(command: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert says in error


def test_a_missing_backend_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    missing = next(b.name for b in runtime.backends() if not b.available)
    assert main(["parity", "--backend", missing]) == 2
    assert f"backend '{missing}' is not available here" in capsys.readouterr().err


def test_a_module_without_ops_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "empty.py"
    file.write_text("x = 1\n")
    assert main(["list", "--kernels", str(file)]) == 2


def test_an_op_named_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "twice.py"
    file.write_text('from tkern.registry import all_ops\nOPS = (all_ops()["rms_norm"],)\n')
    with pytest.raises(TkernError, match="names an op 'rms_norm' that exists already"):
        registry.all_ops([str(file)])


@pytest.mark.parametrize("how", ["python -m", "script"])
def test_the_command_is_installed(how: str) -> None:
    script = Path(sys.executable).with_name("tkern")
    if how == "script" and not script.exists():
        pytest.skip("tkern is on the path here, not installed")
    command = [str(script)] if how == "script" else [sys.executable, "-m", "tkern"]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    for name in ("devices", "list", "parity", "bench", "plot", "msl", "report"):
        assert name in done.stdout


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["parity", "--json", "{tmp}"], "--json: expected a file, got the folder"),
        (["parity", "--plot", "{tmp}/x.xyz"], "--plot: expected a file that ends in .png, .svg, .pdf"),
        (["parity", "--plot", "{tmp}/noext"], "--plot: expected a file that ends in .png, .svg, .pdf"),
        (["parity", "--plot", "{tmp}/file/x.png"], "--plot: expected a folder that can be made"),
        (["bench", "--out", "{tmp}/file/x"], "--out: expected a folder that can be made"),
        (["plot", "{tmp}"], "DIR: expected a results.csv that tkern bench wrote"),
        (["plot", "{tmp}/empty"], "DIR: expected a results.csv with results"),
        (["list", "--kernels", "{tmp}/raises.py"], "which raises ZeroDivisionError: division by zero"),
        (["list", "--kernels", "{tmp}/syntax.py"], "which raises SyntaxError"),
        (["list", "--kernels", "{tmp}/three.py"], "with OPS of int"),
    ],
)
def test_what_cannot_be_used_exits_with_2(
    command: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "results.csv").write_text("op,ms\n")
    (tmp_path / "raises.py").write_text("1 / 0\n")
    (tmp_path / "syntax.py").write_text("def (\n")
    (tmp_path / "three.py").write_text("OPS = 3\n")
    assert main([part.replace("{tmp}", str(tmp_path)) for part in command]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def _norms() -> dict[str, Op]:
    return {name: op for name, op in registry.all_ops().items() if name.startswith("rms_norm")}


@pytest.fixture(scope="module")
def rows() -> list[bench.Row]:
    """Return the rows of a real, small run of both ops on the CPU."""
    shapes = (Shape({"M": 64, "N": 48}), Shape({"M": 200, "N": 33}))
    ops = [replace(op, quick=shapes, variants={"again": dict}) for op in _norms().values()]
    return bench.run(ops, ["cpu"], ["numpy"], "quick")


def test_bench_times_tkern_and_its_peers(rows: list[bench.Row], tmp_path: Path) -> None:
    assert {(row.op, row.by, row.shape) for row in rows} == {
        (op, by, shape)
        for op in _norms()
        for by in ("tkern", "tkern-kernel", "tkern again", "numpy")
        for shape in ("64x48", "200x33")
    }
    for row in rows:
        assert 0 < row.ms_q20 <= row.ms <= row.ms_q80
        assert row.repeats >= 5
        assert row.roof_gbps > 0
        assert (row.roof is None) == (row.by in ("tkern again", "numpy"))
        passes = 3 if row.op == "rms_norm_backward" else 2
        assert row.bytes == passes * row.elements * 4
        assert np.isclose(row.gbps, row.bytes / row.ms / 1e6)
        assert row.error is None or 0 < row.error <= 1
        assert (row.compile_s is None) == (row.by in ("tkern again", "numpy"))
    # Nothing was compiled before: the first shape of an op pays, and tells.
    assert max(row.compile_s or 0 for row in rows) > 0.1

    results, summary = bench.write(rows, tmp_path / "out")
    with results.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(rows)
    assert float(lines[0]["ms"]) == rows[0].ms
    assert set(json.loads(summary.read_text())) == set(_norms())


def test_the_summary_is_geometric_means(rows: list[bench.Row]) -> None:
    chosen = [row for row in rows if row.op == "rms_norm_backward"]
    ms = {("tkern", "64x48"): 2.0, ("tkern", "200x33"): 4.0, ("numpy", "64x48"): 8.0, ("numpy", "200x33"): 256.0}
    changed = [
        replace(row, ms=ms.get((row.by, row.shape), row.ms), roof=0.5 if row.shape == "64x48" else 0.02)
        for row in chosen
    ]
    summary = bench.summarize(changed)
    means = summary["rms_norm_backward"]["cpu"]
    assert set(means) == {"vs", "roof", "cases"}
    assert means["cases"] == 2
    assert set(means["vs"]) == {"numpy"}
    assert np.isclose(means["vs"]["numpy"], 16.0)
    assert np.isclose(means["roof"], 0.1)


def test_pictures_come_from_the_csv_alone(rows: list[bench.Row], tmp_path: Path) -> None:
    results, _ = bench.write(rows, tmp_path)
    (tmp_path / "summary.json").unlink()
    drawn = plot.draw_results(results, tmp_path / "pictures")
    assert sorted(path.name for path in drawn) == [
        "roof.png",
        "roof.svg",
        "size.png",
        "size.svg",
        "times.png",
        "times.svg",
    ]
    for path in drawn:
        assert path.read_bytes().startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml")
    again = plot.draw_results(results, tmp_path / "again")
    assert [p.read_bytes() for p in drawn if p.suffix == ".svg"] == [
        p.read_bytes() for p in again if p.suffix == ".svg"
    ]


def test_a_wrong_op_is_not_timed() -> None:
    op = registry.all_ops()["rms_norm"]

    def wrong(**inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        y, rstd = op.run(**inputs)
        y[0, 0] += 1
        return y, rstd

    broken = replace(op, run=wrong, quick=(Shape({"M": 8, "N": 8}),))
    with pytest.raises(TkernError, match="rms_norm on cpu at 8x8 is wrong and was not timed: y: error"):
        bench.run([broken], ["cpu"], [], "quick")


def test_a_timing_waits_for_the_device() -> None:
    order: list[str] = []
    found = timing.measure(lambda: order.append("call"), lambda: order.append("sync"), seconds=0.0)
    timed = order[-3 * found.repeats :]
    assert (found.repeats, found.calls) == (5, 1)
    assert timed == ["sync", "call", "sync"] * 5


def test_a_short_call_on_a_device_is_repeated() -> None:
    order: list[str] = []
    found = timing.measure(lambda: order.append("call"), lambda: order.append("sync"), seconds=0.0, device=True)
    assert found.calls >= 128
    assert order[-found.calls - 2 :] == ["sync", *["call"] * found.calls, "sync"]


def test_a_turn_begins_with_a_call_that_is_not_counted() -> None:
    """The threads of the library whose turn was before may still be spinning."""
    calls = [0, 0]

    def count(which: int) -> None:
        calls[which] += 1

    found = timing.measure_all([lambda: count(0), lambda: count(1)], lambda: None, seconds=0.0)
    for one, made in zip(found, calls, strict=True):
        assert one.repeats >= 5
        # Two calls at least warm up, and one more begins a turn.
        assert made >= one.repeats + 3
