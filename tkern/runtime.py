"""The only place that starts Taichi: which backends exist, which one is on, and with what options.

Four backends have a name here: ``cpu``, ``metal``, ``vulkan`` and ``cuda``. Asking for one that is missing raises
:class:`tkern.errors.BackendUnavailable`; there is no fallback. :mod:`tkern.devices` finds out which there are.

Taichi keeps one program per process, so switching backends ends the arrays (``ti.ndarray``) of the one before.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from tkern import cache, devices, threads
from tkern.devices import NAMES, Backend
from tkern.errors import BackendUnavailable, OptionError

__all__ = [
    "NAMES",
    "Backend",
    "backend",
    "backends",
    "compiling",
    "current",
    "default_name",
    "find",
    "program",
    "session",
    "synchronize",
    "use",
    "using",
]

# What Taichi is started with; each set of options has its own cache folder (see tkern.cache).
#   fast_math=False              else guards against infinities are folded away (a fully masked softmax row is NaN)
#   unrolling_limit=0            no warning about long compile-time loops: they are meant
#   real_matrix_scalarize=False  a vector type becomes one LLVM vector: what makes a CPU fast; on CUDA four floats are
#                                one load
#   make_cpu_multithreading_loop=False  else a loop of 512 steps or fewer runs on one thread
_COMMON: dict[str, Any] = {"fast_math": False, "unrolling_limit": 0}
OPTIONS: dict[str, dict[str, Any]] = {
    "cpu": {**_COMMON, "real_matrix_scalarize": False, "make_cpu_multithreading_loop": False},
    "metal": {**_COMMON, "opt_level": 0},
    "vulkan": {**_COMMON, "opt_level": 0},
    "cuda": {**_COMMON, "opt_level": 0, "real_matrix_scalarize": False},
}

# Held while a kernel is compiled or launched and while the backend changes: Taichi itself is not thread-safe.
_lock = threading.RLock()
_started: str | None = None
_program: object = None
# Set in a child that was forked while a backend was on: its threads are gone, and a call would wait for ever.
_forked = False


def backends() -> list[Backend]:
    """Return the four backends, available or not, each with its device or the reason why it is missing.

    The first call starts a process per GPU backend (a few seconds together); later calls answer from memory.
    """
    return [backend(name) for name in NAMES]


def backend(name: str) -> Backend:
    """Return backend ``name``, available or not. Raises OptionError for an unknown name."""
    return devices.probe(_known(name, "name"))


def default_name() -> str:
    """Return the backend that the first call starts: ``$TKERN_BACKEND``, else metal where it exists, else cpu."""
    named = os.environ.get("TKERN_BACKEND", "").strip()
    if named:
        return _known(named, "$TKERN_BACKEND")
    if sys.platform == "darwin" and devices.probe("metal").available:
        return "metal"
    return "cpu"


def find(name: str) -> Backend:
    """Return backend ``name`` as this machine has it, without starting it. Errors as :func:`use`."""
    found = backend(name)
    if not found.available:
        raise BackendUnavailable(f"backend {name!r} is not available here: {found.why_not}", argument="name", got=name)
    return found


def use(name: str) -> Backend:
    """Start backend ``name`` (``"cpu"``, ``"metal"``, ``"vulkan"``, ``"cuda"``) and make it the one that runs.

    Restarts Taichi unless that backend is on already, which ends every ``ti.ndarray`` made before.
    Raises OptionError for an unknown name and BackendUnavailable where the machine lacks it: never another backend.
    """
    found = find(name)
    _refuse_forked()
    with _lock:
        if _started != name or not _is_ours():
            _start(name)
    return found


@contextlib.contextmanager
def using(name: str) -> Iterator[Backend]:
    """Run a block on backend ``name``, then go back to the one before. Errors as :func:`use`."""
    with _lock:
        before = _started
    try:
        yield use(name)
    finally:
        _go_back(before)


@contextlib.contextmanager
def compiling(name: str, options_of: str | None = None) -> Iterator[Backend]:
    """Run a block on backend ``name`` started anew without its cache, so that every kernel is compiled in it.

    ``options_of`` names a backend whose compile options are taken instead of its own.
    """
    with _lock:
        before = _started
    found = find(name)
    try:
        with _lock:
            _refuse_forked()
            _start(name, cached=False, options_of=options_of)
        yield found
    finally:
        with _lock:
            _stop()
        _go_back(before)


def current() -> str | None:
    """Return the name of the backend that is on, or None before the first call."""
    return _started


@contextlib.contextmanager
def session() -> Iterator[str]:
    """Hold the backend for one call: starts the default one if none is on, yields its name, keeps other threads out."""
    _refuse_forked()
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
        if _started == "cuda":
            threads.enter_cuda()
        yield _started


def program() -> object:
    """Return Taichi's program, another one after every start; what was made for one must not be used with another."""
    return _program


def synchronize() -> None:
    """Wait until the device has finished everything launched so far."""
    if _started is not None:
        _taichi().sync()


def _known(name: str, argument: str) -> str:
    if name not in NAMES:
        raise OptionError(argument=argument, expected="one of " + ", ".join(NAMES), got=repr(name))
    return name


@functools.cache
def _taichi() -> Any:
    """Import Taichi without its banner, its version check (which calls home) and its imports of torch and paddle."""
    with cache.quiet_environment(**cache.QUIET, **cache.home()), warnings.catch_warnings():
        # Python 3.12 warns of escapes in Taichi's docstrings when it compiles them, once after installation.
        warnings.simplefilter("ignore", SyntaxWarning)
        import taichi

    return taichi


def _start(name: str, *, cached: bool = True, options_of: str | None = None) -> None:
    global _started, _program
    ti = _taichi()
    options = dict(OPTIONS[options_of or name])
    folder = cache.folder_for(name, {**options, "taichi": ti.__version__}) if cached else None
    options["offline_cache"] = folder is not None
    # Taichi makes its cache folders even if it is told to keep nothing, and ends the process if it cannot.
    options["offline_cache_file_path"] = str(folder or cache.scratch_folder())
    _started = _program = None
    _end_arrays()
    try:
        # "[Taichi] Starting on arch=..." goes to stdout, where it would spoil a table, a CSV or a doctest.
        with (
            cache.quiet_environment(**cache.QUIET, **cache.home()),
            contextlib.redirect_stdout(io.StringIO()),
            threads.arithmetic_kept(),
        ):
            ti.init(arch=getattr(ti, name), enable_fallback=False, log_level=ti.ERROR, **options)
            # Taichi would do this at the first launch, but fails then if another thread makes it.
            ti.lang.impl.get_runtime().materialize()
        got = str(ti.lang.impl.current_cfg().arch).rpartition(".")[2]
        if got not in _ARCHES[name]:
            raise BackendUnavailable(f"backend {name!r}: Taichi started {got} instead", expected=name, got=got)
    except BaseException as error:
        ti.reset()
        if isinstance(error, RuntimeError) and not isinstance(error, BackendUnavailable):
            raise BackendUnavailable(f"backend {name!r} did not start: {error}", got=name) from error
        raise
    if name == "cuda":
        threads.remember_cuda()
    _started, _program = name, ti.lang.impl.get_runtime().prog


def _go_back(before: str | None) -> None:
    with _lock:
        if before is None:
            _stop()
        elif before != _started:
            use(before)


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


def _refuse_forked() -> None:
    if _forked:
        raise BackendUnavailable(
            "this process was forked while a backend was on, and Taichi's threads did not come along",
            hint='start processes with multiprocessing.get_context("spawn"), or fork before the first call',
        )


def _after_fork() -> None:
    global _lock, _forked
    _lock = threading.RLock()
    _forked = _forked or _started is not None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _refuse_foreign_program() -> None:
    if "taichi" in sys.modules and _taichi().lang.impl.get_runtime().prog is not None:
        raise BackendUnavailable(
            "Taichi is already running outside tkern (ti.init)",
            hint="call tkern.use(name) first: it restarts Taichi with the options tkern needs, "
            "which ends the arrays made so far",
        )


# Taichi's names for the arch that each backend may report.
_ARCHES = {"cpu": ("x64", "arm64"), "metal": ("metal",), "vulkan": ("vulkan",), "cuda": ("cuda",)}
