"""What max pooling is tried on, what it costs, and the wrong answers it must not accept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tkern.ops.max_pool2d import max_pool2d, max_pool2d_backward, oracle, peers, prepare_backward, prepare_forward
from tkern.ops.max_pool2d.geometry import geometry_of
from tkern.spec import Case, Cost, FiniteDifferences, Mutant, Op, Shape

Make = Callable[[np.random.Generator], dict[str, Any]]


def _draw(rng: np.random.Generator, shape: tuple[int, ...], values: str) -> np.ndarray:
    if values == "tied":
        # Few values, so that windows hold the largest more than once, as after a ReLU.
        return rng.integers(-1, 3, shape).astype(np.float32).clip(0)
    if values == "apart":
        # No two alike, nor within the reach of a finite difference.
        return (rng.permutation(int(np.prod(shape))).reshape(shape) / 16).astype(np.float32)
    return rng.standard_normal(shape).astype(np.float32)


def _forward(shape: tuple[int, ...], kernel_size: Any, values: str = "normal", **options: Any) -> Make:
    def make(rng: np.random.Generator) -> dict[str, Any]:
        return {"x": _draw(rng, shape, values), "kernel_size": kernel_size, **options}

    return make


def _backward(
    shape: tuple[int, ...],
    kernel_size: Any,
    values: str = "normal",
    *,
    saved: bool = False,
    ties: str | None = None,
    **options: Any,
) -> Make:
    def make(rng: np.random.Generator) -> dict[str, Any]:
        inputs = _forward(shape, kernel_size, values, **options)(rng)
        y, indices = oracle.max_pool2d(**inputs)
        if saved:
            # Those of another x, so that looking for them anew shows.
            other = _draw(rng, shape, values)
            indices = oracle.max_pool2d(**{**inputs, "x": other})[1]
            inputs["indices"] = indices
        if ties is not None:
            inputs["ties"] = ties
        inputs["dy"] = rng.standard_normal(y.shape).astype(np.float32)
        return inputs

    return make


# Images and windows: overlapping, side by side, with gaps; borders under no window; sizes of one, odd sizes, sizes that
# are not whole vectors of windows and such that are; both axes unlike; more cells in a window than a byte counts.
_GEOMETRIES: tuple[tuple[tuple[int, ...], Any, dict[str, Any]], ...] = (
    ((2, 3, 7, 9), 3, {"stride": 2, "padding": 1}),
    ((3, 2, 40, 45), 2, {}),
    ((2, 5, 33), (3, 2), {"stride": (1, 2), "padding": (1, 0)}),
    ((2, 2, 20, 20), 5, {"stride": 1, "padding": 2}),
    ((2, 3, 17, 37), (2, 3), {"stride": 3, "dilation": 2, "padding": 1}),
    ((1, 2, 19, 50), 2, {"stride": 4, "dilation": 3, "ceil_mode": True}),
    ((1, 1), 1, {}),
    ((2, 57, 60), 3, {"stride": 2, "ceil_mode": True}),
    ((2, 41, 33), 17, {"stride": 3, "padding": 8}),
    ((2, 6, 300), (1, 7), {"stride": (1, 6), "dilation": (1, 4), "padding": (0, 3)}),
    ((5, 7, 7), 7, {}),
    ((2, 3, 12, 53), 2, {"stride": 3}),
)


def _name(shape: tuple[int, ...], kernel: Any, options: dict[str, Any]) -> str:
    return "×".join(map(str, shape)) + f" k={kernel}" + "".join(f" {k}={v}" for k, v in options.items())


_FORWARD_CASES = tuple(
    Case(f"{_name(*one)} {values}", _forward(one[0], one[1], values, **one[2]))
    for one in _GEOMETRIES
    for values in ("normal", "tied")
)
_BACKWARD_CASES = (
    *(Case(_name(*one), _backward(one[0], one[1], **one[2])) for one in _GEOMETRIES),
    *(Case(f"{_name(*one)} saved", _backward(one[0], one[1], saved=True, **one[2])) for one in _GEOMETRIES),
    *(
        Case(f"{_name(*one)} {ties}", _backward(one[0], one[1], "tied", ties=ties, **one[2]))
        for one in (_GEOMETRIES[0], _GEOMETRIES[1], _GEOMETRIES[4], _GEOMETRIES[8], _GEOMETRIES[11])
        for ties in ("first", "split", "all")
    ),
)

_TINY_GEOMETRIES: tuple[tuple[tuple[int, ...], Any, dict[str, Any]], ...] = (
    ((2, 2, 3, 5), 2, {}),
    ((1, 2, 5, 4), (3, 2), {"stride": (2, 1), "padding": (1, 0)}),
    ((2, 4, 7), 2, {"stride": 1, "dilation": (1, 3), "ceil_mode": True}),
    ((3, 7, 5), (1, 2), {"stride": 3, "padding": (0, 1)}),
)
_TINY = tuple(
    Case(f"{_name(*one)} {ties}", _backward(one[0], one[1], "apart", ties=ties, **one[2]))
    for one, ties in zip(_TINY_GEOMETRIES, ("first", "split", "all", "first"), strict=True)
)


def _forward_without_ties(ties: str = "first", **inputs: Any) -> tuple[np.ndarray, np.ndarray]:
    # Away from ties the rules agree, and the forward pass has none.
    return oracle.max_pool2d(**inputs)


def _covering(inputs: Mapping[str, Any]) -> int:
    """Return the most windows over one cell: as many numbers are summed."""
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    defaults = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False}
    geometry = geometry_of(inputs["x"].shape, **{**defaults, **{k: v for k, v in inputs.items() if k in names}})
    return max(1, -(-geometry.h.kernel // geometry.h.stride)) * max(1, -(-geometry.w.kernel // geometry.w.stride))


def _with(**changes: Any) -> Callable[..., Any]:
    """Return a mutant that gets the right answer to a changed question."""

    def make(inputs: dict[str, Any], right: Callable[..., Any]) -> Any:
        return right(**{**inputs, **changes})

    return make


def _other_ties(inputs: dict[str, Any], right: Callable[..., Any]) -> Any:
    return right(**{**inputs, "ties": {"first": "all", "all": "split", "split": "first"}[inputs.get("ties", "first")]})


def _swapped(inputs: dict[str, Any], right: Callable[..., Any]) -> Any:
    """Compute with H and W taken for one another where the image is square, else with cells transposed."""
    given = {**inputs, "x": np.swapaxes(inputs["x"], -1, -2), "dy": np.swapaxes(inputs["dy"], -1, -2)}
    if "indices" in given or any(isinstance(v, tuple) for v in inputs.values()):
        return np.swapaxes(right(**inputs), -1, -2).reshape(inputs["x"].shape)
    return right(**given).reshape(inputs["x"].shape)


def _dx_changed(change: Callable[[np.ndarray, dict[str, Any]], None]) -> Callable[..., Any]:
    def make(inputs: dict[str, Any], right: Callable[..., Any]) -> Any:
        dx = np.array(right(**inputs))
        change(dx, inputs)
        return dx

    return make


def _last_row_lost(dx: np.ndarray, inputs: dict[str, Any]) -> None:
    dx[..., -1, :] = 0


def _first_column_lost(dx: np.ndarray, inputs: dict[str, Any]) -> None:
    dx[..., 0] = 0


def _grown(dx: np.ndarray, inputs: dict[str, Any]) -> None:
    dx *= 1.005


def _overlap_lost(inputs: dict[str, Any], right: Callable[..., Any]) -> Any:
    """Let the last window over a cell overwrite what the others added."""
    dx = np.array(right(**inputs))
    one = right(**{**inputs, "dy": np.ones_like(inputs["dy"])})
    return np.where(one > 1, dx / np.maximum(one, 1), dx)


_MUTANTS = (
    Mutant("ties by another rule", _other_ties),
    Mutant("saved indices ignored", _with(indices=None)),
    Mutant("H and W swapped", _swapped),
    Mutant("overlapping windows do not add up", _overlap_lost),
    Mutant("last row of cells lost", _dx_changed(_last_row_lost)),
    Mutant("first column of cells lost", _dx_changed(_first_column_lost)),
    Mutant("dx 0.5% too large", _dx_changed(_grown)),
)


def _off_by_one(inputs: dict[str, Any], right: Callable[..., Any]) -> Any:
    y, indices = right(**inputs)
    return y, (indices + 1).astype(indices.dtype)


def _padding_wins(inputs: dict[str, Any], right: Callable[..., Any]) -> Any:
    y, indices = right(**inputs)
    return np.maximum(y, 0), indices


_FORWARD_MUTANTS = (
    Mutant("indices off by one", _off_by_one),
    Mutant("padding of zeros wins", _padding_wins),
)

# Shapes are named by their sizes; ceil_mode is 1 or 0.
_NAMES = ("N", "C", "HW", "k", "s", "p", "ceil")
_STANDARD_SIZES = (
    (32, 64, 112, 3, 2, 1, 0),
    (16, 64, 224, 2, 2, 0, 0),
    (16, 256, 56, 2, 2, 0, 0),
    (16, 192, 56, 3, 2, 0, 1),
    (16, 512, 20, 5, 1, 2, 0),
)
_QUICK_SIZES = ((2, 16, 112, 3, 2, 1, 0), (2, 32, 56, 2, 2, 0, 0), (2, 32, 20, 5, 1, 2, 0))
_STANDARD = tuple(Shape(dict(zip(_NAMES, sizes, strict=True))) for sizes in _STANDARD_SIZES)
_QUICK = tuple(Shape(dict(zip(_NAMES, sizes, strict=True))) for sizes in _QUICK_SIZES)


def _make_forward(rng: np.random.Generator, dims: Mapping[str, int]) -> dict[str, Any]:
    shape = (dims["N"], dims["C"], dims["HW"], dims["HW"])
    options: dict[str, Any] = {"stride": dims["s"], "padding": dims["p"], "ceil_mode": bool(dims["ceil"])}
    return _forward(shape, dims["k"], **options)(rng)


def _make_backward(rng: np.random.Generator, dims: Mapping[str, int]) -> dict[str, Any]:
    inputs = _make_forward(rng, dims)
    y, indices = oracle.max_pool2d(**inputs, dtype=np.float32)
    return {**inputs, "dy": rng.standard_normal(y.shape).astype(np.float32), "indices": indices}


def _sizes(dims: Mapping[str, int]) -> tuple[int, int]:
    """Return how many cells and how many windows there are."""
    geometry = geometry_of((dims["HW"],) * 2, dims["k"], dims["s"], dims["p"], 1, bool(dims["ceil"]))
    planes = dims["N"] * dims["C"]
    return planes * dims["HW"] ** 2, planes * geometry.h.windows * geometry.w.windows


def _forward_cost(dims: Mapping[str, int]) -> Cost:
    cells, windows = _sizes(dims)
    return Cost(bytes=4 * cells + 5 * windows, flops=windows * dims["k"] ** 2)


def _backward_cost(dims: Mapping[str, int]) -> Cost:
    cells, windows = _sizes(dims)
    return Cost(bytes=4 * cells + 5 * windows, flops=windows)


OPS = (
    Op(
        name="max_pool2d",
        summary="max pooling: y, and which cell of its window that is",
        run=max_pool2d,
        prepare=prepare_forward,
        oracle=oracle.max_pool2d,
        outputs=("y", "indices"),
        cases=_FORWARD_CASES,
        reductions=lambda inputs: {"y": 1, "indices": 1},
        cost=_forward_cost,
        cost_text="4·|x| + 5·|y| bytes",
        make=_make_forward,
        quick=_QUICK,
        standard=_STANDARD,
        peers=peers.FORWARD,
        mutants=_FORWARD_MUTANTS,
    ),
    Op(
        name="max_pool2d_backward",
        summary="max pooling's gradient dx, from saved indices or from x",
        run=max_pool2d_backward,
        prepare=prepare_backward,
        oracle=oracle.max_pool2d_backward,
        outputs=("dx",),
        cases=_BACKWARD_CASES,
        reductions=lambda inputs: {"dx": _covering(inputs)},
        cost=_backward_cost,
        cost_text="4·|x| + 5·|y| bytes",
        make=_make_backward,
        quick=_QUICK,
        standard=_STANDARD,
        peers=peers.BACKWARD,
        variants={"from x": lambda inputs: {**inputs, "indices": None}},
        finite_differences=FiniteDifferences(
            forward=_forward_without_ties,
            cotangents=("dy", None),
            gradients={"x": "dx"},
            cases=_TINY,
        ),
        mutants=_MUTANTS,
    ),
)
