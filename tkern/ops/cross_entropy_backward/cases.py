"""What cross-entropy's gradient is tried on, what it costs, and the wrong answers it must not accept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tkern.ops.cross_entropy_backward import cross_entropy_backward, oracle, peers, prepare
from tkern.spec import Case, Cost, FiniteDifferences, Mutant, Op, Shape, changed

# Cases too large for a Vulkan device in software, which parity runs on wherever there is no GPU.
_LARGE = ("cpu", "cuda")
_WHY = "minutes on a Vulkan device in software; smaller cases of the same kind run there"


def _backward(
    rows: int, cols: int, *, ignored: float = 0.2, spread: float = 1.5, dtype: str = "int64", **options: Any
) -> Callable[..., dict[str, Any]]:
    """Logits of that ``spread``, a part of the labels to be ``ignored``, and dout as the reduction takes it."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        logits = rng.standard_normal((rows, cols), dtype=np.float32)
        logits *= np.float32(spread)
        labels = rng.integers(0, cols, rows).astype(dtype)
        labels[rng.random(rows) < ignored] = options.get("ignore_index", -100)
        shape = (rows,) if options.get("reduction") == "none" else ()
        dout = np.asarray(rng.standard_normal(shape) + 2, np.float32)
        return {"logits": logits, "labels": labels, "dout": dout, **options}

    return make


# Sizes of one, odd sizes, sizes beside a power of two, rows longer than the registers of a GPU's largest program
# (16384), a vocabulary of 128256; logits that leave one class all, far from 0, or all of them ignored.
_CASES = (
    Case("1×1", _backward(1, 1, ignored=0)),
    Case("3×1 smoothing=0.3", _backward(3, 1, ignored=0, label_smoothing=0.3)),
    Case("5×7", _backward(5, 7)),
    Case("8×16 int32", _backward(8, 16, dtype="int32")),
    Case("33×31 sum smoothing=0.1", _backward(33, 31, reduction="sum", label_smoothing=0.1)),
    Case("199×123 none smoothing=0.2", _backward(199, 123, reduction="none", label_smoothing=0.2, dtype="int32")),
    Case("40×50 ignore_index=3", _backward(40, 50, ignore_index=3)),
    Case("21×64 smoothing=1", _backward(21, 64, label_smoothing=1.0)),
    Case("9×40 all ignored", _backward(9, 40, ignored=1.1)),
    Case("0×5", _backward(0, 5)),
    Case("65×1000 spread=30", _backward(65, 1000, spread=30.0)),
    Case("300×3", _backward(300, 3)),
    Case("3×4097", _backward(3, 4097, ignored=0, reduction="none")),
    Case("2×17001 smoothing=0.1", _backward(2, 17001, ignored=0, label_smoothing=0.1)),
    Case("20011×3", _backward(20011, 3), _LARGE, _WHY),
    Case("3×128256", _backward(3, 128256, ignored=0), _LARGE, _WHY),
    Case("2×131071 smoothing=0.1", _backward(2, 131071, ignored=0, label_smoothing=0.1), _LARGE, _WHY),
)
_TINY = (
    Case("4×3", _backward(4, 3, ignored=0.3)),
    Case("3×4 sum smoothing=0.3", _backward(3, 4, ignored=0, reduction="sum", label_smoothing=0.3)),
    Case("5×4 none smoothing=0.2", _backward(5, 4, ignored=0.3, reduction="none", label_smoothing=0.2)),
    Case("6×3 ignore_index=1", _backward(6, 3, ignored=0, ignore_index=1)),
)


def _reductions(inputs: Mapping[str, Any]) -> dict[str, int]:
    return {"dlogits": int(inputs["logits"].shape[1])}


def _scales(inputs: Mapping[str, Any], outputs: tuple[Any, ...]) -> dict[str, float]:
    # p − q cancels where the label is all that is likely; it is large at the label alone, and there loses a part of
    # itself: with an eighth of the largest, the floor of 8ε is one ε of that.
    kept = inputs["labels"] != inputs.get("ignore_index", -100)
    if not kept.any():
        return {"dlogits": 0.0}
    each = np.abs(np.broadcast_to(inputs["dout"], kept.shape)[kept]).astype(np.float64)
    if inputs.get("reduction", "mean") == "mean":
        each = each / np.count_nonzero(kept)
    rms = np.sqrt(2 * np.mean(each**2) / inputs["logits"].shape[1] * np.mean(kept))
    return {"dlogits": float(max(rms, np.max(each) / 8))}


_Right = Callable[..., Any]


def _kept(inputs: dict[str, Any]) -> Any:
    return inputs["labels"] != inputs.get("ignore_index", -100)


def _count(inputs: dict[str, Any]) -> int:
    return max(1, int(np.count_nonzero(_kept(inputs))))


def _ignored_counts(inputs: dict[str, Any], right: _Right) -> Any:
    """An ignored row is taken for one of class 0, its part of the mean being the others'."""
    labels = np.where(_kept(inputs), inputs["labels"], 0)
    dlogits = right(**{**inputs, "labels": labels, "ignore_index": -1})
    if inputs.get("reduction", "mean") == "mean":
        dlogits = dlogits * len(labels) / _count(inputs)
    return dlogits


def _mean_of_all(inputs: dict[str, Any], right: _Right) -> Any:
    factor = _count(inputs) / max(1, len(inputs["labels"])) if inputs.get("reduction", "mean") == "mean" else 1
    return right(**inputs) * factor


def _no_mean(inputs: dict[str, Any], right: _Right) -> Any:
    reduction = inputs.get("reduction", "mean")
    return right(**{**inputs, "reduction": "sum" if reduction == "mean" else reduction})


def _next_label(inputs: dict[str, Any], right: _Right) -> Any:
    labels = np.where(_kept(inputs), (inputs["labels"] + 1) % inputs["logits"].shape[1], inputs["labels"])
    return right(**{**inputs, "labels": labels})


def _label_left_out(inputs: dict[str, Any], right: _Right) -> Any:
    rows = np.flatnonzero(_kept(inputs))
    dlogits = np.array(right(**inputs))
    at = rows, inputs["labels"][rows]
    # What is left is p·s, without the label's part of q.
    hit = 1 - inputs.get("label_smoothing", 0.0)
    each = np.broadcast_to(inputs["dout"], len(inputs["labels"])).astype(np.float64)
    dlogits[at] += hit * each[rows] / (_count(inputs) if inputs.get("reduction", "mean") == "mean" else 1)
    return dlogits


def _smoothing_of_others(inputs: dict[str, Any], right: _Right) -> Any:
    """Smoothing spread over the other V − 1 classes only."""
    smoothing, cols = inputs.get("label_smoothing", 0.0), inputs["logits"].shape[1]
    spread = min(1.0, smoothing * cols / max(1, cols - 1))
    return right(**{**inputs, "label_smoothing": spread})


def _largest_twice(inputs: dict[str, Any], right: _Right) -> Any:
    """The sum of exp counts its first term twice."""
    logits = np.concatenate([inputs["logits"][:, :1], inputs["logits"]], axis=1)
    labels = np.where(_kept(inputs), inputs["labels"] + 1, inputs["labels"])
    ignore = inputs.get("ignore_index", -100)
    if ignore >= 0:
        labels, ignore = np.where(_kept(inputs), labels, -100), -100
    return right(**{**inputs, "logits": logits, "labels": labels, "ignore_index": ignore})[:, 1:]


def _grown(inputs: dict[str, Any], right: _Right) -> Any:
    return 1.005 * right(**inputs)


_MUTANTS = (
    Mutant("an ignored row takes part", _ignored_counts),
    Mutant("mean over ignored rows too", _mean_of_all),
    Mutant("sum instead of mean", _no_mean),
    Mutant("dout ignored", changed(dout=lambda dout: None)),
    Mutant("label smoothing ignored", changed(label_smoothing=lambda smoothing: 0.0)),
    Mutant("label smoothing over the other classes only", _smoothing_of_others),
    Mutant("labels off by one", _next_label),
    Mutant("the label left out: softmax alone", _label_left_out),
    Mutant("one term counted twice", _largest_twice),
    Mutant("dlogits 0.5% too large", _grown),
)


def _make(rng: np.random.Generator, dims: Mapping[str, int]) -> dict[str, Any]:
    inputs = _backward(dims["N"], dims["V"], ignored=0)(rng)
    return {"logits": inputs["logits"], "labels": inputs["labels"], "dout": 1.0}


def _cost(dims: Mapping[str, int]) -> Cost:
    elements = dims["N"] * dims["V"]
    return Cost(bytes=2 * elements * 4, flops=6 * elements)


OPS = (
    Op(
        name="cross_entropy_backward",
        summary="cross-entropy's gradient with respect to logits: dlogits",
        run=cross_entropy_backward,
        prepare=prepare,
        oracle=oracle.cross_entropy_backward,
        outputs=("dlogits",),
        cases=_CASES,
        reductions=_reductions,
        cost=_cost,
        cost_text="2·N·V·4 bytes",
        make=_make,
        quick=tuple(Shape({"N": n, "V": v}) for n, v in ((512, 1000), (128, 32000), (64, 50257), (32, 128256))),
        standard=tuple(
            Shape({"N": n, "V": v})
            for n, v in ((32768, 1000), (8192, 4096), (1024, 32000), (640, 50257), (256, 128256))
        ),
        peers=peers.BACKWARD,
        finite_differences=FiniteDifferences(
            forward=oracle.cross_entropy,
            cotangents=("dout",),
            gradients={"logits": "dlogits"},
            cases=_TINY,
        ),
        mutants=_MUTANTS,
        scales=_scales,
    ),
)
