"""RMSNorm in NumPy, from its definition."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

__all__ = ["rms_norm", "rms_norm_backward"]


def rms_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    dtype: DTypeLike = np.float64,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (y, rstd): rstd = 1/√(mean(x²) + eps) over the last axis, y = x · rstd · (offset + weight).

    Without a weight y = x · rstd.
    """
    x = np.asarray(x, dtype)
    rstd = 1 / np.sqrt(np.mean(x * x, axis=-1) + np.asarray(eps, dtype))
    return x * rstd[..., None] * _scale(weight, offset, x.shape[-1], dtype), rstd


def rms_norm_backward(
    x: ArrayLike,
    weight: ArrayLike | None,
    dy: ArrayLike,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    rstd: ArrayLike | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Return (dx, dweight, rstd) for the gradient dy of y.

    dy·(offset + weight) is the gradient with respect to the normalised row n = x · rstd. As
    ∂n_j/∂x_i = rstd·δ_ij − x_i·x_j·rstd³/D, dx_i = rstd·dn_i − x_i·rstd³/D · Σ_j dn_j·x_j. dweight = Σ dy · n.
    """
    x, dy = np.asarray(x, dtype), np.asarray(dy, dtype)
    if dy.shape != x.shape:
        raise ValueError(f"dy: expected shape {x.shape}, got {dy.shape}")
    size = x.shape[-1]
    if rstd is None:
        rstd = rms_norm(x, eps=eps, dtype=dtype)[1]
    r = np.asarray(rstd, dtype)[..., None]
    dn = dy * _scale(weight, offset, size, dtype)
    dx = r * dn - x * r**3 / size * np.sum(dn * x, axis=-1, keepdims=True)
    dweight = None if weight is None else np.sum((dy * x * r).reshape(-1, size), axis=0)
    return dx, dweight, r[..., 0]


def _scale(weight: ArrayLike | None, offset: float, size: int, dtype: DTypeLike) -> np.ndarray:
    if weight is None:
        if offset != 0:
            raise ValueError(f"offset: expected 0 where weight is None, got {offset}")
        return np.ones(size, dtype)
    scale: np.ndarray = np.asarray(weight, dtype) + np.asarray(offset, dtype)
    return scale
