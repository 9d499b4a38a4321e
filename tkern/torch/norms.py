"""RMSNorm, differentiated by tkern's backward."""

from __future__ import annotations

from typing import Any

import tkern
from tkern.torch.autograd import Function, check, first_order, uncompiled

__all__ = ["rms_norm"]


class _RMSNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, eps: float, offset: float) -> Any:
        y, rstd = tkern.rms_norm(x, weight, eps=eps, offset=offset)
        ctx.save_for_backward(x, weight, rstd)
        ctx.options = {"eps": eps, "offset": offset}
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        x, weight, rstd = ctx.saved_tensors
        dx, dweight, _ = tkern.rms_norm_backward(x, weight, dy, rstd=rstd, **ctx.options)
        of_x, of_weight, *_ = ctx.needs_input_grad
        return dx if of_x else None, dweight if of_weight else None, None, None


@uncompiled
def rms_norm(x: Any, weight: Any = None, *, eps: float = 1e-6, offset: float = 0.0) -> Any:
    """Return y of RMSNorm over the last axis; differentiable in x and weight.

    y = x · rstd · (offset + weight), rstd = 1 / √(mean(x²) + eps); the gradients are those of
    :func:`tkern.rms_norm_backward`, which finds both in one pass.

    Parameters: x float32 tensor [..., D]; weight float32 tensor [D] on the same device, or None; eps and offset as
    for :func:`tkern.rms_norm`. No units.
    Returns: y of x's shape, on its device. x, weight and rstd are kept for backward.
    Raises: ShapeError, DTypeError, OptionError, SizeLimitError naming the argument; AutogradError inside torch.func
    and for a second derivative.
    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """
    check("x", x)
    if weight is not None:
        check("weight", weight, like=x)
    return _RMSNorm.call(x, weight, eps, offset)
