"""What Taichi does to the thread it is started in, and what other threads need before they may launch."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator

__all__ = ["arithmetic_kept", "enter_cuda", "remember_cuda"]

# The thread that CUDA was started in, and the context that is current there.
_cuda_thread = 0
_cuda_context = ctypes.c_void_p()


@contextlib.contextmanager
def arithmetic_kept() -> Iterator[None]:
    """Keep this thread's floating-point mode: Taichi's start makes it round subnormal numbers to 0, NumPy's too."""
    mode = ctypes.create_string_buffer(256)  # an fenv_t takes 32 bytes on x86 and less on ARM
    library = ctypes.CDLL("ucrtbase" if os.name == "nt" else None)
    known = hasattr(library, "fegetenv") and library.fegetenv(mode) == 0
    try:
        yield
    finally:
        if known:
            library.fesetenv(mode)


def remember_cuda() -> None:
    """Remember the CUDA context that Taichi has just made current in this thread."""
    global _cuda_thread
    _cuda_thread = threading.get_ident()
    _driver().cuCtxGetCurrent(ctypes.byref(_cuda_context))


def enter_cuda() -> None:
    """Make that context current in this thread, if it is another one: a launch without it ends the process."""
    if threading.get_ident() != _cuda_thread:
        _driver().cuCtxSetCurrent(_cuda_context)


def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
