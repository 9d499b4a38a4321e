"""tkern in PyTorch: functions and modules whose forward and backward are tkern's kernels.

The functions take and return float32 tensors, and autograd differentiates them. Importing this module imports torch;
nothing else in tkern does. See docs/torch.md for what is refused and what is copied.
"""

from __future__ import annotations

try:
    import torch as _  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError("tkern.torch needs PyTorch: pip install tkern[torch]", name="torch") from error

from tkern.torch.attentions import attention
from tkern.torch.convolutions import conv2d
from tkern.torch.modules import Conv2d, MaxPool2d, RMSNorm
from tkern.torch.norms import rms_norm
from tkern.torch.pooling import max_pool2d
from tkern.torch.sdpa import scaled_dot_product_attention

__all__ = [
    "Conv2d",
    "MaxPool2d",
    "RMSNorm",
    "attention",
    "conv2d",
    "max_pool2d",
    "rms_norm",
    "scaled_dot_product_attention",
]
