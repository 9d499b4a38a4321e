"""How near is near enough, and what to say when it is not.

The tolerance of an output is measured, not guessed. The oracle in float64 is the truth; the oracle in float32 is what
an honest computation loses (the baseline). With rms the root mean square of the true output, K the longest sum that
feeds it and ε = 2⁻²³::

    error ≤ min(2·baseline, max(64, 2·√K)·ε·rms) + floor·ε·rms

The middle term stops a broken baseline from loosening the test; the floor lets exact ops pass. Everything must be
finite, and an output that is truly all zeros must be exactly that. Where an output is the difference of larger terms
that may cancel, the op says how large those are, and rms is theirs if that is more. Where the truth is −∞ (the
logarithm of a sum without terms) the output must be exactly that, and the rest is compared as if those were not there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["FLOORS", "Comparison", "compare"]

EPSILON = float(np.finfo(np.float32).eps)

# The floor of each backend, in units of ε·rms, with what it must cover.
FLOORS = {
    "cpu": (8.0, "sums in another order than NumPy's; with it no case comes nearer than 0.5 of its tolerance"),
    "vulkan": (8.0, "as cpu, also on an H200; Vulkan allows a division 2.5 ulp"),
    "cuda": (8.0, "as vulkan, except 0.9 on an H200 for 100003×3, where division and root round less well"),
    "metal": (8.0, "as vulkan; not measured on a device yet"),
}


@dataclass(frozen=True)
class Comparison:
    """One output against the truth: whether it ``held``, its largest ``error`` and the ``tolerance``.

    ``wrong`` counts the elements beyond it, ``worst`` is the index of the largest error, ``got`` and ``want`` the
    values there, ``rms`` the scale of the output.
    """

    output: str
    held: bool
    error: float
    tolerance: float
    rms: float
    wrong: int
    size: int
    worst: tuple[int, ...]
    got: float
    want: float
    problem: str = ""

    @property
    def ratio(self) -> float:
        """Return error over tolerance: at most 1 where it held; infinite where it cannot hold."""
        if self.problem:
            return math.inf
        if self.error == 0:
            return 0.0
        return self.error / self.tolerance if self.tolerance > 0 else math.inf

    def __str__(self) -> str:
        if self.problem:
            return f"{self.output}: {self.problem}"
        if self.size == 0:
            return f"{self.output}: empty"
        ulps = self.error / (EPSILON * self.rms) if self.rms else math.inf if self.error else 0.0
        text = (
            f"{self.output}: error {self.error:.3g} of {self.tolerance:.3g} allowed ({ulps:.1f} ε·rms) "
            f"at {self.worst}: got {self.got:.9g}, want {self.want:.9g}"
        )
        return text if self.held else f"{text}; {self.wrong} of {self.size} elements are beyond it"


def compare(
    output: str, got: Any, want: np.ndarray, baseline: np.ndarray, *, longest: int, floor: float, scale: float = 0.0
) -> Comparison:
    """Compare one output with the truth ``want`` (float64); ``baseline`` is the oracle's float32 answer.

    ``longest`` is K, ``floor`` the backend's entry of FLOORS, ``scale`` the rms of the terms that may cancel. Shape
    and finiteness are part of the comparison. Integers must be equal, and of the oracle's type.
    """
    got = np.asarray(got)
    if got.shape != want.shape:
        return _impossible(output, f"shape {got.shape}, want {want.shape}")
    if want.dtype.kind in "iu":
        return _compare_integers(output, got, want)
    if got.dtype != np.float32:
        return _impossible(output, f"dtype {got.dtype}, want float32")
    if got.size == 0:
        return Comparison(output, True, 0.0, 0.0, 0.0, 0, 0, (), 0.0, 0.0)
    nothing = np.isneginf(want)
    missed = nothing & ~np.isneginf(got)
    if missed.any():
        at = np.unravel_index(int(np.argmax(missed)), got.shape)
        place = tuple(int(i) for i in at)
        return _impossible(
            output, f"{int(missed.sum())} elements are not −∞ as they must be, the first {got[at]} at {place}"
        )
    got, want, baseline = (np.where(nothing, 0, a) for a in (got, want, baseline))
    if not np.isfinite(want).all():
        return _impossible(output, "the oracle itself is not finite here: the case is no case")
    finite = np.isfinite(got)
    if not finite.all():
        at = np.unravel_index(int(np.argmin(finite)), got.shape)
        place = tuple(int(i) for i in at)
        return _impossible(
            output, f"{int((~finite).sum())} of {got.size} elements are not finite, the first {got[at]} at {place}"
        )
    rms = max(scale, math.sqrt(float(np.sum(want * want)) / max(1, int(np.count_nonzero(~nothing)))))
    honest = float(np.max(np.abs(baseline.astype(np.float64) - want)))
    allowed = min(2 * honest, max(64.0, 2 * math.sqrt(longest)) * EPSILON * rms) + floor * EPSILON * rms
    errors = np.abs(got.astype(np.float64) - want)
    at = np.unravel_index(int(np.argmax(errors)), got.shape)
    error = float(errors[at])
    return Comparison(
        output,
        held=error <= allowed,
        error=error,
        tolerance=allowed,
        rms=rms,
        wrong=int(np.count_nonzero(~(errors <= allowed))),
        size=got.size,
        worst=tuple(int(i) for i in at),
        got=float(got[at]),
        want=float(want[at]),
    )


def _compare_integers(output: str, got: np.ndarray, want: np.ndarray) -> Comparison:
    if got.dtype != want.dtype:
        return _impossible(output, f"dtype {got.dtype}, want {want.dtype}")
    if got.size == 0:
        return Comparison(output, True, 0.0, 0.0, 0.0, 0, 0, (), 0.0, 0.0)
    errors = np.abs(got.astype(np.int64) - want)
    at = np.unravel_index(int(np.argmax(errors)), got.shape)
    return Comparison(
        output,
        held=not errors.any(),
        error=float(errors[at]),
        tolerance=0.0,
        rms=math.sqrt(float(np.mean(want.astype(np.float64) ** 2))),
        wrong=int(np.count_nonzero(errors)),
        size=got.size,
        worst=tuple(int(i) for i in at),
        got=float(got[at]),
        want=float(want[at]),
    )


def _impossible(output: str, problem: str) -> Comparison:
    return Comparison(output, False, math.inf, 0.0, 0.0, 0, 0, (), math.nan, math.nan, problem)
