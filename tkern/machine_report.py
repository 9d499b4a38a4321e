"""What a user can send back of a machine: devices, parity, a quick benchmark and versions, in one JSON file.

No personal data: no user name, host name or path. What is written are names of ops, cases and devices, numbers, and
texts of errors; from every text the user's name, the host's name and whatever looks like a path are taken out.
"""

from __future__ import annotations

import contextlib
import datetime
import getpass
import importlib.metadata
import json
import os
import platform
import re
import socket
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tkern
from tkern import bench, devices, parity, runtime
from tkern.bench import Row
from tkern.devices import Backend
from tkern.parity import OpResult
from tkern.spec import Op

__all__ = ["FORMAT", "MachineReport", "make", "without_personal_data"]

FORMAT = 1
_PACKAGES = ("taichi", "numpy", "torch", "matplotlib", "rich")
# A path, absolute or from a home folder: steps may have blanks in them but for the last one, which ends it.
_STEP = r"[\w.@%+~-]"
_PATH = re.compile(rf"(?<![\w/\\.])(?:[A-Za-z]:|~|file:)?(?:[\\/]+{_STEP}+(?: {_STEP}+)*(?=[\\/]))*[\\/]+{_STEP}*")
# Words that the report is made of are no names, whoever is called so.
_OWN = frozenset({*devices.NAMES, "tkern", *_PACKAGES, "oracle"})


@dataclass(frozen=True)
class MachineReport:
    """What was found on this machine: backends, parity of ops on those that are there, rows of a quick benchmark.

    ``problem`` says what ended the benchmark early, where something did.
    """

    devices: list[Backend]
    parity: list[OpResult]
    bench: list[Row]
    problem: str = ""

    @property
    def held(self) -> bool:
        """Return whether parity held everywhere and the benchmark was made."""
        return not self.problem and all(result.held for result in self.parity)

    def text(self) -> str:
        """Return it as JSON, without personal data."""
        plain = {
            "format": FORMAT,
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "held": self.held,
            "versions": _versions(),
            "system": _system(),
            "devices": [{**asdict(one), "run": devices.WHERE_RUN[one.name]} for one in self.devices],
            "parity": [result.as_json() for result in self.parity],
            "bench": {
                "problem": self.problem,
                "rows": [asdict(row) for row in self.bench],
                "summary": bench.summarize(self.bench),
            },
        }
        return json.dumps(without_personal_data(plain), indent=1, ensure_ascii=False) + "\n"


def make(ops: Iterable[Op], backends: Iterable[str]) -> MachineReport:
    """Run parity of ``ops`` on ``backends``, and time the quick shapes of those that hold, on real devices."""
    ops, backends = list(ops), list(backends)
    results = parity.run(ops, backends)
    rows: list[Row] = []
    problems = []
    for name in backends:
        failed = {case.op for result in results for case in result.cases if case.backend == name and not case.held}
        timed = [op for op in ops if op.name not in failed]
        if runtime.find(name).in_software or not timed:
            continue
        try:
            rows += bench.run(timed, [name], bench.PEERS, "quick")
        except Exception as error:  # whatever it is: what else was found is still wanted
            problems.append(f"{name}: {type(error).__name__}: {error}")
    return MachineReport(runtime.backends(), results, rows, "; ".join(problems))


def without_personal_data(value: Any) -> Any:
    """Return plain data with the names of user and host, and paths, taken out of every text in it."""
    if isinstance(value, dict):
        return {key: without_personal_data(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_personal_data(one) for one in value]
    return _clean(value) if isinstance(value, str) else value


def _clean(text: str) -> str:
    for place in _places():
        text = text.replace(place, "…")
    text = _PATH.sub(lambda found: found[0] if _is_no_path(found[0]) else "…", text)
    for name in _names():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "…", text, flags=re.IGNORECASE)
    return re.sub("…(?:…)+", "…", text)


def _is_no_path(found: str) -> bool:
    # A quotient: "33 / 70". Sizes and units ("33/70", "GB/s") have a letter before the slash, which _PATH leaves out.
    return not any(letter.isalpha() for letter in found)


def _places() -> list[str]:
    """Return the folders of this user and of this run, the longest first."""
    found = {os.getcwd(), sys.prefix, sys.base_prefix, str(Path(tkern.__file__).parent.parent)}
    with contextlib.suppress(RuntimeError):
        found.add(str(Path.home()))
    return sorted((place for place in found if len(place) > 1), key=len, reverse=True)


def _names() -> list[str]:
    """Return what user and host are called here, less what is too short to be a name."""
    found = {socket.gethostname(), socket.gethostname().partition(".")[0], platform.node()}
    with contextlib.suppress(OSError, KeyError, ImportError):
        found.add(getpass.getuser())
    with contextlib.suppress(OSError):
        found.add(os.getlogin())
    found |= {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME")}
    return sorted((name for name in found if len(name) > 1 and name not in _OWN), key=len, reverse=True)


def _versions() -> dict[str, str]:
    found = {"tkern": tkern.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _system() -> dict[str, str | int | None]:
    return {
        "system": platform.system(),
        "release": platform.mac_ver()[0] or platform.release(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }
