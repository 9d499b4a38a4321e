"""torch.nn.functional.scaled_dot_product_attention, with tkern's attention."""

from __future__ import annotations

from typing import Any

import torch

from tkern.arrays import shape_text
from tkern.errors import DTypeError, OptionError, ShapeError
from tkern.torch.attentions import attention
from tkern.torch.autograd import check, check_device, uncompiled

__all__ = ["scaled_dot_product_attention"]


@uncompiled
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return softmax(scale·QKᵀ + mask)·V as torch.nn.functional.scaled_dot_product_attention does; differentiable.

    is_causal shows query i the keys j ≤ i, counted from the first of both (tkern's align "top-left"). A query that
    sees no key has an output of 0 and no part in any gradient. A key hidden by a bool mask does not count even where
    it is NaN.

    Parameters: query float32 tensor [..., Hq, L, E], key [..., Hkv, S, E], value [..., Hkv, S, Ev], without a head axis
    too; the leading axes of all three are the same, and so are the heads, unless enable_gqa, where Hkv divides Hq.
    attn_mask a tensor that broadcasts to [..., Hq, L, S]: bool, True for what takes part, or float32, added to the
    scores and differentiable; not together with is_causal. dropout_p must be 0. scale: 1/√E if None. No units.
    Returns: [..., Hq, L, Ev]. A bool mask that differs between heads or queries is turned into a float32 one of its
    own shape.
    Raises: ShapeError, DTypeError, OptionError, SizeLimitError naming the argument; AutogradError inside torch.func
    and for a second derivative.
    Source: the documentation of PyTorch's function; the kernels are those of :func:`tkern.attention`.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check(name, tensor, like=query if tensor is not query else None)
        if tensor.ndim < 2 or tensor.ndim != query.ndim or not tensor.shape[-1]:
            least = "at least 2 axes, [..., L, E]" if tensor is query else f"{query.ndim} axes, as query has"
            expected = f"{least}, the last not empty"
            raise ShapeError(argument=name, expected=expected, got=shape_text(tuple(tensor.shape)))
    if isinstance(dropout_p, bool) or dropout_p != 0:
        raise OptionError(argument="dropout_p", expected="0: tkern has no dropout", got=repr(dropout_p))
    for name, flag in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if not isinstance(flag, bool):
            raise OptionError(argument=name, expected="True or False", got=repr(flag))
    if is_causal and attn_mask is not None:
        raise OptionError(argument="attn_mask", expected="None where is_causal", got="a mask", hint="as PyTorch has it")
    _check_sizes(query, key, value, enable_gqa)
    mask, bias = _masks(query, key, attn_mask)
    out = attention(
        _four(query),
        _four(key),
        _four(value),
        scale=scale,
        causal=is_causal,
        align="top-left",
        key_mask=mask,
        bias=bias,
    )
    return out.reshape(*query.shape[:-1], value.shape[-1])


def _check_sizes(query: Any, key: Any, value: Any, enable_gqa: bool) -> None:
    shape = tuple(query.shape)
    if enable_gqa and len(shape) < 3:
        raise ShapeError(argument="query", expected="[..., H, L, E] with enable_gqa", got=shape_text(shape))
    heads, kv_heads = tuple(query.shape[-3:-2]), tuple(key.shape[-3:-2])
    if enable_gqa and (kv_heads[0] == 0 or heads[0] % kv_heads[0]):
        raise ShapeError(argument="key", expected=f"heads that divide query's {heads[0]}", got=f"{kv_heads[0]} heads")
    if heads != kv_heads and not enable_gqa:
        raise ShapeError(
            argument="key",
            expected=f"{heads[0]} heads, as query has",
            got=f"{kv_heads[0]}",
            hint="enable_gqa=True lets several query heads read one key head",
        )
    keys = (*shape[:-3], *kv_heads, key.shape[-2])
    for name, tensor, size in (("key", key, shape[-1]), ("value", value, value.shape[-1])):
        if tuple(tensor.shape) != (*keys, size):
            expected = f"shape {shape_text((*keys, size))}"
            raise ShapeError(argument=name, expected=expected, got=shape_text(tuple(tensor.shape)))


def _four(tensor: Any) -> Any:
    """Return a tensor [..., H, L, E] as [B, H, L, E]."""
    if tensor.ndim == 4:
        return tensor
    while tensor.ndim < 4:
        tensor = tensor.unsqueeze(0)
    return tensor.flatten(0, -4)


def _masks(query: Any, key: Any, mask: Any) -> tuple[Any, Any]:
    """Return a mask as attention takes it: (key_mask, None) or (None, bias)."""
    if mask is None:
        return None, None
    if not isinstance(mask, torch.Tensor) or mask.dtype not in (torch.bool, torch.float32):
        got = str(mask.dtype) if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise DTypeError(argument="attn_mask", expected="a bool or float32 tensor", got=got)
    check_device("attn_mask", mask, query)
    whole = (*query.shape[:-1], key.shape[-2])
    sizes = (1,) * (len(whole) - mask.ndim) + tuple(mask.shape)
    if len(sizes) != len(whole) or any(m not in (1, n) for m, n in zip(sizes, whole, strict=True)):
        expected = f"a shape that broadcasts to {shape_text(tuple(whole))}"
        raise ShapeError(argument="attn_mask", expected=expected, got=shape_text(tuple(mask.shape)))
    mask = mask.reshape(sizes)
    lead = whole[:-3]
    if len(whole) > 4:
        # Axes that count the same batch together are one axis; it stays 1 where all of them are.
        mask = mask.expand(*(lead if any(n != 1 for n in sizes[:-3]) else sizes[:-3]), *sizes[-3:])
    mask = _four(mask)
    if mask.dtype == torch.float32:
        return None, mask
    if mask.shape[1:3] == (1, 1):
        batch = _four(query).shape[0]
        return mask.expand(batch, 1, 1, key.shape[-2]).reshape(batch, key.shape[-2]), None
    return None, torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)
