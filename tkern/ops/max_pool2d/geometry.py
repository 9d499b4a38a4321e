"""Which windows lie over an image: PyTorch's geometry of pooling, checked."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tkern.errors import OptionError, ShapeError

__all__ = ["Axis", "Geometry", "geometry_of"]

Pair = tuple[int, int]


@dataclass(frozen=True)
class Axis:
    """One axis: ``size`` cells under ``windows`` windows.

    Window o holds the cells o·stride − padding + i·dilation, 0 ≤ i < kernel, that lie in [0, size).
    """

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    windows: int

    @property
    def reach(self) -> int:
        """Return how many cells lie from a window's first to its last."""
        return self.dilation * (self.kernel - 1) + 1

    def covering(self) -> tuple[Pair, ...]:
        """Return, for each place r of a cell in its block of ``stride`` cells, which windows cover it.

        (first, shift): cell m·stride + r is cell ``first`` of window m − shift, cell first + step of window m − shift
        − step·dilation/stride and so on, with step = stride/gcd(stride, dilation), while below ``kernel``. Without
        such a cell ``first`` is ``kernel``.
        """
        found = []
        for r in range(self.stride):
            first = next(
                (i for i in range(self.kernel) if (i * self.dilation - self.padding - r) % self.stride == 0),
                self.kernel,
            )
            found.append((first, (first * self.dilation - self.padding - r) // self.stride))
        return tuple(found)


@dataclass(frozen=True)
class Geometry:
    """Both axes, ``h`` and ``w``."""

    h: Axis
    w: Axis

    @property
    def cells(self) -> int:
        """Return how many cells a window has, real or not: offsets are below that."""
        return self.h.kernel * self.w.kernel

    @property
    def index_dtype(self) -> str:
        """Return the smallest integer type that holds a window's offsets."""
        return "uint8" if self.cells <= 256 else "int32"

    @property
    def apart(self) -> bool:
        """Return whether no two windows share a cell, nor interleave."""
        return self.h.reach <= self.h.stride and self.w.reach <= self.w.stride


def geometry_of(
    size: tuple[int, ...], kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any
) -> Geometry:
    """Check the options of a pooling over images of ``size`` (..., H, W) and return its geometry.

    Raises ShapeError (no image) or OptionError (an option that is none, or a window without a real cell).
    """
    if len(size) < 2 or 0 in size[-2:]:
        raise ShapeError(argument="x", expected="shape [..., H, W] with H and W at least 1", got=f"{size}")
    kernel = _pair("kernel_size", kernel_size, 1)
    step = kernel if stride is None else _pair("stride", stride, 1)
    pad, spread = _pair("padding", padding, 0), _pair("dilation", dilation, 1)
    if not isinstance(ceil_mode, (bool, np.bool_)):
        raise OptionError(argument="ceil_mode", expected="True or False", got=repr(ceil_mode))
    return _checked(size[-2:], kernel, step, pad, spread, bool(ceil_mode))


# A training loop asks for the same few again and again.
@functools.lru_cache(maxsize=256)
def _checked(size: tuple[int, ...], kernel: Pair, step: Pair, pad: Pair, spread: Pair, ceil_mode: bool) -> Geometry:
    h, w = (_axis(name, size[k], kernel[k], step[k], pad[k], spread[k], ceil_mode) for k, name in enumerate("HW"))
    if h.kernel * w.kernel > _MOST_CELLS:
        raise OptionError(
            argument="kernel_size",
            expected=f"a window of at most {_MOST_CELLS} cells (32-bit offsets)",
            got=f"{kernel}",
        )
    return Geometry(h, w)


# Numbers a kernel adds up in 32 bits.
_MOST_CELLS = 2**30
_MOST = 2**30


def _pair(name: str, value: Any, least: int) -> Pair:
    if type(value) is int and least <= value <= _MOST:
        return value, value
    values = value if isinstance(value, (tuple, list)) else (value, value)
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, (bool, np.bool_)) for n in values)
    if len(values) != 2 or not whole or not all(least <= n <= _MOST for n in values):
        raise OptionError(
            argument=name, expected=f"a whole number of at least {least} (and at most 2³⁰), or two", got=repr(value)
        )
    return int(values[0]), int(values[1])


def _axis(name: str, size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> Axis:
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    windows = (room + (stride - 1 if ceil_mode else 0)) // stride + 1
    # Rounded up, the last window must begin inside the image or its left padding, as in PyTorch.
    if ceil_mode and (windows - 1) * stride >= size + padding:
        windows -= 1
    if windows < 1:
        raise OptionError(
            argument="kernel_size",
            expected=f"a window that fits {name} = {size} with its padding",
            got=f"one of {size - room + 2 * padding} cells, {kernel} with dilation {dilation}",
        )
    if size + 2 * padding + dilation * kernel + stride > _MOST:
        raise OptionError(
            argument="padding",
            expected="sizes whose sum is below 2³⁰ (32-bit indices)",
            got=f"{padding} for {name} = {size}",
        )
    begins = np.arange(windows, dtype=np.int64) * stride - padding
    first = np.maximum(0, -(begins // dilation))  # the first cell of each window at 0 or beyond
    empty = (first >= kernel) | (begins + first * dilation >= size)
    if empty.any():
        at = int(np.argmax(empty))
        raise OptionError(
            argument="padding",
            expected="windows that each hold a real cell",
            got=f"window {at} of {windows} along {name} = {size}, which holds none: it begins at {begins[at]}",
            hint=f"kernel {kernel}, stride {stride}, padding {padding}, dilation {dilation}",
        )
    return Axis(size, kernel, stride, padding, dilation, windows)
