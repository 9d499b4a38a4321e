"""The kernel language on its own: safe mathematics, sums, masks, and columns."""

from __future__ import annotations

import numpy as np
import pytest

from tkern import arrays, runtime
from tkern.lang import RowSizes, plan_rows
from tkern.lang.rows import RowPlan
from tkern.launch import Launch

_SIZES = {
    "cpu": RowSizes(programs=7),
    "vulkan": RowSizes(programs=9, lanes=(64,), held=4),
    "cuda": RowSizes(programs=9, lanes=(64,), held=4),
    "metal": RowSizes(programs=9, lanes=(64,), held=4),
}


def _device(host: np.ndarray, backend: str) -> object:
    return arrays.take("a", host, backend=backend).argument(backend)


def _output(shape: tuple[int, ...], backend: str) -> arrays.Output:
    return arrays.make_output(shape, arrays.take("like", np.ones(1, np.float32), backend=backend), backend)


@pytest.mark.parametrize("cols", [1, 15, 16, 17, 64, 255, 256, 257, 1025])
@pytest.mark.parametrize("rows", [1, 7, 130])
def test_row_and_column_sums(rows: int, cols: int, backend: str, rng: np.random.Generator) -> None:
    """Sums of rows and of columns of one matrix, with long rows that no lane can hold (256 = 64 lanes × 4)."""
    from tests import kernels
    from tkern.lang import columns, compiled

    x = rng.standard_normal((rows, cols)).astype(np.float32)
    plan: RowPlan = plan_rows(backend, _SIZES[backend], rows, cols)
    partial = arrays.workspace(plan.partial_size, backend)
    row_sums, column_sums = _output((rows,), backend), _output((cols,), backend)
    launch = Launch((row_sums, column_sums))
    launch.add(
        compiled(kernels.sums, plan.words), _device(x, backend), row_sums.argument, partial, rows, cols, plan.programs
    )
    launch.add(
        columns.sum_kernel(backend, cols), partial, column_sums.argument, plan.programs, plan.partial_stride, cols
    )
    launch.run()
    by_row, by_column = launch.results()
    exact = x.astype(np.float64)
    np.testing.assert_allclose(by_row, exact.sum(1), atol=2e-7 * cols**0.5 * 4)
    np.testing.assert_allclose(by_column, exact.sum(0), atol=2e-7 * rows**0.5 * 4)


def test_columns_are_summed_into_an_array_with_axes(backend: str, rng: np.random.Generator) -> None:
    """A caller's own device array has the axes it has: its kernel is another one than that of a flat array."""
    import taichi as ti

    from tkern.lang import columns

    x = rng.standard_normal((9, 2 * 3 * 7)).astype(np.float32)
    given = ti.ndarray(ti.f32, (1,))
    out = arrays.make_output((2, 3, 7), arrays.take("like", given, backend=backend), backend)
    launch = Launch((out,))
    launch.add(columns.sum_kernel(backend, 42), _device(x, backend), out.argument, 9, 42, 42)
    launch.run()
    (got,) = launch.results()
    np.testing.assert_allclose(got.to_numpy(), x.astype(np.float64).sum(0).reshape(2, 3, 7), atol=3e-6)


def test_conditions_are_joined(backend: str) -> None:
    """Of scalars and of vectors: both hold, or one of them."""
    from tests import kernels

    x = np.linspace(-3, 3, 32).astype(np.float32)
    out = _output((32,), backend)
    launch = Launch((out,))
    launch.add(kernels.conditions(backend), _device(x, backend), out.argument)
    launch.run()
    want = np.where(((x > 0) & (x < 1)) | (x < -1), x, 0)
    assert np.array_equal(launch.results()[0], want)


def test_a_long_sum_stays_accurate(rng: np.random.Generator) -> None:
    """A chain of 6250 additions of ones' size would be off by far more than this."""
    from tests import kernels
    from tkern.lang import compiled

    x = (1 + rng.random((1, 100003))).astype(np.float32)
    with runtime.using("cpu"):
        plan = plan_rows("cpu", _SIZES["cpu"], 1, 100003)
        partial = arrays.workspace(plan.partial_size, "cpu")
        total = _output((1,), "cpu")
        launch = Launch((total,))
        launch.add(compiled(kernels.sums, plan.words), _device(x, "cpu"), total.argument, partial, 1, 100003, 1)
        launch.run()
        (got,) = launch.results()
    assert abs(got[0] / x.sum(dtype=np.float64) - 1) < 1.5e-7


@pytest.mark.parametrize("cols", [5, 16, 300])
def test_every_row_belongs_to_one_program(cols: int, backend: str, rng: np.random.Generator) -> None:
    from tkern.lang import compiled
    from tkern.lang.copying import copy_rows

    for rows in (1, 5, 7, 8, 9, 63, 64, 65, 1000):
        x = rng.standard_normal((rows, cols)).astype(np.float32)
        plan = plan_rows(backend, _SIZES[backend], rows, cols)
        assert 1 <= plan.programs <= _SIZES[backend].programs
        y = _output((rows, cols), backend)
        launch = Launch((y,))
        launch.add(compiled(copy_rows, plan.words), _device(x, backend), y.argument, rows, cols, plan.programs)
        launch.run()
        assert np.array_equal(launch.results()[0], x)


def _exp_inputs() -> np.ndarray:
    edges = np.array([0, -0.0, 1, -1, 88.3, -87.3, -87.7, -88, -88.1, -100, -1e30, 88.36, 1e-8], np.float32)
    return np.concatenate([edges, np.linspace(-87.3, 88.3, 4083, dtype=np.float32)])


def test_vector_exp_is_accurate() -> None:
    from tests import kernels

    x = _exp_inputs()
    with runtime.using("cpu"):
        y = np.empty_like(x)
        kernels.vector_exp_all(arrays.as_vectors(x), arrays.as_vectors(y), x.size // 16)
    want = np.exp(x.astype(np.float64))
    inside = x >= -87.33
    assert np.max(np.abs(y[inside] / want[inside] - 1)) < 2.5e-7
    assert np.array_equal(y[x < -87.69], np.zeros(np.count_nonzero(x < -87.69), np.float32))


def test_vector_exp_stays_finite() -> None:
    from tests import kernels

    x = np.array([88.73, 100, 1e3, 3e38] * 4, np.float32)
    with runtime.using("cpu"):
        y = np.empty_like(x)
        kernels.vector_exp_all(arrays.as_vectors(x), arrays.as_vectors(y), 1)
    assert np.all(np.isfinite(y))
    assert np.all(y > 2.3e38)


def test_vector_exp_keeps_nan() -> None:
    from tests import kernels

    x = np.zeros(16, np.float32)
    x[5] = np.nan
    with runtime.using("cpu"):
        y = np.empty_like(x)
        kernels.vector_exp_all(arrays.as_vectors(x), arrays.as_vectors(y), 1)
    assert np.isnan(y[5])
    assert np.array_equal(np.delete(y, 5), np.ones(15, np.float32))


def test_safe_scalars(backend: str) -> None:
    from tests import kernels

    x = np.array([1, 4, 1e-30, 3e37, np.nan, np.inf, 0.0, -np.nan], np.float32)
    roots, nans = _output((8,), backend), _output((8,), backend)
    launch = Launch((roots, nans))
    launch.add(kernels.scalars(backend), _device(x, backend), roots.argument, nans.argument)
    launch.run()
    got_roots, got_nans = launch.results()
    np.testing.assert_allclose(got_roots[:4], 1 / np.sqrt(x[:4].astype(np.float64)), rtol=2e-7)
    assert np.array_equal(got_nans, [0, 0, 0, 0, 1, 0, 0, 1])


def test_lowest_is_finite_and_vanishes() -> None:
    from tkern.lang import safe

    assert np.isfinite(np.float32(safe.LOWEST))
    assert np.exp(np.float32(safe.LOWEST) - np.float32(300)) == 0
