"""The truth: every op in NumPy, float64, written from its definition. Importing this does not import Taichi.

``tkern.oracle.<name>`` has the arguments of ``tkern.<name>``, as anything NumPy takes, and returns NumPy arrays. Each
oracle stands beside its kernel, in ``tkern/ops/<op>/oracle.py``, and shares no code with it; ``tkern parity`` checks
each by finite differences. ``dtype=np.float32`` runs the same text in float32, which is what an honest float32
computation loses.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tkern.ops.attention.oracle import attention, attention_backward
    from tkern.ops.conv2d.oracle import (
        conv2d,
        conv2d_backward_bias,
        conv2d_backward_input,
        conv2d_backward_weight,
        im2col,
    )
    from tkern.ops.cross_entropy_backward.oracle import cross_entropy_backward
    from tkern.ops.layer_norm_backward.oracle import layer_norm_backward
    from tkern.ops.max_pool2d.oracle import max_pool2d, max_pool2d_backward
    from tkern.ops.rms_norm.oracle import rms_norm, rms_norm_backward
    from tkern.ops.softmax_backward.oracle import softmax_backward

_HOME = {
    "attention": "tkern.ops.attention.oracle",
    "attention_backward": "tkern.ops.attention.oracle",
    "conv2d": "tkern.ops.conv2d.oracle",
    "conv2d_backward_bias": "tkern.ops.conv2d.oracle",
    "conv2d_backward_input": "tkern.ops.conv2d.oracle",
    "conv2d_backward_weight": "tkern.ops.conv2d.oracle",
    "cross_entropy_backward": "tkern.ops.cross_entropy_backward.oracle",
    "im2col": "tkern.ops.conv2d.oracle",
    "layer_norm_backward": "tkern.ops.layer_norm_backward.oracle",
    "max_pool2d": "tkern.ops.max_pool2d.oracle",
    "max_pool2d_backward": "tkern.ops.max_pool2d.oracle",
    "rms_norm": "tkern.ops.rms_norm.oracle",
    "rms_norm_backward": "tkern.ops.rms_norm.oracle",
    "softmax_backward": "tkern.ops.softmax_backward.oracle",
}

__all__ = [
    "attention",
    "attention_backward",
    "conv2d",
    "conv2d_backward_bias",
    "conv2d_backward_input",
    "conv2d_backward_weight",
    "cross_entropy_backward",
    "im2col",
    "layer_norm_backward",
    "max_pool2d",
    "max_pool2d_backward",
    "rms_norm",
    "rms_norm_backward",
    "softmax_backward",
]


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in _HOME:
        raise AttributeError(f"module 'tkern.oracle' has no attribute {name!r}; it has {', '.join(sorted(_HOME))}")
    function: Callable[..., Any] = getattr(importlib.import_module(_HOME[name]), name)
    return function


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
