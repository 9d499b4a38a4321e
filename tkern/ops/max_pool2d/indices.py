"""Offsets in windows, as max_pool2d returns them, and PyTorch's flat indices."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tkern.arrays import DTYPES
from tkern.errors import DTypeError, OptionError, ShapeError
from tkern.ops.max_pool2d.geometry import Geometry, geometry_of

__all__ = ["max_pool2d_indices_from_flat", "max_pool2d_indices_to_flat"]


def max_pool2d_indices_to_flat(
    indices: Any,
    input_shape: tuple[int, ...],
    kernel_size: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """Return PyTorch's flat indices of max pooling, from the offsets that :func:`tkern.max_pool2d` returns.

    An offset i·kw + j of window (ho, wo) is cell (ho·sh − ph + i·dh, wo·sw − pw + j·dw) of its image; the flat index
    of cell (h, w) is h·W + w.

    Parameters: indices uint8 (int32 where kh·kw > 256) of y's shape [..., Ho, Wo], NumPy, torch or ti.ndarray;
    input_shape [..., H, W], x's; the rest as they were for ``max_pool2d``.
    Returns: int64 of the same shape, NumPy, or a torch tensor on the same device where ``indices`` is one. No units.
    Raises: ShapeError, DTypeError, OptionError, each naming the argument; also for an offset of no real cell.
    Source: the definition of both.
    """
    geometry = geometry_of(tuple(input_shape), kernel_size, stride, padding, dilation, ceil_mode)
    offsets = _host("indices", indices, tuple(input_shape), geometry, geometry.index_dtype).astype(np.int64)
    i, j = np.divmod(offsets, geometry.w.kernel)
    rows, cols = _begins(geometry)
    h, w = rows + i * geometry.h.dilation, cols + j * geometry.w.dilation
    _refuse_unreal(offsets, (offsets >= geometry.cells) | ~_inside(geometry, h, w), "offsets of real cells")
    return _like(indices, h * geometry.w.size + w)


def max_pool2d_indices_from_flat(
    indices: Any,
    input_shape: tuple[int, ...],
    kernel_size: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """Return offsets in windows, as :func:`tkern.max_pool2d_backward` takes them, from PyTorch's flat indices.

    The reverse of :func:`tkern.max_pool2d_indices_to_flat`.

    Parameters: indices int64 of y's shape [..., Ho, Wo], NumPy or torch; the rest as there.
    Returns: uint8, or int32 where kh·kw > 256, of the same shape and kind. No units.
    Raises: ShapeError, DTypeError, OptionError, each naming the argument; also for an index of no cell of its window.
    Source: the definition of both.
    """
    geometry = geometry_of(tuple(input_shape), kernel_size, stride, padding, dilation, ceil_mode)
    flat = _host("indices", indices, tuple(input_shape), geometry, "int64")
    h, w = np.divmod(flat, geometry.w.size)
    rows, cols = _begins(geometry)
    i, past_h = np.divmod(h - rows, geometry.h.dilation)
    j, past_w = np.divmod(w - cols, geometry.w.dilation)
    wrong = ~_inside(geometry, h, w) | (past_h != 0) | (past_w != 0)
    wrong |= (i < 0) | (i >= geometry.h.kernel) | (j < 0) | (j >= geometry.w.kernel)
    _refuse_unreal(flat, wrong, "flat indices of cells of their windows")
    return _like(indices, (i * geometry.w.kernel + j).astype(geometry.index_dtype))


def _begins(geometry: Geometry) -> tuple[np.ndarray, np.ndarray]:
    h, w = geometry.h, geometry.w
    return (np.arange(h.windows) * h.stride - h.padding)[:, None], np.arange(w.windows) * w.stride - w.padding


def _inside(geometry: Geometry, h: np.ndarray, w: np.ndarray) -> np.ndarray:
    inside: np.ndarray = (h >= 0) & (h < geometry.h.size) & (w >= 0) & (w < geometry.w.size)
    return inside


def _host(name: str, value: Any, input_shape: tuple[int, ...], geometry: Geometry, dtype: str) -> np.ndarray:
    if hasattr(value, "detach"):
        host = value.detach().cpu().numpy()
    elif isinstance(value, np.ndarray):
        host = value
    elif hasattr(value, "to_numpy"):
        host = value.to_numpy()
    else:
        raise DTypeError(argument=name, expected=f"an array of {dtype}", got=type(value).__name__)
    if host.dtype != np.dtype(dtype):
        hint = f"offsets of {geometry.cells} cells are {geometry.index_dtype}" if dtype in DTYPES else None
        raise DTypeError(argument=name, expected=dtype, got=str(host.dtype), hint=hint)
    shape = (*input_shape[:-2], geometry.h.windows, geometry.w.windows)
    if host.shape != shape:
        raise ShapeError(argument=name, expected=f"shape {shape}", got=str(host.shape))
    return np.asarray(host)


def _refuse_unreal(values: np.ndarray, wrong: np.ndarray, expected: str) -> None:
    if wrong.any():
        at = tuple(int(n) for n in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
        raise OptionError(argument="indices", expected=expected, got=f"{values[at]} at {at}")


def _like(value: Any, host: np.ndarray) -> Any:
    if hasattr(value, "detach"):
        return sys.modules["torch"].from_numpy(host).to(value.device)
    return host
