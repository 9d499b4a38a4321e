"""Check, without a Mac, that every kernel is one that Metal can take.

Taichi's Metal backend is its SPIR-V code generator followed by SPIRV-Cross, and both run on any machine with a Vulkan
device (Mesa's lavapipe will do). So for every kernel at every compile-time configuration that Metal would use
(:mod:`tkern.msl.gather`), the SPIR-V that Metal would get is made (``emit``), checked by spirv-val and translated to
MSL by spirv-cross (``tools``), and the MSL is read for what Metal cannot take (``rules``) and for how many threads a
core can run at once (``estimate``). A finding names the kernel, the rule and the line: of the author's Python file
where it can be known (``lines``), and of the MSL.

What this cannot show is what Apple's compiler makes of the MSL, and how fast it is: that takes a Mac.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tkern import cache, runtime
from tkern.errors import TkernError
from tkern.msl import tools
from tkern.msl.worker import BEGUN
from tkern.progress import Steps, steps

__all__ = ["Checked", "check"]

_MOST_PROCESSES = 4
# Runs in a process of its own, with the module path of this one and nothing of the working folder.
_WORKER = (
    "import json, sys; request = json.loads(sys.argv[1]); sys.path[:] = request['path']; "
    "from tkern.msl.worker import main; main(request)"
)


@dataclass(frozen=True)
class Checked:
    """What was found out about one kernel in one configuration.

    ``words`` is the configuration, ``used_by`` the case or shape that first had it, ``place`` where its text begins;
    ``launches`` are estimates (:class:`tkern.msl.estimate.Estimate`), one for each file of MSL, ``findings`` what broke
    a rule.
    """

    op: str
    kernel: str
    number: int
    words: str
    used_by: str
    place: tuple[str, int]
    launches: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def held(self) -> bool:
        """Return whether no rule was broken."""
        return not self.findings

    @property
    def main(self) -> dict[str, Any] | None:
        """Return the estimate of the launch that does the work; another one may count its threads first."""
        return max(self.launches, key=lambda one: (one["threads"], one["registers"]), default=None)


@dataclass
class _Worker:
    """A process with its share of the kernels, and what it has answered."""

    process: subprocess.Popen[str]
    answers: Path
    errors: Path
    request: dict[str, Any]
    read: int = 0
    begun: dict[str, Any] | None = None


def check(
    ops: Iterable[str] = (), files: Iterable[str] = (), out: Path | None = None, *, once: bool = False
) -> list[Checked]:
    """Check the kernels of ``ops`` (all, where none is named), with those of the user's ``files``.

    SPIR-V, MSL and msl.json are written into ``out``, if given. ``once`` takes one configuration of each kernel.
    Raises OptionError where spirv-val or spirv-cross is missing and BackendUnavailable where there is no Vulkan device,
    each saying what to install.
    """
    tools.find()
    runtime.find("vulkan")
    with _folder(out) as folder, tempfile.TemporaryDirectory(prefix="tkern-") as scratch:
        shares = min(_MOST_PROCESSES, os.cpu_count() or 1)
        request = {
            "path": sys.path, "ops": list(ops), "files": [str(Path(file).resolve()) for file in files],
            "out": str(folder), "once": once, "skip": [],
        }  # fmt: skip
        results: dict[int, Checked] = {}
        failed: list[Checked] = []
        with steps(1, "msl") as bar:
            _run_all([{**request, "share": [k, shares]} for k in range(shares)], Path(scratch), results, failed, bar)
        found = failed + [results[number] for number in sorted(results)]
        if out is not None:
            listed = [{**vars(one), "held": one.held} for one in found]
            (folder / "msl.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    return found


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        yield out.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="tkern-msl-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_all(
    requests: list[dict[str, Any]], scratch: Path, results: dict[int, Checked], failed: list[Checked], bar: Steps
) -> None:
    workers = [_start(request, scratch, k) for k, request in enumerate(requests)]
    try:
        while workers:
            time.sleep(0.05)
            for worker in list(workers):
                ended = worker.process.poll()
                _read(worker, results, failed, bar)
                if ended is None:
                    continue
                workers.remove(worker)
                if ended != 0:
                    workers.append(_after_its_end(worker, ended, results, scratch))
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()


def _start(request: dict[str, Any], scratch: Path, k: int) -> _Worker:
    answers = scratch / f"{k}-{len(request['skip'])}.jsonl"
    errors = answers.with_suffix(".log")
    request = {**request, "answers": str(answers)}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TI_")}
    with errors.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, json.dumps(request)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True, env={**environment, **cache.QUIET},
        )  # fmt: skip
    return _Worker(process, answers, errors, request)


def _read(worker: _Worker, results: dict[int, Checked], failed: list[Checked], bar: Steps) -> None:
    """Take what a worker has answered since it was asked last."""
    if not worker.answers.exists():
        return
    lines = worker.answers.read_text(encoding="utf-8").split("\n")[:-1]
    for line in lines[worker.read :]:
        found = json.loads(line)
        if "total" in found:
            bar.more(found["total"])
        elif "unprepared" in found:
            failed.append(_unprepared(found["unprepared"]))
        elif "begin" in found:
            worker.begun = found
            bar.step(f"{found['op']}: {found['kernel']} {found['number']}")
        else:
            results[found["done"]] = _checked(found, found["launches"], found["findings"])
            worker.begun = None
    worker.read = len(lines)


def _checked(found: dict[str, Any], launches: list[dict[str, Any]], findings: list[dict[str, Any]]) -> Checked:
    named = {name: found[name] for name in ("op", "kernel", "number", "words", "used_by")}
    return Checked(**named, place=tuple(found["place"]), launches=launches, findings=findings)


def _unprepared(found: dict[str, Any]) -> Checked:
    what = f"its launch cannot be prepared: {found['error']}"
    finding = {"rule": "compiles", "what": what, "at": ["", 0], "exact": False, "msl": "", "line": 0}
    return Checked(found["op"], "(none)", 0, "", found["used_by"], ("", 0), [], [finding])


def _after_its_end(worker: _Worker, ended: int, results: dict[int, Checked], scratch: Path) -> _Worker:
    """Note which kernel ended a worker, and start another one for those that are left."""
    said = worker.errors.read_text(encoding="utf-8", errors="replace").rpartition(BEGUN)[2].strip().splitlines()
    last = next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
    if worker.begun is None:
        raise TkernError(f"the process that makes MSL ended with {ended}: {last}")
    number, begun = worker.begun["begin"], worker.begun
    what = f"compiling it ended the process ({ended}): {last}"
    finding = {"rule": "compiles", "what": what, "at": begun["place"], "exact": False, "msl": "", "line": 0}
    results[number] = _checked(begun, [], [finding])
    share, shares = worker.request["share"]
    skip = sorted({*worker.request["skip"], *(n for n in results if n % shares == share)})
    return _start({**worker.request, "skip": skip}, scratch, share)
