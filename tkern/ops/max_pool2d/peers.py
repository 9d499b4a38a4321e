"""Max pooling as others compute it, to be timed beside tkern: NumPy as one would write it, and PyTorch's own.

Each peer takes the inputs of a case and returns a function without arguments that computes the same outputs once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tkern.ops.max_pool2d.geometry import Geometry, geometry_of

__all__ = ["BACKWARD", "FORWARD"]

_OPTIONS = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


def _options(inputs: dict[str, Any]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False}
    return {name: inputs.get(name, defaults.get(name)) for name in _OPTIONS}


def _slices(geometry: Geometry) -> Iterator[tuple[int, tuple[Any, ...], tuple[Any, ...]]]:
    """Yield each place of the window, with the windows that have a real cell there, and those cells."""
    for place in range(geometry.cells):
        windows, cells = [], []
        for axis, i in zip((geometry.h, geometry.w), divmod(place, geometry.w.kernel), strict=True):
            begin = i * axis.dilation - axis.padding
            first = max(0, -(begin // axis.stride))
            last = min(axis.windows, (axis.size - 1 - begin) // axis.stride + 1)
            windows.append(slice(first, last))
            start = begin + first * axis.stride
            cells.append(
                slice(start, start + (last - first - 1) * axis.stride + 1 if last > first else start, axis.stride)
            )
        yield place, (..., *windows), (..., *cells)


def _numpy_forward(inputs: dict[str, Any]) -> Callable[[], Any]:
    x = inputs["x"]
    geometry = geometry_of(x.shape, **_options(inputs))
    shape = (*x.shape[:-2], geometry.h.windows, geometry.w.windows)

    def run() -> tuple[np.ndarray, np.ndarray]:
        y, indices = np.full(shape, -np.inf, np.float32), np.zeros(shape, geometry.index_dtype)
        for place, windows, cells in _slices(geometry):
            larger = x[cells] > y[windows]
            np.copyto(y[windows], x[cells], where=larger)
            np.copyto(indices[windows], place, where=larger)
        return y, indices

    return run


def _numpy_backward(inputs: dict[str, Any]) -> Callable[[], Any]:
    x, dy, indices = inputs["x"], inputs["dy"], inputs["indices"]
    geometry = geometry_of(x.shape, **_options(inputs))

    def run() -> np.ndarray:
        dx = np.zeros(x.shape, np.float32)
        for place, windows, cells in _slices(geometry):
            dx[cells] += dy[windows] * (indices[windows] == place)
        return dx

    return run


def _torch_forward(inputs: dict[str, Any]) -> Callable[[], Any]:
    import torch

    options = _options(inputs)

    def run() -> Any:
        with torch.no_grad():
            return torch.nn.functional.max_pool2d(inputs["x"], **options, return_indices=True)

    return run


def _torch_backward(inputs: dict[str, Any]) -> Callable[[], Any]:
    import torch

    # Its autograd keeps the indices of the forward pass, as int64.
    x = inputs["x"].detach().clone().requires_grad_(True)
    y = torch.nn.functional.max_pool2d(x, **_options(inputs))

    def run() -> Any:
        return torch.autograd.grad(y, x, inputs["dy"], retain_graph=True)

    return run


FORWARD = {"numpy": _numpy_forward, "torch": _torch_forward}
BACKWARD = {"numpy": _numpy_backward, "torch": _torch_backward}
