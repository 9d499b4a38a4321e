"""The geometry of a convolution: its options checked, and the sizes that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tkern import arrays
from tkern.errors import OptionError, ShapeError, SizeLimitError

__all__ = ["Geometry", "Options", "check", "check_kernel_size", "check_shape", "options_of", "refuse_large"]

# The most rows or columns of a padded image: what a kernel adds to a row's number must not wrap.
_MOST_PADDED = 2**29


@dataclass(frozen=True)
class Options:
    """Stride, padding ((top, bottom), (left, right)) and dilation, vertical first, and groups; all checked."""

    stride: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]
    dilation: tuple[int, int]
    groups: int


@dataclass(frozen=True)
class Geometry:
    """Sizes of a convolution. ``channels`` and ``outs`` are those of one group; pairs are vertical, horizontal."""

    batch: int
    groups: int
    channels: int
    outs: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    before: tuple[int, int]  # padding above, and to the left
    dilation: tuple[int, int]
    out: tuple[int, int]

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Return the shape of x and dx."""
        return (self.batch, self.groups * self.channels, *self.size)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Return the shape of y and dy."""
        return (self.batch, self.groups * self.outs, *self.out)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Return the shape of the weight and its gradient."""
        return (self.groups * self.outs, self.channels, *self.kernel)

    @property
    def taps(self) -> int:
        """Return the weights of one output: C/groups·kh·kw."""
        return self.channels * math.prod(self.kernel)

    @property
    def cells(self) -> int:
        """Return N·Ho·Wo."""
        return self.batch * math.prod(self.out)


def options_of(stride: Any, padding: Any, dilation: Any, groups: Any = 1) -> Options:
    """Check options; each is an int or a pair (vertical, horizontal), a padding's entry an int or a pair.

    Raises OptionError naming the option.
    """
    vertical, horizontal = _pair("padding", padding, nested=True)
    return Options(
        stride=_sizes("stride", stride, 1),
        padding=(_padding(vertical, padding), _padding(horizontal, padding)),
        dilation=_sizes("dilation", dilation, 1),
        groups=_integer("groups", groups, 1),
    )


def check(x: tuple[int, ...], weight: tuple[int, ...], options: Options, names: tuple[str, str]) -> Geometry:
    """Check the shapes of x and the weight, passed as the arguments ``names``, and return what follows.

    Raises ShapeError or SizeLimitError naming the argument and the size that was expected.
    """
    of_x, of_weight = names
    batch, all_channels, height, width = _four(of_x, x, "[N, C, H, W]")
    all_outs, channels, kh, kw = _four(of_weight, weight, "[Cout, C/groups, kh, kw]")
    groups = options.groups
    _at_least_one(of_x, x, (all_channels, height, width), "[N, C, H, W] with C, H and W at least 1")
    _at_least_one(of_weight, weight, weight, "[Cout, C/groups, kh, kw] with sizes of at least 1")
    if all_channels % groups:
        expected = f"a number of channels that groups = {groups} divides"
        raise ShapeError(argument=of_x, expected=expected, got=f"{all_channels} in {arrays.shape_text(x)}")
    if all_outs % groups:
        expected = f"a number of outputs that groups = {groups} divides"
        raise ShapeError(argument=of_weight, expected=expected, got=f"{all_outs} in {arrays.shape_text(weight)}")
    if channels != all_channels // groups:
        expected = f"C/groups = {all_channels}/{groups} = {all_channels // groups} as its second size"
        raise ShapeError(argument=of_weight, expected=expected, got=f"{channels} in {arrays.shape_text(weight)}")
    sizes = [
        _along(of_weight, name, n, k, s, p, d)
        for name, n, k, s, p, d in zip(
            ("height", "width"),
            (height, width),
            (kh, kw),
            options.stride,
            options.padding,
            options.dilation,
            strict=True,
        )
    ]
    return Geometry(
        batch=batch,
        groups=groups,
        channels=channels,
        outs=all_outs // groups,
        size=(height, width),
        kernel=(kh, kw),
        stride=(sizes[0][1], sizes[1][1]),
        before=(options.padding[0][0], options.padding[1][0]),
        dilation=(sizes[0][2], sizes[1][2]),
        out=(sizes[0][0], sizes[1][0]),
    )


def check_shape(name: str, shape: Any) -> tuple[int, ...]:
    """Check a shape that is passed as argument ``name``: four integers, none negative."""
    values = tuple(shape) if isinstance(shape, (tuple, list)) or hasattr(shape, "__iter__") else None
    if values is None or len(values) != 4:
        raise ShapeError(argument=name, expected="four sizes", got=repr(shape))
    return tuple(_integer(name, value, 0) for value in values)


def check_kernel_size(value: Any) -> tuple[int, int]:
    """Check the size of a kernel, an integer or (vertical, horizontal), and return both."""
    return _sizes("kernel_size", value, 1)


def refuse_large(name: str, shape: tuple[int, ...], backend: str) -> None:
    """Raise SizeLimitError where a result of ``shape``, which ``name`` asks for, has too many elements."""
    if math.prod(shape) > arrays.LIMITS[backend]:
        raise SizeLimitError(
            argument=name,
            expected=f"a result of at most {arrays.LIMITS[backend]} elements on {backend} (32-bit indices)",
            got=f"shape {arrays.shape_text(shape)}",
            hint="call it on parts of the batch",
        )


def _along(
    weight: str, name: str, size: int, kernel: int, stride: int, padding: tuple[int, int], dilation: int
) -> tuple[int, int, int]:
    """Return the outputs along an axis, and a stride and a dilation that do the same, no larger than the axis."""
    padded = size + sum(padding)
    if padded > _MOST_PADDED:
        raise SizeLimitError(argument="padding", expected=f"a padded {name} of at most {_MOST_PADDED}", got=padded)
    span = dilation * (kernel - 1) + 1
    if span > padded:
        expected = f"a kernel whose {name} spans at most {padded} (the image's {size}, padded by {sum(padding)})"
        raise ShapeError(argument=weight, expected=expected, got=f"{span} (size {kernel}, dilation {dilation})")
    return (padded - span) // stride + 1, min(stride, padded), dilation if kernel > 1 else 1


def _four(name: str, shape: tuple[int, ...], text: str) -> tuple[int, int, int, int]:
    if len(shape) != 4:
        raise ShapeError(argument=name, expected=f"4 axes, {text}", got=f"{len(shape)}, {arrays.shape_text(shape)}")
    a, b, c, d = shape
    return a, b, c, d


def _at_least_one(name: str, shape: tuple[int, ...], sizes: tuple[int, ...], text: str) -> None:
    if min(sizes) < 1:
        raise ShapeError(argument=name, expected=text, got=arrays.shape_text(shape))


def _sizes(name: str, value: Any, least: int) -> tuple[int, int]:
    one, other = _pair(name, value)
    return _integer(name, one, least), _integer(name, other, least)


def _padding(value: Any, whole: Any) -> tuple[int, int]:
    if not isinstance(value, (tuple, list)):
        both = _integer("padding", value, 0)
        return both, both
    if len(value) != 2:
        raise OptionError(argument="padding", expected="((top, bottom), (left, right))", got=repr(whole))
    return _integer("padding", value[0], 0), _integer("padding", value[1], 0)


def _pair(name: str, value: Any, nested: bool = False) -> tuple[Any, Any]:
    if isinstance(value, (tuple, list)):
        if len(value) == 2:
            return value[0], value[1]
        expected = "an integer, (vertical, horizontal)" + (" or ((top, bottom), (left, right))" if nested else "")
        raise OptionError(argument=name, expected=expected, got=repr(value))
    return value, value


def _integer(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise OptionError(argument=name, expected=f"integers of at least {least}", got=repr(value))
    return int(value)
