"""Attention in NumPy, from its definition, with whole matrices of queries × keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

__all__ = ["AttentionGrads", "Piece", "attention", "attention_backward", "heads_first", "pieces", "scale_of"]

Window = int | tuple[int, int] | None


class AttentionGrads(NamedTuple):
    """The gradients with respect to q, k, v and bias, each None where it was not asked for."""

    dq: np.ndarray | None
    dk: np.ndarray | None
    dv: np.ndarray | None
    dbias: np.ndarray | None


class Piece(NamedTuple):
    """The G query heads that read one key head, in one entry of the batch.

    ``own`` is their place in [B, Hq, …], ``shared`` that of the key head in [B, Hkv, …]. q [G, Sq, D], k [Sk, D] and
    v [Sk, Dv] are the inputs; visible [1 or G, Sq, Sk] says which key takes part in which query's row; scores
    [G, Sq, Sk] are S, −inf where hidden; slope is ∂S/∂(scale·QKᵀ), 1 without a softcap; p = exp(S − lse) is the softmax
    of S, 0 where hidden; lse [G, Sq].
    """

    own: tuple[int, slice]
    shared: tuple[int, int]
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    visible: np.ndarray
    scores: np.ndarray
    slope: np.ndarray
    p: np.ndarray
    lse: np.ndarray


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    layout: str = "bhsd",
    scale: float | None = None,
    causal: bool = False,
    window: Window = None,
    align: str = "bottom-right",
    key_mask: ArrayLike | None = None,
    mask_threshold: float | None = None,
    bias: ArrayLike | None = None,
    softcap: float | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (out, lse): S = scale·QKᵀ, softcapped, plus bias; P = softmax(S); out = P·V; lse = log Σ exp S.

    A row that sees no key has out 0 and lse −inf. lse is [B, Hq, Sq] in both layouts.
    """
    q, k, v = (heads_first(a, layout, dtype) for a in (q, k, v))
    out = np.zeros((*q.shape[:3], v.shape[3]), dtype)
    lse = np.zeros(q.shape[:3], dtype)
    for piece in pieces(
        q,
        k,
        v,
        scale=scale,
        causal=causal,
        window=window,
        align=align,
        key_mask=key_mask,
        mask_threshold=mask_threshold,
        bias=bias,
        softcap=softcap,
        dtype=dtype,
    ):
        out[piece.own] = _weigh(piece.p, piece.v, piece.visible)
        lse[piece.own] = piece.lse
    return _as_given(out, layout), lse


def attention_backward(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    dout: ArrayLike,
    *,
    layout: str = "bhsd",
    scale: float | None = None,
    causal: bool = False,
    window: Window = None,
    align: str = "bottom-right",
    key_mask: ArrayLike | None = None,
    mask_threshold: float | None = None,
    bias: ArrayLike | None = None,
    softcap: float | None = None,
    out: ArrayLike | None = None,
    lse: ArrayLike | None = None,
    dlse: ArrayLike | None = None,
    wrt: Sequence[str] = ("q", "k", "v"),
    dtype: DTypeLike = np.float64,
) -> AttentionGrads:
    """Return the gradients for the gradients dout of out and dlse of lse.

    As ∂P_ij/∂S_im = P_ij·(δ_jm − P_im) and ∂lse_i/∂S_ij = P_ij, with dP = dout·Vᵀ:
    dS_ij = P_ij·(dP_ij − Σ_m P_im·dP_im + dlse_i), where the sum is out_i·dout_i. That is dbias, summed over the axes
    along which bias was broadcast. With dR = dS·slope, the gradient of scale·QKᵀ: dq = scale·dR·K, dk = scale·dRᵀ·Q,
    and dv = Pᵀ·dout; a key head sums over the query heads that read it.

    ``out`` and ``lse`` are taken as they are, lse in P = exp(S − lse), out in that sum; without out it is P·V.
    """
    q, k, v, dout = (heads_first(a, layout, dtype) for a in (q, k, v, dout))
    out = None if out is None else heads_first(out, layout, dtype)
    dlse = None if dlse is None else np.asarray(dlse, dtype)
    factor = scale_of(scale, q)
    dq, dk, dv = (np.zeros(a.shape, dtype) for a in (q, k, v))
    dbias = None if bias is None else np.zeros(np.shape(bias), dtype)
    for piece in pieces(
        q,
        k,
        v,
        scale=scale,
        causal=causal,
        window=window,
        align=align,
        key_mask=key_mask,
        mask_threshold=mask_threshold,
        bias=bias,
        softcap=softcap,
        lse=lse,
        dtype=dtype,
    ):
        visible, p, do = piece.visible, piece.p, dout[piece.own]
        o = _weigh(p, piece.v, visible) if out is None else out[piece.own]
        with np.errstate(invalid="ignore"):  # NaN in what is hidden is replaced by 0
            dp = do @ piece.v.T
            change = dp - np.sum(o * do, axis=-1, keepdims=True)
            if dlse is not None:
                change += dlse[piece.own][..., None]
            ds = np.where(visible, p * change, 0.0)
            dr = np.where(visible, ds * piece.slope, 0.0)
        dq[piece.own] = factor * _weigh(dr, piece.k, visible)
        dk[piece.shared] = factor * np.sum(_weigh(_transposed(dr), piece.q, _transposed(visible)), axis=0)
        dv[piece.shared] = np.sum(_weigh(_transposed(p), do, _transposed(visible)), axis=0)
        if dbias is not None:
            _add_summed(dbias, ds, piece.own)
    dq, dk, dv = (_as_given(a, layout) for a in (dq, dk, dv))
    given = {"q": dq, "k": dk, "v": dv, "bias": dbias}
    return AttentionGrads(*(given[name] if name in wrt else None for name in given))


def pieces(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: Window = None,
    align: str = "bottom-right",
    key_mask: ArrayLike | None = None,
    mask_threshold: float | None = None,
    bias: ArrayLike | None = None,
    softcap: float | None = None,
    lse: ArrayLike | None = None,
    dtype: DTypeLike = np.float64,
) -> Iterator[Piece]:
    """Yield P for each key head of each entry of the batch; q, k and v are in ``dtype``, with heads first."""
    batch, heads, queries, _ = q.shape
    key_heads, keys = k.shape[1:3]
    group = heads // key_heads
    places = _visible_places(queries, keys, causal, window, align)
    shown = _visible_keys(key_mask, mask_threshold, (batch, keys))
    full = None if bias is None else np.broadcast_to(np.asarray(bias, dtype), (batch, heads, queries, keys))
    given = None if lse is None else np.asarray(lse, dtype)
    for b, h in np.ndindex(batch, key_heads):
        own = (b, slice(h * group, (h + 1) * group))  # head i reads key head i // group
        visible = (places & shown[b])[None]
        with np.errstate(invalid="ignore"):  # NaN in what is hidden, and −inf less −inf, are replaced by 0 or −inf
            scores = scale_of(scale, q) * (q[own] @ k[b, h].T)
            slope = np.ones(1, dtype)
            if softcap is not None:
                bent = np.tanh(scores / float(softcap))
                scores, slope = float(softcap) * bent, 1 - bent * bent
            if full is not None:
                scores = scores + full[own]
                visible = visible & (full[own] != -np.inf)
            scores = np.where(visible, scores, -np.inf)
            if given is None:
                p, own_lse = _softmax(scores)
            else:
                own_lse = given[own]
                p = np.exp(scores - own_lse[..., None])
        yield Piece(own, (b, h), q[own], k[b, h], v[b, h], visible, scores, slope, np.where(visible, p, 0.0), own_lse)


def heads_first(array: ArrayLike, layout: str, dtype: DTypeLike) -> np.ndarray:
    """Return an input as [B, H, S, D]."""
    array = np.asarray(array, dtype)
    return {"bhsd": array, "bshd": array.swapaxes(1, 2)}[layout]


def _as_given(array: np.ndarray, layout: str) -> np.ndarray:
    return {"bhsd": array, "bshd": array.swapaxes(1, 2)}[layout]


def scale_of(scale: float | None, q: np.ndarray) -> float:
    """Return the factor of QKᵀ: 1/√D by default."""
    return q.shape[-1] ** -0.5 if scale is None else float(scale)


def _visible_places(queries: int, keys: int, causal: bool, window: Window, align: str) -> np.ndarray:
    """Return, as [Sq, Sk], whether a key stands where a query looks."""
    offset = {"bottom-right": keys - queries, "top-left": 0, "clamped": max(0, keys - queries)}[align]
    position = np.arange(queries)[:, None] + offset
    key = np.arange(keys)
    if window is None:
        before, after = -1, -1
    else:
        before, after = window if isinstance(window, tuple) else (window, 0)
    visible = np.ones((queries, keys), bool)
    if causal:
        visible &= key <= position
    if before >= 0:
        visible &= key >= position - before
    if after >= 0:
        visible &= key <= position + after
    return visible


def _visible_keys(key_mask: ArrayLike | None, threshold: float | None, shape: tuple[int, int]) -> np.ndarray:
    """Return, as [B, Sk], whether a key takes part at all."""
    if key_mask is None:
        return np.ones(shape, bool)
    mask = np.asarray(key_mask)
    if (mask.dtype == bool) != (threshold is None):
        raise ValueError(f"a mask of {mask.dtype} with the threshold {threshold}: float masks need one, others none")
    return mask if threshold is None else mask >= float(threshold)


def _softmax(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return softmax and log Σ exp over the last axis: 0 and −inf for a row of nothing but −inf."""
    highest = np.max(scores, axis=-1, initial=-np.inf)
    blind = highest == -np.inf
    highest = np.where(blind, 0.0, highest)
    p = np.exp(scores - highest[..., None])
    total = np.where(blind, 1.0, np.sum(p, axis=-1))
    return p / total[..., None], np.where(blind, -np.inf, highest + np.log(total))


def _weigh(weights: np.ndarray, values: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Return weights @ values, in which a value that is hidden, of weight 0, takes no part even where it is NaN."""
    finite = np.isfinite(values)
    total = weights @ np.where(finite, values, 0.0)
    if not finite.all():
        seen = visible.astype(weights.dtype) @ (~finite).astype(weights.dtype) > 0
        total = np.where(seen, np.nan, total)
    return total


def _transposed(matrices: np.ndarray) -> np.ndarray:
    return matrices.swapaxes(-1, -2)


def _add_summed(dbias: np.ndarray, ds: np.ndarray, own: tuple[int, slice]) -> None:
    """Add a piece of dS to dbias, summed over the axes along which bias was broadcast to [B, Hq, Sq, Sk]."""
    target = dbias.reshape((1,) * (4 - dbias.ndim) + dbias.shape)
    at = (slice(own[0], own[0] + 1), own[1])
    target = target[tuple(slice(None) if n == 1 else s for n, s in zip(target.shape, at, strict=False))]
    for axis, n in enumerate(target.shape[1:]):
        if n == 1:
            ds = np.sum(ds, axis=axis, keepdims=True)
    target += ds
