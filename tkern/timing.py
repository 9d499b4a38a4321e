"""Time one function: warm-up, a synchronisation around every repeat, median and quantiles."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Timing", "measure", "measure_all"]

_WARM_SECONDS = 0.05
_LEAST_REPEATS = 5
_MOST_REPEATS = 200
# A repeat on a device that works on its own lasts this long at least, so that launching and waiting, which a training
# loop overlaps with work, does not hide the kernel.
_LEAST_REPEAT_SECONDS = 5e-3
_MOST_CALLS = 200
# Of a turn, where several functions are measured in turns: before it, and how long it lasts.
_PAUSE_SECONDS = 0.1
_TURN_SECONDS = 0.1


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: the median and the 20% and 80% quantiles over ``repeats`` of ``calls`` calls each."""

    median: float
    low: float
    high: float
    repeats: int
    calls: int


def measure(
    function: Callable[[], Any], synchronize: Callable[[], None], *, seconds: float = 0.6, device: bool = False
) -> Timing:
    """Repeat ``function`` for about ``seconds``, at least 5 times, and return how long a call takes.

    ``synchronize`` waits for the device; it stands before and after every repeat, so that a repeat is timed from an
    idle device to its finished result. A repeat is one call, or on a ``device`` beside the CPU as many as take 5 ms.
    Two calls at least are made first and not counted.
    """
    return measure_all([function], synchronize, seconds=seconds, device=device)[0]


def measure_all(
    functions: list[Callable[[], Any]], synchronize: Callable[[], None], *, seconds: float = 0.6, device: bool = False
) -> list[Timing]:
    """Measure several functions in turns, a few repeats of each at a time, so that a slow moment meets all of them.

    A turn begins with a pause and a call that is not counted: the threads of a library that ran before (OpenBLAS's,
    OpenMP's) go on spinning for up to 60 ms, on the cores that the next one needs.
    Arguments as :func:`measure`, ``seconds`` for each function.
    """
    calls = [_warm(function, synchronize, device) for function in functions]
    taken: list[list[float]] = [[] for _ in functions]
    until = time.perf_counter() + seconds * len(functions)
    while len(taken[0]) < _LEAST_REPEATS or (time.perf_counter() < until and len(taken[0]) < _MOST_REPEATS):
        for function, count, times in zip(functions, calls, taken, strict=True):
            if len(functions) > 1:
                time.sleep(_PAUSE_SECONDS)
                _repeat(function, synchronize, 1)
            turn_until = time.perf_counter() + (_TURN_SECONDS if len(functions) > 1 else 0.0)
            while True:
                times.append(1e3 * _repeat(function, synchronize, count) / count)
                if time.perf_counter() >= turn_until or len(times) >= _MOST_REPEATS:
                    break
    timings = []
    for count, times in zip(calls, taken, strict=True):
        low, median, high = np.quantile(times, (0.2, 0.5, 0.8))
        timings.append(Timing(float(median), float(low), float(high), len(times), count))
    return timings


def _warm(function: Callable[[], Any], synchronize: Callable[[], None], device: bool) -> int:
    """Call a function until it is warm; return how many calls make a repeat."""
    warm_until = time.perf_counter() + _WARM_SECONDS
    warmed = 0
    while warmed < 2 or time.perf_counter() < warm_until:
        function()
        synchronize()
        warmed += 1
    calls = 1
    while device and calls < _MOST_CALLS and _repeat(function, synchronize, calls) < _LEAST_REPEAT_SECONDS:
        calls *= 2
    return calls


def _repeat(function: Callable[[], Any], synchronize: Callable[[], None], calls: int) -> float:
    synchronize()
    begun = time.perf_counter()
    for _ in range(calls):
        function()
    synchronize()
    return time.perf_counter() - begun
