"""The tolerance: what it lets through, and what it must never let through."""

from __future__ import annotations

import numpy as np

from tkern.compare import EPSILON, FLOORS, Comparison, compare
from tkern.runtime import NAMES


def _compare(got: np.ndarray, want: np.ndarray, baseline: np.ndarray | None = None, **options: float) -> Comparison:
    honest = want.astype(np.float32) if baseline is None else baseline
    return compare("y", got, want, honest, **{"longest": 1, "floor": 8.0, **options})  # type: ignore[arg-type]


def _truth(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((9, 11))


def test_rounding_alone_holds() -> None:
    want = _truth()
    found = _compare(want.astype(np.float32), want)
    assert found.held
    assert 0 < found.ratio < 1


def test_the_rule_by_its_numbers() -> None:
    want = np.full((4, 4), 2.0)
    baseline = np.full((4, 4), 2.0 + 100 * EPSILON, np.float32)
    rms = 2.0
    found = _compare(want.astype(np.float32), want, baseline, longest=1)
    honest = float(np.max(np.abs(baseline - want)))
    assert np.isclose(found.tolerance, min(2 * honest, 64 * EPSILON * rms) + 8 * EPSILON * rms)
    far = np.full((4, 4), 3.0, np.float32)
    assert np.isclose(_compare(far, want, far, longest=10**4).tolerance, (200 + 8) * EPSILON * rms)
    assert np.isclose(_compare(far, want, far, longest=4).tolerance, (64 + 8) * EPSILON * rms)


def test_a_broken_baseline_does_not_loosen_it() -> None:
    want = _truth()
    assert not _compare(np.zeros(want.shape, np.float32), want, np.full(want.shape, 1e6, np.float32)).held


def test_zeros_and_nan_and_infinity_never_hold() -> None:
    want = _truth()
    assert not _compare(np.zeros(want.shape, np.float32), want, longest=10**9).held
    for bad in (np.nan, np.inf, -np.inf):
        got = want.astype(np.float32)
        got[3, 4] = bad
        found = _compare(got, want)
        assert not found.held
        assert "1 of 99 elements are not finite" in str(found)
        assert "(3, 4)" in str(found)
        assert found.ratio == np.inf


def test_an_output_of_zeros_must_be_zeros() -> None:
    want = np.zeros((2, 3))
    assert _compare(np.zeros((2, 3), np.float32), want).held
    wrong = np.zeros((2, 3), np.float32)
    wrong[1, 1] = 1e-30
    assert not _compare(wrong, want).held


def test_a_wrong_shape_or_type_never_holds() -> None:
    want = _truth()
    assert "shape (11, 9), want (9, 11)" in str(_compare(want.T.astype(np.float32), want))
    assert "dtype float64, want float32" in str(_compare(want, want))


def test_a_truth_that_is_not_finite_is_no_case() -> None:
    for bad in (np.inf, np.nan):
        want = _truth()
        want[0, 0] = bad
        for got in (want, _truth()):
            found = _compare(got.astype(np.float32), want, _truth().astype(np.float32))
            assert not found.held
            assert "the case is no case" in str(found)


def test_where_the_truth_is_minus_infinity_so_must_the_output_be() -> None:
    want = _truth()
    want[2, 3] = want[5, 0] = -np.inf
    right = want.astype(np.float32)
    found = _compare(right, want)
    assert found.held
    assert found.rms == np.sqrt(np.mean(want[np.isfinite(want)] ** 2))
    for bad in (0.0, np.inf, np.nan, np.finfo(np.float32).min):
        got = right.copy()
        got[5, 0] = bad
        found = _compare(got, want)
        assert not found.held
        assert "1 elements are not −∞ as they must be" in str(found)
        assert "(5, 0)" in str(found)
    got = right.copy()
    got[4, 4] = -np.inf
    assert "1 of 99 elements are not finite, the first -inf at (4, 4)" in str(_compare(got, want))
    got = right.copy()
    got[4, 4] += 1
    assert "at (4, 4)" in str(_compare(got, want))


def test_an_output_of_nothing_but_minus_infinity() -> None:
    want = np.full((2, 3), -np.inf)
    assert _compare(want.astype(np.float32), want).held
    assert not _compare(np.zeros((2, 3), np.float32), want).held


def test_the_worst_place_is_named_with_both_values() -> None:
    want = _truth()
    got = want.astype(np.float32)
    got[2, 5] += 1
    got[7, 0] -= 2
    text = str(_compare(got, want))
    assert "at (7, 0)" in text
    assert f"want {want[7, 0]:.9g}" in text
    assert "2 of 99 elements are beyond it" in text


def test_terms_that_cancel_set_the_scale() -> None:
    want = np.full(8, 1e-9)
    got = np.full(8, 1.1e-9, np.float32)
    assert not _compare(got, want).held
    assert _compare(got, want, scale=1.0).held


def test_empty_outputs_hold() -> None:
    assert _compare(np.empty((0, 3), np.float32), np.empty((0, 3))).held


def test_every_backend_has_a_floor_with_a_reason() -> None:
    assert set(FLOORS) == set(NAMES)
    assert all(0 < floor <= 8 and reason for floor, reason in FLOORS.values())
