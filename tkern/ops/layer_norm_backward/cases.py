"""What layer norm's gradients are tried on, what they cost, and the wrong answers that must not be accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tkern.ops.layer_norm_backward import layer_norm_backward, oracle, peers, prepare
from tkern.spec import Case, Cost, FiniteDifferences, Mutant, Op, Shape, changed

# Cases too large for a Vulkan device in software, which parity runs on wherever there is no GPU.
_LARGE = ("cpu", "cuda")
_WHY = "minutes on a Vulkan device in software; smaller cases of the same kind run there"


def _draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def _backward(
    *shape: int, weighted: bool = True, mean: float = 0.5, shift: float = 0.25, **options: Any
) -> Callable[..., dict[str, Any]]:
    """x around ``mean`` and dy around ``shift``, so that leaving out either mean shows."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        x = _draw(rng, *shape) + np.float32(mean)
        weight = _draw(rng, shape[-1]) if weighted else None
        return {"x": x, "weight": weight, "dy": _draw(rng, *shape) + np.float32(shift), **options}

    return make


def _saved(*shape: int, **options: Any) -> Callable[..., dict[str, Any]]:
    """With a mean and rstd that are not x's own, so that ignoring them shows."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        inputs = _backward(*shape, **options)(rng)
        mean, rstd = _draw(rng, *shape[:-1]), np.abs(_draw(rng, *shape[:-1])) + np.float32(0.5)
        return {**inputs, "mean": mean, "rstd": rstd}

    return make


def _tiny(*shape: int, weighted: bool = True, **options: Any) -> Callable[..., dict[str, Any]]:
    def make(rng: np.random.Generator) -> dict[str, Any]:
        return {**_backward(*shape, weighted=weighted, **options)(rng), "bias": _draw(rng, shape[-1])}

    return make


# Sizes of one, odd sizes, sizes beside a power of two, rows longer than the registers of a GPU's largest program, many
# short rows, few long ones, a mean that is large beside the spread, and an eps that is no small part of the variance.
_CASES = (
    Case("1×1", _backward(1, 1)),
    Case("3×1 eps=0.5", _backward(3, 1, eps=0.5)),
    Case("7", _backward(7)),
    Case("2×32", _backward(2, 32)),
    Case("4×64 no weight", _backward(4, 64, weighted=False)),
    Case("33×31 eps=0.7", _backward(33, 31, eps=0.7)),
    Case("199×123", _backward(199, 123)),
    Case("777×199 mean=40", _backward(777, 199, mean=40.0)),
    Case("2×3×5×7 eps=0.1", _backward(2, 3, 5, 7, eps=0.1)),
    Case("300×3 eps=0.05", _backward(300, 3, eps=0.05)),
    Case("65×16", _backward(65, 16)),
    Case("8×1024", _backward(8, 1024)),
    Case("3×4097", _backward(3, 4097)),
    Case("2×17001", _backward(2, 17001)),
    Case("21×50 wrt x", _backward(21, 50, wrt=("x",))),
    Case("21×50 wrt weight", _backward(21, 50, wrt=("weight",))),
    Case("21×50 wrt bias, no weight", _backward(21, 50, wrt=("bias",), weighted=False)),
    Case("21×50 saved mean and rstd", _saved(21, 50)),
    Case("5×64 saved mean and rstd", _saved(5, 64)),
    Case("100003×3", _backward(100003, 3, eps=0.05), _LARGE, _WHY),
    Case("1×100003", _backward(1, 100003), _LARGE, _WHY),
)
_TINY = (
    Case("2×3", _tiny(2, 3, eps=0.5)),
    Case("5", _tiny(5, eps=0.1)),
    Case("2×2×4", _tiny(2, 2, 4, eps=1.0)),
    Case("1×1", _tiny(1, 1, eps=0.3)),
    Case("4×3 no weight", _tiny(4, 3, eps=0.4, weighted=False)),
)


def _length(inputs: Mapping[str, Any]) -> int:
    return int(inputs["x"].shape[-1])


def _reductions(inputs: Mapping[str, Any]) -> dict[str, int]:
    rows = int(np.prod(inputs["x"].shape[:-1]))
    return {"dx": _length(inputs), "dweight": max(rows, _length(inputs)), "dbias": rows}


def _parts(inputs: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return x − m, r, dy and dy·weight, in float64."""
    x, dy = inputs["x"].astype(np.float64), inputs["dy"].astype(np.float64)
    if inputs.get("mean") is not None:
        d, r = x - inputs["mean"][..., None], inputs["rstd"][..., None].astype(np.float64)
    else:
        d = x - x.mean(axis=-1, keepdims=True)
        r = 1 / np.sqrt(np.mean(d * d, axis=-1, keepdims=True) + inputs.get("eps", 1e-5))
    return d, r, dy, dy if inputs["weight"] is None else dy * inputs["weight"]


def _scales(inputs: Mapping[str, Any], outputs: tuple[Any, ...]) -> dict[str, float]:
    # dx is r·g less its parts along 1 and along n: for rows of one or two elements nearly all of it. And what rounding
    # x − m loses is a part of x, not of the difference.
    d, r, dy, g = _parts(inputs)
    size, n = _length(inputs), d * r
    lost = 1 + np.abs(inputs["x"].astype(np.float64)) * r
    along = n / size * np.sqrt(np.sum((g * n) ** 2, axis=-1, keepdims=True))
    terms = (r * g) ** 2 + (r * np.mean(np.abs(g), axis=-1, keepdims=True)) ** 2 + (r * along * lost) ** 2
    summed = np.sum((dy * lost).reshape(-1, size) ** 2, axis=0)
    return {
        "dx": float(np.sqrt(np.mean(terms))),
        "dweight": float(np.sqrt(np.mean(summed))),
        "dbias": float(np.sqrt(np.mean(np.sum(dy.reshape(-1, size) ** 2, axis=0)))),
    }


_Right = Callable[..., tuple[Any, ...]]


def _other_dx(dx: Callable[..., np.ndarray]) -> Callable[..., tuple[Any, ...]]:
    """Return a mutant whose dx is ``dx(d, r, g)``, the rest being right."""

    def make(inputs: dict[str, Any], right: _Right) -> tuple[Any, ...]:
        outputs = right(**inputs)
        d, r, _, g = _parts(inputs)
        return (None if outputs[0] is None else dx(d, r, g), *outputs[1:])

    return make


def _mean(a: np.ndarray) -> np.ndarray:
    mean: np.ndarray = np.mean(a, axis=-1, keepdims=True)
    return mean


def _rows_lost(inputs: dict[str, Any], right: _Right) -> tuple[Any, ...]:
    outputs = right(**inputs)
    dy = np.array(inputs["dy"])
    dy.reshape(-1, _length(inputs))[-1] = 0
    return (outputs[0], *right(**{**inputs, "dy": dy})[1:])


def _not_normalised(inputs: dict[str, Any], right: _Right) -> tuple[Any, ...]:
    dx, dweight, dbias = right(**inputs)
    d, _, dy, _ = _parts(inputs)
    return dx, None if dweight is None else np.sum((dy * d).reshape(-1, _length(inputs)), axis=0), dbias


def _not_centred(inputs: dict[str, Any], right: _Right) -> tuple[Any, ...]:
    dx, dweight, dbias = right(**inputs)
    _, r, dy, _ = _parts(inputs)
    terms = dy * inputs["x"] * r
    return dx, None if dweight is None else np.sum(terms.reshape(-1, _length(inputs)), axis=0), dbias


def _swapped(inputs: dict[str, Any], right: _Right) -> tuple[Any, ...]:
    dx, dweight, dbias = right(**inputs)
    return (dx, dweight, dbias) if dweight is None or dbias is None else (dx, dbias, dweight)


def _scaled(*factors: float) -> Callable[..., tuple[Any, ...]]:
    def make(inputs: dict[str, Any], right: _Right) -> tuple[Any, ...]:
        return tuple(None if a is None else a * f for a, f in zip(right(**inputs), factors, strict=True))

    return make


_MUTANTS = (
    Mutant("eps ignored", changed(eps=lambda eps: 0.0)),
    Mutant("weight ignored", changed(weight=lambda w: None if w is None else np.ones_like(w))),
    Mutant("weight reversed", changed(weight=lambda w: None if w is None else w[::-1])),
    Mutant("the mean of g left out of dx", _other_dx(lambda d, r, g: r * (g - d * r * _mean(g * d * r)))),
    Mutant("the part along n left out of dx", _other_dx(lambda d, r, g: r * (g - _mean(g)))),
    Mutant("r missing in the part along n", _other_dx(lambda d, r, g: r * (g - _mean(g) - d * _mean(g * d)))),
    Mutant("an extra factor r on dx", _other_dx(lambda d, r, g: r * r * (g - _mean(g) - d * r * _mean(g * d * r)))),
    Mutant("saved mean and rstd ignored", changed(mean=lambda mean: None, rstd=lambda rstd: None)),
    Mutant("x not centred in dweight (RMSNorm)", _not_centred),
    Mutant("last row left out of dweight and dbias", _rows_lost),
    Mutant("dweight without r", _not_normalised),
    Mutant("dweight and dbias swapped", _swapped),
    Mutant("dx 0.5% too large", _scaled(1.005, 1, 1)),
    Mutant("dweight 0.5% too large", _scaled(1, 1.005, 1)),
    Mutant("dbias 0.5% too large", _scaled(1, 1, 1.005)),
)


def _make(rng: np.random.Generator, dims: Mapping[str, int]) -> dict[str, Any]:
    """As in training: mean and rstd are the forward pass's."""
    inputs = _backward(dims["M"], dims["N"])(rng)
    mean = inputs["x"].mean(axis=-1)
    rstd = 1 / np.sqrt(inputs["x"].var(axis=-1) + np.float32(1e-5))
    return {**inputs, "mean": mean, "rstd": rstd}


def _from_x(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in inputs.items() if name not in ("mean", "rstd")}


def _cost(dims: Mapping[str, int]) -> Cost:
    elements = dims["M"] * dims["N"]
    return Cost(bytes=3 * elements * 4, flops=17 * elements)


OPS = (
    Op(
        name="layer_norm_backward",
        summary="layer norm's gradients: dx, dweight and dbias",
        run=layer_norm_backward,
        prepare=prepare,
        oracle=oracle.layer_norm_backward,
        outputs=("dx", "dweight", "dbias"),
        cases=_CASES,
        reductions=_reductions,
        cost=_cost,
        cost_text="3·M·N·4 bytes",
        make=_make,
        quick=tuple(Shape({"M": m, "N": n}) for m, n in ((512, 512), (2048, 1024), (4096, 2560), (65536, 128))),
        standard=tuple(
            Shape({"M": m, "N": n}) for m, n in ((8192, 4096), (8192, 2560), (8192, 768), (32768, 256), (262144, 128))
        ),
        peers=peers.BACKWARD,
        variants={"from x": _from_x},
        finite_differences=FiniteDifferences(
            forward=oracle.layer_norm,
            cotangents=("dy",),
            gradients={"x": "dx", "weight": "dweight", "bias": "dbias"},
            cases=_TINY,
            only_forward=("bias",),
        ),
        mutants=_MUTANTS,
        scales=_scales,
    ),
)
