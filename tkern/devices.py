"""Which backends this machine has, found out without ending the process that asks.

Every backend but the CPU is probed in a process of its own, because a missing or broken driver may abort the process
that touches it. The answer is kept as long as this process lives.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass

from tkern import cache, processor

__all__ = ["NAMES", "WHERE_RUN", "Backend", "probe"]

NAMES = ("cpu", "metal", "vulkan", "cuda")

# What this version was tried on before it was given away, whatever this machine has; the README says the same.
WHERE_RUN = {
    "cpu": "in CI: all tests, parity of every op",
    "metal": "checked statically (tkern msl in CI), not yet run on a device",
    "vulkan": "in CI on a device in software: all tests, parity of every op; by hand on an H200",
    "cuda": "by hand on an H200: parity of every op, benchmarks",
}


@dataclass(frozen=True)
class Backend:
    """One backend as this machine has it: ``name``, ``available``, ``device`` (its name), ``why_not`` (if missing)."""

    name: str
    available: bool
    device: str | None = None
    why_not: str | None = None

    @property
    def in_software(self) -> bool:
        """Return whether this is a GPU backend whose device is a program on the CPU: right, but slow."""
        return self.name != "cpu" and any(word in (self.device or "").lower() for word in ("llvmpipe", "swiftshader"))


_MISSING = {
    "metal": "it needs macOS on Apple Silicon",
    "vulkan": "it needs a Vulkan driver and loader (Debian: apt-get install libvulkan1 mesa-vulkan-drivers, "
    "which also brings a device in software)",
    "cuda": "it needs an NVIDIA GPU with its driver (libcuda.so)",
}

# The probe says what it found on its last line; Taichi's own trace names the device.
_PROBE = """
import sys
if sys.path[:1] == [""]:
    del sys.path[0]  # the working folder: nothing of the user's is to be run
import taichi as ti
ti.init(arch=getattr(ti, sys.argv[1]), enable_fallback=False, log_level=ti.TRACE, offline_cache=False,
        offline_cache_file_path=sys.argv[2])
x = ti.ndarray(ti.f32, 4)
x.fill(1.5)
ti.sync()
assert x.to_numpy().sum() == 6.0, "a fill of four numbers came back wrong"
print("arch=" + str(ti.lang.impl.current_cfg().arch).rpartition(".")[2], flush=True)
"""

_DEVICE_LINES = (r"Found Vulkan Device \d+ \((.*)\)\s*$", r"Using CUDA device \[id=\d+\]: (.*?)\s*$")


@functools.cache
def probe(name: str) -> Backend:
    """Return backend ``name`` as this machine has it; asked once."""
    if importlib.util.find_spec("taichi") is None:
        return Backend(name, False, why_not="Taichi is not installed (pip install taichi)")
    if name == "cpu":
        return Backend(name, True, device=_cpu_name())
    if name == "metal" and sys.platform != "darwin":
        return Backend(name, False, why_not=f"{_MISSING[name]}; this is {platform.system()}")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TI_")}
    environment.update({**cache.QUIET, **cache.home(), "TI_LOG_LEVEL": "trace"})
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, name, str(cache.scratch_folder())],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
        )
    except subprocess.TimeoutExpired:
        return Backend(name, False, why_not="its probe did not end within two minutes: the driver hangs")
    text = done.stdout + done.stderr
    if done.returncode == 0 and f"arch={name}" in done.stdout:
        return Backend(name, True, device=_device_name(name, text))
    if "is not supported" in text:
        return Backend(name, False, why_not=_MISSING[name])
    last = next((line for line in reversed(text.strip().splitlines()) if line.strip()), "nothing was printed")
    return Backend(name, False, why_not=f"{_MISSING[name]}; its probe ended with {done.returncode}: {last.strip()}")


def _device_name(name: str, trace: str) -> str:
    for pattern in _DEVICE_LINES:
        found = re.search(pattern, trace, re.MULTILINE)
        if found:
            return found.group(1)
    return f"{_cpu_name()} (GPU)" if name == "metal" else f"unnamed {name} device"


def _cpu_name() -> str:
    model = processor.said_of("model name")
    if not model and sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            asked = subprocess.run(
                ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, timeout=10
            )
            model = asked.stdout.strip()
    return f"{model or platform.processor() or platform.machine()}, {os.cpu_count()} cores"
