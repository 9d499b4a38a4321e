"""RMSNorm as others compute it, to be timed beside tkern: NumPy as one would write it, and PyTorch's own.

Each peer takes the inputs of a case and returns a function without arguments that computes the same outputs once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["BACKWARD", "FORWARD"]


def _numpy_forward(inputs: dict[str, Any]) -> Callable[[], Any]:
    x, weight = inputs["x"], inputs["weight"]
    size = np.float32(x.shape[-1])

    def run() -> tuple[np.ndarray, np.ndarray]:
        rstd = 1 / np.sqrt(np.einsum("ij,ij->i", x, x) / size + np.float32(1e-6))
        y = x * rstd[:, None]
        y *= weight
        return y, rstd

    return run


def _numpy_backward(inputs: dict[str, Any]) -> Callable[[], Any]:
    x, weight, dy = inputs["x"], inputs["weight"], inputs["dy"]
    size = np.float32(x.shape[-1])

    def run() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rstd = 1 / np.sqrt(np.einsum("ij,ij->i", x, x) / size + np.float32(1e-6))
        s = np.einsum("ij,j,ij->i", dy, weight, x, optimize=False)
        dweight = np.einsum("ij,ij,i->j", dy, x, rstd, optimize=False)
        dx = dy * weight
        dx *= rstd[:, None]
        dx -= x * (s * rstd**3 / size)[:, None]
        return dx, dweight, rstd

    return run


def _torch_forward(inputs: dict[str, Any]) -> Callable[[], Any]:
    import torch

    x, weight = inputs["x"], inputs["weight"]

    def run() -> Any:
        with torch.no_grad():
            return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-6)

    return run


def _torch_backward(inputs: dict[str, Any]) -> Callable[[], Any]:
    import torch

    x, weight, dy = (inputs[name].detach().clone() for name in ("x", "weight", "dy"))
    x.requires_grad_(True)
    weight.requires_grad_(True)
    y = torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-6)

    def run() -> Any:
        return torch.autograd.grad(y, (x, weight), dy, retain_graph=True)

    return run


FORWARD = {"numpy": _numpy_forward, "torch": _torch_forward}
BACKWARD = {"numpy": _numpy_backward, "torch": _torch_backward}
