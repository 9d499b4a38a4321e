"""Convolution, differentiated by tkern's backwards."""

from __future__ import annotations

from typing import Any

import tkern
from tkern.torch.autograd import Function, check, first_order, uncompiled

__all__ = ["conv2d"]


class _Conv2d(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, options: dict[str, Any]) -> Any:
        of_x, of_weight, *_ = ctx.needs_input_grad
        # Each gradient needs the other factor alone.
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)
        ctx.shapes = tuple(x.shape), tuple(weight.shape)
        ctx.options = options
        return tkern.conv2d(x, weight, bias, **options)

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        x_shape, weight_shape = ctx.shapes
        dx = tkern.conv2d_backward_input(dy, weight, x_shape, **ctx.options) if of_x else None
        dweight = tkern.conv2d_backward_weight(x, dy, weight_shape, **ctx.options) if of_weight else None
        dbias = tkern.conv2d_backward_bias(dy) if of_bias else None
        return dx, dweight, dbias, None


@uncompiled
def conv2d(
    x: Any, weight: Any, bias: Any = None, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    """Return y = x ∗ weight + bias, the convolution as networks have it; differentiable in all three.

    The formula and the options are those of :func:`tkern.conv2d`; a gradient that nobody needs is not computed.

    Parameters: x float32 tensor [N, C, H, W]; weight float32 tensor [Cout, C/groups, kh, kw]; bias float32 tensor
    [Cout] or None; all on one device. padding may be uneven: ((top, bottom), (left, right)). No units.
    Returns: y [N, Cout, Ho, Wo] on x's device. x is kept for backward where weight needs a gradient, weight where x
    needs one.
    Raises: ShapeError, DTypeError, OptionError, SizeLimitError naming the argument; AutogradError inside torch.func
    and for a second derivative.
    Source: the definition; Dumoulin and Visin, A guide to convolution arithmetic for deep learning, 2016.
    """
    check("x", x)
    check("weight", weight, like=x)
    if bias is not None:
        check("bias", bias, like=x)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return _Conv2d.call(x, weight, bias, options)
