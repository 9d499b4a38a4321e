"""Every op, on every backend, case by case; the oracles by finite differences; the comparison by wrong answers."""

from __future__ import annotations

import numpy as np
import pytest

from tkern import parity, registry
from tkern.parity import check_case, check_differences, check_mutants
from tkern.spec import Case, Op, as_outputs

_OPS = registry.all_ops()
_CASES = [pytest.param(op, case, id=f"{op.name}-{case.name}") for op in _OPS.values() for case in op.cases]


@pytest.mark.parametrize(("op", "case"), _CASES)
def test_case_holds(op: Op, case: Case, backend: str, ran: set[tuple[str, str]], no_torch: list[str]) -> None:
    if not case.runs_on(backend):
        pytest.skip(f"{backend}: {case.why}")
    result = check_case(op, case, backend)
    assert result.held, result.problem
    assert len(result.details) == sum(a is not None for a in as_outputs(op.oracle(**case.inputs())))
    ran.add((op.name, backend))


@pytest.mark.parametrize(
    "op", [op for op in _OPS.values() if op.finite_differences is not None], ids=lambda op: op.name
)
def test_oracle_agrees_with_finite_differences(op: Op) -> None:
    results = check_differences(op)
    assert len(results) >= 3, "a gradient needs tiny cases to be differenced on"
    assert all(result.held for result in results), [r.problem for r in results if not r.held]


@pytest.mark.parametrize("op", _OPS.values(), ids=lambda op: op.name)
def test_every_mutant_is_rejected(op: Op) -> None:
    results = check_mutants(op)
    assert len(results) == len(op.mutants) + 2 * len(op.outputs)
    assert all(result.held for result in results), [r for r in results if not r.held]


def test_finite_differences_see_a_wrong_oracle() -> None:
    """The check of the oracle must itself be able to fail: dx less 1e-4 of itself is wrong."""
    op = _OPS["rms_norm_backward"]

    def wrong(**inputs: object) -> tuple[np.ndarray | None, ...]:
        dx, dweight, rstd = op.oracle(**inputs)
        assert dx is not None
        return dx * (1 - 1e-4), dweight, rstd

    results = check_differences(_changed(op, oracle=wrong))
    assert not any(result.held for result in results if result.case != "1×1")
    assert "dx: " in results[0].problem


def test_a_wrong_kernel_does_not_hold() -> None:
    op = _OPS["rms_norm_backward"]
    case = next(case for case in op.cases if case.name == "199×123")

    def wrong(**inputs: object) -> tuple[np.ndarray, ...]:
        outputs = [np.array(a) for a in op.run(**inputs)]
        outputs[1][7] *= np.float32(1.001)
        return tuple(outputs)

    result = check_case(_changed(op, run=wrong), case, "cpu")
    assert not result.held
    assert "dweight" in result.problem
    assert "(7,)" in result.problem


def test_other_bits_from_a_second_run_are_seen() -> None:
    op = _OPS["rms_norm"]
    case = next(case for case in op.cases if case.name == "33×31 eps=0.7")
    calls = []

    def unsteady(**inputs: object) -> tuple[np.ndarray, ...]:
        calls.append(1)
        y, rstd = op.run(**inputs)
        return np.nextafter(y, np.float32(len(calls)), dtype=np.float32), rstd

    result = check_case(_changed(op, run=unsteady), case, "cpu")
    assert "a second run gave other bits" in result.problem


def test_a_written_input_is_seen() -> None:
    op = _OPS["rms_norm"]
    case = next(case for case in op.cases if case.name == "4×64")

    def writes(**inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        outputs = op.run(**inputs)
        inputs["x"][0, 0] += 1
        return outputs

    assert "x: the input was written" in check_case(_changed(op, run=writes), case, "cpu").problem


def test_a_crash_in_a_kernel_is_a_result_not_an_end() -> None:
    op = _OPS["rms_norm"]

    def fails(**inputs: object) -> tuple[np.ndarray, ...]:
        raise ValueError("no")

    result = check_case(_changed(op, run=fails), op.cases[0], "cpu")
    assert not result.held
    assert result.problem == "ValueError: no"


def test_the_same_case_has_the_same_inputs() -> None:
    for op in _OPS.values():
        name = next(iter(op.cases[2].inputs()))
        first, second = op.cases[2].inputs(), op.cases[2].inputs()
        assert np.array_equal(first[name], second[name])
        assert not np.array_equal(first[name], op.cases[3].inputs()[name])


def test_results_are_plain_data() -> None:
    op = _changed(_OPS["rms_norm"], cases=tuple(c for c in _OPS["rms_norm"].cases if c.backends is None))
    (result,) = parity.run([op], ["cpu"])
    plain = result.as_json()
    assert plain["held"] is True
    assert [case["case"] for case in plain["cases"]] == [case.name for case in op.cases]
    assert all(mutant["held"] for mutant in plain["mutants"])


def _changed(op: Op, **changes: object) -> Op:
    from dataclasses import replace

    return replace(op, **changes)  # type: ignore[arg-type]
