"""Softmax and its gradient in NumPy, from their definition."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

__all__ = ["softmax", "softmax_backward"]


def softmax(x: ArrayLike, *, dtype: DTypeLike = np.float64) -> np.ndarray:
    """Return exp(x) / Σ exp(x) over the last axis; the row's largest x is taken off first, which changes nothing."""
    x = np.asarray(x, dtype)
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    y: np.ndarray = e / np.sum(e, axis=-1, keepdims=True)
    return y


def softmax_backward(y: ArrayLike, dy: ArrayLike, *, dtype: DTypeLike = np.float64) -> np.ndarray:
    """Return dx = Jᵀ·dy for each row, J_ji = ∂y_j/∂x_i = y_j·(δ_ij − y_i): dx_i = y_i·dy_i − y_i · Σ_j y_j·dy_j."""
    y, dy = np.asarray(y, dtype), np.asarray(dy, dtype)
    if dy.shape != y.shape:
        raise ValueError(f"dy: expected shape {y.shape}, got {dy.shape}")
    terms = y * dy
    dx: np.ndarray = terms - y * np.sum(terms, axis=-1, keepdims=True)
    return dx
