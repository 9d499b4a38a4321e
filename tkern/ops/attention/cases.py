"""What attention is tried on, what it costs, and how its oracle is checked."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from tkern.ops.attention import (
    attention,
    attention_backward,
    drawing,
    mutants,
    oracle,
    peers,
    prepare_backward,
    prepare_forward,
    rounding,
)
from tkern.ops.attention.drawing import Sizes
from tkern.spec import Case, Cost, FiniteDifferences, Op, Shape

# Every kind of mask, alone and together, with a bias that has a gradient where there is one.
_MASKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("no mask", {}),
    ("causal", {"causal": True}),
    ("causal top-left", {"causal": True, "align": "top-left"}),
    ("causal clamped", {"causal": True, "align": "clamped"}),
    ("window 3", {"window": 3}),
    ("window (-1, 2) top-left", {"window": (-1, 2), "align": "top-left"}),
    ("window (2, 5) clamped", {"window": (2, 5), "align": "clamped"}),
    ("causal, window (7, 2)", {"causal": True, "window": (7, 2)}),
    ("key mask", {"mask": "bool", "blind_batch": True}),
    ("key mask by threshold", {"mask": "float"}),
    ("bias", {"bias": "bhqk"}),
    ("bias with −inf", {"bias": "1hqk", "hidden_share": 0.3}),
    ("softcap", {"softcap": 1.5}),
    (
        "everything",
        {
            "causal": True,
            "window": 9,
            "mask": "float",
            "bias": "b1qk",
            "hidden_share": 0.1,
            "softcap": 2.0,
            "scale": 0.7,
        },
    ),
)

# Fewer queries than keys, as many, and more: one, a few, beside a tile and past it.
_LENGTHS = (
    ((17, 40), (33, 70), (1, 9), (6, 80)),
    ((31, 31), (64, 64), (7, 7), (65, 65)),
    ((40, 17), (70, 33), (9, 1), (80, 6)),
)
_HEADS = (((2, 2), (1, 1), (3, 3)), ((4, 2), (3, 1), (6, 2)))
_HEAD_SIZES = (33, 16, 3, 64, 20, 1, 80)
_LAYOUTS = ("bhsd", "bshd")


def _crossed() -> tuple[Case, ...]:
    """Return each mask at each relation of Sq to Sk, and in these three both layouts, shared key heads and not."""
    cases = []
    for (i, (name, options)), j in product(enumerate(_MASKS), range(3)):
        layout = _LAYOUTS[(i + j) % 2]
        heads = _HEADS[(i // 2 + (j > 0)) % 2][(i + j) % 3]
        size, other = _HEAD_SIZES[(3 * i + j) % 7], _HEAD_SIZES[(3 * i + j + 2) % 7]
        sizes = Sizes(2, *heads, *_LENGTHS[j][(i + j) % 4], size, other if (i + j) % 3 == 0 else size)
        make = drawing.backward(sizes, layout=layout, dlse=(i + j) % 2 == 0, **options)
        cases.append(Case(f"{name}, {layout} {sizes}", make))
    return tuple(cases)


def _nan_in_masked_keys(inputs: dict[str, Any]) -> None:
    for name in ("k", "v"):
        inputs[name].swapaxes(1, 2)[~inputs["key_mask"]] = np.nan


def _nan_in_keys_past_the_last_query(inputs: dict[str, Any]) -> None:
    for name in ("k", "v"):
        inputs[name][:, :, inputs["q"].shape[2] :] = np.nan


def _nan_in_rows_that_see_nothing(inputs: dict[str, Any]) -> None:
    for name in ("q", "dout", "dlse"):
        inputs[name][:, :, : inputs["q"].shape[2] - inputs["k"].shape[2]] = np.nan


def _all_queries_equal(inputs: dict[str, Any]) -> None:
    inputs["q"][...] = inputs["q"][:, :, :1]
    inputs["k"][...] = inputs["k"][:, :, :1]


_SMALL = Sizes(2, 4, 2, 37, 43, 20, 20)
_SPECIAL = tuple(
    Case(f"{name} {sizes}", drawing.backward(sizes, **options))
    for name, sizes, options in (
        ("NaN in masked keys", _SMALL, {"mask": "bool", "nan": _nan_in_masked_keys}),
        (
            "NaN past the diagonal",
            _SMALL,
            {"causal": True, "align": "top-left", "nan": _nan_in_keys_past_the_last_query},
        ),
        (
            "NaN in rows that see no key",
            Sizes(1, 2, 2, 40, 23, 16, 16),
            {"causal": True, "dlse": True, "nan": _nan_in_rows_that_see_nothing},
        ),
        ("scores around ±300", _SMALL, {"spread": 17.0}),
        ("scores near 300", _SMALL, {"peak": 300.0}),
        ("scores near -300, causal", _SMALL, {"peak": -300.0, "causal": True}),
        ("all scores equal", _SMALL, {"nan": _all_queries_equal}),
        ("scale 0", _SMALL, {"scale": 0.0, "bias": "11qk", "causal": True}),
        ("scale -0.5", _SMALL, {"scale": -0.5, "softcap": 1.0}),
        ("window 0", Sizes(1, 2, 1, 33, 33, 16, 16), {"window": 0}),
        ("one key", Sizes(1, 2, 2, 19, 1, 3, 3), {"dlse": True}),
        ("no keys", Sizes(2, 2, 1, 5, 0, 16, 16), {"bias": "h11"}),
        ("no queries", Sizes(1, 2, 2, 0, 5, 16, 16), {"bias": "hq1"}),
        ("bias by key", _SMALL, {"bias": "b11k", "softcap": 3.0}),
        ("bias by row", _SMALL, {"bias": "hq1", "dlse": True, "causal": True}),
        ("bias by head", _SMALL, {"bias": "1h11", "dlse": True}),
        ("bias of rank 2, window 20", _SMALL, {"bias": "qk", "window": 20}),
        ("larger", Sizes(1, 2, 1, 257, 200, 64, 64), {"causal": True, "dlse": True}),
        ("larger", Sizes(1, 4, 2, 200, 300, 33, 33), {"window": (150, 40), "bias": "1hqk", "softcap": 5.0}),
    )
)

# Only the backward takes these.
_SAVED = tuple(
    Case(f"{name} {_SMALL}", drawing.backward(_SMALL, **options))
    for name, options in (
        ("saved out and lse", {"saved": ("out", "lse"), "causal": True, "dlse": True}),
        ("saved out", {"saved": ("out",), "layout": "bshd", "bias": "11qk"}),
        ("saved lse", {"saved": ("lse",), "mask": "bool"}),
        ("saved, rows that see no key", {"saved": ("out", "lse"), "mask": "float", "blind_batch": True}),
        ("only dq", {"wrt": ("q",), "causal": True}),
        ("only dk", {"wrt": ("k",), "layout": "bshd"}),
        ("only dv", {"wrt": ("v",), "window": 5}),
        ("only dbias", {"wrt": ("bias",), "bias": "bhqk"}),
        ("dq and dv", {"wrt": ("q", "v"), "softcap": 1.0}),
        ("dbias and dk", {"wrt": ("bias", "k"), "bias": "11qk"}),
        ("no dbias", {"wrt": ("q", "k", "v"), "bias": "b1qk", "causal": True}),
    )
)

_BACKWARD_CASES = (*_crossed(), *_SPECIAL, *_SAVED)
_FORWARD_CASES = tuple(Case(case.name, drawing.forward(case.make)) for case in (*_crossed(), *_SPECIAL))

# Every mask in both layouts, with fewer queries than keys and the other way round.
_TINY = tuple(
    Case(
        f"{name}, {layout}",
        drawing.backward(
            Sizes(2, 2, 1, *((3, 4), (4, 3))[i % 2], 2, 3), layout=layout, dlse=True, **{"bias": None, **options}
        ),
    )
    for i, ((name, options), layout) in enumerate(product((*_MASKS, ("bias by head", {"bias": "h11"})), _LAYOUTS))
)


def _differentiable(**inputs: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the forward's out and lse, lse as 0 where it is −inf: that depends on nothing."""
    inputs.pop("wrt")
    out, lse = oracle.attention(**inputs)
    return out, np.where(np.isneginf(lse), 0.0, lse)


def _lengths(inputs: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Return Sq, Sk, how many query heads read a key head, and the longer of D and Dv."""
    q, k, v = (oracle.heads_first(inputs[name], inputs.get("layout", "bhsd"), np.float32) for name in ("q", "k", "v"))
    return q.shape[2], k.shape[2], q.shape[1] // k.shape[1], max(q.shape[3], v.shape[3])


def _forward_reductions(inputs: Mapping[str, Any]) -> dict[str, int]:
    _, keys, _, size = _lengths(inputs)
    return {"out": max(keys, size), "lse": max(keys, size)}


def _backward_reductions(inputs: Mapping[str, Any]) -> dict[str, int]:
    queries, keys, group, size = _lengths(inputs)
    rows = max(queries * group, keys, size)
    summed = 1
    if inputs.get("bias") is not None:
        batch, heads = inputs["q"].shape[0], oracle.heads_first(inputs["q"], inputs["layout"], np.float32).shape[1]
        summed = batch * heads * queries * keys // max(1, inputs["bias"].size)
    return {"dq": max(keys, size), "dk": rows, "dv": rows, "dbias": max(summed, keys, size)}


def _sizes_of(dims: Mapping[str, int]) -> Sizes:
    return Sizes(dims["B"], dims["Hq"], dims["Hkv"], dims["S"], dims["S"], dims["D"], dims["D"])


def _make_backward(rng: np.random.Generator, dims: Mapping[str, int]) -> dict[str, Any]:
    inputs = drawing.backward(_sizes_of(dims), causal=bool(dims["causal"]))(rng)
    # What a forward pass leaves behind: every peer has it too.
    out, lse = oracle.attention(**drawing.forward(lambda _: inputs)(rng), dtype=np.float32)
    return {**inputs, "out": out, "lse": lse}


def _make_forward(rng: np.random.Generator, dims: Mapping[str, int]) -> dict[str, Any]:
    return drawing.forward(drawing.backward(_sizes_of(dims), causal=bool(dims["causal"])))(rng)


def _cost(dims: Mapping[str, int], products: int, of_queries: int, of_keys: int) -> Cost:
    """Return the cost of ``products`` S×S products and so many [B, Hq, S, D] and [B, Hkv, S, D] arrays, and lse."""
    rows = dims["B"] * dims["Hq"] * dims["S"]
    arrays = of_queries * rows * dims["D"] + of_keys * dims["B"] * dims["Hkv"] * dims["S"] * dims["D"]
    flops = 2 * products * rows * dims["S"] * dims["D"]
    return Cost(bytes=4 * (arrays + rows), flops=flops / 2 if dims["causal"] else flops)


def _shapes(*sizes: tuple[int, int, int, int, int, int]) -> tuple[Shape, ...]:
    return tuple(Shape(dict(zip(("B", "Hq", "Hkv", "S", "D", "causal"), s, strict=True))) for s in sizes)


_STANDARD = _shapes(
    (4, 12, 12, 1024, 64, 1),
    (1, 32, 8, 2048, 128, 1),
    (1, 8, 2, 2048, 256, 1),
    (8, 12, 12, 197, 64, 0),
    (1, 25, 25, 1024, 64, 0),
)
_QUICK = _shapes((1, 4, 4, 256, 64, 0), (1, 8, 2, 512, 64, 1), (2, 4, 4, 197, 64, 0))

OPS = (
    Op(
        name="attention",
        summary="attention: out and lse",
        run=attention,
        prepare=prepare_forward,
        oracle=oracle.attention,
        outputs=("out", "lse"),
        cases=_FORWARD_CASES,
        reductions=_forward_reductions,
        cost=lambda dims: _cost(dims, 2, 2, 2),
        cost_text="4·B·Hq·S²·D flops, half if causal",
        make=_make_forward,
        quick=_QUICK,
        standard=_STANDARD,
        peers=peers.FORWARD,
        mutants=mutants.FORWARD,
        scales=rounding.forward_scales,
    ),
    Op(
        name="attention_backward",
        summary="attention's gradients: dq, dk, dv and dbias",
        run=attention_backward,
        prepare=prepare_backward,
        oracle=oracle.attention_backward,
        outputs=("dq", "dk", "dv", "dbias"),
        cases=_BACKWARD_CASES,
        reductions=_backward_reductions,
        cost=lambda dims: _cost(dims, 5, 4, 4),
        cost_text="10·B·Hq·S²·D flops, half if causal",
        make=_make_backward,
        quick=_QUICK,
        standard=_STANDARD,
        peers=peers.BACKWARD,
        finite_differences=FiniteDifferences(
            forward=_differentiable,
            cotangents=("dout", "dlse"),
            gradients={"q": "dq", "k": "dk", "v": "dv", "bias": "dbias"},
            cases=_TINY,
        ),
        mutants=mutants.BACKWARD,
        scales=rounding.backward_scales,
    ),
)
