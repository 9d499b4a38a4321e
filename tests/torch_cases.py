"""One call of each function of tkern.torch, with all of its arrays and options away from their defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tkern
from tkern.spec import as_outputs

torch = pytest.importorskip("torch")

import tkern.torch as tt  # noqa: E402

_RNG = np.random.default_rng(20261204)
_KEYS = np.array([[1, 1, 0, 1, 1, 0, 1], [1, 1, 1, 1, 0, 1, 1]], bool)
_NORM: dict[str, Any] = {"eps": 0.3, "offset": 1.0}
_ATTENTION: dict[str, Any] = {"causal": True, "window": (4, 2), "softcap": 3.0, "scale": 0.4}
_CONV: dict[str, Any] = {"stride": (2, 1), "padding": ((1, 0), (0, 1)), "groups": 2}
_POOL: dict[str, Any] = {"stride": 2, "padding": 1}


def draw(*shape: int) -> np.ndarray:
    return _RNG.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Call:
    """A function of tkern.torch as ``run(*tensors)``, and the same by NumPy: its outputs, and its gradients."""

    name: str
    arrays: tuple[np.ndarray, ...]
    run: Callable[..., Any]
    forward: Callable[..., Any]
    backward: Callable[..., tuple[np.ndarray, ...]]

    def tensors(self, needed: str | None = None, device: str = "cpu") -> list[Any]:
        """Return fresh tensors on memory of their own; ``needed`` has a 1 for each that requires a gradient."""
        needs = needed or "1" * len(self.arrays)
        made = [torch.tensor(a, device=device) for a in self.arrays]
        return [t.requires_grad_(need == "1") for t, need in zip(made, needs, strict=True)]

    def outputs(self, *tensors: Any) -> tuple[Any, ...]:
        """Return what can be differentiated of the results, as a tuple."""
        return tuple(t for t in as_outputs(self.run(*tensors)) if t.requires_grad)

    def cotangents(self) -> list[Any]:
        """Return random gradients of the outputs, the same every time."""
        rng = np.random.default_rng(7)
        shapes = [np.shape(a) for a in as_outputs(self.forward(*self.arrays))]
        count = 2 if self.name == "attention" else 1
        return [torch.tensor(rng.standard_normal(s).astype(np.float32)) for s in shapes[:count]]

    def gradients(self, *cotangents: Any) -> tuple[Any, ...]:
        """Return the gradients of all tensors by autograd."""
        tensors = self.tensors()
        return torch.autograd.grad(self.outputs(*tensors), tensors, cotangents or self.cotangents())


def _attention_backward(dout: np.ndarray, dlse: np.ndarray, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
    *qkv, bias = inputs
    options = {"bias": bias, "key_mask": _KEYS, **_ATTENTION}
    out, lse = tkern.attention(*qkv, **options)
    wrt = ("q", "k", "v", "bias")
    return tuple(tkern.attention_backward(*qkv, dout, out=out, lse=lse, dlse=dlse, wrt=wrt, **options))


def _conv_backward(dy: np.ndarray, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
    return (
        tkern.conv2d_backward_input(dy, w, x.shape, **_CONV),
        tkern.conv2d_backward_weight(x, dy, w.shape, **_CONV),
        tkern.conv2d_backward_bias(dy),
    )


CALLS = (
    Call(
        "rms_norm",
        (draw(2, 3, 37), draw(37)),
        lambda x, w: tt.rms_norm(x, w, **_NORM),
        lambda x, w: tkern.rms_norm(x, w, **_NORM)[0],
        lambda dy, x, w: tkern.rms_norm_backward(x, w, dy, rstd=tkern.rms_norm(x, w, **_NORM)[1], **_NORM)[:2],
    ),
    Call(
        "attention",
        (draw(2, 4, 5, 8), draw(2, 2, 7, 8), draw(2, 2, 7, 6), draw(4, 1, 7)),
        lambda q, k, v, b: tt.attention(
            q, k, v, bias=b, key_mask=torch.from_numpy(_KEYS).to(q.device), return_lse=True, **_ATTENTION
        ),
        lambda q, k, v, b: tkern.attention(q, k, v, bias=b, key_mask=_KEYS, **_ATTENTION),
        _attention_backward,
    ),
    Call(
        "conv2d",
        (draw(2, 4, 6, 5), draw(6, 2, 3, 2), draw(6)),
        lambda x, w, b: tt.conv2d(x, w, b, **_CONV),
        lambda x, w, b: tkern.conv2d(x, w, b, **_CONV),
        _conv_backward,
    ),
    Call(
        "max_pool2d",
        # A hundredth apart and in random order: no ties, and none within a difference's step.
        ((_RNG.permutation(2 * 3 * 7 * 6) * np.float32(0.01)).astype(np.float32).reshape(2, 3, 7, 6),),
        lambda x: tt.max_pool2d(x, 3, return_indices=True, **_POOL),
        lambda x: tkern.max_pool2d(x, 3, **_POOL),
        lambda dy, x: (tkern.max_pool2d_backward(x, dy, 3, **_POOL),),
    ),
)
