"""What softmax's gradient is tried on, what it costs, and the wrong answers it must not accept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tkern.ops.softmax_backward import oracle, peers, prepare, softmax_backward
from tkern.spec import Case, Cost, FiniteDifferences, Mutant, Op, Shape

# Cases too large for a Vulkan device in software, which parity runs on wherever there is no GPU.
_LARGE = ("cpu", "cuda")
_WHY = "minutes on a Vulkan device in software; smaller cases of the same kind run there"


def _draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def _softmax(x: np.ndarray) -> np.ndarray:
    # In float32 throughout: shapes to time are large.
    e: np.ndarray = np.exp(x - x.max(axis=-1, keepdims=True))
    e /= e.sum(axis=-1, keepdims=True)
    return e


def _backward(*shape: int, spread: float = 1.0, mean: float = 0.0) -> Callable[..., dict[str, Any]]:
    """Rows of softmax with logits of that ``spread``; dy around ``mean``, which takes no part in dx."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        y = _softmax(np.float32(spread) * _draw(rng, *shape))
        return {"y": y, "dy": _draw(rng, *shape) + np.float32(mean)}

    return make


def _any_rows(*shape: int) -> Callable[..., dict[str, Any]]:
    """Rows that do not sum to 1: the formula is one for any y."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        return {"y": _draw(rng, *shape), "dy": _draw(rng, *shape)}

    return make


def _tiny(*shape: int) -> Callable[..., dict[str, Any]]:
    def make(rng: np.random.Generator) -> dict[str, Any]:
        x = rng.standard_normal(shape)
        return {"x": x, "y": oracle.softmax(x), "dy": rng.standard_normal(shape)}

    return make


# Sizes of one, odd sizes, sizes beside a power of two, rows longer than the registers of a GPU's largest program
# (16384), many short rows, few long ones; rows that are nearly one-hot; gradients far from 0.
_CASES = (
    Case("1×1", _backward(1, 1)),
    Case("3×1", _any_rows(3, 1)),
    Case("7", _backward(7)),
    Case("2×32", _backward(2, 32)),
    Case("33×31", _backward(33, 31)),
    Case("199×123 spread=8", _backward(199, 123, spread=8.0)),
    Case("777×199 mean=3", _backward(777, 199, mean=3.0)),
    Case("2×3×5×7", _backward(2, 3, 5, 7)),
    Case("300×3", _backward(300, 3)),
    Case("65×16 any y", _any_rows(65, 16)),
    Case("8×1024", _backward(8, 1024)),
    Case("3×4097", _backward(3, 4097, spread=3.0)),
    Case("2×17001", _backward(2, 17001)),
    Case("2×0×5", _backward(2, 0, 5)),
    Case("100003×3", _backward(100003, 3), _LARGE, _WHY),
    Case("1×131073", _backward(1, 131073), _LARGE, _WHY),
)
_TINY = (Case("2×3", _tiny(2, 3)), Case("5", _tiny(5)), Case("2×2×4", _tiny(2, 2, 4)), Case("3×1", _tiny(3, 1)))


def _reductions(inputs: Mapping[str, Any]) -> dict[str, int]:
    return {"dx": int(inputs["y"].shape[-1])}


def _scales(inputs: Mapping[str, Any], outputs: tuple[Any, ...]) -> dict[str, float]:
    # dx is y·dy less its part along y. Rows of one element, or nearly one-hot, leave only rounding of the two.
    y, dy = inputs["y"].astype(np.float64), inputs["dy"].astype(np.float64)
    if y.size == 0:
        return {"dx": 0.0}
    along = y * np.sqrt(np.sum((y * dy) ** 2, axis=-1, keepdims=True))
    terms = np.sqrt((y * dy) ** 2 + along**2)
    # A long row may be a few large elements and many small ones, and each loses a part of itself: with an eighth of
    # the largest, the floor of 8ε is one ε of that.
    return {"dx": float(max(np.sqrt(np.mean(terms**2)), np.max(terms) / 8))}


_Right = Callable[..., Any]


def _no_sum(inputs: dict[str, Any], right: _Right) -> Any:
    return inputs["y"].astype(np.float64) * inputs["dy"]


def _sum_without_y(inputs: dict[str, Any], right: _Right) -> Any:
    y, dy = inputs["y"].astype(np.float64), inputs["dy"]
    return y * (dy - np.sum(dy, axis=-1, keepdims=True))


def _no_factor(inputs: dict[str, Any], right: _Right) -> Any:
    y, dy = inputs["y"].astype(np.float64), inputs["dy"]
    return dy - np.sum(y * dy, axis=-1, keepdims=True)


def _sum_over_all(inputs: dict[str, Any], right: _Right) -> Any:
    y, dy = inputs["y"].astype(np.float64), inputs["dy"]
    return y * (dy - np.sum(y * dy))


def _last_term_lost(inputs: dict[str, Any], right: _Right) -> Any:
    y, dy = inputs["y"].astype(np.float64), inputs["dy"]
    return y * (dy - np.sum((y * dy)[..., :-1], axis=-1, keepdims=True))


def _reversed(inputs: dict[str, Any], right: _Right) -> Any:
    return right(y=inputs["y"], dy=inputs["dy"][..., ::-1])


def _grown(inputs: dict[str, Any], right: _Right) -> Any:
    return 1.005 * right(**inputs)


_MUTANTS = (
    Mutant("the sum left out", _no_sum),
    Mutant("the sum of dy without y", _sum_without_y),
    Mutant("the factor y left out", _no_factor),
    Mutant("one sum for all rows", _sum_over_all),
    Mutant("the last term lost", _last_term_lost),
    Mutant("dy reversed", _reversed),
    Mutant("dx 0.5% too large", _grown),
)


def _make(rng: np.random.Generator, dims: Mapping[str, int]) -> dict[str, Any]:
    return _backward(dims["M"], dims["N"])(rng)


def _cost(dims: Mapping[str, int]) -> Cost:
    elements = dims["M"] * dims["N"]
    return Cost(bytes=3 * elements * 4, flops=4 * elements)


OPS = (
    Op(
        name="softmax_backward",
        summary="softmax's gradient over the last axis: dx",
        run=softmax_backward,
        prepare=prepare,
        oracle=oracle.softmax_backward,
        outputs=("dx",),
        cases=_CASES,
        reductions=_reductions,
        cost=_cost,
        cost_text="3·M·N·4 bytes",
        make=_make,
        quick=tuple(Shape({"M": m, "N": n}) for m, n in ((512, 512), (2048, 1024), (32768, 128), (128, 32000))),
        standard=tuple(
            Shape({"M": m, "N": n})
            for m, n in ((25600, 1024), (8192, 4096), (262144, 128), (1024, 32000), (256, 131072))
        ),
        peers=peers.BACKWARD,
        finite_differences=FiniteDifferences(
            forward=lambda x, y: oracle.softmax(x),
            cotangents=("dy",),
            gradients={"x": "dx"},
            cases=_TINY,
            only_forward=("x",),
        ),
        mutants=_MUTANTS,
        scales=_scales,
    ),
)
