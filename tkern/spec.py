"""What an op says of itself: the contract that parity, bench, plot and list work from.

An op's folder has a ``cases.py`` with ``OPS``, a tuple of :class:`Op`. Nothing else is registered anywhere: the
built-in ops and a user's own module (``--kernels FILE.py``) use this and nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Case", "Cost", "FiniteDifferences", "Mutant", "Op", "Shape", "as_outputs", "changed"]

Inputs = dict[str, Any]
Outputs = tuple[Any, ...]


def as_outputs(results: Any) -> Outputs:
    """Return what an op or its oracle returns as a tuple, also where that is one array."""
    return results if isinstance(results, tuple) else (results,)


@dataclass(frozen=True)
class Case:
    """One set of inputs that parity tries.

    ``make(rng)`` returns the keyword arguments of the op, arrays as float32 NumPy, options as they are; the same
    for the same seed. ``backends`` restricts a case to some backends, ``why`` says why.
    """

    name: str
    make: Callable[[np.random.Generator], Inputs]
    backends: tuple[str, ...] | None = None
    why: str = ""

    def inputs(self) -> Inputs:
        """Return the inputs, drawn from a seed that is fixed by the case's name."""
        return self.make(np.random.default_rng(list(self.name.encode())))

    def runs_on(self, backend: str) -> bool:
        """Return whether parity tries this case on ``backend``."""
        return self.backends is None or backend in self.backends


@dataclass(frozen=True)
class FiniteDifferences:
    """How an oracle is checked: every entry of every gradient of Σ cotangent · forward(inputs), on tiny inputs.

    ``forward(**inputs)`` is the forward oracle; ``cotangents`` names, for each of its outputs, the input that holds
    its gradient (None where there is none); ``gradients`` maps an input to the output of the op that is its gradient;
    ``cases`` are tiny, with options away from their defaults; ``only_forward`` names inputs that the op does not take,
    where it asks for the shape of what it is linear in.
    """

    forward: Callable[..., Any]
    cotangents: tuple[str | None, ...]
    gradients: Mapping[str, str]
    cases: tuple[Case, ...]
    only_forward: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mutant:
    """A wrong answer that parity must reject: ``make(inputs, right)`` returns outputs as the mistake would give them.

    ``right`` is the oracle, called as ``right(**inputs)``.
    """

    name: str
    make: Callable[[Inputs, Callable[..., Any]], Any]


def changed(**changes: Callable[[Any], Any]) -> Callable[[Inputs, Callable[..., Any]], Any]:
    """Return what makes a mutant's outputs: the right answer to another question.

    Each of the inputs that ``changes`` names is what its function makes of it, or of None where it was not given.
    """

    def make(inputs: Inputs, right: Callable[..., Any]) -> Any:
        return right(**{**inputs, **{name: change(inputs.get(name)) for name, change in changes.items()}})

    return make


@dataclass(frozen=True)
class Cost:
    """The fewest bytes that must move to and from memory, and the operations the field counts for the op."""

    bytes: float
    flops: float


@dataclass(frozen=True)
class Shape:
    """One size to time: its dimensions by name, in the order in which they are shown."""

    dims: Mapping[str, int]

    @property
    def name(self) -> str:
        """Return the sizes as one word: ``8192x4096``."""
        return "x".join(str(n) for n in self.dims.values())

    @property
    def elements(self) -> int:
        """Return the product of the sizes, as a measure of how large it is; a 0 is an option, not a size."""
        return math.prod(n for n in self.dims.values() if n)


@dataclass(frozen=True)
class Op:
    """One op: its public function, its oracle, what to try, what it costs, and what it must not accept.

    ``run``         the public function, called with an input's keyword arguments
    ``prepare``     the same plus ``backend`` (and ``out``): returns a :class:`tkern.launch.Launch`, not yet run
    ``oracle``      NumPy, takes ``dtype``; float64 is the truth, float32 the baseline
    ``outputs``     names of what both return, in order; an op of one output returns it bare
    ``reductions``  for an input, the longest sum that feeds each output
    ``scales``      for an input and the true outputs, the root mean square of the terms of outputs that are differences
                    of larger terms; what is lost then is a part of those
    ``cost``        for a shape's dims, what must move and be computed; ``cost_text`` says it as a formula
    ``make``        the inputs of a shape to time, as a case's ``make`` with the dims added
    ``peers``       by name, what computes the same elsewhere: takes a shape's inputs, returns a function to time
    ``variants``    by name, another way to ask the op for the same outputs, timed beside it: takes a shape's inputs,
                    returns those of the variant
    """

    name: str
    summary: str
    run: Callable[..., Any]
    prepare: Callable[..., Any]
    oracle: Callable[..., Any]
    outputs: tuple[str, ...]
    cases: tuple[Case, ...]
    reductions: Callable[[Inputs], Mapping[str, int]]
    cost: Callable[[Mapping[str, int]], Cost]
    cost_text: str
    make: Callable[[np.random.Generator, Mapping[str, int]], Inputs]
    quick: tuple[Shape, ...]
    standard: tuple[Shape, ...]
    peers: Mapping[str, Callable[[Inputs], Callable[[], Any]]] = field(default_factory=dict)
    variants: Mapping[str, Callable[[Inputs], Inputs]] = field(default_factory=dict)
    finite_differences: FiniteDifferences | None = None
    mutants: tuple[Mutant, ...] = ()
    scales: Callable[[Inputs, Outputs], Mapping[str, float]] | None = None

    def shapes(self, which: str) -> tuple[Shape, ...]:
        """Return the shapes to time, ``which`` being "quick" or "standard"."""
        return self.quick if which == "quick" else self.standard
