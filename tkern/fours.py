"""Rows of floats seen as rows of vectors of 4, for GPU kernels that read four floats at a time."""

from __future__ import annotations

import functools
import sys
from typing import Any

__all__ = ["as_fours"]


def as_fours(argument: Any) -> Any:
    """Return a GPU kernel's argument, whose last axis is a multiple of 4, seen as vectors of 4 floats.

    A tensor that does not begin on a vector is copied: it may be a part of another one.
    """
    if hasattr(argument, "data_ptr"):
        return (argument if argument.data_ptr() % 16 == 0 else argument.clone()).view(-1, 4)
    return _fours_class()(argument)


@functools.cache
def _fours_class() -> type:
    ti = sys.modules["taichi"]

    class Fours(ti.Ndarray):  # type: ignore[misc, name-defined]
        """The memory of a ``ti.ndarray`` of floats as vectors of 4, which Taichi has no word for."""

        def __init__(self, whole: Any) -> None:
            super().__init__()
            self.whole = whole  # so that it lives as long
            self.arr = whole.arr
            self.dtype = whole.dtype
            self.shape = (*whole.shape[:-1], whole.shape[-1] // 4)
            self.element_type = ti.types.vector(4, ti.f32).tensor_type

    return Fours
