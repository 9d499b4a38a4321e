"""Layer norm and its gradients in NumPy, from the definition."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

__all__ = ["layer_norm", "layer_norm_backward"]


def layer_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    eps: float = 1e-5,
    dtype: DTypeLike = np.float64,
) -> np.ndarray:
    """Return y = n·weight + bias, n = (x − mean(x)) / √(var(x) + eps) over the last axis."""
    y, _ = _normalised(np.asarray(x, dtype), eps)
    if weight is not None:
        y = y * np.asarray(weight, dtype)
    return y if bias is None else y + np.asarray(bias, dtype)


def layer_norm_backward(
    x: ArrayLike,
    weight: ArrayLike | None,
    dy: ArrayLike,
    *,
    eps: float = 1e-5,
    wrt: tuple[str, ...] = ("x", "weight", "bias"),
    mean: ArrayLike | None = None,
    rstd: ArrayLike | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    """Return (dx, dweight, dbias) for the gradient dy of y, None where ``wrt`` does not name it.

    n is unchanged by adding a constant to x, and by scaling x (but for eps): its Jacobian r·(I − 1·1ᵀ/D − n·nᵀ/D) takes
    off what dn = dy·weight has along both. With ``mean`` and ``rstd`` n is (x − mean)·rstd.
    """
    x, dy = np.asarray(x, dtype), np.asarray(dy, dtype)
    if dy.shape != x.shape:
        raise ValueError(f"dy: expected shape {x.shape}, got {dy.shape}")
    size = x.shape[-1]
    if mean is None or rstd is None:
        n, r = _normalised(x, eps)
    else:
        r = np.asarray(rstd, dtype).reshape(*x.shape[:-1], 1)
        n = (x - np.asarray(mean, dtype).reshape(r.shape)) * r
    dn = dy if weight is None else dy * np.asarray(weight, dtype)
    dx = r * (dn - np.mean(dn, axis=-1, keepdims=True) - n * np.mean(dn * n, axis=-1, keepdims=True))
    dweight = np.sum((dy * n).reshape(-1, size), axis=0)
    dbias = np.sum(dy.reshape(-1, size), axis=0)
    return (
        dx if "x" in wrt else None,
        dweight if "weight" in wrt and weight is not None else None,
        dbias if "bias" in wrt else None,
    )


def _normalised(x: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
    d = x - np.mean(x, axis=-1, keepdims=True)
    r = 1 / np.sqrt(np.mean(d * d, axis=-1, keepdims=True) + x.dtype.type(eps))
    return d * r, r
