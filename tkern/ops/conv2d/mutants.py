"""Wrong answers of convolution that parity must reject: seen upstream, or let by a careless test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tkern.spec import Mutant

__all__ = ["BIAS", "FORWARD", "IM2COL", "INPUT", "WEIGHT"]

Right = Callable[..., Any]
Inputs = dict[str, Any]


def _with(**changes: Callable[[Any], Any]) -> Callable[[Inputs, Right], Any]:
    """Return a mutant that answers another question, where that has an answer of the same shape."""

    def make(inputs: Inputs, right: Right) -> Any:
        changed = {name: change(inputs[name]) for name, change in changes.items() if name in inputs}
        answer = right(**inputs)
        try:
            other = right(**{**inputs, **changed})
        except ValueError:  # sizes do not go together: the mistake could not be made here
            return answer
        return other if other.shape == answer.shape else answer

    return make


def _two(value: Any) -> tuple[Any, Any]:
    return (value, value) if np.ndim(value) == 0 else tuple(value)


def _swap_pads(value: Any) -> Any:
    """Swap the padding before and behind the image, where it has both."""
    return tuple(tuple(reversed(p)) for p in value) if np.ndim(value) == 2 else value


def _dy_not_turned(inputs: Inputs, right: Right) -> Any:
    """dy reshaped to [Cout, N·Ho·Wo] without a transpose: right for one image only."""
    dy = inputs["dy"]
    wrong = dy.reshape(dy.shape[1], dy.shape[0], *dy.shape[2:]).transpose(1, 0, 2, 3)
    return right(**{**inputs, "dy": wrong})


def _kernel_turned(inputs: Inputs, right: Right) -> Any:
    return right(**{**inputs, "weight": inputs["weight"][:, :, ::-1, ::-1]})


def _gradient_turned(inputs: Inputs, right: Right) -> Any:
    return right(**inputs)[:, :, ::-1, ::-1]


def _axes_swapped(inputs: Inputs, right: Right) -> Any:
    """H and W swapped: the gradient of a kernel that lies on its side, where it is square."""
    answer = right(**inputs)
    return answer.swapaxes(2, 3) if answer.shape[2] == answer.shape[3] else answer


def _lost_rows_repeated(inputs: Inputs, right: Right) -> Any:
    """output_padding dropped: rows and columns that floor division lost get the last ones that it did not."""
    answer = np.array(right(**inputs))
    for axis in (2, 3):
        lost = _lost(inputs, axis)
        if 0 < lost < answer.shape[axis]:
            moved = np.moveaxis(answer, axis, 0)
            moved[-lost:] = moved[-lost - 1]
    return answer


def _lost(inputs: Inputs, axis: int) -> int:
    k = axis - 2
    stride, dilation = _two(inputs.get("stride", 1))[k], _two(inputs.get("dilation", 1))[k]
    pads = _two(_two(inputs.get("padding", 0))[k])
    size, taps, out = inputs["input_shape"][axis], inputs["weight"].shape[axis], inputs["dy"].shape[axis]
    return int(size + sum(pads) - dilation * (taps - 1) - 1 - stride * (out - 1))


def _last_row_lost(inputs: Inputs, right: Right) -> Any:
    """dweight without the last row of the outputs."""
    dy = np.array(inputs["dy"])
    dy[:, :, -1] = 0
    return right(**{**inputs, "dy": dy})


def _last_image_lost(inputs: Inputs, right: Right) -> Any:
    dy = np.array(inputs["dy"])
    dy[-1:] = 0
    return right(**{**inputs, "dy": dy})


def _groups_mixed(name: str) -> Callable[[Inputs, Right], Any]:
    """Return a mutant in which group g has channels g, g + groups, … instead of neighbouring ones."""

    def make(inputs: Inputs, right: Right) -> Any:
        groups = inputs.get("groups", 1)
        a = inputs[name]
        mixed = a.reshape(a.shape[0], a.shape[1] // groups, groups, *a.shape[2:]).swapaxes(1, 2).reshape(a.shape)
        return right(**{**inputs, name: mixed})

    return make


def _no_bias(inputs: Inputs, right: Right) -> Any:
    return right(**{**inputs, "bias": None})


def _columns_by_tap(inputs: Inputs, right: Right) -> Any:
    """Columns in the order (r, s, c) instead of (c, r, s)."""
    answer, channels = right(**inputs), inputs["x"].shape[1]
    return answer.reshape(answer.shape[0], channels, answer.shape[1] // channels).swapaxes(1, 2).reshape(answer.shape)


def _rows_by_place(inputs: Inputs, right: Right) -> Any:
    """Rows in the order (ho, wo, n) instead of (n, ho, wo)."""
    answer, batch = right(**inputs), inputs["x"].shape[0]
    return answer.reshape(batch, -1, answer.shape[1]).swapaxes(0, 1).reshape(answer.shape) if batch else answer


_GEOMETRY = (
    Mutant("padding before and behind swapped", _with(padding=_swap_pads)),
    Mutant("padding of H and W swapped", _with(padding=lambda p: _two(p)[::-1])),
)
IM2COL = (
    *_GEOMETRY,
    Mutant("columns by tap", _columns_by_tap),
    Mutant("rows by place", _rows_by_place),
)
FORWARD = (
    *_GEOMETRY,
    Mutant("kernel turned", _kernel_turned),
    Mutant("groups interleaved", _groups_mixed("x")),
    Mutant("bias left out", _no_bias),
)
WEIGHT = (
    *_GEOMETRY,
    Mutant("dy not transposed", _dy_not_turned),
    Mutant("gradient turned", _gradient_turned),
    Mutant("H and W swapped", _axes_swapped),
    Mutant("groups interleaved", _groups_mixed("x")),
    Mutant("last row lost", _last_row_lost),
    Mutant("last image lost", _last_image_lost),
)


def _without_dilation(inputs: Inputs, right: Right) -> Any:
    """dilation ignored in dx: taps side by side, the outputs being where they are."""
    answer = right(**inputs)
    dy, (height, width) = inputs["dy"], inputs["input_shape"][2:]
    taps = inputs["weight"].shape[2:]
    stride, pads = _two(inputs.get("stride", 1)), [_two(p)[0] for p in _two(inputs.get("padding", 0))]
    padding = tuple(
        (p, max(0, s * (o - 1) + k - n - p))
        for p, s, o, k, n in zip(pads, stride, dy.shape[2:], taps, (height, width), strict=True)
    )
    other = right(**{**inputs, "dilation": 1, "padding": padding}) if _exact(padding, inputs, dy) else answer
    return other if other.shape == answer.shape else answer


def _exact(padding: Any, inputs: Inputs, dy: np.ndarray) -> bool:
    """Return whether a kernel without dilation makes as many outputs with this padding."""
    sizes = zip(
        inputs["input_shape"][2:], inputs["weight"].shape[2:], _two(inputs.get("stride", 1)), padding, strict=True
    )
    return all((n + sum(p) - k) // s + 1 == out for (n, k, s, p), out in zip(sizes, dy.shape[2:], strict=True))


INPUT = (
    *_GEOMETRY,
    Mutant("dilation ignored", _without_dilation),
    Mutant("kernel turned", _kernel_turned),
    Mutant("H and W swapped", _axes_swapped),
    Mutant("output padding dropped", _lost_rows_repeated),
    Mutant("groups interleaved", _groups_mixed("dy")),
    Mutant("last row of outputs lost", _last_row_lost),
)
BIAS = (
    Mutant("last row lost", _last_row_lost),
    Mutant("last image lost", _last_image_lost),
    Mutant("mean over images", lambda inputs, right: right(**inputs) / max(1, inputs["dy"].shape[0])),
)
