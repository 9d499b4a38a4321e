"""Attention as others compute it, to be timed beside tkern: NumPy as one would write it, and PyTorch's own.

Each peer takes the inputs of a shape to time (q, k, v and, for the backward, dout, with as many queries as keys) and
returns a function without arguments that computes the same outputs once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["BACKWARD", "FORWARD"]


def _numpy_forward(inputs: dict[str, Any]) -> Callable[[], Any]:
    q, k, v = (inputs[name] for name in ("q", "k", "v"))
    group = q.shape[1] // k.shape[1]
    scale = np.float32(q.shape[-1] ** -0.5)
    hidden = _hidden(inputs)

    def run() -> tuple[np.ndarray, np.ndarray]:
        out = np.empty((*q.shape[:3], v.shape[3]), np.float32)
        lse = np.empty(q.shape[:3], np.float32)
        for b, h in np.ndindex(q.shape[:2]):
            scores = (q[b, h] * scale) @ k[b, h // group].T
            if hidden is not None:
                scores[hidden] = -np.inf
            highest = np.max(scores, axis=1, keepdims=True)
            scores -= highest
            np.exp(scores, out=scores)
            total = np.sum(scores, axis=1, keepdims=True)
            np.matmul(scores, v[b, h // group], out=out[b, h])
            out[b, h] /= total
            lse[b, h] = (highest + np.log(total))[:, 0]
        return out, lse

    return run


def _numpy_backward(inputs: dict[str, Any]) -> Callable[[], Any]:
    q, k, v, dout = (inputs[name] for name in ("q", "k", "v", "dout"))
    out, lse = (inputs["out"], inputs["lse"]) if "lse" in inputs else _numpy_forward(inputs)()
    group = q.shape[1] // k.shape[1]
    scale = np.float32(q.shape[-1] ** -0.5)
    hidden = _hidden(inputs)

    def run() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        dq, dk, dv = np.empty_like(q), np.zeros_like(k), np.zeros_like(v)
        for b, h in np.ndindex(q.shape[:2]):
            shared = (b, h // group)
            p = (q[b, h] * scale) @ k[shared].T
            p -= lse[b, h][:, None]
            np.exp(p, out=p)
            if hidden is not None:
                p[hidden] = 0
            dv[shared] += p.T @ dout[b, h]
            ds = dout[b, h] @ v[shared].T
            ds -= np.sum(out[b, h] * dout[b, h], axis=1, keepdims=True)
            ds *= p
            ds *= scale
            np.matmul(ds, k[shared], out=dq[b, h])
            dk[shared] += ds.T @ q[b, h]
        return dq, dk, dv

    return run


def _hidden(inputs: dict[str, Any]) -> np.ndarray | None:
    """Return which scores a causal mask hides, or None without one."""
    if not inputs.get("causal"):
        return None
    return ~np.tri(inputs["q"].shape[2], dtype=bool)


def _torch_forward(inputs: dict[str, Any]) -> Callable[[], Any]:
    import torch

    def ready(attend: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> Any:
            with torch.no_grad():
                return attend(inputs["q"], inputs["k"], inputs["v"])

        return run

    return _fastest([ready(attend) for attend in _attends(inputs)])


def _torch_backward(inputs: dict[str, Any]) -> Callable[[], Any]:
    import torch

    dout = inputs["dout"]

    def ready(attend: Callable[..., Any]) -> Callable[[], Any]:
        given = tuple(inputs[name].detach().clone().requires_grad_(True) for name in ("q", "k", "v"))
        out = attend(*given)
        return lambda: torch.autograd.grad(out, given, dout, retain_graph=True)

    return _fastest([ready(attend) for attend in _attends(inputs)])


def _attends(inputs: dict[str, Any]) -> list[Callable[..., Any]]:
    """Return PyTorch's attention; where query heads share a key head also with the key heads repeated by hand."""
    from torch.nn.functional import scaled_dot_product_attention

    causal = bool(inputs.get("causal"))
    if causal and inputs["q"].shape[2] != inputs["k"].shape[2]:
        # PyTorch's is_causal is top-left aligned, tkern's default is not.
        raise ValueError("the peer knows a causal mask only where there are as many queries as keys")
    group = inputs["q"].shape[1] // inputs["k"].shape[1]
    if group == 1:
        return [lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=causal)]

    def repeated(q: Any, k: Any, v: Any) -> Any:
        k, v = (a.repeat_interleave(group, dim=1) for a in (k, v))
        return scaled_dot_product_attention(q, k, v, is_causal=causal)

    return [lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True), repeated]


def _fastest(candidates: list[Callable[[], Any]]) -> Callable[[], Any]:
    """Return the fastest of several ways to the same result: the better of two runs each, after one to warm up."""
    if len(candidates) == 1:
        return candidates[0]
    return min(candidates, key=_best_seconds)


def _best_seconds(run: Callable[[], Any]) -> float:
    from tkern.roof import synchronize_torch

    taken = []
    for _ in range(3):
        synchronize_torch()
        begun = time.perf_counter()
        run()
        synchronize_torch()
        taken.append(time.perf_counter() - begun)
    return min(taken[1:])


FORWARD = {"numpy": _numpy_forward, "torch": _torch_forward}
BACKWARD = {"numpy": _numpy_backward, "torch": _torch_backward}
