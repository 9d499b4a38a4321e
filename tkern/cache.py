"""Where Taichi's files go, and the environment it is imported and started in.

Compiled kernels are kept in the user's cache directory, a folder for each set of options, since several options are
not part of the key by which Taichi finds a kernel again. What is in such a folder is executed, so it must be the
user's alone.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["QUIET", "folder_for", "home", "quiet_environment", "scratch_folder"]

# For the import and the start of Taichi: no banner, no version check (which calls home), no torch and paddle.
QUIET = {
    "ENABLE_TAICHI_HEADER_PRINT": "0",
    "TI_SKIP_VERSION_CHECK": "ON",
    "TI_ENABLE_TORCH": "0",
    "TI_ENABLE_PADDLE": "0",
    "TI_LOG_LEVEL": "error",
}


def folder_for(name: str, options: Mapping[str, Any]) -> Path | None:
    """Return the folder for kernels of backend ``name`` compiled with ``options``, or None where there can be none.

    It lies under the user's cache directory and is readable by the user alone; with a warning, None where it cannot
    be made so.
    """
    key = hashlib.sha256(repr(sorted(options.items())).encode()).hexdigest()[:12]
    folder = Path("~/.cache")
    try:
        folder = _user_cache() / "tkern" / f"{name}-{key}"
        for part in (folder.parent, folder):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_private(part)
        if not os.access(folder, os.W_OK):
            raise OSError("it cannot be written")
    except (OSError, RuntimeError) as error:
        warnings.warn(f"tkern keeps no compiled kernels: {folder} cannot be used ({error})", stacklevel=2)
        return None
    return folder


def _user_cache() -> Path:
    named = os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home() / "AppData" / "Local")))
    return Path.home() / ".cache"


@functools.cache
def scratch_folder() -> Path:
    """Make a folder for what Taichi writes where nothing can be kept; it goes when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="tkern-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def home() -> dict[str, str]:
    """Return the variables by which Taichi finds a place for its own files: it ends the process if there is none."""
    with contextlib.suppress(OSError, RuntimeError):
        folder = _user_cache() / "taichi"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return {"XDG_CACHE_HOME": str(folder.parent)}
    return {"XDG_CACHE_HOME": str(scratch_folder())}


def _make_private(folder: Path) -> None:
    if not hasattr(os, "getuid"):
        return
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode):
        raise OSError("it is not a folder")
    if state.st_uid != os.getuid():
        raise OSError("it belongs to another user")
    if stat.S_IMODE(state.st_mode) != 0o700:
        folder.chmod(0o700)


@contextlib.contextmanager
def quiet_environment(**changes: str) -> Iterator[None]:
    """Hide every TI_* variable (they override what is asked for) and set ``changes``, for one step."""
    kept = dict(os.environ)
    for key in kept:
        if key.startswith("TI_"):
            del os.environ[key]
    os.environ.update(changes)
    try:
        yield
    finally:
        for key in changes:
            os.environ.pop(key, None)
        os.environ.update(kept)
