"""Time one function: warm-up, a synchronisation around every repeat, median and quantiles."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Timing", "measure"]

_WARM_SECONDS = 0.05
_LEAST_REPEATS = 5
_MOST_REPEATS = 200


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: the median, the 20% and 80% quantiles, and over how many repeats."""

    median: float
    low: float
    high: float
    repeats: int


def measure(function: Callable[[], Any], synchronize: Callable[[], None], *, seconds: float = 0.6) -> Timing:
    """Call ``function`` for about ``seconds``, at least 5 times, and return how long a call takes.

    ``synchronize`` waits for the device; it stands before and after every timed call, so that a call is timed from
    an idle device to its finished result. Two calls at least are made first and not counted.
    """
    warm_until = time.perf_counter() + _WARM_SECONDS
    warmed = 0
    while warmed < 2 or time.perf_counter() < warm_until:
        function()
        synchronize()
        warmed += 1
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while len(taken) < _LEAST_REPEATS or (time.perf_counter() < until and len(taken) < _MOST_REPEATS):
        synchronize()
        begun = time.perf_counter()
        function()
        synchronize()
        taken.append(1e3 * (time.perf_counter() - begun))
    low, median, high = np.quantile(taken, (0.2, 0.5, 0.8))
    return Timing(float(median), float(low), float(high), len(taken))
