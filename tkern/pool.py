"""Memory for results on the CPU, used again.

A fresh array of 128 MiB costs the system as long to hand over, page by page, as RMSNorm backward takes to fill it.
A training loop drops its gradients at every step and asks for the same sizes at the next, so large buffers whose
arrays have died are kept, up to ``MOST_KEPT`` bytes in all, and handed out again. A buffer is free only when the last
array, view or tensor on it is gone.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

__all__ = ["MOST_KEPT", "empty", "kept_bytes", "release"]

MOST_KEPT = 512 * 2**20
# Smaller arrays come from memory that the process has already.
_LEAST = 2**20
_ALIGNMENT = 64

_lock = threading.RLock()
_free: OrderedDict[int, np.ndarray] = OrderedDict()  # by age, oldest first; the key is the address
_kept = 0


class _Lease:
    """Owns a buffer for as long as any array on it lives."""

    def __init__(self, buffer: np.ndarray, count: int, dtype: str) -> None:
        self._buffer = buffer
        self._address = start = buffer.ctypes.data
        self.__array_interface__ = {
            "shape": (count,),
            "typestr": np.dtype(dtype).str,
            "data": (start + -start % _ALIGNMENT, False),
            "version": 3,
        }

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # A default, since this may run when the module's names are gone already.
        if not finalizing() and _give_back is not None:
            _give_back(self._address, self._buffer)


def empty(count: int, dtype: str = "float32") -> np.ndarray:
    """Return ``count`` numbers with undefined values, on a 64-byte boundary."""
    used = np.dtype(dtype).itemsize * count
    size = used + _ALIGNMENT
    if size < _LEAST:
        raw = np.empty(size, np.uint8)
        shift = -raw.ctypes.data % _ALIGNMENT
        return raw[shift : shift + used].view(dtype)
    buffer = _take(size)
    return np.asarray(_Lease(np.empty(size, np.uint8) if buffer is None else buffer, count, dtype))


def kept_bytes() -> int:
    """Return how many bytes wait to be used again."""
    return _kept


def release() -> None:
    """Give all waiting memory back to the system."""
    global _kept
    with _lock:
        _free.clear()
        _kept = 0


def _take(size: int) -> np.ndarray | None:
    global _kept
    with _lock:
        for key, buffer in list(_free.items()):
            if buffer.size == size:
                del _free[key]
                _kept -= size
                return buffer
    return None


def _give_back(address: int, buffer: np.ndarray) -> None:
    global _kept
    with _lock:
        if buffer.size > MOST_KEPT:
            return
        _free[address] = buffer
        _kept += buffer.size
        while _kept > MOST_KEPT:
            _, oldest = _free.popitem(last=False)
            _kept -= oldest.size
