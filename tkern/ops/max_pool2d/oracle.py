"""Max pooling in NumPy, from its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

__all__ = ["max_pool2d", "max_pool2d_backward"]


def max_pool2d(
    x: ArrayLike,
    kernel_size: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    dtype: DTypeLike = np.float64,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (y, indices): the largest cell of each window, and its place i·kw + j in the window.

    Cells outside of x do not take part. NaN is the largest value; of equal cells the first in row-major order wins.
    The indices are uint8 where kh·kw ≤ 256, else int32.
    """
    x = np.asarray(x, dtype)
    cells, real, (kh, kw) = _windows(x, kernel_size, stride, padding, dilation, ceil_mode)
    y = np.zeros(cells.shape[1:], dtype)
    best = np.full(cells.shape[1:], -1)
    for place, (values, there) in enumerate(zip(cells, real, strict=True)):
        larger = (values > y) | (np.isnan(values) & ~np.isnan(y)) | (best < 0)
        take = there & larger
        y, best = np.where(take, values, y), np.where(take, place, best)
    if (best < 0).any():
        raise ValueError("a window holds no real cell")
    return y, best.astype(np.uint8 if kh * kw <= 256 else np.int32)


def max_pool2d_backward(
    x: ArrayLike,
    dy: ArrayLike,
    kernel_size: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    ties: str = "first",
    indices: ArrayLike | None = None,
    dtype: DTypeLike = np.float64,
) -> np.ndarray:
    """Return dx: each window's dy goes to its largest cell, summed over the windows that a cell is largest in.

    Cells of a window that are equal to its largest share it by ``ties``: "first" gives all to the first, "split" to
    each its part, "all" the whole to each. A NaN is equal to nothing: the first takes all.
    """
    x, dy = np.asarray(x, dtype), np.asarray(dy, dtype)
    options = (kernel_size, stride, padding, dilation, ceil_mode)
    cells, real, (_, kw) = _windows(x, *options)
    if dy.shape != cells.shape[1:]:
        raise ValueError(f"dy: expected shape {cells.shape[1:]}, got {dy.shape}")
    if indices is None:
        best = max_pool2d(
            x, kernel_size, stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil_mode, dtype=dtype
        )[1]
    else:
        best = np.asarray(indices)
    largest = np.take_along_axis(cells, best[None].astype(np.int64), 0)[0]
    places = np.arange(len(cells)).reshape(-1, *(1,) * dy.ndim)
    first = places == best
    wins = first if ties == "first" else first | (real & (cells == largest))
    shares = wins * (dy / np.sum(wins, axis=0) if ties == "split" else dy)
    dx = np.zeros(x.shape, dtype)
    rows, cols = (_places(n, *axis) for n, axis in zip(x.shape[-2:], _axes(x.shape, *options), strict=True))
    for place, share in enumerate(shares):
        i, j = divmod(place, kw)
        inside_h, inside_w = (rows[i] >= 0) & (rows[i] < x.shape[-2]), (cols[j] >= 0) & (cols[j] < x.shape[-1])
        at = np.ix_(rows[i][inside_h], cols[j][inside_w])
        # No cell stands twice at one place of its windows, so += adds every share.
        dx[(..., *at)] += share[..., inside_h, :][..., inside_w]
    return dx


def _windows(x: np.ndarray, *options: Any) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """Return every window's cells, by place in the window, whether each is real, and the window's size."""
    (h, w), (axis_h, axis_w) = x.shape[-2:], _axes(x.shape, *options)
    rows, cols = _places(h, *axis_h), _places(w, *axis_w)
    cells = np.stack([x[..., np.clip(row, 0, h - 1), :][..., np.clip(col, 0, w - 1)] for row in rows for col in cols])
    real = np.stack(
        [((row >= 0) & (row < h))[:, None] & ((col >= 0) & (col < w))[None] for row in rows for col in cols]
    )
    real = np.broadcast_to(real.reshape(len(real), *(1,) * (x.ndim - 2), *real.shape[1:]), cells.shape)
    return cells, real, (len(rows), len(cols))


def _axes(shape: tuple[int, ...], kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
    k, p, d = (v if isinstance(v, (tuple, list)) else (v, v) for v in (kernel, padding, dilation))
    s = k if stride is None else stride if isinstance(stride, (tuple, list)) else (stride, stride)
    found = []
    for axis in (0, 1):
        room = shape[axis - 2] + 2 * p[axis] - d[axis] * (k[axis] - 1) - 1
        count = (-(-room // s[axis]) if ceil_mode else room // s[axis]) + 1
        if ceil_mode and (count - 1) * s[axis] >= shape[axis - 2] + p[axis]:
            count -= 1
        if count < 1:
            raise ValueError(f"no window fits {shape[axis - 2]} cells")
        found.append((k[axis], s[axis], p[axis], d[axis], count))
    return found


def _places(size: int, kernel: int, stride: int, padding: int, dilation: int, count: int) -> np.ndarray:
    """Return, for each place in the window, which cell of the axis it is in each of the ``count`` windows."""
    return np.arange(count) * stride - padding + np.arange(kernel)[:, None] * dilation
