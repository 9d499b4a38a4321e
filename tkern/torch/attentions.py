"""Attention, differentiated by tkern's backward."""

from __future__ import annotations

from typing import Any

import torch

import tkern
from tkern.errors import DTypeError, OptionError
from tkern.torch.autograd import Function, check, check_device, first_order, uncompiled

__all__ = ["attention"]


class _Attention(Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, bias: Any, key_mask: Any, options: dict[str, Any]) -> Any:
        out, lse = tkern.attention(q, k, v, bias=bias, key_mask=key_mask, **options)
        ctx.save_for_backward(q, k, v, bias, key_mask, out, lse)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @first_order
    def backward(ctx: Any, dout: Any, dlse: Any) -> tuple[Any, ...]:
        needed = [name for name, need in zip(("q", "k", "v", "bias"), ctx.needs_input_grad, strict=False) if need]
        if dout is None and dlse is None:
            return (None,) * 6
        q, k, v, bias, key_mask, out, lse = ctx.saved_tensors
        if dout is None:
            dout = out.new_zeros(()).expand(out.shape)
        grads = tkern.attention_backward(
            q, k, v, dout, bias=bias, key_mask=key_mask, out=out, lse=lse, dlse=dlse, wrt=tuple(needed), **ctx.options
        )
        return *grads, None, None


@uncompiled
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    layout: str = "bhsd",
    scale: float | None = None,
    causal: bool = False,
    window: int | tuple[int, int] | None = None,
    align: str = "bottom-right",
    key_mask: Any = None,
    mask_threshold: float | None = None,
    bias: Any = None,
    softcap: float | None = None,
    return_lse: bool = False,
) -> Any:
    """Return out of attention, and lse with ``return_lse``; both differentiable in q, k, v and bias.

    out = softmax(S)·V over the visible keys, S = scale·QKᵀ, softcapped if asked, then + bias; lse = log Σ exp S. The
    formula and the options are those of :func:`tkern.attention`; a gradient that nobody needs is not computed.

    Parameters: q float32 tensor [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv], or with layout "bshd" the axes
    1 and 2 exchanged; bias a float32 tensor or None; key_mask a bool tensor [B, Sk], or a float32 one with
    mask_threshold, which has no gradient; all on one device. No units.
    Returns: out [B, Hq, Sq, Dv] in the same layout, or (out, lse) with lse [B, Hq, Sq]. A row that sees no key has
    out 0, lse −∞ and no part in any gradient. What came in, out and lse are kept for backward: no Sq × Sk array.
    Raises: ShapeError, DTypeError, OptionError, SizeLimitError naming the argument; AutogradError inside torch.func
    and for a second derivative.
    Source: Dao et al., FlashAttention, 2022; softcap as in Gemma 2.
    """
    check("q", q)
    check("k", k, like=q)
    check("v", v, like=q)
    if bias is not None:
        check("bias", bias, like=q)
    if key_mask is not None:
        _check_mask(key_mask, q)
    options = {
        "layout": layout, "scale": scale, "causal": causal, "window": window, "align": align,
        "mask_threshold": mask_threshold, "softcap": softcap,
    }  # fmt: skip
    out, lse = _Attention.call(q, k, v, bias, key_mask, options)
    return (out, lse) if return_lse else out


def _check_mask(key_mask: Any, q: Any) -> None:
    if not isinstance(key_mask, torch.Tensor):
        raise DTypeError(argument="key_mask", expected="a torch tensor", got=type(key_mask).__name__)
    check_device("key_mask", key_mask, q)
    if key_mask.requires_grad:
        raise OptionError(
            argument="key_mask",
            expected="a tensor without a gradient",
            got="one that requires it",
            hint="a mask hides or shows, which has no derivative; pass numbers to be added as bias",
        )
