"""The two programs that do what Taichi's Metal backend does after its code generator, and Khronos' check of SPIR-V."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tkern.errors import OptionError

__all__ = ["find", "to_msl", "validate"]

_PACKAGES = {"spirv-val": "spirv-tools", "spirv-cross": "spirv-cross"}
# What Taichi asks its own SPIRV-Cross for on every Apple Silicon GPU (taichi/rhi/metal/metal_device.mm).
_MSL_OPTIONS = ("--msl", "--msl-version", "20300", "--msl-decoration-binding")
_SECONDS = 120


def find() -> dict[str, str]:
    """Return where the programs are, by name; raise OptionError saying what to install where one is missing."""
    found = {name: shutil.which(name) for name in _PACKAGES}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        packages = " ".join(dict.fromkeys(_PACKAGES[name] for name in missing))
        raise OptionError(
            argument=", ".join(missing),
            expected="on the PATH",
            got="nothing of that name",
            hint=f"install {packages} (Debian, Ubuntu: apt-get install {packages}; macOS: brew install {packages})",
        )
    return {name: path for name, path in found.items() if path is not None}


def validate(spirv: Path) -> str | None:
    """Return what spirv-val objects to in a file, or None."""
    done = _run("spirv-val", "--target-env", "vulkan1.1", str(spirv))
    if done.returncode == 0:
        return None
    return " ".join((done.stderr + done.stdout).split()) or f"it ended with {done.returncode}"


def to_msl(spirv: Path) -> tuple[str | None, str]:
    """Return a file's translation to MSL, or None and what spirv-cross said."""
    done = _run("spirv-cross", *_MSL_OPTIONS, str(spirv))
    if done.returncode == 0 and done.stdout:
        return done.stdout, ""
    return None, " ".join(done.stderr.split()) or f"it ended with {done.returncode}"


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"it did not end within {_SECONDS} s")
