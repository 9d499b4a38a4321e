"""Softmax's gradient by known values, layouts, and what it must refuse; its sizes are parity's cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tkern
from tkern import arrays, parity, registry
from tkern.errors import DTypeError, ShapeError, SizeLimitError
from tkern.ops.softmax_backward.oracle import softmax
from tkern.spec import Case


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def test_two_elements_by_hand(backend: str) -> None:
    # s = 0.25·1 + 0.75·3 = 2.5
    dx = tkern.softmax_backward(f32(0.25, 0.75), f32(1, 3))
    assert dx.tolist() == [-0.375, 0.375]


def test_a_constant_gradient_has_no_effect(backend: str) -> None:
    y = np.full((5, 64), 1 / 64, np.float32)
    assert np.array_equal(tkern.softmax_backward(y, np.full_like(y, 3)), np.zeros_like(y))


def test_a_matrix_of_jacobians(backend: str, rng: np.random.Generator) -> None:
    """dy of unit vectors gives the rows of the Jacobian, diag(y) − y·yᵀ."""
    y = softmax(draw(rng, 37)).astype(np.float32)
    got = tkern.softmax_backward(np.broadcast_to(y, (37, 37)), np.eye(37, dtype=np.float32))
    np.testing.assert_allclose(got, np.diag(y) - np.outer(y, y), atol=1e-8)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8)])
def test_an_empty_batch(shape: tuple[int, ...], backend: str) -> None:
    y = np.empty(shape, np.float32)
    assert tkern.softmax_backward(y, y).shape == shape


@pytest.mark.parametrize("cols", [48, 37])
def test_layouts_give_the_same_bits(cols: int, backend: str, rng: np.random.Generator) -> None:
    y, dy = draw(rng, 21, cols), draw(rng, 21, cols)
    want = tkern.softmax_backward(y, dy)
    for change in (
        np.asfortranarray,
        lambda a: np.repeat(a, 2, axis=1)[:, ::2],
        lambda a: a[::-1].copy()[::-1],
        lambda a: np.concatenate([a.reshape(-1)[:1], a.reshape(-1)])[1:].reshape(a.shape),
    ):
        assert np.array_equal(tkern.softmax_backward(change(y), change(dy)), want)
    row = np.broadcast_to(y[0], y.shape)
    assert np.array_equal(tkern.softmax_backward(row, dy), tkern.softmax_backward(row.copy(), dy))


def test_nothing_beyond_the_array_is_touched(backend: str, rng: np.random.Generator) -> None:
    from tkern.ops.softmax_backward import prepare

    if backend != "cpu":
        pytest.skip("arrays of a caller are written in place on the CPU only")
    for cols in (1, 5, 16, 17, 31):
        y, dy = draw(rng, 7, cols), draw(rng, 7, cols)
        room = np.full(7 * cols + 64, 7.0, np.float32)
        launch = prepare(y, dy, out=(room[32:-32].reshape(7, cols),), backend=backend)
        launch.run()
        (dx,) = launch.results()
        assert np.shares_memory(dx, room)
        assert np.array_equal(dx, tkern.softmax_backward(y, dy))
        assert np.all(room[:32] == 7.0)
        assert np.all(room[-32:] == 7.0)


def test_a_nan_stays_in_its_row(backend: str, rng: np.random.Generator) -> None:
    if backend == "metal":
        pytest.skip("Metal compiles with fast-math: a NaN that a caller passes in is not promised to come out")
    y, dy = draw(rng, 40, 50), draw(rng, 40, 50)
    want = tkern.softmax_backward(y, dy)
    dy[11, 3] = np.nan
    got = tkern.softmax_backward(y, dy)
    assert np.isnan(got[11]).all()
    others = np.arange(40) != 11
    assert np.array_equal(got[others], want[others])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 70),
    # Few widths, so that few kernels are compiled; every number of rows.
    cols=st.sampled_from([1, 2, 7, 16, 31, 64, 65, 257]),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape(backend: str, rows: int, cols: int, scale: float, seed: int) -> None:
    def make(rng: np.random.Generator) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        return {"y": draw(rng, rows, cols), "dy": np.float32(scale) * draw(rng, rows, cols)}

    result = parity.check_case(registry.all_ops()["softmax_backward"], Case("drawn", make), backend)
    assert result.held, result.problem


_Y = np.ones((4, 6), np.float32)


@pytest.mark.parametrize(
    ("error", "argument", "change"),
    [
        (DTypeError, "y", {"y": [[1.0, 2.0]]}),
        (DTypeError, "y", {"y": _Y.astype(np.float64)}),
        (DTypeError, "dy", {"dy": _Y.astype(np.float16)}),
        (ShapeError, "y", {"y": np.array(1, np.float32)}),
        (ShapeError, "y", {"y": np.ones((4, 0), np.float32)}),
        (ShapeError, "dy", {"dy": np.ones((4, 5), np.float32)}),
        (ShapeError, "dy", {"dy": np.ones(24, np.float32)}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_refusals_name_the_argument(error: type[Exception], argument: str, change: dict[str, Any]) -> None:
    with pytest.raises(error, match=rf"^{argument}: expected .*, got ") as caught:
        tkern.softmax_backward(**{"y": _Y, "dy": _Y, **change})
    assert caught.value.argument == argument


def test_more_elements_than_an_index_reaches_are_refused(backend: str) -> None:
    y = np.broadcast_to(np.float32(1), (arrays.LIMITS[backend] // 4 + 1, 4))
    with pytest.raises(SizeLimitError, match="^y: expected at most"):
        tkern.softmax_backward(y, y)


def test_torch_in_and_out(backend: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(draw(rng, 9, 33)).requires_grad_(True)
    dy = torch.from_numpy(draw(rng, 9, 33))
    y = torch.softmax(x, -1)
    (want,) = torch.autograd.grad(y, x, dy)
    got = tkern.softmax_backward(y.detach(), dy)
    assert isinstance(got, torch.Tensor)
    torch.testing.assert_close(got, want, atol=1e-7, rtol=1e-5)
