"""tkern: neural-net backward kernels, each written once as a Taichi kernel.

The same kernel runs on Apple Metal, CPUs, Vulkan and CUDA. Beside each stands a NumPy oracle (``tkern.oracle``), and
``tkern parity`` holds every kernel on every backend against it. Importing tkern starts nothing: Taichi is imported and
started by the first call, or by ``tkern.use``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tkern import errors, oracle
    from tkern.ops.attention import AttentionGrads, attention, attention_backward
    from tkern.ops.conv2d import (
        conv2d,
        conv2d_backward_bias,
        conv2d_backward_input,
        conv2d_backward_weight,
        im2col,
    )
    from tkern.ops.cross_entropy_backward import cross_entropy_backward
    from tkern.ops.layer_norm_backward import layer_norm_backward
    from tkern.ops.max_pool2d import (
        max_pool2d,
        max_pool2d_backward,
        max_pool2d_indices_from_flat,
        max_pool2d_indices_to_flat,
    )
    from tkern.ops.rms_norm import rms_norm, rms_norm_backward
    from tkern.ops.softmax_backward import softmax_backward
    from tkern.runtime import Backend, backends, use, using

# Where each public name lives; it is imported when it is first asked for.
_HOME = {
    "AttentionGrads": "tkern.ops.attention",
    "attention": "tkern.ops.attention",
    "attention_backward": "tkern.ops.attention",
    "Backend": "tkern.runtime",
    "backends": "tkern.runtime",
    "conv2d": "tkern.ops.conv2d",
    "conv2d_backward_bias": "tkern.ops.conv2d",
    "conv2d_backward_input": "tkern.ops.conv2d",
    "conv2d_backward_weight": "tkern.ops.conv2d",
    "cross_entropy_backward": "tkern.ops.cross_entropy_backward",
    "im2col": "tkern.ops.conv2d",
    "layer_norm_backward": "tkern.ops.layer_norm_backward",
    "use": "tkern.runtime",
    "using": "tkern.runtime",
    "max_pool2d": "tkern.ops.max_pool2d",
    "max_pool2d_backward": "tkern.ops.max_pool2d",
    "max_pool2d_indices_from_flat": "tkern.ops.max_pool2d",
    "max_pool2d_indices_to_flat": "tkern.ops.max_pool2d",
    "rms_norm": "tkern.ops.rms_norm",
    "rms_norm_backward": "tkern.ops.rms_norm",
    "softmax_backward": "tkern.ops.softmax_backward",
}
_MODULES = ("errors", "oracle")

__all__ = [
    "AttentionGrads",
    "Backend",
    "__version__",
    "attention",
    "attention_backward",
    "backends",
    "conv2d",
    "conv2d_backward_bias",
    "conv2d_backward_input",
    "conv2d_backward_weight",
    "cross_entropy_backward",
    "errors",
    "im2col",
    "layer_norm_backward",
    "max_pool2d",
    "max_pool2d_backward",
    "max_pool2d_indices_from_flat",
    "max_pool2d_indices_to_flat",
    "oracle",
    "rms_norm",
    "rms_norm_backward",
    "softmax_backward",
    "use",
    "using",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"tkern.{name}")
    else:
        raise AttributeError(f"module 'tkern' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
