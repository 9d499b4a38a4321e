"""The file that a user can send back: what is in it, and what must not be."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tkern import bench, machine_report, parity, registry
from tkern.cli import main
from tkern.errors import TkernError
from tkern.machine_report import MachineReport, without_personal_data
from tkern.spec import Op

_HOME, _USER, _HOST = "/home/ada lovelace", "ada.l", "difference-engine"
_SECRETS = (_HOME, _USER, _HOST, "lovelace", "analytical")


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Give the user, the host and the working folder names that can be told from anything else."""
    monkeypatch.setattr(getpass, "getuser", lambda: _USER)
    monkeypatch.setattr(os, "getlogin", lambda: _USER)
    monkeypatch.setattr(socket, "gethostname", lambda: f"{_HOST}.local")
    monkeypatch.setattr(machine_report.platform, "node", lambda: f"{_HOST}.local")
    monkeypatch.setenv("HOME", _HOME)
    monkeypatch.setenv("USER", _USER)
    folder = tmp_path / "analytical"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("no such file /Users/Jane Doe/a b/x.py, line 3", "no such file …, line 3"),
        ("dlopen(/usr/lib/libcuda.so): not found", "dlopen(…): not found"),
        (r"C:\Users\Jo\x.txt is missing", "… is missing"),
        ("see ~/foo/bar now", "see … now"),
        ("file:///tmp/x and //server/share/y", "… and …"),
        (f"{_HOME}/x/y.py by {_USER} on {_HOST}.local", "… by … on …"),
        (f"on {_HOST}, not {_HOST}s", f"on …, not {_HOST}s"),
        # What must stay: sizes, units, quotients, formulas.
        ("case 2×3/1×9/1×1, 33/70, 18.2 GB/s, x / 3", "case 2×3/1×9/1×1, 33/70, 18.2 GB/s, x / 3"),
        ("dx: error 1.5e-06 at (0, 3), 0.43 of the tolerance", "dx: error 1.5e-06 at (0, 3), 0.43 of the tolerance"),
        ("y = x·rstd/√D", "y = x·rstd/√D"),
    ],
)
def test_texts_are_cleaned(text: str, cleaned: str, named: Path) -> None:
    assert without_personal_data({"a": [text, 1, None, True]}) == {"a": [cleaned, 1, None, True]}


def test_words_of_the_report_stay(monkeypatch: pytest.MonkeyPatch, named: Path) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "metal")
    assert without_personal_data(["metal", "torch"]) == ["metal", "torch"]


def _op() -> Op:
    op = registry.all_ops()["rms_norm"]
    return replace(op, cases=op.cases[2:4], quick=op.quick[:1], mutants=(), peers={})


def test_one_file_says_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = _op()
    monkeypatch.setattr(registry, "all_ops", lambda files: {"rms_norm": small})
    out = tmp_path / "deep" / "report.json"
    assert main(["report", "--backend", "cpu", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "backends on this machine" in said
    assert "parity with the float64 oracle" in said
    text = out.read_text(encoding="utf-8")
    found = json.loads(text)
    assert found["held"] is True
    assert found["format"] == machine_report.FORMAT
    assert {"tkern", "python", "taichi", "numpy"} <= found["versions"].keys()
    assert set(found["system"]) == {"system", "release", "machine", "cores"}
    assert [one["name"] for one in found["devices"]] == ["cpu", "metal", "vulkan", "cuda"]
    assert found["devices"][1]["run"] == "checked statically (tkern msl in CI), not yet run on a device"
    (op,) = found["parity"]
    assert op["op"] == "rms_norm"
    assert len(op["cases"]) == len(small.cases) == 2
    assert {case["backend"] for case in op["cases"]} == {"cpu"}
    assert all(case["held"] for case in op["cases"])
    rows = found["bench"]["rows"]
    assert {row["shape"] for row in rows} == {"512x512"}
    assert all(row["ms"] > 0 for row in rows)
    assert found["bench"]["summary"]["rms_norm"]["cpu"]["cases"] == 1
    # Nothing of this user, this host or this place.
    for secret in {getpass.getuser(), socket.gethostname(), str(Path.home()), str(Path.cwd()), str(tmp_path)}:
        assert not re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", text), secret


def test_errors_in_it_are_cleaned(named: Path) -> None:
    def fails(**inputs: object) -> None:
        raise FileNotFoundError(f"{_HOME}/secret/x.py, {named}/y, as {_USER} on {_HOST}")

    made = machine_report.make([replace(_op(), run=fails)], ["cpu"])
    assert not made.held
    assert _USER in made.parity[0].cases[0].problem
    text = made.text()
    assert "FileNotFoundError" in text
    for secret in _SECRETS:
        assert secret not in text, secret


def test_a_wrong_kernel_is_told_and_exits_with_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: Path) -> None:
    def refuses(*arguments: object) -> list[bench.Row]:
        raise TkernError(f"y is wrong; see {named}/log")

    monkeypatch.setattr(bench, "run", refuses)
    monkeypatch.setattr(parity, "run", lambda ops, backends: [])
    out = tmp_path / "report.json"
    assert main(["report", "rms_norm", "--backend", "cpu", "--out", str(out)]) == 1
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["held"] is False
    assert found["bench"]["problem"] == "cpu: TkernError: y is wrong; see …"


def test_a_report_without_a_benchmark_does_not_hold() -> None:
    assert MachineReport([], [], []).held
    assert not MachineReport([], [], [], "why").held


def test_the_file_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report"])
    assert ended.value.code == 2
    assert "--out" in capsys.readouterr().err
