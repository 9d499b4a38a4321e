"""Where arrays lie in memory: a ``ti.ndarray`` on the CPU seen as NumPy, and whether two arrays share a byte."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tkern import runtime
from tkern.errors import AliasError

if TYPE_CHECKING:
    from tkern.arrays import Input

__all__ = ["memory_of", "refuse_shared"]

_NUMPY = {"f32": np.float32, "i32": np.int32, "i64": np.int64, "u8": np.uint8}


class _Memory:
    """The memory of a ti.ndarray on the CPU, which lives as long as any NumPy array on it."""

    def __init__(self, array: Any) -> None:
        self._array = array
        program: Any = runtime.program()
        self.__array_interface__ = {
            "shape": (math.prod(array.shape),),
            "typestr": np.dtype(_NUMPY[array.dtype.to_string()]).str,
            "data": (program.get_ndarray_data_ptr_as_int(array.arr), False),
            "version": 3,
        }


def memory_of(array: Any) -> np.ndarray:
    """Return a ti.ndarray of the CPU as a flat NumPy array on the same memory."""
    return np.asarray(_Memory(array))


def refuse_shared(name: str, value: Any, apart: tuple[Input, ...]) -> None:
    """Raise AliasError where ``value`` shares memory with one of the inputs ``apart``."""
    for other in apart:
        if _may_share(value, other.data):
            raise AliasError(
                argument=name,
                expected=f"memory of its own: {other.name} is still read",
                got=f"memory shared with {other.name}",
            )


def _may_share(a: Any, b: Any) -> bool:
    if a is b:
        return True
    spans = [_span(a), _span(b)]
    if None in spans:
        return False
    (low_a, high_a), (low_b, high_b) = spans  # type: ignore[misc]
    return low_a < high_b and low_b < high_a


def _span(value: Any) -> tuple[int, int] | None:
    """Return the first and one past the last byte that an array may touch, or None where nobody can tell."""
    if isinstance(value, np.ndarray):
        from numpy.lib import array_utils

        return array_utils.byte_bounds(value)
    if hasattr(value, "data_ptr"):
        reach = sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) if value.numel() else -1
        return value.data_ptr(), value.data_ptr() + value.element_size() * (reach + 1)
    return None
