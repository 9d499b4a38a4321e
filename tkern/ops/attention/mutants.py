"""Wrong answers that parity must reject: mistakes seen in upstream kernels, and those that a careless test lets by.

Most are the right answer to a changed question. Where a step of the mathematics is wrong, dS is had from the oracle as
the gradient of a bias of zeros, and the rest is written out here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tkern.ops.attention import oracle
from tkern.ops.attention.drawing import BACKWARD_ONLY
from tkern.spec import Mutant

__all__ = ["BACKWARD", "FORWARD"]

Inputs = dict[str, Any]
Right = Callable[..., tuple[Any, ...]]
Make = Callable[[Inputs, Right], tuple[Any, ...]]

_DQ, _DK, _DV, _DBIAS = range(4)


def _mutant(name: str, make: Make) -> Mutant:
    """Return a mutant that is made without the NaN of hidden keys, which it would only carry into the answer."""

    def without_nan(inputs: Inputs, right: Right) -> tuple[Any, ...]:
        cleaned = {n: np.nan_to_num(inputs[n]) for n in ("q", "k", "v", "dout", "out", "dlse") if _given(inputs, n)}
        return make({**inputs, **cleaned}, right)

    return Mutant(name, without_nan)


def _with(**changes: Callable[[Any], Any]) -> Make:
    """Return the right answer to a changed question."""

    def make(inputs: Inputs, right: Right) -> tuple[Any, ...]:
        return tuple(right(**{**inputs, **{name: change(inputs.get(name)) for name, change in changes.items()}}))

    return make


def _with_all(change: Callable[[Inputs], Inputs]) -> Make:
    """Return the right answer to a question that is changed as a whole."""
    return lambda inputs, right: tuple(right(**{**inputs, **change(inputs)}))


def _then(change: Callable[[list[Any], Inputs], None]) -> Make:
    """Return the right answer, spoilt."""

    def make(inputs: Inputs, right: Right) -> tuple[Any, ...]:
        outputs = [None if a is None else np.array(a) for a in right(**inputs)]
        change(outputs, inputs)
        return tuple(outputs)

    return make


def _given(inputs: Mapping[str, Any], name: str) -> bool:
    return inputs.get(name) is not None


def _heads_first(array: np.ndarray, inputs: Inputs) -> np.ndarray:
    return oracle.heads_first(array, inputs["layout"], array.dtype)


# Every layout's swap is its own inverse.
_as_given = _heads_first


def _sizes(inputs: Inputs) -> tuple[int, int, int, int, int]:
    """Return B, Hq, Hkv, Sq and Sk."""
    q, k = (_heads_first(inputs[name], inputs) for name in ("q", "k"))
    return q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2]


def _scale(inputs: Inputs) -> float:
    return oracle.scale_of(inputs.get("scale"), inputs["q"])


def _window(inputs: Inputs) -> tuple[int, int]:
    """Return how many keys before and after a query's position it sees, causal included; −1 for no limit."""
    window = inputs.get("window")
    before, after = (-1, -1) if window is None else window if isinstance(window, tuple) else (window, 0)
    return before, 0 if inputs.get("causal") else after


def _later(inputs: Inputs) -> Inputs:
    before, after = _window(inputs)
    return {"causal": False, "window": (before, after + 1)} if after >= 0 else {}


def _wider(inputs: Inputs) -> Inputs:
    before, after = _window(inputs)
    return {"window": (before + 1, after)} if before >= 0 else {}


def _narrower(inputs: Inputs) -> Inputs:
    before, after = _window(inputs)
    return {"window": (before - 1, after)} if before >= 1 else {}


def _without_mask(inputs: Inputs) -> Inputs:
    return {"key_mask": None, "mask_threshold": None}


def _mask_inverted(inputs: Inputs) -> Inputs:
    mask, threshold = inputs.get("key_mask"), inputs.get("mask_threshold")
    if mask is None:
        return {}
    return {"key_mask": ~mask if threshold is None else mask < threshold, "mask_threshold": None}


def _beyond_threshold(inputs: Inputs) -> Inputs:
    if not _given(inputs, "mask_threshold"):
        return {}
    return {"key_mask": inputs["key_mask"] > inputs["mask_threshold"], "mask_threshold": None}


def _without_bias(inputs: Inputs) -> Inputs:
    return {"bias": np.zeros_like(inputs["bias"])} if _given(inputs, "bias") else {}


def _bias_without_infinity(inputs: Inputs) -> Inputs:
    return {"bias": np.maximum(inputs["bias"], -10)} if _given(inputs, "bias") else {}


def _interleaved(inputs: Inputs, right: Right) -> tuple[Any, ...]:
    """Query head h reads key head h % Hkv: the right answer for the heads in another order, put back."""
    _, heads, key_heads, _, _ = _sizes(inputs)
    order = np.arange(heads).reshape(-1, key_heads).T.reshape(-1)
    axis = dict.fromkeys(("q", "dout", "out"), 1 if inputs["layout"] == "bhsd" else 2) | {"lse": 1, "dlse": 1}
    changed = {name: np.take(inputs[name], order, axis=at) for name, at in axis.items() if _given(inputs, name)}
    bias = inputs.get("bias")
    per_head = bias is not None and bias.ndim >= 3 and bias.shape[-3] == heads
    if bias is not None and per_head:
        changed["bias"] = np.take(bias, order, axis=-3)
    outputs = list(right(**{**inputs, **changed}))
    back = np.argsort(order)
    if outputs[0] is not None:
        outputs[0] = np.take(outputs[0], back, axis=axis["q"])
    if len(outputs) == 2:
        outputs[1] = np.take(outputs[1], back, axis=1)
    elif per_head and outputs[_DBIAS] is not None:
        outputs[_DBIAS] = np.take(outputs[_DBIAS], back, axis=-3)
    return tuple(outputs)


def _blind(inputs: Inputs) -> np.ndarray:
    """Return, as [B, Hq, Sq, 1], which rows see no key."""
    lse = oracle.attention(**{name: value for name, value in inputs.items() if name not in BACKWARD_ONLY})[1]
    return np.isneginf(lse)[..., None]


def _uniform_out(outputs: list[Any], inputs: Inputs) -> None:
    _, heads, key_heads, _, keys = _sizes(inputs)
    mean = np.mean(_heads_first(inputs["v"], inputs), axis=2, keepdims=True) if keys else 0.0
    blind = _blind(inputs)
    mean = np.repeat(mean, heads // key_heads, axis=1) if keys else mean
    outputs[0] = _as_given(np.where(blind, mean, _heads_first(outputs[0], inputs)), inputs)


def _lse_of_nothing(outputs: list[Any], inputs: Inputs) -> None:
    outputs[1] = np.where(np.isneginf(outputs[1]), -1e9, outputs[1])


def _spoil(at: int, change: Callable[[np.ndarray, Inputs], Any]) -> Make:
    """Return the right answer with one output replaced, where it was asked for."""

    def apply(outputs: list[Any], inputs: Inputs) -> None:
        if outputs[at] is not None:
            outputs[at] = change(outputs[at], inputs)

    return _then(apply)


def _ds(inputs: Inputs, right: Right, **changes: Any) -> np.ndarray:
    """Return dS [B, Hq, Sq, Sk], as the gradient of a bias that is broadcast along nothing."""
    batch, heads, _, queries, keys = _sizes(inputs)
    full = np.zeros((batch, heads, queries, keys), np.float32)
    given = inputs.get("bias")
    return np.asarray(
        right(**{**inputs, "bias": full if given is None else full + given, "wrt": ("bias",), **changes})[3]
    )


def _dq_of(dr: np.ndarray, other: str, inputs: Inputs) -> np.ndarray:
    """Return scale·dR·K, or with another input in place of K."""
    keys = _heads_first(inputs[other], inputs)
    group = dr.shape[1] // keys.shape[1]
    return _as_given(_scale(inputs) * (dr @ np.repeat(keys, group, axis=1)), inputs)


def _dk_of(dr: np.ndarray, inputs: Inputs) -> np.ndarray:
    batch, _, key_heads, _, keys = _sizes(inputs)
    whole = _scale(inputs) * (dr.swapaxes(-1, -2) @ _heads_first(inputs["q"], inputs))
    grouped = whole.reshape(batch, key_heads, whole.shape[1] // key_heads, keys, whole.shape[3])
    return _as_given(np.sum(grouped, axis=2), inputs)


def _replaced(outputs: tuple[Any, ...], **values: Any) -> tuple[Any, ...]:
    """Return outputs with some replaced, where they were asked for."""
    names = ("dq", "dk", "dv", "dbias")
    return tuple(None if a is None else values.get(name, a) for name, a in zip(names, outputs, strict=True))


def _dq_from_q(inputs: Inputs, right: Right) -> tuple[Any, ...]:
    outputs = right(**inputs)
    *_, queries, keys = _sizes(inputs)
    return _replaced(outputs, dq=_dq_of(_ds(inputs, right), "q", inputs)) if queries == keys else tuple(outputs)


def _dp_from_k(inputs: Inputs, right: Right) -> tuple[Any, ...]:
    if inputs["k"].shape != inputs["v"].shape:
        return tuple(right(**inputs))
    out = inputs.get("out")
    if out is None:
        out = oracle.attention(**{name: value for name, value in inputs.items() if name not in BACKWARD_ONLY})[0]
    return tuple(right(**{**inputs, "v": inputs["k"], "out": out}))


def _slope_left_out(inputs: Inputs, right: Right) -> tuple[Any, ...]:
    outputs = right(**inputs)
    if not _given(inputs, "softcap"):
        return tuple(outputs)
    ds = _ds(inputs, right)
    return _replaced(outputs, dq=_dq_of(ds, "k", inputs), dk=_dk_of(ds, inputs))


def _blind_rows_uniform(inputs: Inputs, right: Right) -> tuple[Any, ...]:
    """Add what a row that sees no key would give with the softmax of nothing but −1e9: the same weight everywhere."""
    outputs = right(**inputs)
    blind = _blind(inputs)
    if not blind.any():
        return tuple(outputs)
    seen = {
        "q": np.zeros_like(inputs["q"]),
        "dout": _as_given(_heads_first(inputs["dout"], inputs) * blind, inputs),
        **dict.fromkeys(("causal", "window", "key_mask", "mask_threshold", "bias", "softcap", "out", "lse", "dlse")),
    }
    ds = _ds({**inputs, **seen}, right)
    more = right(**{**inputs, **seen, "wrt": ("q", "k", "v")})
    added = {"dq": more[_DQ], "dk": _dk_of(ds, inputs), "dv": more[_DV]}
    return _replaced(
        outputs, **{n: a + added[n] for n, a in zip(("dq", "dk", "dv"), outputs, strict=False) if a is not None}
    )


def _one_head_of_a_group(inputs: Inputs, right: Right) -> tuple[Any, ...]:
    outputs = right(**inputs)
    _, heads, key_heads, _, _ = _sizes(inputs)
    first = (np.arange(heads) % (heads // key_heads) == 0)[:, None, None]
    dout = _as_given(_heads_first(inputs["dout"], inputs) * first, inputs)
    dlse = inputs["dlse"] * first[..., 0] if _given(inputs, "dlse") else None
    less = right(**{**inputs, "dout": dout, "dlse": dlse})
    return _replaced(outputs, dk=less[_DK], dv=less[_DV])


def _last_query_left_out(inputs: Inputs, right: Right) -> tuple[Any, ...]:
    outputs = right(**inputs)
    dout = np.array(_heads_first(inputs["dout"], inputs))
    dout[:, :, -1:] = 0
    changed = {"dout": _as_given(dout, inputs)}
    if _given(inputs, "dlse"):
        changed["dlse"] = inputs["dlse"] * (np.arange(dout.shape[2]) < dout.shape[2] - 1)
    less = right(**{**inputs, **changed})
    return _replaced(outputs, dk=less[_DK], dv=less[_DV])


def _last_key_lost(dv: np.ndarray, inputs: Inputs) -> np.ndarray:
    _heads_first(dv, inputs)[:, :, -1:] = 0
    return dv


def _bent_dbias(inputs: Inputs, right: Right) -> tuple[Any, ...]:
    """Take dbias through the softcap, which stands before bias is added."""
    outputs = right(**inputs)
    if outputs[_DBIAS] is None or not _given(inputs, "softcap"):
        return tuple(outputs)
    q, k = (_heads_first(inputs[name], inputs).astype(np.float64) for name in ("q", "k"))
    scores = _scale(inputs) * (q @ np.repeat(k, q.shape[1] // k.shape[1], axis=1).swapaxes(-1, -2))
    wrong = _ds(inputs, right) * (1 - np.tanh(scores / inputs["softcap"]) ** 2)
    shape = inputs["bias"].shape
    lined_up = (1,) * (4 - len(shape)) + shape
    axes = tuple(axis for axis, n in enumerate(lined_up) if n == 1)
    return _replaced(outputs, dbias=np.sum(wrong, axis=axes, keepdims=True).reshape(shape))


_SHARED = (
    _mutant("scale ignored", _with(scale=lambda scale: None)),
    _mutant("scale 0 taken as the default", _with(scale=lambda scale: scale or None)),
    _mutant("causal or a window one key too late", _with_all(_later)),
    _mutant("a window one key too wide", _with_all(_wider)),
    _mutant("a window one key too narrow", _with_all(_narrower)),
    _mutant("window 0 taken as none", _with(window=lambda window: window or None)),
    _mutant("align ignored", _with(align=lambda align: "bottom-right")),
    _mutant("top-left taken as clamped", _with(align=lambda a: "clamped" if a == "top-left" else a or "bottom-right")),
    _mutant("key mask ignored", _with_all(_without_mask)),
    _mutant("key mask inverted", _with_all(_mask_inverted)),
    _mutant("visible only beyond the threshold", _with_all(_beyond_threshold)),
    _mutant("bias ignored", _with_all(_without_bias)),
    _mutant("bias of −inf taken as −10", _with_all(_bias_without_infinity)),
    _mutant("softcap ignored", _with(softcap=lambda softcap: None)),
    _mutant("head map interleaved", _interleaved),
)

FORWARD = (
    *_SHARED,
    _mutant("a row that sees no key is the mean of v", _then(_uniform_out)),
    _mutant("lse −1e9 for a row that sees no key", _then(_lse_of_nothing)),
    _mutant("lse to base 2", _spoil(1, lambda lse, inputs: lse / math.log(2))),
    _mutant("out 0.1% too large", _spoil(0, lambda out, inputs: out * 1.001)),
)

BACKWARD = (
    *_SHARED,
    _mutant("a row that sees no key has a gradient", _blind_rows_uniform),
    _mutant("dq = scale·dS·Q", _dq_from_q),
    _mutant("dP = dout·Kᵀ", _dp_from_k),
    _mutant("scale missing on dk", _spoil(_DK, lambda dk, inputs: dk / _scale(inputs))),
    _mutant("scale missing on dq", _spoil(_DQ, lambda dq, inputs: dq / _scale(inputs))),
    _mutant("scale applied to dbias", _spoil(_DBIAS, lambda dbias, inputs: dbias * _scale(inputs))),
    _mutant("Σ P·dP left out of dS", _with_all(lambda inputs: {"out": np.zeros_like(inputs["dout"])})),
    _mutant("the softcap's derivative left out", _slope_left_out),
    _mutant("dbias through the softcap", _bent_dbias),
    _mutant("dlse ignored", _with(dlse=lambda dlse: None)),
    _mutant("saved out ignored", _with(out=lambda out: None)),
    _mutant("saved lse ignored", _with(lse=lambda lse: None)),
    _mutant("one query head of a group counted", _one_head_of_a_group),
    _mutant("last query left out of dk and dv", _last_query_left_out),
    _mutant("last key lost from dv", _spoil(_DV, _last_key_lost)),
    _mutant("dk 0.2% too large", _spoil(_DK, lambda dk, inputs: dk * 1.002)),
)
