"""Layer norm's gradients by known values, layouts, and what they must refuse; their sizes are parity's cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tkern
from tkern import arrays, parity, registry
from tkern.errors import AliasError, DTypeError, OptionError, ShapeError, SizeLimitError
from tkern.ops.layer_norm_backward import SIZES, WRT, prepare
from tkern.spec import Case


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def test_four_elements_by_hand(backend: str) -> None:
    # m = 3, differences −2, −2, 2, 2, variance 4, r = 1/√(4 + 5).
    x, w, dy = f32(1, 1, 5, 5), f32(1, 2, 3, 4), f32(9, 0, 0, 0)
    dx, dw, db = tkern.layer_norm_backward(x, w, dy, eps=5.0)
    # g = 9, 0, 0, 0; its mean 9/4; n = ∓2/3; mean(g·n) = −3/2: r·(g − 9/4 + 3/2·n).
    np.testing.assert_allclose(dx, f32(9 - 3.25, -3.25, -1.25, -1.25) / 3, rtol=1e-6)
    np.testing.assert_allclose(dw, [-6, 0, 0, 0], rtol=1e-6)
    assert np.array_equal(db, dy)


def test_a_constant_added_to_x_changes_little(backend: str, rng: np.random.Generator) -> None:
    """The spread is taken from the differences to the mean, not as a difference of squares."""
    x, w, dy = np.round(draw(rng, 9, 300) * 64) / np.float32(64), draw(rng, 300), draw(rng, 9, 300)
    near = tkern.layer_norm_backward(x, w, dy)
    far = tkern.layer_norm_backward(x + np.float32(1024), w, dy)
    for a, b in zip(near, far, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-3)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8)])
def test_an_empty_batch(shape: tuple[int, ...], backend: str) -> None:
    x = np.empty(shape, np.float32)
    dx, dw, db = tkern.layer_norm_backward(x, np.ones(8, np.float32), x)
    assert dx.shape == shape
    assert np.array_equal(dw, np.zeros(8, np.float32))
    assert np.array_equal(db, np.zeros(8, np.float32))


def test_one_gradient_has_the_bits_of_all(backend: str, rng: np.random.Generator) -> None:
    x, w, dy = draw(rng, 45, 70), draw(rng, 70), draw(rng, 45, 70)
    together = tkern.layer_norm_backward(x, w, dy)
    for k, name in enumerate(WRT):
        alone = tkern.layer_norm_backward(x, w, dy, wrt=(name,))
        assert [a is not None for a in alone] == [j == k for j in range(3)]
        assert np.array_equal(alone[k], together[k])
    assert tkern.layer_norm_backward(x, None, dy)[1] is None


def test_what_the_forward_pass_kept_is_used(backend: str, rng: np.random.Generator) -> None:
    x, w, dy = draw(rng, 21, 50), draw(rng, 50), draw(rng, 21, 50)
    mean, rstd = x.mean(axis=1), 1 / np.sqrt(x.var(axis=1) + np.float32(1e-5))
    kept = tkern.layer_norm_backward(x, w, dy, mean=mean, rstd=rstd)
    for got, want in zip(kept, tkern.layer_norm_backward(x, w, dy), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5)
    # As PyTorch keeps them, and with a mean of their own.
    for m, r in ((mean[:, None], rstd[:, None]), (mean + 1, rstd / 2)):
        got = tkern.layer_norm_backward(x, w, dy, mean=m, rstd=r)
        want = tkern.oracle.layer_norm_backward(x, w, dy, mean=m, rstd=r)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("cols", [48, 37])
def test_layouts_give_the_same_bits(cols: int, backend: str, rng: np.random.Generator) -> None:
    x, w, dy = draw(rng, 21, cols), draw(rng, cols), draw(rng, 21, cols)
    want = tkern.layer_norm_backward(x, w, dy)
    for change in (
        np.asfortranarray,
        lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
        lambda a: a[::-1].copy()[::-1],
        lambda a: np.concatenate([a.reshape(-1)[:1], a.reshape(-1)])[1:].reshape(a.shape),
    ):
        for a, b in zip(tkern.layer_norm_backward(change(x), change(w), change(dy)), want, strict=True):
            assert np.array_equal(a, b)
    row = np.broadcast_to(x[0], x.shape)
    got, same = tkern.layer_norm_backward(row, w, row), tkern.layer_norm_backward(row.copy(), w, row.copy())
    assert all(np.array_equal(a, b) for a, b in zip(got, same, strict=True))


def test_nothing_beyond_the_arrays_is_touched(backend: str, rng: np.random.Generator) -> None:
    if backend != "cpu":
        pytest.skip("arrays of a caller are written in place on the CPU only")
    for cols in (1, 5, 16, 17, 31):
        x, w, dy = draw(rng, 7, cols), draw(rng, cols), draw(rng, 7, cols)
        room = [np.full(n + 64, 7.0, np.float32) for n in (7 * cols, cols, cols)]
        out = tuple(r[32:-32].reshape(s) for r, s in zip(room, ((7, cols), (cols,), (cols,)), strict=True))
        launch = prepare(x, w, dy, out=out, backend=backend)  # type: ignore[arg-type]
        launch.run()
        launch.results()
        for guarded, got, want in zip(room, out, tkern.layer_norm_backward(x, w, dy), strict=True):
            assert np.array_equal(got, want)
            assert np.all(guarded[:32] == 7.0)
            assert np.all(guarded[-32:] == 7.0)
    with pytest.raises(AliasError, match="^dx: "):
        prepare(x, w, dy, out=(x, w.copy(), w.copy()), backend=backend)


def test_a_nan_stays_in_its_row(backend: str, rng: np.random.Generator) -> None:
    if backend == "metal":
        pytest.skip("Metal compiles with fast-math: a NaN that a caller passes in is not promised to come out")
    x, w, dy = draw(rng, 40, 50), draw(rng, 50), draw(rng, 40, 50)
    want = tkern.layer_norm_backward(x, w, dy)
    x[11, 3] = np.nan
    dx, dw, db = tkern.layer_norm_backward(x, w, dy)
    assert np.isnan(dx[11]).all()
    assert np.isnan(dw).all()
    assert np.array_equal(db, want[2])
    others = np.arange(40) != 11
    assert np.array_equal(dx[others], want[0][others])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 70),
    # Few widths, so that few kernels are compiled; every number of rows.
    cols=st.sampled_from([1, 2, 7, 16, 31, 64, 65, 257]),
    eps=st.sampled_from([1e-5, 0.3, 5.0]),
    mean=st.sampled_from([0.0, -7.0]),
    wrt=st.sampled_from([WRT, ("x",), ("weight", "bias"), ("bias",)]),
    weighted=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape_and_option(backend: str, **drawn: Any) -> None:
    rows, cols = drawn["rows"], drawn["cols"]

    def make(rng: np.random.Generator) -> dict[str, Any]:
        rng = np.random.default_rng(drawn["seed"])
        return {
            "x": draw(rng, rows, cols) + np.float32(drawn["mean"]),
            "weight": draw(rng, cols) if drawn["weighted"] else None,
            "dy": draw(rng, rows, cols),
            "eps": max(drawn["eps"], 0.3) if cols < 3 else drawn["eps"],
            "wrt": drawn["wrt"],
        }

    result = parity.check_case(registry.all_ops()["layer_norm_backward"], Case("drawn", make), backend)
    assert result.held, result.problem


_X = np.ones((4, 6), np.float32)
_W = np.ones(6, np.float32)


@pytest.mark.parametrize(
    ("error", "argument", "change"),
    [
        (DTypeError, "x", {"x": [[1.0, 2.0]]}),
        (DTypeError, "x", {"x": _X.astype(np.float64)}),
        (DTypeError, "weight", {"weight": _W.astype(np.int32)}),
        (DTypeError, "dy", {"dy": _X.astype(np.float16)}),
        (ShapeError, "x", {"x": np.array(1, np.float32)}),
        (ShapeError, "x", {"x": np.ones((4, 0), np.float32)}),
        (ShapeError, "weight", {"weight": np.ones(5, np.float32)}),
        (OptionError, "rstd", {"mean": np.zeros(4, np.float32)}),
        (OptionError, "mean", {"rstd": np.ones(4, np.float32)}),
        (ShapeError, "mean", {"mean": np.zeros(3, np.float32), "rstd": np.ones(4, np.float32)}),
        (ShapeError, "rstd", {"mean": np.zeros(4, np.float32), "rstd": np.ones((4, 2), np.float32)}),
        (ShapeError, "dy", {"dy": np.ones((3, 6), np.float32)}),
        (OptionError, "eps", {"eps": -1e-6}),
        (OptionError, "eps", {"eps": float("nan")}),
        (OptionError, "wrt", {"wrt": ()}),
        (OptionError, "wrt", {"wrt": "x"}),
        (OptionError, "wrt", {"wrt": ("x", "w")}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_refusals_name_the_argument(error: type[Exception], argument: str, change: dict[str, Any]) -> None:
    with pytest.raises(error, match=rf"^{argument}: expected .*, got ") as caught:
        tkern.layer_norm_backward(**{"x": _X, "weight": _W, "dy": _X, **change})
    assert caught.value.argument == argument


def test_more_elements_than_an_index_reaches_are_refused(backend: str) -> None:
    x = np.broadcast_to(np.float32(1), (arrays.LIMITS[backend] // 4 + 1, 4))
    with pytest.raises(SizeLimitError, match="^x: expected at most"):
        tkern.layer_norm_backward(x, x[0], x)


def test_torch_in_and_out(backend: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    x, w, b, dy = (torch.from_numpy(draw(rng, *shape)) for shape in ((9, 33), (33,), (33,), (9, 33)))
    for a in (x, w, b):
        a.requires_grad_(True)
    want = torch.autograd.grad(torch.nn.functional.layer_norm(x, (33,), w, b), (x, w, b), dy)
    for got, right in zip(tkern.layer_norm_backward(x, w, dy), want, strict=True):
        assert isinstance(got, torch.Tensor)
        torch.testing.assert_close(got, right, atol=2e-6, rtol=1e-5)


def test_metals_sizes_have_a_reason_of_their_own() -> None:
    assert "tkern msl" in SIZES["metal"].reason
