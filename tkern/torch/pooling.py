"""Max pooling, differentiated by tkern's backward."""

from __future__ import annotations

from typing import Any

import tkern
from tkern.ops.max_pool2d import check_ties
from tkern.torch.autograd import Function, check, first_order, uncompiled

__all__ = ["max_pool2d"]


class _MaxPool2d(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, kernel_size: Any, ties: str, options: dict[str, Any]) -> tuple[Any, Any]:
        y, indices = tkern.max_pool2d(x, kernel_size, **options)
        # With the indices, only ties other than "first" look at x again.
        ctx.save_for_backward(None if ties == "first" else x, indices)
        ctx.shape, ctx.kernel_size, ctx.ties, ctx.options = x.shape, kernel_size, ties, options
        ctx.mark_non_differentiable(indices)
        ctx.set_materialize_grads(False)
        return y, indices

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Any, _: Any) -> tuple[Any, ...]:
        if dy is None:
            return None, None, None, None
        x, indices = ctx.saved_tensors
        if x is None:
            x = dy.new_zeros(()).expand(ctx.shape)
        dx = tkern.max_pool2d_backward(x, dy, ctx.kernel_size, ties=ctx.ties, indices=indices, **ctx.options)
        return dx, None, None, None


@uncompiled
def max_pool2d(
    x: Any,
    kernel_size: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    ties: str = "first",
    return_indices: bool = False,
) -> Any:
    """Return the largest cell of each window, and with ``return_indices`` which it is; differentiable in x.

    Windows, padding, NaN and ``ties``, the cells that take a window's gradient where several are equally large, are
    those of :func:`tkern.max_pool2d` and :func:`tkern.max_pool2d_backward`.

    Parameters: x float32 tensor [..., H, W]; the rest as there. No units.
    Returns: y [..., Ho, Wo], or (y, indices): offsets in the windows, uint8 where kh·kw ≤ 256, else int32, as
    :func:`tkern.max_pool2d` has them; :func:`tkern.max_pool2d_indices_to_flat` makes PyTorch's of them. The indices
    are kept for backward, x only where ties is not "first".
    Raises: ShapeError, DTypeError, OptionError, SizeLimitError naming the argument; AutogradError inside torch.func
    and for a second derivative.
    Source: the definition; sizes as torch.nn.MaxPool2d counts them.
    """
    check("x", x)
    check_ties(ties)  # here and not first in backward
    options = {"stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}
    y, indices = _MaxPool2d.call(x, kernel_size, ties, options)
    return (y, indices) if return_indices else y
