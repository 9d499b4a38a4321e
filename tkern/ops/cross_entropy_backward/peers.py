"""Cross-entropy's gradient as others compute it, to be timed beside tkern: NumPy, and PyTorch's own.

Each peer takes the inputs of a case and returns a function without arguments that computes the same output once.
PyTorch keeps log p from its forward pass, which is not timed; tkern and NumPy begin with the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["BACKWARD"]


def _numpy(inputs: dict[str, Any]) -> Callable[[], Any]:
    logits, labels = inputs["logits"], inputs["labels"]
    rows = np.arange(len(labels))
    count = np.float32(len(labels))

    def run() -> np.ndarray:
        p: np.ndarray = logits - logits.max(axis=1, keepdims=True)
        np.exp(p, out=p)
        p *= 1 / (count * p.sum(axis=1, keepdims=True))
        p[rows, labels] -= 1 / count
        return p

    return run


def _torch(inputs: dict[str, Any]) -> Callable[[], Any]:
    import torch

    logits, labels = inputs["logits"].detach().clone().requires_grad_(True), inputs["labels"]
    loss = torch.nn.functional.cross_entropy(logits, labels)

    def run() -> Any:
        return torch.autograd.grad(loss, logits, retain_graph=True)

    return run


BACKWARD = {"numpy": _numpy, "torch": _torch}
