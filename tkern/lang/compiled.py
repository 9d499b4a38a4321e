"""Kernels, built once for each set of words."""

from collections.abc import Callable
from typing import Any

from tkern import authored

_kernels: dict[tuple[Any, ...], Any] = {}


def compiled(build: Callable[[Any], Any], words: Any) -> Any:
    """Return the kernel that ``build(words)`` makes, the same object for equal words (``words.key``).

    It is compiled when it is first launched, and again by itself after the backend has changed. Raises KernelError
    where Taichi refuses what ``build`` declares.
    """
    key = (build, words.key)
    if key not in _kernels:
        with authored.declaring(build):
            _kernels[key] = build(words)
    return _kernels[key]
