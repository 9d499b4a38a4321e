"""Inputs for attention, drawn at random: sizes, masks and biases of every kind, and what a case wants spoilt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tkern.ops.attention import oracle

__all__ = ["BACKWARD_ONLY", "Sizes", "backward", "forward"]

# What attention_backward takes beyond what attention takes.
BACKWARD_ONLY = ("dout", "out", "lse", "dlse", "wrt")


class Sizes(NamedTuple):
    """The sizes of one call, as API.md names them; ``str`` shows them as B×Hq/Hkv×Sq/Sk×D/Dv."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    size: int
    value_size: int

    def __str__(self) -> str:
        pairs = ((self.heads, self.key_heads), (self.queries, self.keys), (self.size, self.value_size))
        return f"{self.batch}×" + "×".join(f"{a}" if a == b else f"{a}/{b}" for a, b in pairs)


def backward(
    sizes: Sizes,
    *,
    layout: str = "bhsd",
    mask: str | None = None,
    blind_batch: bool = False,
    bias: str | None = None,
    hidden_share: float = 0.0,
    dlse: bool = False,
    saved: tuple[str, ...] = (),
    wrt: tuple[str, ...] | None = None,
    spread: float = 1.0,
    peak: float | None = None,
    nan: Callable[[dict[str, Any]], None] | None = None,
    **options: Any,
) -> Callable[[np.random.Generator], dict[str, Any]]:
    """Return what draws the inputs of attention_backward; ``options`` are passed on as they are.

    ``mask``: "bool", or "float" with a threshold that some values equal; with ``blind_batch`` it hides every key of the
    last entry of the batch. ``bias``: its axes as letters of b, h, q and k, or 1 where it is broadcast ("11qk", "hq1").
    ``hidden_share``: that part of bias, and all of the first query's, is −inf. ``saved``: which of out and lse are
    given; out is then not the one that would be recomputed, so that ignoring it shows, and so is lse unless it is
    alone. ``wrt``: all there are by default. ``spread`` scales q and k; ``peak`` gives every score that much more.
    ``nan`` spoils the finished inputs where that must not matter.
    """
    batch, heads, key_heads, queries, keys, size, value_size = sizes

    def make(rng: np.random.Generator) -> dict[str, Any]:
        def tensor(heads: int, length: int, size: int, scale: float = 1.0) -> np.ndarray:
            shape = (batch, heads, length, size) if layout == "bhsd" else (batch, length, heads, size)
            return _normal(rng, shape, scale)

        inputs: dict[str, Any] = {
            "q": tensor(heads, queries, size, spread),
            "k": tensor(key_heads, keys, size, spread),
            "v": tensor(key_heads, keys, value_size),
            "bias": None,
            "layout": layout,
            **options,
        }
        if peak is not None:
            inputs["q"][..., 0] = inputs["k"][..., 0] = np.sqrt(abs(peak) * np.sqrt(size))
            inputs["k"][..., 0] *= np.sign(peak)
        if mask is not None:
            inputs.update(_mask(rng, mask, (batch, keys), blind_batch))
        if bias is not None:
            lengths = {"b": batch, "h": heads, "q": queries, "k": keys, "1": 1}
            inputs["bias"] = _bias(rng, tuple(lengths[letter] for letter in bias), hidden_share)
        if saved:
            inputs.update(_saved(rng, inputs, saved))
        inputs["dout"] = tensor(heads, queries, value_size)
        if dlse:
            inputs["dlse"] = _normal(rng, (batch, heads, queries))
        inputs["wrt"] = wrt or (("q", "k", "v") if bias is None else ("q", "k", "v", "bias"))
        if nan is not None:
            nan(inputs)
        return inputs

    return make


def forward(
    make: Callable[[np.random.Generator], dict[str, Any]],
) -> Callable[[np.random.Generator], dict[str, Any]]:
    """Return what draws the same inputs for attention."""
    return lambda rng: {name: value for name, value in make(rng).items() if name not in BACKWARD_ONLY}


def _normal(rng: np.random.Generator, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def _mask(rng: np.random.Generator, kind: str, shape: tuple[int, int], blind_batch: bool) -> dict[str, Any]:
    # A few values only, so that some are the threshold itself.
    values = rng.integers(0, 5, shape).astype(np.float32) / np.float32(4)
    values[:1, :1] = 0.5  # not everything is hidden
    if blind_batch:
        values[-1:] = 0
    return {"key_mask": values, "mask_threshold": 0.5} if kind == "float" else {"key_mask": values >= 0.5}


def _bias(rng: np.random.Generator, shape: tuple[int, ...], hidden_share: float) -> np.ndarray:
    bias = _normal(rng, shape)
    if hidden_share:
        bias[rng.random(shape) < hidden_share] = -np.inf
        bias[..., :1, :] = -np.inf
    return bias


def _saved(rng: np.random.Generator, inputs: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    out, lse = oracle.attention(**inputs, dtype=np.float32)
    noise = 0.0 if names == ("lse",) else 0.2
    values = {"out": out + _normal(rng, out.shape, 0.3), "lse": lse + _normal(rng, lse.shape, noise)}
    return {name: values[name] for name in names}
