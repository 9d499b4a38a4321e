"""Attention and its backward."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tkern import arrays, runtime
from tkern.errors import OptionError
from tkern.launch import Launch
from tkern.ops.attention.options import check_inputs, check_options
from tkern.ops.attention.plan import Work

__all__ = ["AttentionGrads", "attention", "attention_backward", "prepare_backward", "prepare_forward"]


class AttentionGrads(NamedTuple):
    """Gradients of attention, each of its argument's shape; None where one was not asked for."""

    dq: Any
    dk: Any
    dv: Any
    dbias: Any


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
) -> tuple[Any, Any]:
    """Return ``(out, lse)`` of attention.

    S = scale·QKᵀ, softcapped if asked (cap·tanh(S/cap)), then + bias; P = softmax(S) over the visible keys; out = P·V;
    lse = log Σ exp S, −inf for a row that sees no key, whose out is 0.

    Parameters: q float32 [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv], or with layout "bshd" the axes 1 and 2
    exchanged; Hq a multiple of Hkv, and query head h reads key head h // (Hq/Hkv). scale: 1/√D if None. Query i
    stands at position i + offset, offset Sk − Sq, 0 or max(0, Sk − Sq) for align "bottom-right", "top-left" or
    "clamped". causal: key j is visible iff j ≤ position. window (l, r): position − l ≤ j ≤ position + r, −1 for no
    limit; w means (w, 0). key_mask bool [B, Sk], True for visible, or float32 together with mask_threshold, visible
    where at least that. bias float32, broadcast to [B, Hq, Sq, Sk]; −inf hides. All of them combine.
    Returns: out [B, Hq, Sq, Dv] in the same layout; lse [B, Hq, Sq] in both layouts; of q's kind, without autograd's
    history. No units. No Sq × Sk array is made.
    Raises: ShapeError, DTypeError, OptionError, SizeLimitError, each naming the argument.
    Source: Dao et al., FlashAttention, 2022, for the tiles; softcap as in Gemma 2.
    """
    with runtime.session() as backend:
        launch = prepare_forward(
            q, k, v, layout=layout, scale=scale, causal=causal, window=window, align=align, key_mask=key_mask,
            mask_threshold=mask_threshold, bias=bias, softcap=softcap, backend=backend,
        )  # fmt: skip
        launch.run()
        out, lse = launch.results()
        return out, lse


def attention_backward(
    q: Any,
    k: Any,
    v: Any,
    dout: Any,
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
    out: Any = None,
    lse: Any = None,
    dlse: Any = None,
    wrt: tuple[str, ...] = ("q", "k", "v"),
) -> AttentionGrads:
    """Return ``AttentionGrads(dq, dk, dv, dbias)`` for the gradients dout of out and dlse of lse.

    With P as in :func:`attention` and Δ = rowsum(out·dout) − dlse: dV = Pᵀ·dout, dS = P·(dout·Vᵀ − Δ),
    dQ = scale·dS·K, dK = scale·dSᵀ·Q (dS less softcap's slope), dbias = dS summed over the axes bias was broadcast
    along. A row that sees no key adds exactly 0.

    Parameters: as :func:`attention`, float32; dout of out's shape; dlse [B, Hq, Sq] or None; out and lse as the
    forward returned them save recomputing them; wrt names what is wanted: "q", "k", "v", and "bias" if there is one.
    Returns: dq, dk, dv and dbias, of their arguments' shapes and q's kind, None where not asked for; two runs give the
    same bits. No units.
    Raises: ShapeError, DTypeError, OptionError, SizeLimitError, each naming the argument.
    Source: differentiating the definition; Dao, FlashAttention-2, 2023, for the order of the products.
    """
    with runtime.session() as backend:
        launch = prepare_backward(
            q, k, v, dout, layout=layout, scale=scale, causal=causal, window=window, align=align, key_mask=key_mask,
            mask_threshold=mask_threshold, bias=bias, softcap=softcap, out=out, lse=lse, dlse=dlse, wrt=wrt,
            backend=backend,
        )  # fmt: skip
        launch.run()
        return AttentionGrads(*launch.results())


def prepare_forward(
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
    backend: str,
) -> Launch:
    """Check the arguments of :func:`attention` and return the launch that fills its outputs."""
    inputs = check_inputs(q, k, v, layout, backend)
    options = check_options(
        inputs, scale=scale, causal=causal, window=window, align=align, key_mask=key_mask,
        mask_threshold=mask_threshold, bias=bias, softcap=softcap, backend=backend,
    )  # fmt: skip
    out = arrays.make_output(inputs.out_shape, inputs.q, backend)
    lse = arrays.make_output(inputs.row_shape, inputs.q, backend)
    launch = Launch((out, lse))
    if not math.prod(inputs.row_shape) or not inputs.keys:
        out.fill(0.0)
        lse.fill(-math.inf)
        return launch
    work = Work(inputs, options, backend)
    work.add_statistics(launch, lse.argument)
    work.add_output(launch, out.argument)
    return launch


def prepare_backward(
    q: Any,
    k: Any,
    v: Any,
    dout: Any,
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
    out: Any = None,
    lse: Any = None,
    dlse: Any = None,
    wrt: tuple[str, ...] = ("q", "k", "v"),
    backend: str,
) -> Launch:
    """Check the arguments of :func:`attention_backward` and return the launch that fills its outputs."""
    inputs = check_inputs(q, k, v, layout, backend)
    options = check_options(
        inputs, scale=scale, causal=causal, window=window, align=align, key_mask=key_mask,
        mask_threshold=mask_threshold, bias=bias, softcap=softcap, backend=backend,
    )  # fmt: skip
    wanted = _check_wrt(wrt, options.bias is not None)
    grad = arrays.take("dout", dout, shape=inputs.out_shape, backend=backend)
    given_out = None if out is None else arrays.take("out", out, shape=inputs.out_shape, backend=backend)
    given_lse = None if lse is None else arrays.take("lse", lse, shape=inputs.row_shape, backend=backend)
    grad_lse = None if dlse is None else arrays.take("dlse", dlse, shape=inputs.row_shape, backend=backend)

    shapes = {"q": inputs.q.shape, "k": inputs.k.shape, "v": inputs.v.shape}
    if options.bias is not None:
        shapes["bias"] = options.bias.shape
    outputs = {name: arrays.make_output(shapes[name], inputs.q, backend) for name in wanted}
    launch = Launch(tuple(outputs.get(name) for name in ("q", "k", "v", "bias")))
    if not math.prod(inputs.row_shape) or not inputs.keys:
        for one in outputs.values():
            one.fill(0.0)
        return launch
    work = Work(inputs, options, backend)
    if given_lse is None:
        work.add_statistics(launch, arrays.workspace(math.prod(inputs.row_shape), backend))
    else:
        work.add_recall(launch, given_lse)
    if given_out is None:
        saved = arrays.workspace(math.prod(inputs.out_shape), backend)
        work.add_output(launch, saved)
    else:
        saved = given_out.argument(backend)
    work.add_correction(launch, saved, grad, grad_lse)
    work.add_gradients(launch, {name: one.argument for name, one in outputs.items()})
    return launch


def _check_wrt(wrt: Any, has_bias: bool) -> tuple[str, ...]:
    names = ("q", "k", "v", "bias") if has_bias else ("q", "k", "v")
    given = tuple(wrt) if isinstance(wrt, (tuple, list, set, frozenset)) else None
    if given is None or any(name not in names for name in given):
        raise OptionError(argument="wrt", expected="a tuple of " + ", ".join(map(repr, names)), got=repr(wrt))
    return tuple(name for name in names if name in given)
