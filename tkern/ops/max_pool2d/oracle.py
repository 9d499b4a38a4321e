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
    windows = _Windows(x.shape, kernel_size, stride, padding, dilation, ceil_mode)
    y = np.zeros(windows.shape, dtype)
    best = np.full(windows.shape, -1)
    for place in range(windows.cells):
        values, real = windows.take(x, place)
        larger = real & ((values > y) | (np.isnan(values) & ~np.isnan(y)) | (best < 0))
        y, best = np.where(larger, values, y), np.where(larger, place, best)
    if (best < 0).any():
        raise ValueError("a window holds no real cell")
    return y, best.astype(np.uint8 if windows.cells <= 256 else np.int32)


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
    windows = _Windows(x.shape, kernel_size, stride, padding, dilation, ceil_mode)
    if dy.shape != windows.shape:
        raise ValueError(f"dy: expected shape {windows.shape}, got {dy.shape}")
    if indices is None:
        indices = max_pool2d(
            x, kernel_size, stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil_mode, dtype=dtype
        )[1]
    best = np.asarray(indices)
    largest = np.zeros_like(dy)
    for place in range(windows.cells):
        largest = np.where(best == place, windows.take(x, place)[0], largest)

    def wins(place: int) -> Any:
        if ties == "first":
            return best == place
        values, real = windows.take(x, place)
        return (best == place) | (real & (values == largest))

    if ties == "split":
        dy = dy / sum(wins(place).astype(dtype) for place in range(windows.cells))
    dx = np.zeros(x.shape, dtype)
    for place in range(windows.cells):
        windows.add(dx, place, wins(place) * dy)
    return dx


class _Windows:
    """All windows over images of ``shape``, taken by the place of a cell in them."""

    def __init__(self, shape: tuple[int, ...], *options: Any) -> None:
        self.size = shape[-2:]
        axes = _axes(shape, *options)
        self.rows, self.cols = (_places(*axis) for axis in axes)
        self.cells = len(self.rows) * len(self.cols)
        self.shape = (*shape[:-2], axes[0][-1], axes[1][-1])

    def _cells(self, place: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return row and column of the cell at ``place`` of each window, and whether they are in the image."""
        i, j = divmod(place, len(self.cols))
        row, col = self.rows[i], self.cols[j]
        return row, col, (row >= 0) & (row < self.size[0]), (col >= 0) & (col < self.size[1])

    def take(self, x: np.ndarray, place: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the cell at ``place`` of every window, and whether it is real."""
        row, col, inside_h, inside_w = self._cells(place)
        values = x[..., np.clip(row, 0, self.size[0] - 1), :][..., np.clip(col, 0, self.size[1] - 1)]
        return values, inside_h[:, None] & inside_w

    def add(self, dx: np.ndarray, place: int, shares: np.ndarray) -> None:
        """Add to the cell at ``place`` of every window its share."""
        row, col, inside_h, inside_w = self._cells(place)
        # No cell stands twice at one place of its windows, so += adds every share.
        dx[(..., *np.ix_(row[inside_h], col[inside_w]))] += shares[..., inside_h, :][..., inside_w]


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


def _places(kernel: int, stride: int, padding: int, dilation: int, count: int) -> np.ndarray:
    """Return, for each place in the window, which cell of the axis it is in each of the ``count`` windows."""
    return np.arange(count) * stride - padding + np.arange(kernel)[:, None] * dilation
