"""Layer norm's gradients as others compute them, to be timed beside tkern: NumPy, and PyTorch's own.

Each peer takes the inputs of a case and returns a function without arguments that computes the same outputs once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["BACKWARD"]


def _numpy(inputs: dict[str, Any]) -> Callable[[], Any]:
    x, weight, dy, mean, r = (inputs[name] for name in ("x", "weight", "dy", "mean", "rstd"))
    size = np.float32(x.shape[-1])

    def run() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n = x - mean[:, None]
        n *= r[:, None]
        dweight = np.einsum("ij,ij->j", dy, n)
        dbias = dy.sum(axis=0)
        dx = dy * weight
        along = np.einsum("ij,ij->i", dx, n) / size
        dx -= dx.mean(axis=-1, keepdims=True)
        n *= along[:, None]
        dx -= n
        dx *= r[:, None]
        return dx, dweight, dbias

    return run


def _torch(inputs: dict[str, Any]) -> Callable[[], Any]:
    import torch

    x, weight, dy = (inputs[name].detach().clone() for name in ("x", "weight", "dy"))
    x.requires_grad_(True)
    weight.requires_grad_(True)
    bias = torch.zeros_like(weight).requires_grad_(True)
    y = torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)

    def run() -> Any:
        return torch.autograd.grad(y, (x, weight, bias), dy, retain_graph=True)

    return run


BACKWARD = {"numpy": _numpy, "torch": _torch}
