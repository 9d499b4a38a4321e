"""Device arrays without memory: what a launch is prepared with that is looked at and never run.

Such an array has the element type, the shape and so the form of a ``ti.ndarray``, which is all that decides how a
kernel is compiled; an array of many GiB costs nothing. Nothing can be read from one or launched with it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["array", "arrays_are_hollow", "only"]

_wanted = False


@contextlib.contextmanager
def only() -> Iterator[None]:
    """Make every device array that :mod:`tkern.arrays` hands out a hollow one while the block runs."""
    global _wanted
    before, _wanted = _wanted, True
    try:
        yield
    finally:
        _wanted = before


def arrays_are_hollow() -> bool:
    """Return whether device arrays have no memory now."""
    return _wanted


def array(dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return a hollow array of Taichi's type ``dtype``."""
    return _hollow_class()(dtype, shape)


@functools.cache
def _hollow_class() -> type:
    ti = sys.modules["taichi"]

    class HollowNdarray(ti.ScalarNdarray):  # type: ignore[misc, name-defined]
        """A ``ti.ndarray`` that has no memory."""

        def __init__(self, dtype: Any, shape: tuple[int, ...]) -> None:
            ti.Ndarray.__init__(self)
            self.dtype = self.element_type = dtype
            self.shape = tuple(shape)

        def __del__(self) -> None:
            """There is nothing to give back."""

        def fill(self, number: float) -> None:
            """Do nothing: there are no elements."""

        def from_numpy(self, host: Any) -> None:
            """Do nothing: there are no elements."""

    return HollowNdarray
