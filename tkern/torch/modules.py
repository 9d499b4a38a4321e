"""Modules: torch.nn's own, with their parameters, names and defaults, and tkern's kernels for forward and backward."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

import tkern
from tkern.errors import OptionError, ShapeError
from tkern.torch.autograd import check, uncompiled
from tkern.torch.convolutions import conv2d
from tkern.torch.norms import rms_norm
from tkern.torch.pooling import max_pool2d

__all__ = ["Conv2d", "MaxPool2d", "RMSNorm"]


class RMSNorm(torch.nn.RMSNorm):  # type: ignore[misc]
    """torch.nn.RMSNorm on tkern's kernels: the same arguments, parameters and state_dict.

    y = x · weight / √(mean(x²) + eps), the mean over the axes of ``normalized_shape``, the last of x; eps None is the
    smallest step of float32 above 1, 2⁻²³. Parameters and input float32; y of x's shape. No units.
    Raises: errors as :func:`tkern.torch.rms_norm`, from forward.
    Source: torch.nn.RMSNorm; Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """

    @uncompiled
    def forward(self, x: Any) -> Any:
        """Return y of x's shape."""
        check("x", x)
        shape = tuple(self.normalized_shape)
        if tuple(x.shape[-len(shape) :]) != shape:
            raise ShapeError(argument="x", expected=f"last axes {shape}", got=str(tuple(x.shape)))
        weight = None if self.weight is None else self.weight.reshape(-1)
        eps = torch.finfo(torch.float32).eps if self.eps is None else self.eps
        rows = x.reshape(*x.shape[: -len(shape)], math.prod(shape))
        return rms_norm(rows, weight, eps=eps).reshape(x.shape)


class Conv2d(torch.nn.Conv2d):  # type: ignore[misc]
    """torch.nn.Conv2d on tkern's kernels: the same arguments, parameters and state_dict.

    y = x ∗ weight + bias as :func:`tkern.torch.conv2d` has it; padding also "valid" and "same" (with one cell more
    below and to the right where it is odd, as PyTorch has it). Input float32 [N, C, H, W] or [C, H, W].
    Raises: OptionError for a padding_mode other than "zeros"; from forward, errors as :func:`tkern.torch.conv2d`.
    Source: torch.nn.Conv2d.
    """

    @functools.wraps(torch.nn.Conv2d.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.padding_mode != "zeros":
            raise OptionError(
                argument="padding_mode",
                expected='"zeros"',
                got=repr(self.padding_mode),
                hint="pad first with torch.nn.functional.pad",
            )

    @uncompiled
    def forward(self, input: Any) -> Any:
        """Return y [N, Cout, Ho, Wo], or [Cout, Ho, Wo] for a single image."""
        check("input", input)
        if input.ndim not in (3, 4):
            raise ShapeError(argument="input", expected="[N, C, H, W] or [C, H, W]", got=str(tuple(input.shape)))
        y = conv2d(
            input if input.ndim == 4 else input.unsqueeze(0),
            self.weight,
            self.bias,
            stride=self.stride,
            padding=self._pairs(),
            dilation=self.dilation,
            groups=self.groups,
        )
        return y if input.ndim == 4 else y.squeeze(0)

    def _pairs(self) -> Any:
        if self.padding == "valid":
            return 0
        if self.padding != "same":
            return self.padding
        around = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        return tuple((n // 2, n - n // 2) for n in around)


class MaxPool2d(torch.nn.MaxPool2d):  # type: ignore[misc]
    """torch.nn.MaxPool2d on tkern's kernels: the same arguments.

    y = max of each window as :func:`tkern.torch.max_pool2d` has it, ties to the first cell. Input float32 [N, C, H, W]
    or [C, H, W]. With return_indices also PyTorch's flat int64 indices, which are made on the CPU.
    Raises: errors as :func:`tkern.torch.max_pool2d`, from forward.
    Source: torch.nn.MaxPool2d.
    """

    @uncompiled
    def forward(self, input: Any) -> Any:
        """Return y [N, C, Ho, Wo], or (y, indices)."""
        check("input", input)
        options: dict[str, Any] = {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "ceil_mode": self.ceil_mode,
        }
        if not self.return_indices:
            return max_pool2d(input, self.kernel_size, **options)
        y, indices = max_pool2d(input, self.kernel_size, return_indices=True, **options)
        return y, tkern.max_pool2d_indices_to_flat(indices, tuple(input.shape), self.kernel_size, **options)
