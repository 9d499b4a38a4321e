"""Cross-entropy of logits and its gradient in NumPy, from the definition."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

__all__ = ["cross_entropy", "cross_entropy_backward"]


def cross_entropy(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    dtype: DTypeLike = np.float64,
) -> np.ndarray:
    """Return −Σ_v q_v·log softmax(logits)_v for each row, 0 for an ignored one, or their sum or mean.

    q is (1 − label_smoothing) at the label and label_smoothing / V everywhere; the mean is over rows not ignored, and 0
    where there are none.
    """
    z, labels = np.asarray(logits, dtype), np.asarray(labels)
    kept = labels != ignore_index
    shifted = z - np.max(z, axis=1, keepdims=True)
    log_p = shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))
    losses: np.ndarray = np.where(
        kept, -np.sum(_targets(labels, kept, z.shape, label_smoothing, dtype) * log_p, axis=1), 0
    )
    if reduction == "none":
        return losses
    return np.asarray(np.sum(losses) / (max(1, np.count_nonzero(kept)) if reduction == "mean" else 1))


def cross_entropy_backward(
    logits: ArrayLike,
    labels: ArrayLike,
    dout: ArrayLike | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    in_place: bool = False,
    dtype: DTypeLike = np.float64,
) -> np.ndarray:
    """Return dlogits for the gradient dout of the loss (None: 1); a new array, also where ``in_place`` is set.

    As Σ q = 1, ∂(−Σ_v q_v·log p_v)/∂z_u = p_u − q_u.
    """
    z, labels = np.asarray(logits, dtype), np.asarray(labels)
    kept = labels != ignore_index
    each = np.broadcast_to(np.asarray(1 if dout is None else dout, dtype), labels.shape)
    if reduction == "mean":
        each = each / np.asarray(max(1, np.count_nonzero(kept)), dtype)
    p: np.ndarray = np.exp(z - np.max(z, axis=1, keepdims=True))
    p /= np.sum(p, axis=1, keepdims=True)
    p -= _targets(labels, kept, z.shape, label_smoothing, dtype)
    p *= each[:, None]
    p[~kept] = 0
    return p


def _targets(
    labels: np.ndarray, kept: np.ndarray, shape: tuple[int, ...], smoothing: float, dtype: DTypeLike
) -> np.ndarray:
    q = np.full(shape, smoothing / shape[1], dtype)
    rows = np.flatnonzero(kept)
    q[rows, labels[rows]] += 1 - smoothing
    return q
