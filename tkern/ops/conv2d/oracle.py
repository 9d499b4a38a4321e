"""Convolution and its gradients in NumPy, from their definition: loops over the taps of the kernel.

With x padded by zeros, tap (r, s) of output (h, w) reads the padded image at (h·stride + r·dilation, …). For one tap
the cells that all outputs read are a slice of the padded image, as large as y.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

__all__ = ["conv2d", "conv2d_backward_bias", "conv2d_backward_input", "conv2d_backward_weight", "im2col"]


def im2col(
    x: ArrayLike,
    kernel_size: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    dtype: DTypeLike = np.float64,
) -> np.ndarray:
    """Return the matrix of patches [N·Ho·Wo, C·kh·kw]: rows (n, ho, wo), columns (c, r, s)."""
    x = np.asarray(x, dtype)
    kernel = (kernel_size, kernel_size) if np.ndim(kernel_size) == 0 else tuple(kernel_size)
    padded, out, _ = _pad(x, kernel, stride, padding, dilation)
    cols = np.empty((x.shape[0], *out, x.shape[1], *kernel), dtype)
    for r, s, rows, columns in _taps(kernel, out, stride, dilation):
        cols[..., r, s] = np.moveaxis(padded[:, :, rows, columns], 1, -1)
    return cols.reshape(x.shape[0] * out[0] * out[1], x.shape[1] * kernel[0] * kernel[1])


def conv2d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    dtype: DTypeLike = np.float64,
) -> np.ndarray:
    """Return y[n, k, h, w] = bias[k] + Σ over c, r, s of weight[k, c, r, s] · x[n, g·C/groups + c, …], g k's group."""
    x, weight = np.asarray(x, dtype), np.asarray(weight, dtype)
    padded, out, _ = _pad(x, weight.shape[2:], stride, padding, dilation)
    w = weight.reshape(groups, -1, *weight.shape[1:])
    y = np.zeros((x.shape[0], groups, w.shape[1], *out), dtype)
    for r, s, rows, columns in _taps(weight.shape[2:], out, stride, dilation):
        patch = _grouped(padded[:, :, rows, columns], groups)
        y += np.einsum("gkc,ngchw->ngkhw", w[..., r, s], patch, optimize=True)
    y = y.reshape(x.shape[0], weight.shape[0], *out)
    if bias is not None:
        y += np.asarray(bias, dtype)[:, None, None]
    return y


def conv2d_backward_weight(
    x: ArrayLike,
    dy: ArrayLike,
    weight_shape: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    dtype: DTypeLike = np.float64,
) -> np.ndarray:
    """Return dweight[k, c, r, s] = Σ over n, h, w of dy[n, k, h, w] · what that weight was multiplied with."""
    x, dy = np.asarray(x, dtype), np.asarray(dy, dtype)
    kernel = tuple(weight_shape[2:])
    padded, out, _ = _pad(x, kernel, stride, padding, dilation)
    grads = _grouped(dy, groups)
    dweight = np.zeros((groups, grads.shape[2], weight_shape[1], *kernel), dtype)
    for r, s, rows, columns in _taps(kernel, out, stride, dilation):
        patch = _grouped(padded[:, :, rows, columns], groups)
        dweight[..., r, s] = np.einsum("ngkhw,ngchw->gkc", grads, patch, optimize=True)
    return dweight.reshape(tuple(weight_shape))


def conv2d_backward_input(
    dy: ArrayLike,
    weight: ArrayLike,
    input_shape: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    dtype: DTypeLike = np.float64,
) -> np.ndarray:
    """Return dx: every output adds weight · dy to the cells it read, and what fell on the padding is dropped."""
    dy, weight = np.asarray(dy, dtype), np.asarray(weight, dtype)
    padded, out, (top, left) = _pad(np.zeros(tuple(input_shape), dtype), weight.shape[2:], stride, padding, dilation)
    w = weight.reshape(groups, -1, *weight.shape[1:])
    grads = _grouped(dy, groups)
    for r, s, rows, columns in _taps(weight.shape[2:], out, stride, dilation):
        part = np.einsum("gkc,ngkhw->ngchw", w[..., r, s], grads, optimize=True)
        padded[:, :, rows, columns] += part.reshape(dy.shape[0], padded.shape[1], *out)
    return padded[:, :, top : top + input_shape[2], left : left + input_shape[3]].copy()


def conv2d_backward_bias(dy: ArrayLike, *, dtype: DTypeLike = np.float64) -> np.ndarray:
    """Return dbias[k] = Σ over n, h, w of dy[n, k, h, w]."""
    dbias: np.ndarray = np.sum(np.asarray(dy, dtype), axis=(0, 2, 3))
    return dbias


def _two(value: Any) -> tuple[Any, Any]:
    return (value, value) if np.ndim(value) == 0 else (value[0], value[1])


def _pad(x: np.ndarray, kernel: Any, stride: Any, padding: Any, dilation: Any) -> tuple[np.ndarray, Any, Any]:
    """Return x padded by zeros, the size of y, and the padding before the image."""
    if np.ndim(padding) == 2:
        pads = [tuple(p) for p in padding]
    else:
        pads = [(p, p) if np.ndim(p) == 0 else tuple(p) for p in _two(padding)]
    padded = np.pad(x, [(0, 0), (0, 0), *pads])
    out = tuple(
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(padded.shape[2:], kernel, _two(stride), _two(dilation), strict=True)
    )
    return padded, out, (pads[0][0], pads[1][0])


def _taps(kernel: Any, out: Any, stride: Any, dilation: Any) -> Iterator[tuple[int, int, slice, slice]]:
    """Yield each tap with the rows and columns of the padded image that it meets."""
    (sh, sw), (dh, dw) = _two(stride), _two(dilation)
    for r in range(kernel[0]):
        for s in range(kernel[1]):
            rows = slice(r * dh, r * dh + (out[0] - 1) * sh + 1, sh)
            yield r, s, rows, slice(s * dw, s * dw + (out[1] - 1) * sw + 1, sw)


def _grouped(a: np.ndarray, groups: int) -> np.ndarray:
    return a.reshape(a.shape[0], groups, a.shape[1] // groups, *a.shape[2:])
