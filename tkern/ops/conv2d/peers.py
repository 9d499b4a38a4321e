"""Convolution as others compute it, to be timed beside tkern: NumPy by a matrix of patches, and PyTorch's own.

Each peer takes the inputs of a shape to time (square images and kernels, one stride and padding) and returns a function
without arguments that computes the same output once. PyTorch's gradients are those that its autograd calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["BIAS", "FORWARD", "IM2COL", "INPUT", "WEIGHT"]

Inputs = dict[str, Any]


def _patches(x: np.ndarray, inputs: Inputs, kernel: Any) -> np.ndarray:
    """Return a view [N, C, Ho, Wo, kh, kw] of the padded images."""
    pad, stride = inputs["padding"], inputs["stride"]
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    view: np.ndarray = np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=(2, 3))
    return view[:, :, ::stride, ::stride]


def _matrix(x: np.ndarray, inputs: Inputs, kernel: Any) -> np.ndarray:
    """Return the patches of one image by groups, [groups, C/groups·kh·kw, Ho·Wo]."""
    view: np.ndarray = _patches(x, inputs, kernel)[0].transpose(0, 3, 4, 1, 2)
    return view.reshape(
        inputs["groups"],
        view.shape[0] * view.shape[1] * view.shape[2] // inputs["groups"],
        view.shape[3] * view.shape[4],
    )


def _numpy_im2col(inputs: Inputs) -> Callable[[], Any]:
    x, kernel = inputs["x"], inputs["kernel_size"]

    def run() -> np.ndarray:
        view = _patches(x, inputs, kernel).transpose(0, 2, 3, 1, 4, 5)
        return np.ascontiguousarray(view).reshape(-1, x.shape[1] * kernel[0] * kernel[1])

    return run


def _numpy_forward(inputs: Inputs) -> Callable[[], Any]:
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    w = weight.reshape(inputs["groups"], -1, weight[0].size)

    def run() -> np.ndarray:
        y = [np.matmul(w, _matrix(one[None], inputs, weight.shape[2:])).reshape(len(bias), -1) for one in x]
        out: np.ndarray = np.stack(y)
        out += bias[:, None]
        return out

    return run


def _numpy_weight(inputs: Inputs) -> Callable[[], Any]:
    x, dy, shape = inputs["x"], inputs["dy"], inputs["weight_shape"]

    def run() -> np.ndarray:
        total = np.zeros((inputs["groups"], shape[0] // inputs["groups"], int(np.prod(shape[1:]))), np.float32)
        for one, grad in zip(x, dy, strict=True):
            cols = _matrix(one[None], inputs, shape[2:])
            total += np.matmul(grad.reshape(total.shape[0], total.shape[1], -1), cols.swapaxes(1, 2))
        return total.reshape(shape)

    return run


def _numpy_input(inputs: Inputs) -> Callable[[], Any]:
    dy, weight, shape = inputs["dy"], inputs["weight"], inputs["input_shape"]
    pad, stride, groups = inputs["padding"], inputs["stride"], inputs["groups"]
    w = weight.reshape(groups, -1, weight[0].size).swapaxes(1, 2)
    rows, columns = (slice(pad, pad + n) for n in shape[2:])
    out = dy.shape[2:]

    def run() -> np.ndarray:
        padded = np.zeros((*shape[:2], shape[2] + 2 * pad, shape[3] + 2 * pad), np.float32)
        for image, grad in zip(padded, dy, strict=True):
            cols = np.matmul(w, grad.reshape(groups, w.shape[2], -1)).reshape(shape[1], *weight.shape[2:], *out)
            for r, s in np.ndindex(*weight.shape[2:]):
                image[:, r : r + stride * out[0] : stride, s : s + stride * out[1] : stride] += cols[:, r, s]
        return padded[:, :, rows, columns]

    return run


def _torch_forward(inputs: Inputs) -> Callable[[], Any]:
    import torch

    options = {name: inputs[name] for name in ("stride", "padding", "groups")}

    def run() -> Any:
        with torch.no_grad():
            return torch.nn.functional.conv2d(inputs["x"], inputs["weight"], inputs["bias"], **options)

    return run


def _torch_gradient(which: int) -> Callable[[Inputs], Callable[[], Any]]:
    """Return a peer for one gradient: 0 of the input, 1 of the weight."""

    def peer(inputs: Inputs) -> Callable[[], Any]:
        import torch

        torch.backends.cudnn.allow_tf32 = False
        dy = inputs["dy"]
        # Only the shape of the operand whose gradient it is matters.
        x = inputs["x"] if which else dy.new_empty(inputs["input_shape"])
        weight = dy.new_empty(inputs["weight_shape"]) if which else inputs["weight"]
        stride, pad, groups = (inputs[name] for name in ("stride", "padding", "groups"))
        mask = [which == 0, which == 1, False]

        def run() -> Any:
            return torch.ops.aten.convolution_backward(
                dy, x, weight, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups, mask
            )[which]

        return run

    return peer


def _torch_im2col(inputs: Inputs) -> Callable[[], Any]:
    import torch

    def run() -> Any:
        cols = torch.nn.functional.unfold(
            inputs["x"], inputs["kernel_size"], stride=inputs["stride"], padding=inputs["padding"]
        )
        return cols.transpose(1, 2).reshape(-1, cols.shape[1])

    return run


IM2COL = {"numpy": _numpy_im2col, "torch": _torch_im2col}
FORWARD = {"numpy": _numpy_forward, "torch": _torch_forward}
WEIGHT = {"numpy": _numpy_weight, "torch": _torch_gradient(1)}
INPUT = {"numpy": _numpy_input, "torch": _torch_gradient(0)}
BIAS = {
    "numpy": lambda inputs: lambda: inputs["dy"].sum(axis=(0, 2, 3)),
    "torch": lambda inputs: lambda: inputs["dy"].sum((0, 2, 3)),
}
