"""What convolution is tried on, what it costs, and the wrong answers it must not accept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tkern.ops.conv2d import (
    conv2d,
    conv2d_backward_bias,
    conv2d_backward_input,
    conv2d_backward_weight,
    im2col,
    mutants,
    oracle,
    peers,
    prepare_bias,
    prepare_forward,
    prepare_im2col,
    prepare_input,
    prepare_weight,
)
from tkern.spec import Case, Cost, FiniteDifferences, Inputs, Op, Shape

# Cases too large for a Vulkan device in software, which parity runs on wherever there is no GPU.
_LARGE = ("cpu", "cuda")
_WHY = "minutes on a Vulkan device in software; smaller cases of the same kind run there"

# Shapes of x and of the weight, and options, by name: every kind of geometry, n above 1 but where it says so, sizes
# that are no multiple of anything, and tiles that end within images, rows and channels.
_GEOMETRIES: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ("3×3", (2, 5, 9, 11), (7, 5, 3, 3), {}),
    ("one image", (1, 4, 8, 6), (3, 4, 3, 3), {"padding": 1}),
    ("stride 2, padding 1", (3, 4, 9, 12), (6, 4, 3, 3), {"stride": 2, "padding": 1}),
    ("stride and padding by axis", (2, 3, 10, 13), (5, 3, 3, 4), {"stride": (3, 2), "padding": (2, 1)}),
    ("square images", (2, 3, 8, 8), (4, 3, 3, 3), {"padding": 1}),
    ("paddings that could be swapped", (2, 3, 9, 10), (4, 3, 3, 3), {"stride": 4, "padding": (1, 2)}),
    ("asymmetric padding", (2, 3, 7, 8), (4, 3, 3, 3), {"padding": ((0, 2), (3, 1)), "stride": (1, 2)}),
    ("dilation", (2, 3, 13, 12), (4, 3, 3, 2), {"dilation": (2, 3), "padding": 2}),
    ("dilation and stride, a common divisor", (2, 2, 19, 17), (3, 2, 3, 3), {"dilation": (2, 3), "stride": (4, 6)}),
    ("groups", (3, 6, 7, 9), (8, 3, 3, 3), {"groups": 2, "padding": 1}),
    ("depthwise", (2, 21, 10, 9), (21, 1, 3, 3), {"groups": 21, "padding": 1}),
    ("depthwise, stride 2", (2, 5, 11, 14), (5, 1, 5, 3), {"groups": 5, "padding": (2, 1), "stride": 2}),
    ("channel multiplier", (2, 4, 8, 9), (12, 1, 3, 3), {"groups": 4, "stride": 2, "padding": 1}),
    ("depthwise, wide rows", (3, 3, 21, 35), (3, 1, 5, 4), {"groups": 3, "padding": ((0, 3), (2, 1))}),
    ("channel multiplier, dilation", (2, 4, 17, 19), (6, 2, 3, 3), {"groups": 2, "padding": 2, "dilation": (2, 3)}),
    ("1×1", (3, 18, 9, 7), (21, 18, 1, 1), {}),
    ("1×1, stride 2", (3, 6, 9, 8), (5, 6, 1, 1), {"stride": 2}),
    ("1×1, padding", (2, 3, 4, 5), (4, 3, 1, 1), {"padding": (1, 2)}),
    ("K×1 over one column", (3, 6, 40, 1), (5, 6, 5, 1), {"padding": (2, 0), "dilation": (2, 1)}),
    ("K×1, padding beside the column", (2, 3, 21, 1), (4, 3, 5, 1), {"padding": (2, 1), "stride": (2, 1)}),
    ("K×1 over an image", (2, 3, 12, 6), (4, 3, 5, 1), {"padding": (2, 0)}),
    ("1×K", (2, 3, 5, 30), (4, 3, 1, 7), {"padding": (0, 3), "stride": (1, 2)}),
    ("stride above kernel", (2, 3, 14, 17), (4, 3, 2, 3), {"stride": (5, 4)}),
    ("stride above the image", (2, 3, 5, 6), (4, 3, 2, 2), {"stride": 50}),
    ("kernel as large as the padded image", (3, 2, 4, 5), (3, 2, 6, 9), {"padding": (1, 2)}),
    ("rows lost by floor division", (2, 3, 10, 11), (4, 3, 3, 3), {"stride": 4}),
    ("large padding", (2, 2, 3, 4), (3, 2, 2, 2), {"padding": 5}),
    ("many channels", (2, 40, 5, 6), (37, 40, 3, 3), {"padding": 1}),
    ("few channels, large kernel", (2, 3, 23, 26), (18, 3, 7, 7), {"stride": 2, "padding": 3}),
    ("images in sixteens, one missing", (31, 4, 7, 9), (16, 4, 3, 3), {"padding": 1}),
    (
        "images in sixteens, groups, dilation",
        (16, 8, 6, 21),
        (32, 4, 3, 2),
        {"groups": 2, "padding": ((3, 1), (0, 2)), "dilation": (2, 1)},
    ),
    ("empty batch", (0, 3, 6, 6), (4, 3, 3, 3), {"padding": 1}),
)
_LARGE_GEOMETRIES: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ("7×7 images, 300 channels", (5, 300, 7, 7), (270, 300, 3, 3), {"padding": 1}),
    ("images in sixteens, 72 channels", (16, 72, 13, 14), (32, 72, 3, 3), {"padding": 1}),
    ("stem", (2, 3, 112, 112), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    ("depthwise, planes in several parts", (2, 2, 301, 903), (2, 1, 3, 3), {"groups": 2, "padding": 1}),
    ("a wide image", (1, 2, 3, 20011), (3, 2, 2, 5), {"padding": (0, 2)}),
)

_TINY: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ("2×2, stride 2", (2, 2, 5, 4), (3, 2, 2, 2), {"stride": 2}),
    ("groups, dilation, padding", (2, 4, 5, 6), (4, 2, 2, 3), {"groups": 2, "dilation": 2, "padding": (1, 2)}),
    ("asymmetric padding, stride", (2, 1, 4, 5), (2, 1, 3, 2), {"padding": ((2, 0), (0, 1)), "stride": (2, 3)}),
    ("depthwise", (2, 3, 4, 4), (6, 1, 3, 3), {"groups": 3, "padding": 1, "stride": 2}),
    ("1×1", (2, 2, 3, 2), (3, 2, 1, 1), {}),
)

Maker = Callable[[tuple[int, ...], tuple[int, ...], dict[str, Any]], Callable[[np.random.Generator], Inputs]]


def _draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _y_shape(x: tuple[int, ...], weight: tuple[int, ...], options: Mapping[str, Any]) -> tuple[int, ...]:
    nothing = np.zeros((0, *x[1:]))
    return (x[0], *oracle.conv2d(nothing, np.zeros(weight), **options).shape[1:])


def _forward(x: tuple[int, ...], weight: tuple[int, ...], o: dict[str, Any]) -> Callable[..., Inputs]:
    return lambda rng: {"x": _draw(rng, *x), "weight": _draw(rng, *weight), "bias": _draw(rng, weight[0]), **o}


def _weight(x: tuple[int, ...], weight: tuple[int, ...], o: dict[str, Any]) -> Callable[..., Inputs]:
    return lambda rng: {"x": _draw(rng, *x), "dy": _draw(rng, *_y_shape(x, weight, o)), "weight_shape": weight, **o}


def _input(x: tuple[int, ...], weight: tuple[int, ...], o: dict[str, Any]) -> Callable[..., Inputs]:
    return lambda rng: {
        "dy": _draw(rng, *_y_shape(x, weight, o)), "weight": _draw(rng, *weight), "input_shape": x, **o
    }  # fmt: skip


def _bias(x: tuple[int, ...], weight: tuple[int, ...], o: dict[str, Any]) -> Callable[..., Inputs]:
    return lambda rng: {"dy": _draw(rng, *_y_shape(x, weight, o))}


def _columns(x: tuple[int, ...], weight: tuple[int, ...], o: dict[str, Any]) -> Callable[..., Inputs]:
    rest = {name: value for name, value in o.items() if name != "groups"}
    return lambda rng: {"x": _draw(rng, *x), "kernel_size": weight[2:], **rest}


def _cases(make: Maker) -> tuple[Case, ...]:
    return (
        *(Case(name, make(x, weight, o)) for name, x, weight, o in _GEOMETRIES),
        *(Case(name, make(x, weight, o), backends=_LARGE, why=_WHY) for name, x, weight, o in _LARGE_GEOMETRIES),
    )


def _differences(make: Maker, held: str, gradient: str) -> FiniteDifferences:
    """Return a check of the gradient of ``held``: y is linear in it, so any value will do."""

    def forward(**inputs: Any) -> tuple[np.ndarray]:
        x, weight, bias = (inputs.pop(name, None) for name in ("x", "weight", "bias"))
        for shape in ("weight_shape", "input_shape"):
            inputs.pop(shape, None)
        if bias is not None:
            return (np.broadcast_to(bias[:, None, None], inputs["like"].shape),)
        return (oracle.conv2d(x, weight, **inputs),)

    cases = tuple(Case(name, _tiny(make, held, x, weight, o)) for name, x, weight, o in _TINY)
    return FiniteDifferences(
        forward=forward, cotangents=("dy",), gradients={held: gradient}, cases=cases, only_forward=(held, "like")
    )


def _tiny(
    make: Maker, held: str, x: tuple[int, ...], weight: tuple[int, ...], o: dict[str, Any]
) -> Callable[[np.random.Generator], Inputs]:
    shape = {"x": x, "weight": weight, "bias": weight[:1]}[held]

    def inputs(rng: np.random.Generator) -> Inputs:
        made = {**make(x, weight, o)(rng), held: _draw(rng, *shape)}
        return {**made, "like": np.empty_like(made["dy"])} if held == "bias" else made

    return inputs


def _length(inputs: Mapping[str, Any]) -> int:
    """Return the number of products that a sum has at most."""
    if "weight" in inputs:
        outs = inputs["weight"].shape[0] // inputs.get("groups", 1) if "input_shape" in inputs else 1
        taps = inputs["weight"][0].size if outs == 1 else inputs["weight"][0, 0].size
        return int(outs * taps)
    return max(1, int(inputs["dy"].size) // int(inputs["dy"].shape[1]))


def _scale(output: str) -> Callable[[Inputs, Any], Mapping[str, float]]:
    """Return how large a sum of that many products is on the whole: one alone may come near 0 by chance."""

    def scales(inputs: Inputs, outputs: Any) -> Mapping[str, float]:
        size = float(np.sqrt(_length(inputs)))
        for name in ("x", "dy", "weight"):
            if name in inputs and inputs[name].size:
                size *= float(np.sqrt(np.mean(np.square(inputs[name], dtype=np.float64))))
        return {output: size}

    return scales


# ResNet-50's layers, and a depthwise one: images, channels, height and width, outputs, kernel, stride, padding, groups.
_DIMS = ("N", "C", "HW", "K", "R", "stride", "pad", "groups")
_LAYERS = (
    (16, 3, 224, 64, 7, 2, 3, 1),
    (16, 64, 56, 64, 3, 1, 1, 1),
    (16, 64, 56, 256, 1, 1, 0, 1),
    (16, 128, 28, 128, 3, 1, 1, 1),
    (16, 256, 14, 256, 3, 1, 1, 1),
    (16, 512, 7, 512, 3, 1, 1, 1),
    (16, 128, 28, 128, 3, 1, 1, 128),
)
_SMALL = (
    (2, 3, 32, 16, 7, 2, 3, 1),
    (2, 16, 14, 16, 3, 1, 1, 1),
    (2, 16, 14, 32, 1, 1, 0, 1),
    (2, 32, 14, 32, 3, 1, 1, 32),
)
_STANDARD = tuple(Shape(dict(zip(_DIMS, layer, strict=True))) for layer in _LAYERS)
_QUICK = tuple(Shape(dict(zip(_DIMS, layer, strict=True))) for layer in _SMALL)


def _layer(make: Maker) -> Callable[[np.random.Generator, Mapping[str, int]], Inputs]:
    def inputs(rng: np.random.Generator, dims: Mapping[str, int]) -> Inputs:
        n, c, hw, k, r, stride, pad, groups = (dims[name] for name in _DIMS)
        options = {"stride": stride, "padding": pad, "groups": groups}
        return make((n, c, hw, hw), (k, c // groups, r, r), options)(rng)

    return inputs


def _sizes(dims: Mapping[str, int]) -> tuple[int, int, int, int]:
    """Return the elements of x, y and the weight, and the products of a convolution."""
    n, c, hw, k, r, stride, pad, groups = (dims[name] for name in _DIMS)
    out = (hw + 2 * pad - r) // stride + 1
    return n * c * hw * hw, n * k * out * out, k * c // groups * r * r, n * k * out * out * c // groups * r * r


def _cost(dims: Mapping[str, int]) -> Cost:
    x, y, weight, products = _sizes(dims)
    return Cost(bytes=4 * (x + y + weight), flops=2 * products)


def _columns_cost(dims: Mapping[str, int]) -> Cost:
    x, y, _, _ = _sizes(dims)
    return Cost(bytes=4 * (x + y // dims["K"] * dims["C"] * dims["R"] ** 2), flops=0)


def _bias_cost(dims: Mapping[str, int]) -> Cost:
    _, y, _, _ = _sizes(dims)
    return Cost(bytes=4 * y, flops=y)


_COST = "4·(|x| + |y| + |w|) bytes, 2·|y|·C/groups·R² flops"

OPS = (
    Op(
        name="im2col",
        summary="the matrix of an image's patches",
        run=im2col,
        prepare=prepare_im2col,
        oracle=oracle.im2col,
        outputs=("cols",),
        cases=_cases(_columns),
        reductions=lambda inputs: {"cols": 1},
        cost=_columns_cost,
        cost_text="4·(|x| + N·Ho·Wo·C·R²) bytes",
        make=_layer(_columns),
        quick=_QUICK,
        standard=_STANDARD[:2],
        peers=peers.IM2COL,
        mutants=mutants.IM2COL,
    ),
    Op(
        name="conv2d",
        summary="convolution over images: y",
        run=conv2d,
        prepare=prepare_forward,
        oracle=oracle.conv2d,
        outputs=("y",),
        cases=_cases(_forward),
        reductions=lambda inputs: {"y": _length(inputs)},
        cost=_cost,
        cost_text=_COST,
        make=_layer(_forward),
        quick=_QUICK,
        standard=_STANDARD,
        peers=peers.FORWARD,
        mutants=mutants.FORWARD,
        scales=_scale("y"),
    ),
    Op(
        name="conv2d_backward_weight",
        summary="convolution's gradient of the weight: dweight",
        run=conv2d_backward_weight,
        prepare=prepare_weight,
        oracle=oracle.conv2d_backward_weight,
        outputs=("dweight",),
        cases=_cases(_weight),
        reductions=lambda inputs: {"dweight": _length(inputs)},
        cost=_cost,
        cost_text=_COST,
        make=_layer(_weight),
        quick=_QUICK,
        standard=_STANDARD,
        peers=peers.WEIGHT,
        finite_differences=_differences(_weight, "weight", "dweight"),
        mutants=mutants.WEIGHT,
        scales=_scale("dweight"),
    ),
    Op(
        name="conv2d_backward_input",
        summary="convolution's gradient of the input: dx",
        run=conv2d_backward_input,
        prepare=prepare_input,
        oracle=oracle.conv2d_backward_input,
        outputs=("dx",),
        cases=_cases(_input),
        reductions=lambda inputs: {"dx": _length(inputs)},
        cost=_cost,
        cost_text=_COST,
        make=_layer(_input),
        quick=_QUICK,
        standard=_STANDARD,
        peers=peers.INPUT,
        finite_differences=_differences(_input, "x", "dx"),
        mutants=mutants.INPUT,
        scales=_scale("dx"),
    ),
    Op(
        name="conv2d_backward_bias",
        summary="convolution's gradient of the bias: dbias",
        run=conv2d_backward_bias,
        prepare=prepare_bias,
        oracle=oracle.conv2d_backward_bias,
        outputs=("dbias",),
        cases=_cases(_bias),
        reductions=lambda inputs: {"dbias": _length(inputs)},
        cost=_bias_cost,
        cost_text="4·|y| bytes",
        make=_layer(_bias),
        quick=_QUICK,
        standard=_STANDARD[:2],
        peers=peers.BIAS,
        finite_differences=_differences(_bias, "bias", "dbias"),
        mutants=mutants.BIAS,
        scales=_scale("dbias"),
    ),
)
