"""The only place that starts Taichi: which backends exist, which one is on, and with what options.

Four backends have a name here: ``cpu``, ``metal``, ``vulkan`` and ``cuda``. Asking for one that is missing raises
:class:`tkern.errors.BackendUnavailable`; there is no fallback. Every backend but the CPU is probed in a process of
its own, because a missing or broken driver may abort the process that touches it; the answer is kept as long as this
process lives.

Taichi keeps one program per process, so switching backends ends the arrays (``ti.ndarray``) of the one before.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import importlib.util
import io
import os
import platform
import re
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tkern.errors import BackendUnavailable, OptionError

__all__ = ["NAMES", "Backend", "backends", "current", "default_name", "find", "session", "use", "using"]

NAMES = ("cpu", "metal", "vulkan", "cuda")

# What Taichi is started with. Each set of options has its own cache folder, because several of these are not part of
# the key by which Taichi finds a compiled kernel again.
#   fast_math=False              else guards against infinities are folded away (a fully masked softmax row is NaN)
#   unrolling_limit=0            no warning about long compile-time loops: they are meant
#   real_matrix_scalarize=False  on a CPU a vector type becomes one LLVM vector, which is what makes it fast
#   make_cpu_multithreading_loop=False  else a loop of 512 steps or fewer runs on one thread
_COMMON: dict[str, Any] = {"fast_math": False, "unrolling_limit": 0}
OPTIONS: dict[str, dict[str, Any]] = {
    "cpu": {**_COMMON, "real_matrix_scalarize": False, "make_cpu_multithreading_loop": False},
    "metal": dict(_COMMON),
    "vulkan": dict(_COMMON),
    "cuda": dict(_COMMON),
}

# For the import of Taichi: no banner, no version check (which calls home), no import of torch and paddle.
_QUIET = {
    "ENABLE_TAICHI_HEADER_PRINT": "0",
    "TI_SKIP_VERSION_CHECK": "ON",
    "TI_ENABLE_TORCH": "0",
    "TI_ENABLE_PADDLE": "0",
}

# Held while a kernel is compiled or launched and while the backend changes: Taichi itself is not thread-safe.
_lock = threading.RLock()
_started: str | None = None
_program: object = None


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


def backends() -> list[Backend]:
    """Return the four backends, available or not, each with its device or the reason why it is missing.

    The first call starts a process per GPU backend (under two seconds together); later calls answer from memory.
    """
    return [_probe(name) for name in NAMES]


def default_name() -> str:
    """Return the backend that the first call starts: ``$TKERN_BACKEND``, else metal where it exists, else cpu."""
    named = os.environ.get("TKERN_BACKEND", "").strip()
    if named:
        return _known(named, "$TKERN_BACKEND")
    if sys.platform == "darwin" and _probe("metal").available:
        return "metal"
    return "cpu"


def find(name: str) -> Backend:
    """Return backend ``name`` as this machine has it, without starting it. Errors as :func:`use`."""
    found = _probe(_known(name, "name"))
    if not found.available:
        raise BackendUnavailable(f"backend {name!r} is not available here: {found.why_not}", argument="name", got=name)
    return found


def use(name: str) -> Backend:
    """Start backend ``name`` (``"cpu"``, ``"metal"``, ``"vulkan"``, ``"cuda"``) and make it the one that runs.

    Restarts Taichi unless that backend is on already, which ends every ``ti.ndarray`` made before.
    Raises OptionError for an unknown name and BackendUnavailable where the machine lacks it: never another backend.
    """
    found = find(name)
    with _lock:
        if _started != name or not _is_ours():
            _start(name)
    return found


@contextlib.contextmanager
def using(name: str) -> Iterator[Backend]:
    """Run a block on backend ``name``, then go back to the one before. Errors as :func:`use`."""
    with _lock:
        before = _started
        found = use(name)
    try:
        yield found
    finally:
        with _lock:
            if before is None:
                _stop()
            elif before != _started:
                use(before)


def current() -> str | None:
    """Return the name of the backend that is on, or None before the first call."""
    return _started


@contextlib.contextmanager
def session() -> Iterator[str]:
    """Hold the backend for one call: starts the default one if none is on, yields its name, keeps other threads out."""
    with _lock:
        if _started is None:
            _refuse_foreign_program()
            use(default_name())
        elif not _is_ours():
            raise BackendUnavailable(
                "Taichi was started again outside tkern (ti.init or ti.reset)",
                hint=f"call tkern.use({_started!r}) to start it anew, which ends the arrays made since",
            )
        assert _started is not None
        yield _started


def synchronize() -> None:
    """Wait until the device has finished everything launched so far."""
    if _started is not None:
        _taichi().sync()


def cache_folder(name: str) -> Path | None:
    """Return the folder that holds compiled kernels of backend ``name``, made if need be, or None where it cannot be.

    It lies under the user's cache directory, one folder for each Taichi version and set of options, and is readable
    by the user alone: what is in it is executed.
    """
    options = repr((_taichi().__version__, sorted(OPTIONS[name].items())))
    key = hashlib.sha256(options.encode()).hexdigest()[:12]
    folder = _user_cache() / "tkern" / f"{name}-{key}"
    try:
        for part in (folder.parent, folder):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_private(part)
    except OSError as error:
        warnings.warn(f"tkern keeps no compiled kernels: {folder} cannot be used ({error})", stacklevel=2)
        return None
    return folder


def _known(name: str, argument: str) -> str:
    if name not in NAMES:
        raise OptionError(argument=argument, expected="one of " + ", ".join(NAMES), got=repr(name))
    return name


def _user_cache() -> Path:
    named = os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home() / "AppData" / "Local")))
    return Path.home() / ".cache"


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
def _quiet_environment(**changes: str) -> Iterator[None]:
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


@functools.cache
def _taichi() -> Any:
    """Import Taichi without its banner, its version check (which calls home) and its imports of torch and paddle."""
    with _quiet_environment(**_QUIET), warnings.catch_warnings():
        # Python 3.12 warns of escapes in Taichi's docstrings when it compiles them, once after installation.
        warnings.simplefilter("ignore", SyntaxWarning)
        import taichi

    return taichi


def _start(name: str) -> None:
    global _started, _program
    ti = _taichi()
    options = dict(OPTIONS[name])
    folder = cache_folder(name)
    if folder is None:
        options["offline_cache"] = False
    else:
        options.update(offline_cache=True, offline_cache_file_path=str(folder))
    _started = _program = None
    _end_arrays()
    # "[Taichi] Starting on arch=..." goes to stdout, where it would spoil a table, a CSV or a doctest.
    with _quiet_environment(), contextlib.redirect_stdout(io.StringIO()):
        try:
            ti.init(arch=getattr(ti, name), enable_fallback=False, log_level=ti.ERROR, **options)
        except RuntimeError as error:
            raise BackendUnavailable(f"backend {name!r} did not start: {error}", got=name) from error
    got = str(ti.lang.impl.current_cfg().arch).rpartition(".")[2]
    if got not in _ARCHES[name]:
        ti.reset()
        raise BackendUnavailable(f"backend {name!r}: Taichi started {got} instead", expected=name, got=got)
    # Taichi would do this at the first launch, but fails then if another thread makes it.
    ti.lang.impl.get_runtime().materialize()
    _started, _program = name, ti.lang.impl.get_runtime().prog


def _stop() -> None:
    global _started, _program
    _end_arrays()
    if _started is not None and _is_ours():
        _taichi().reset()
    _started = _program = None


def _end_arrays() -> None:
    """Make every ``ti.ndarray`` of the program that is about to end refuse its use, instead of reading freed memory."""
    ended = _ended_class()
    for thing in gc.get_objects():
        if type(thing).__name__.endswith("Ndarray") and isinstance(thing, ended.__bases__[0]):
            thing.__dict__.clear()
            thing.__class__ = ended


@functools.cache
def _ended_class() -> type:
    class EndedNdarray(_taichi().Ndarray):  # type: ignore[misc]
        """A ``ti.ndarray`` whose backend was switched off."""

        def __getattr__(self, name: str) -> object:
            raise BackendUnavailable(
                "this ti.ndarray belongs to a backend that was switched off",
                hint="copy what is still needed (to_numpy) before tkern.use or the end of tkern.using",
            )

        def __repr__(self) -> str:
            return "<ti.ndarray of a backend that was switched off>"

    return EndedNdarray


def is_ended(array: object) -> bool:
    """Return whether ``array`` is a ``ti.ndarray`` whose backend was switched off."""
    return isinstance(array, _ended_class())


def _is_ours() -> bool:
    return _program is not None and _taichi().lang.impl.get_runtime().prog is _program


def _refuse_foreign_program() -> None:
    if "taichi" in sys.modules and _taichi().lang.impl.get_runtime().prog is not None:
        raise BackendUnavailable(
            "Taichi is already running outside tkern (ti.init)",
            hint="call tkern.use(name) first: it restarts Taichi with the options tkern needs, "
            "which ends the arrays made so far",
        )


# Taichi's names for the arch that each backend may report.
_ARCHES = {"cpu": ("x64", "arm64"), "metal": ("metal",), "vulkan": ("vulkan",), "cuda": ("cuda",)}


_MISSING = {
    "metal": "it needs macOS on Apple Silicon",
    "vulkan": "it needs a Vulkan driver and loader (Debian: apt-get install libvulkan1 mesa-vulkan-drivers, "
    "which also brings a device in software)",
    "cuda": "it needs an NVIDIA GPU with its driver (libcuda.so)",
}

# The probe says what it found on its last line; Taichi's own trace names the device.
_PROBE = """
import sys, taichi as ti
ti.init(arch=getattr(ti, sys.argv[1]), enable_fallback=False, log_level=ti.TRACE, offline_cache=False)
x = ti.ndarray(ti.f32, 4)
x.fill(1.5)
ti.sync()
assert x.to_numpy().sum() == 6.0, "a fill of four numbers came back wrong"
print("arch=" + str(ti.lang.impl.current_cfg().arch).rpartition(".")[2], flush=True)
"""

_DEVICE_LINES = (r"Found Vulkan Device \d+ \((.*)\)\s*$", r"Using CUDA device \[id=\d+\]: (.*?)\s*$")


@functools.cache
def _probe(name: str) -> Backend:
    if importlib.util.find_spec("taichi") is None:
        return Backend(name, False, why_not="Taichi is not installed (pip install taichi)")
    if name == "cpu":
        return Backend(name, True, device=_cpu_name())
    if name == "metal" and sys.platform != "darwin":
        return Backend(name, False, why_not=f"{_MISSING[name]}; this is {platform.system()}")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TI_")}
    environment.update(_QUIET)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, name],
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
    model = ""
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        model = found.group(1) if found else ""
    if not model and sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            asked = subprocess.run(
                ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, timeout=10
            )
            model = asked.stdout.strip()
    return f"{model or platform.processor() or platform.machine()}, {os.cpu_count()} cores"
