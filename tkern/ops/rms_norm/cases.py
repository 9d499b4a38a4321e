"""What RMSNorm is tried on, what it costs, and the wrong answers it must not accept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tkern.ops.rms_norm import oracle, peers, prepare_backward, prepare_forward, rms_norm, rms_norm_backward
from tkern.spec import Case, Cost, FiniteDifferences, Mutant, Op, Shape, changed

# Cases too large for a Vulkan device in software, which parity runs on wherever there is no GPU.
_LARGE = ("cpu", "cuda")
_WHY = "minutes on a Vulkan device in software; smaller cases of the same kind run there"


def _draw(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def _forward(*shape: int, weighted: bool = True, scale: float = 1.0, **options: Any) -> Callable[..., dict[str, Any]]:
    def make(rng: np.random.Generator) -> dict[str, Any]:
        x = _draw(rng, *shape, scale=scale)
        return {"x": x, "weight": _draw(rng, shape[-1]) if weighted else None, **options}

    return make


def _backward(*shape: int, saved: bool = False, **options: Any) -> Callable[..., dict[str, Any]]:
    forward = _forward(*shape, **options)

    def make(rng: np.random.Generator) -> dict[str, Any]:
        inputs = forward(rng)
        inputs["dy"] = _draw(rng, *shape)
        if saved:
            # Not the value that would be recomputed, so that ignoring it shows.
            inputs["rstd"] = np.abs(_draw(rng, *shape[:-1])) + np.float32(0.5)
        return inputs

    return make


def _constant(x: Any, weight: Any, dy: Any, **options: Any) -> Callable[..., dict[str, Any]]:
    def make(rng: np.random.Generator) -> dict[str, Any]:
        arrays = {"x": x, "weight": weight, "dy": dy}
        return {**{name: np.array(a, np.float32) for name, a in arrays.items()}, **options}

    return make


# Sizes of one, odd sizes, sizes beside a power of two, rows longer than the registers of a GPU's largest program
# (16384), many short rows, few long ones, and an eps that is no small part of mean(x²).
_SIZES: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((1, 1), {}),
    ((3, 1), {}),
    ((2, 32), {"eps": 1e-6}),
    ((4, 64), {}),
    ((8, 1024), {}),
    ((8, 5120), {}),
    ((33, 31), {"eps": 0.7}),
    ((199, 123), {}),
    ((777, 199), {"offset": 1.0}),
    ((2, 3, 5, 7), {"eps": 0.1}),
    ((300, 3), {}),
    ((65, 16), {"eps": 0.3, "offset": -0.5}),
    ((3, 4097), {}),
    ((2, 17001), {"eps": 0.5}),
)
_LARGE_SIZES = ((100003, 3), (1, 100003))


def _name(shape: tuple[int, ...], options: dict[str, Any]) -> str:
    return "×".join(map(str, shape)) + "".join(f" {k}={v}" for k, v in options.items())


def _cases(make: Callable[..., Callable[..., dict[str, Any]]]) -> tuple[Case, ...]:
    return (
        *(Case(_name(shape, options), make(*shape, **options)) for shape, options in _SIZES),
        Case("17×40 no weight", make(17, 40, weighted=False)),
        Case("9×50 large x", make(9, 50, scale=1e6)),
        Case("9×50 small x", make(9, 50, scale=1e-6, eps=1e-12)),
        *(Case(_name(shape, {}), make(*shape), backends=_LARGE, why=_WHY) for shape in _LARGE_SIZES),
    )


_FORWARD_CASES = _cases(_forward)
_BACKWARD_CASES = (
    *_cases(_backward),
    Case("8192×4096", _backward(8192, 4096), backends=_LARGE, why=_WHY),
    Case("13×37 saved rstd", _backward(13, 37, saved=True)),
    Case("1025×2 ones", _constant(np.ones((1025, 2)), np.ones(2), np.ones((1025, 2)), eps=1e-6)),
    Case("4 zeros", _constant(np.zeros(4), np.ones(4), -np.ones(4), eps=1e-5)),
    Case("2 by hand", _constant([1.0, 2.0], [2.0, 3.0], [1.0, 1.0], eps=0.0)),
)

_TINY = (
    Case("2×3 eps 0.5", _backward(2, 3, eps=0.5)),
    Case("3×5 offset", _backward(3, 5, eps=0.2, offset=1.5)),
    Case("2×2×4", _backward(2, 2, 4, eps=1.0)),
    Case("1×1", _backward(1, 1, eps=0.3)),
    Case("4×3 no weight", _backward(4, 3, eps=0.4, weighted=False)),
)


def _length(inputs: Mapping[str, Any]) -> int:
    return int(inputs["x"].shape[-1])


def _rows(inputs: Mapping[str, Any]) -> int:
    return int(np.prod(inputs["x"].shape[:-1]))


def _backward_reductions(inputs: Mapping[str, Any]) -> dict[str, int]:
    return {"dx": _length(inputs), "dweight": max(_rows(inputs), _length(inputs)), "rstd": _length(inputs)}


def _backward_scales(inputs: Mapping[str, Any], outputs: tuple[Any, ...]) -> dict[str, float]:
    # dx is r·g less its part along x. For rows of one element nearly all of r·g is along x, and only rounding is left.
    # The part along x is a sum whose terms cancel; with an rstd that is not x's own, that may be the larger loss.
    x, r = inputs["x"].astype(np.float64), outputs[2][..., None]
    weight = 1.0 if inputs["weight"] is None else inputs["weight"] + np.float64(inputs.get("offset", 0.0))
    g = inputs["dy"] * weight
    along = x * r**3 / x.shape[-1] * np.sqrt(np.sum((g * x) ** 2, axis=-1, keepdims=True))
    # dweight is a sum over rows: its terms, were they of random sign, would come to this.
    summed = np.sum((inputs["dy"] * x * r).reshape(-1, x.shape[-1]) ** 2, axis=0)
    return {"dx": float(np.sqrt(np.mean((r * g) ** 2 + along**2))), "dweight": float(np.sqrt(np.mean(summed)))}


# Mistakes seen in upstream kernels, and those that a careless test lets through.


def _then(change: Callable[[list[Any], dict[str, Any]], None]) -> Callable[..., tuple[Any, ...]]:
    """Return a mutant that spoils the right answer."""

    def make(inputs: dict[str, Any], right: Callable[..., tuple[Any, ...]]) -> tuple[Any, ...]:
        outputs = [None if a is None else np.array(a) for a in right(**inputs)]
        change(outputs, inputs)
        return tuple(outputs)

    return make


def _scale_by_rstd(outputs: list[Any], inputs: dict[str, Any]) -> None:
    outputs[0] *= outputs[-1][..., None]


def _eps_outside(inputs: dict[str, Any], right: Callable[..., tuple[Any, ...]]) -> tuple[Any, ...]:
    eps = inputs.get("eps", 1e-6)
    x = np.asarray(inputs["x"], np.float64)
    wrong = 1 / (np.sqrt(np.mean(x * x, axis=-1)) + eps)
    if "dy" in inputs:
        return right(**{**inputs, "rstd": wrong})
    y, rstd = right(**inputs)
    return y / rstd[..., None] * wrong[..., None], wrong


def _no_projection(outputs: list[Any], inputs: dict[str, Any]) -> None:
    weight = 1.0 if inputs["weight"] is None else inputs["weight"] + np.float64(inputs.get("offset", 0.0))
    outputs[0][...] = outputs[2][..., None] * inputs["dy"] * weight


def _lose_last_row(outputs: list[Any], inputs: dict[str, Any]) -> None:
    if outputs[1] is not None:
        last = tuple(np.reshape(inputs[name], (-1, _length(inputs)))[-1] for name in ("x", "dy"))
        outputs[1] -= last[0].astype(np.float64) * last[1] * outputs[2].reshape(-1)[-1]


def _grow_dweight(outputs: list[Any], inputs: dict[str, Any]) -> None:
    if outputs[1] is not None:
        outputs[1] *= 1.005


def _shift_dx(outputs: list[Any], inputs: dict[str, Any]) -> None:
    outputs[0] += 0.004


_SHARED_MUTANTS = (
    Mutant("eps ignored", changed(eps=lambda eps: 0.0)),
    Mutant("eps outside the root", _eps_outside),
    Mutant("weight ignored", changed(weight=lambda w: None if w is None else np.ones_like(w))),
    Mutant("weight reversed", changed(weight=lambda w: None if w is None else w[::-1])),
    Mutant("offset ignored", changed(offset=lambda offset: 0.0)),
    Mutant("an extra factor rstd", _then(_scale_by_rstd)),
)
_BACKWARD_MUTANTS = (
    *_SHARED_MUTANTS,
    Mutant("projection on x left out of dx", _then(_no_projection)),
    Mutant("saved rstd ignored", changed(rstd=lambda rstd: None)),
    Mutant("last row left out of dweight", _then(_lose_last_row)),
    Mutant("dweight 0.5% too large", _then(_grow_dweight)),
    Mutant("dx shifted by 0.004", _then(_shift_dx)),
)


def _make_forward(rng: np.random.Generator, dims: Mapping[str, int]) -> dict[str, Any]:
    return _forward(dims["M"], dims["N"])(rng)


def _make_backward(rng: np.random.Generator, dims: Mapping[str, int]) -> dict[str, Any]:
    return _backward(dims["M"], dims["N"])(rng)


def _forward_cost(dims: Mapping[str, int]) -> Cost:
    elements = dims["M"] * dims["N"]
    return Cost(bytes=2 * elements * 4, flops=5 * elements)


def _backward_cost(dims: Mapping[str, int]) -> Cost:
    elements = dims["M"] * dims["N"]
    return Cost(bytes=3 * elements * 4, flops=12 * elements)


_STANDARD = tuple(
    Shape({"M": m, "N": n}) for m, n in ((8192, 4096), (8192, 2560), (2048, 1024), (32768, 256), (262144, 128))
)
_QUICK = tuple(Shape({"M": m, "N": n}) for m, n in ((512, 512), (2048, 1024), (4096, 2560), (65536, 128)))

OPS = (
    Op(
        name="rms_norm",
        summary="RMSNorm over the last axis: y and rstd",
        run=rms_norm,
        prepare=prepare_forward,
        oracle=oracle.rms_norm,
        outputs=("y", "rstd"),
        cases=_FORWARD_CASES,
        reductions=lambda inputs: {"y": _length(inputs), "rstd": _length(inputs)},
        cost=_forward_cost,
        cost_text="2·M·N·4 bytes",
        make=_make_forward,
        quick=_QUICK,
        standard=_STANDARD,
        peers=peers.FORWARD,
        mutants=_SHARED_MUTANTS,
    ),
    Op(
        name="rms_norm_backward",
        summary="RMSNorm's gradients: dx, dweight and rstd",
        run=rms_norm_backward,
        prepare=prepare_backward,
        oracle=oracle.rms_norm_backward,
        outputs=("dx", "dweight", "rstd"),
        cases=_BACKWARD_CASES,
        reductions=_backward_reductions,
        cost=_backward_cost,
        cost_text="3·M·N·4 bytes",
        make=_make_backward,
        quick=_QUICK,
        standard=_STANDARD,
        peers=peers.BACKWARD,
        finite_differences=FiniteDifferences(
            forward=oracle.rms_norm,
            cotangents=("dy", None),
            gradients={"x": "dx", "weight": "dweight"},
            cases=_TINY,
        ),
        mutants=_BACKWARD_MUTANTS,
        scales=_backward_scales,
    ),
)
