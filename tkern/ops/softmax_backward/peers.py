"""Softmax's gradient as others compute it, to be timed beside tkern: NumPy as one would write it, and PyTorch's own.

Each peer takes the inputs of a case and returns a function without arguments that computes the same output once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["BACKWARD"]


def _numpy(inputs: dict[str, Any]) -> Callable[[], Any]:
    y, dy = inputs["y"], inputs["dy"]

    def run() -> np.ndarray:
        dx: np.ndarray = dy - np.einsum("ij,ij->i", y, dy)[:, None]
        dx *= y
        return dx

    return run


def _torch(inputs: dict[str, Any]) -> Callable[[], Any]:
    import torch

    # The logarithm of y is an x whose softmax it is.
    x, dy = inputs["y"].log().requires_grad_(True), inputs["dy"]
    y = torch.softmax(x, -1)

    def run() -> Any:
        return torch.autograd.grad(y, x, dy, retain_graph=True)

    return run


BACKWARD = {"numpy": _numpy, "torch": _torch}
