"""Hold every kernel, on every backend, against the float64 oracle; and hold the oracle and the comparison to account.

Four questions for each op:

- Is the oracle right? Every entry of every gradient is compared with central differences, on tiny inputs.
- Would a wrong answer be seen? Each of the op's mutants must be rejected, and so must zeros and a single NaN.
- Is the kernel right? Each case on each backend, every output within its tolerance (:mod:`tkern.compare`).
- Is it well behaved? The same bits from a second run, and inputs left as they were.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tkern import runtime
from tkern.compare import FLOORS, Comparison, compare
from tkern.progress import Steps, steps
from tkern.spec import Case, FiniteDifferences, Inputs, Op, Outputs, as_outputs

__all__ = [
    "CaseResult",
    "MutantResult",
    "OpResult",
    "Truth",
    "check_case",
    "check_differences",
    "check_mutants",
    "compare_outputs",
    "run",
    "truth_of",
]

# Central differences of float64: the step's square and rounding over the step are both near 1e-10 of the gradient.
_STEP = 1e-5
_DIFFERENCE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class CaseResult:
    """One case of one op on one backend. ``ratio`` is the largest error over tolerance of its outputs."""

    op: str
    backend: str
    case: str
    held: bool
    ratio: float
    seconds: float
    details: tuple[str, ...]
    problem: str = ""


@dataclass(frozen=True)
class MutantResult:
    """One wrong answer: how many of the cases it could differ in rejected it, and in which it passed."""

    op: str
    mutant: str
    held: bool
    rejected: int
    tried: int


@dataclass
class OpResult:
    """Everything parity found out about one op."""

    op: str
    differences: list[CaseResult] = field(default_factory=list)
    mutants: list[MutantResult] = field(default_factory=list)
    cases: list[CaseResult] = field(default_factory=list)

    @property
    def held(self) -> bool:
        """Return whether everything held."""
        everything: list[CaseResult | MutantResult] = [*self.differences, *self.mutants, *self.cases]
        return all(result.held for result in everything)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data; an infinite ratio (no tolerance could be met) is None."""
        return {
            "op": self.op,
            "held": self.held,
            "finite_differences": [_plain(result) for result in self.differences],
            "mutants": [_plain(result) for result in self.mutants],
            "cases": [_plain(result) for result in self.cases],
        }


@dataclass(frozen=True)
class Truth:
    """Inputs with the oracle's float64 and float32 answers."""

    inputs: Inputs
    want: Outputs
    baseline: Outputs
    longest: Mapping[str, int]
    scales: Mapping[str, float]


def run(ops: Iterable[Op], backends: Iterable[str]) -> list[OpResult]:
    """Run parity of ``ops`` on ``backends`` (all of which must be available), leaving the backend as it was."""
    ops, backends = list(ops), list(backends)
    results = {op.name: OpResult(op.name) for op in ops}
    total = sum(2 + sum(case.runs_on(b) for case in op.cases for b in backends) for op in ops)
    with steps(total, "parity") as bar:
        for op in ops:
            bar.step(f"{op.name}: finite differences")
            results[op.name].differences = check_differences(op)
            bar.step(f"{op.name}: mutants")
            results[op.name].mutants = check_mutants(op)
        for backend in backends:
            with runtime.using(backend):
                for op in ops:
                    results[op.name].cases += _run_cases(op, backend, bar)
    return list(results.values())


def check_case(op: Op, case: Case, backend: str) -> CaseResult:
    """Run one case on ``backend``, which must be on."""
    begun = time.perf_counter()
    truth = truth_of(op, case.inputs())
    before = {name: a.copy() for name, a in truth.inputs.items() if isinstance(a, np.ndarray)}
    try:
        first = as_outputs(op.run(**truth.inputs))
        second = as_outputs(op.run(**truth.inputs))
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        return CaseResult(op.name, backend, case.name, False, np.inf, time.perf_counter() - begun, (), problem)
    found = compare_outputs(op, truth, first, FLOORS[backend][0])
    problems = [str(c) for c in found if not c.held]
    problems += [
        f"{name}: a second run gave other bits"
        for name, a, b in zip(op.outputs, first, second, strict=True)
        if not _same_bits(a, b)
    ]
    problems += [
        f"{name}: the input was written" for name, a in before.items() if not _same_bits(a, truth.inputs[name])
    ]
    return CaseResult(
        op.name,
        backend,
        case.name,
        held=not problems,
        ratio=max((c.ratio for c in found), default=0.0),
        seconds=time.perf_counter() - begun,
        details=tuple(str(c) for c in found),
        problem="; ".join(problems),
    )


def check_differences(op: Op) -> list[CaseResult]:
    """Check the oracle's gradients, every entry, against central differences of the forward oracle."""
    if op.finite_differences is None:
        return []
    return [_check_difference(op, op.finite_differences, case) for case in op.finite_differences.cases]


def check_mutants(op: Op) -> list[MutantResult]:
    """Check that every wrong answer is rejected by the comparison that accepts right ones.

    A mutant need only differ where it is a mistake (a reversed weight of one element is none): at least one case must
    reject it. One NaN in any output must be rejected by every case that has such an output, and zeros in its place by
    every case where they are wrong and the output is not the small rest of terms that cancel.
    """
    floor = max(floor for floor, _ in FLOORS.values())
    truths = [truth_of(op, case.inputs()) for case in op.cases if case.backends is None]
    results = []
    for mutant in op.mutants:
        with np.errstate(all="ignore"):  # a wrong answer may divide by zero
            rejected = sum(
                _rejects(op, truth, as_outputs(mutant.make(truth.inputs, op.oracle)), floor) for truth in truths
            )
        results.append(MutantResult(op.name, mutant.name, rejected > 0, rejected, len(truths)))
    for k, name in enumerate(op.outputs):
        for label, spoil in (("all zeros", np.zeros_like), ("one NaN", _one_nan)):
            able = [t for t in truths if t.want[k] is not None and t.want[k].size]
            able = able if label == "one NaN" else [t for t in able if not _cancels(t, k, name)]
            rejected = 0
            for truth in able:
                wrong = list(truth.want)
                wrong[k] = spoil(wrong[k])
                rejected += _rejects(op, truth, tuple(wrong), floor)
            results.append(MutantResult(op.name, f"{name}: {label}", rejected == len(able) > 0, rejected, len(able)))
    return results


def _run_cases(op: Op, backend: str, bar: Steps) -> list[CaseResult]:
    results = []
    for case in op.cases:
        if case.runs_on(backend):
            bar.step(f"{op.name} on {backend}: {case.name}")
            results.append(check_case(op, case, backend))
    return results


def truth_of(op: Op, inputs: Inputs) -> Truth:
    """Return what ``op`` should make of ``inputs``, by its oracle."""
    want = as_outputs(op.oracle(**inputs, dtype=np.float64))
    baseline = as_outputs(op.oracle(**inputs, dtype=np.float32))
    scales = {} if op.scales is None else op.scales(inputs, want)
    return Truth(inputs, want, baseline, op.reductions(inputs), scales)


def compare_outputs(op: Op, truth: Truth, got: Outputs, floor: float) -> list[Comparison]:
    """Compare every output that there is with the truth; ``floor`` is the backend's entry of FLOORS."""
    found = []
    for name, g, want, baseline in zip(op.outputs, got, truth.want, truth.baseline, strict=True):
        if want is None or g is None:
            if (want is None) != (g is None):
                what = "None" if g is None else "an array"
                found.append(Comparison(name, False, np.inf, 0, 0, 0, 0, (), np.nan, np.nan, f"got {what}"))
            continue
        scale = truth.scales.get(name, 0.0)
        found.append(compare(name, g, want, baseline, longest=truth.longest[name], floor=floor, scale=scale))
    return found


def _rejects(op: Op, truth: Truth, wrong: Outputs, floor: float) -> bool:
    as_kernel = tuple(
        None if a is None else a if w is not None and w.dtype.kind in "iu" else np.asarray(a, np.float32)
        for a, w in zip(wrong, truth.want, strict=True)
    )
    return not all(c.held for c in compare_outputs(op, truth, as_kernel, floor))


def _check_difference(op: Op, check: FiniteDifferences, case: Case) -> CaseResult:
    begun = time.perf_counter()
    inputs = {
        name: value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype == np.float32 else value
        for name, value in case.inputs().items()
    }
    taken = {name: value for name, value in inputs.items() if name not in check.only_forward}
    outputs = dict(zip(op.outputs, as_outputs(op.oracle(**taken)), strict=True))
    forward_inputs = {name: value for name, value in inputs.items() if name not in check.cotangents}

    def loss() -> float:
        results = as_outputs(check.forward(**forward_inputs))
        return sum(
            float(np.sum(inputs[name] * result))
            for name, result in zip(check.cotangents, results, strict=True)
            if name is not None
        )

    worst, problems, details = 0.0, [], []
    for name, output in check.gradients.items():
        array, gradient = forward_inputs[name], outputs[output]
        if array is None:
            continue
        numeric = np.empty_like(array)
        for at in np.ndindex(array.shape):
            kept = array[at]
            array[at] = kept + _STEP
            above = loss()
            array[at] = kept - _STEP
            numeric[at] = (above - loss()) / (2 * _STEP)
            array[at] = kept
        errors = np.abs(numeric - gradient)
        allowed = _DIFFERENCE_TOLERANCE * max(1.0, float(np.max(np.abs(numeric))))
        at = np.unravel_index(int(np.argmax(errors)), errors.shape)
        place = tuple(int(i) for i in at)
        text = f"{output}: {array.size} entries, worst {errors[at]:.2g} of {allowed:.2g} at {place}"
        details.append(text)
        ratio = float(errors[at]) / allowed
        if not ratio <= 1:
            problems.append(f"{text}: oracle {gradient[at]:.9g}, differences {numeric[at]:.9g}")
        worst = max(worst, ratio)
    seconds = time.perf_counter() - begun
    return CaseResult(op.name, "oracle", case.name, not problems, worst, seconds, tuple(details), "; ".join(problems))


def _cancels(truth: Truth, k: int, name: str) -> bool:
    rms = float(np.sqrt(np.mean(np.asarray(truth.want[k], np.float64) ** 2)))
    return rms <= 1e-4 * truth.scales.get(name, 0.0) or rms == 0


def _one_nan(array: np.ndarray) -> np.ndarray:
    spoiled = np.array(array)
    # Integers have no NaN: one of them that is off by one stands for it.
    at = spoiled.size // 2
    spoiled.flat[at] = spoiled.flat[at] ^ 1 if spoiled.dtype.kind in "iu" else np.nan
    return spoiled


def _same_bits(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and np.asarray(a).tobytes() == np.asarray(b).tobytes()


def _plain(result: CaseResult | MutantResult) -> dict[str, Any]:
    plain = asdict(result)
    if "ratio" in plain and not np.isfinite(plain["ratio"]):
        plain["ratio"] = None
    return plain
