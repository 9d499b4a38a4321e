"""Attention's options, checked: what is asked for, in the numbers that a kernel takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tkern import arrays
from tkern.errors import DTypeError, OptionError, ShapeError

__all__ = ["LAYOUTS", "Inputs", "Options", "check_inputs", "check_options", "mask_of"]

LAYOUTS = ("bhsd", "bshd")
_ALIGNMENTS = ("bottom-right", "top-left", "clamped")


@dataclass(frozen=True)
class Inputs:
    """q, k and v with their sizes; ``steps`` are those between batches, heads and rows of an array, in floats."""

    q: arrays.Input
    k: arrays.Input
    v: arrays.Input
    layout: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    value_dim: int

    def shape(self, heads: int, rows: int, size: int) -> tuple[int, ...]:
        """Return the shape of an array in this layout."""
        return (self.batch, heads, rows, size) if self.layout == "bhsd" else (self.batch, rows, heads, size)

    def steps(self, heads: int, rows: int, size: int) -> tuple[int, int, int]:
        """Return the steps of an array of this layout."""
        head, row = (rows * size, size) if self.layout == "bhsd" else (size, heads * size)
        return heads * rows * size, head, row

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Return the shape of out."""
        return self.shape(self.heads, self.queries, self.value_dim)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of lse, the same in both layouts."""
        return (self.batch, self.heads, self.queries)


@dataclass(frozen=True)
class Options:
    """Options in numbers: query i stands at i + ``offset`` and sees keys from ``left`` before to ``right`` after."""

    scale: float
    softcap: float  # 0 for none
    offset: int
    left: int
    right: int
    key_mask: np.ndarray | None  # 1 for visible, 0 for hidden
    bias: arrays.Input | None

    @property
    def bias_sizes(self) -> tuple[int, ...]:
        """Return the bias's shape with four axes."""
        assert self.bias is not None
        return (1,) * (4 - len(self.bias.shape)) + self.bias.shape


def check_inputs(q: Any, k: Any, v: Any, layout: Any, backend: str) -> Inputs:
    """Check q, k and v against each other."""
    if layout not in LAYOUTS:
        raise OptionError(argument="layout", expected="one of " + ", ".join(LAYOUTS), got=repr(layout))
    taken = [arrays.take(name, value, backend=backend) for name, value in (("q", q), ("k", k), ("v", v))]
    for one in taken:
        if len(one.shape) != 4 or one.shape[3] == 0:
            axes = "[B, H, S, D]" if layout == "bhsd" else "[B, S, H, D]"
            raise ShapeError(
                argument=one.name, expected=f"shape {axes} with D at least 1", got=arrays.shape_text(one.shape)
            )
    (batch, heads, queries, dim), (_, kv_heads, keys, _), (_, _, _, value_dim) = (
        _heads_first(t, layout) for t in taken
    )
    found = Inputs(taken[0], taken[1], taken[2], layout, batch, heads, kv_heads, queries, keys, dim, value_dim)
    _expect_shape(taken[1], found.shape(kv_heads, keys, dim))
    _expect_shape(taken[2], found.shape(kv_heads, keys, value_dim))
    if (kv_heads == 0 or heads % kv_heads) and (heads or kv_heads):
        raise ShapeError(argument="k", expected=f"heads that divide q's {heads}", got=f"{kv_heads} heads")
    return found


def check_options(
    inputs: Inputs,
    *,
    scale: Any,
    causal: Any,
    window: Any,
    align: Any,
    key_mask: Any,
    mask_threshold: Any,
    bias: Any,
    softcap: Any,
    backend: str,
) -> Options:
    """Check the options and return them in numbers."""
    if not isinstance(causal, (bool, np.bool_)):
        raise OptionError(argument="causal", expected="True or False", got=repr(causal))
    if align not in _ALIGNMENTS:
        raise OptionError(argument="align", expected="one of " + ", ".join(_ALIGNMENTS), got=repr(align))
    ahead = inputs.keys - inputs.queries
    offset = {"bottom-right": ahead, "top-left": 0, "clamped": max(0, ahead)}[align]
    far = inputs.keys + inputs.queries + abs(offset)
    left, right = _window(window)
    left, right = far if left < 0 else min(left, far), far if right < 0 else min(right, far)
    if causal:
        right = min(right, 0)
    cap = 0.0
    if softcap is not None:
        cap = arrays.number("softcap", softcap)
        if cap <= 0:
            raise OptionError(argument="softcap", expected="a number above 0", got=softcap)
    taken = None
    if bias is not None:
        taken = arrays.take("bias", bias, backend=backend)
        whole = (inputs.batch, inputs.heads, inputs.queries, inputs.keys)
        sizes = (1,) * (4 - len(taken.shape)) + taken.shape
        if len(sizes) != 4 or any(b not in (1, n) for b, n in zip(sizes, whole, strict=True)):
            raise ShapeError(
                argument="bias",
                expected=f"a shape that broadcasts to {arrays.shape_text(whole)}",
                got=arrays.shape_text(taken.shape),
            )
    mask = None if key_mask is None else mask_of(key_mask, mask_threshold, (inputs.batch, inputs.keys))
    if key_mask is None and mask_threshold is not None:
        raise OptionError(argument="mask_threshold", expected="None without a key_mask", got=repr(mask_threshold))
    by = 1 / math.sqrt(inputs.dim) if scale is None else arrays.number("scale", scale)
    return Options(by, cap, offset, left, right, mask, taken)


def mask_of(mask: Any, threshold: Any, shape: tuple[int, int]) -> np.ndarray:
    """Return a key mask as float32, 1 for visible and 0 for hidden: bool, or float32 with a threshold."""
    host = mask.detach().cpu().numpy() if hasattr(mask, "detach") else mask.to_numpy() if _is_taichi(mask) else mask
    if not isinstance(host, np.ndarray) or host.dtype not in (np.dtype(bool), np.dtype(np.float32)):
        got = str(host.dtype) if isinstance(host, np.ndarray) else type(mask).__name__
        raise DTypeError(argument="key_mask", expected="a bool array, or a float32 one with mask_threshold", got=got)
    if host.dtype == bool and threshold is not None:
        raise OptionError(argument="mask_threshold", expected="None with a bool key_mask", got=repr(threshold))
    if host.dtype != bool and threshold is None:
        raise OptionError(
            argument="mask_threshold",
            expected="a number where key_mask is float32",
            got="None",
            hint="keys are visible where the mask is at least that",
        )
    if host.shape != shape:
        raise ShapeError(
            argument="key_mask", expected=f"shape {arrays.shape_text(shape)}", got=arrays.shape_text(host.shape)
        )
    seen = host if host.dtype == bool else host >= np.float32(arrays.number("mask_threshold", threshold))
    return np.ascontiguousarray(seen, dtype=np.float32)


def _heads_first(one: arrays.Input, layout: str) -> tuple[int, int, int, int]:
    a, b, c, d = one.shape
    return (a, b, c, d) if layout == "bhsd" else (a, c, b, d)


def _expect_shape(one: arrays.Input, shape: tuple[int, ...]) -> None:
    if one.shape != shape:
        raise ShapeError(
            argument=one.name, expected=f"shape {arrays.shape_text(shape)}", got=arrays.shape_text(one.shape)
        )


def _window(window: Any) -> tuple[int, int]:
    if window is None:
        return -1, -1
    expected = "a number of keys of at least 0, or (left, right) with −1 for no limit"
    pair = tuple(window) if isinstance(window, Sequence) and not isinstance(window, str) else (window, 0)
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in pair)
    least = -1 if isinstance(window, Sequence) else 0
    if len(pair) != 2 or not whole or pair[0] < least or pair[1] < -1:
        raise OptionError(argument="window", expected=expected, got=repr(window))
    return int(pair[0]), int(pair[1])


def _is_taichi(value: Any) -> bool:
    return type(value).__module__.startswith("taichi.")
