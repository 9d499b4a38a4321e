"""RMSNorm by known values, shapes at the edges, layouts, and what it must refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tkern
from tkern import arrays, parity, registry
from tkern.errors import DTypeError, OptionError, ShapeError, SizeLimitError
from tkern.lang import plan_rows
from tkern.ops.rms_norm import SIZES
from tkern.spec import Case


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def test_two_elements_by_hand(backend: str) -> None:
    dx, dw, rstd = tkern.rms_norm_backward(f32(1, 2), f32(2, 3), f32(1, 1), eps=0.0)
    np.testing.assert_allclose(dx, [0.2529822128, -0.1264911064], rtol=2e-6)
    np.testing.assert_allclose(dw, [0.632455532, 1.2649110641], rtol=1e-6)
    np.testing.assert_allclose(rstd, 1 / np.sqrt(2.5), rtol=1e-6)
    assert rstd.shape == ()


def test_ones_sum_up_over_many_rows(backend: str) -> None:
    x = np.ones((1025, 2), np.float32)
    _, dw, _ = tkern.rms_norm_backward(x, f32(1, 1), x, eps=1e-6)
    np.testing.assert_allclose(dw, [1024.9994875] * 2, rtol=5e-7)


def test_a_row_of_zeros(backend: str) -> None:
    zeros = np.zeros(4, np.float32)
    dx, dw, _ = tkern.rms_norm_backward(zeros, np.ones(4, np.float32), -np.ones(4, np.float32), eps=1e-5)
    assert np.array_equal(dw, zeros)
    np.testing.assert_allclose(dx, [-316.2277660] * 4, rtol=2e-7)


# The sizes of the issue: large ones on the CPU (and a GPU), the same kinds smaller where Vulkan runs in software.
_SIZES = [(8192, 4096), (8, 5120), (4, 64), (2, 32), (1, 1), (3, 1), (1, 100003), (100003, 3)]
_SMALLER = {(8192, 4096): (64, 4096), (1, 100003): (1, 20011), (100003, 3): (5003, 3)}


@pytest.mark.parametrize("size", _SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_sizes(size: tuple[int, int], backend: str) -> None:
    rows, cols = _SMALLER.get(size, size) if backend in ("vulkan", "metal") else size
    op = registry.all_ops()["rms_norm_backward"]

    def make(rng: np.random.Generator) -> dict[str, Any]:
        return {"x": draw(rng, rows, cols), "weight": draw(rng, cols), "dy": draw(rng, rows, cols), "eps": 0.25}

    result = parity.check_case(op, Case(f"{rows}x{cols} here", make), backend)
    assert result.held, result.problem


def test_forward_then_backward_with_saved_rstd(backend: str, rng: np.random.Generator) -> None:
    x, w, dy = draw(rng, 19, 70), draw(rng, 70), draw(rng, 19, 70)
    y, rstd = tkern.rms_norm(x, w, eps=0.3, offset=1.0)
    want_y, want_rstd = tkern.oracle.rms_norm(x, w, eps=0.3, offset=1.0)
    np.testing.assert_allclose(y, want_y, atol=1e-5)
    np.testing.assert_allclose(rstd, want_rstd, rtol=1e-6)
    saved = tkern.rms_norm_backward(x, w, dy, eps=0.3, offset=1.0, rstd=rstd)
    again = tkern.rms_norm_backward(x, w, dy, eps=0.3, offset=1.0)
    for one, other in zip(saved, again, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
    assert np.array_equal(saved[2], rstd)
    assert saved[2] is not rstd


def test_without_a_weight_there_is_no_dweight(backend: str, rng: np.random.Generator) -> None:
    x, dy = draw(rng, 6, 33), draw(rng, 6, 33)
    dx, dw, _ = tkern.rms_norm_backward(x, None, dy)
    assert dw is None
    ones = tkern.rms_norm_backward(x, np.ones(33, np.float32), dy)[0]
    assert np.array_equal(dx, ones)
    assert np.array_equal(tkern.rms_norm(x)[0], tkern.rms_norm(x, np.ones(33, np.float32))[0])


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8), (0, 0, 1)])
def test_an_empty_batch(shape: tuple[int, ...], backend: str) -> None:
    x = np.empty(shape, np.float32)
    w = np.ones(shape[-1], np.float32)
    dx, dw, rstd = tkern.rms_norm_backward(x, w, x)
    assert dx.shape == shape
    assert rstd.shape == shape[:-1]
    assert np.array_equal(dw, np.zeros(shape[-1], np.float32))
    assert tkern.rms_norm(x, w)[0].shape == shape


def _layouts(a: np.ndarray) -> dict[str, np.ndarray]:
    """Return views with the values of ``a`` in other layouts."""
    wide = np.empty((*a.shape[:-1], 2 * a.shape[-1] + 1), np.float32)
    wide[..., 1::2] = a
    bytes_ = np.empty(a.nbytes + 1, np.uint8)
    misaligned = bytes_[1:].view(np.float32).reshape(a.shape)
    misaligned[...] = a
    four = np.empty(a.size + 32, np.float32)
    start = (-four.ctypes.data // 4) % 16 + 1
    off_by_four = four[start : start + a.size].reshape(a.shape)
    off_by_four[...] = a
    read_only = a.copy()
    read_only.flags.writeable = False
    return {
        "strided": wide[..., 1::2],
        "fortran": np.asfortranarray(a),
        "reversed": np.ascontiguousarray(a[..., ::-1])[..., ::-1],
        "not on a float boundary": misaligned,
        "4 bytes past a 64-byte boundary": off_by_four,
        "read-only": read_only,
    }


@pytest.mark.parametrize("cols", [48, 37])
def test_layouts_give_the_same_bits(cols: int, backend: str, rng: np.random.Generator) -> None:
    x, w, dy = draw(rng, 21, cols), draw(rng, cols), draw(rng, 21, cols)
    want = tkern.rms_norm_backward(x, w, dy)
    for name in _layouts(x):
        got = tkern.rms_norm_backward(_layouts(x)[name], _layouts(w)[name], _layouts(dy)[name])
        for g, v in zip(got, want, strict=True):
            assert np.array_equal(g, v), name


def test_expanded_inputs_give_the_same_bits(backend: str, rng: np.random.Generator) -> None:
    row, scalar = draw(rng, 40), np.float32(0.7)
    x, w, dy = (np.broadcast_to(a, s) for a, s in ((row, (9, 40)), (scalar, (40,)), (scalar, (9, 40))))
    assert x.strides == (0, 4)
    got = tkern.rms_norm_backward(x, w, dy)
    want = tkern.rms_norm_backward(x.copy(), w.copy(), dy.copy())
    for g, v in zip(got, want, strict=True):
        assert np.array_equal(g, v)


def test_nothing_beyond_the_arrays_is_touched(backend: str, rng: np.random.Generator) -> None:
    """Rows that end within a vector must leave what follows them alone, in the last row too."""
    from tkern.ops.rms_norm import prepare_backward

    if backend != "cpu":
        pytest.skip("arrays of a caller are written in place on the CPU only")
    for cols in (1, 5, 16, 17, 31):
        x, w, dy = draw(rng, 7, cols), draw(rng, cols), draw(rng, 7, cols)
        room = [np.full(n + 64, 7.0, np.float32) for n in (7 * cols, cols, 7)]
        out = tuple(r[32:-32].reshape(s) for r, s in zip(room, ((7, cols), (cols,), (7,)), strict=True))
        launch = prepare_backward(x, w, dy, out=out, backend=backend)
        launch.run()
        launch.results()
        for guarded, got, want in zip(room, out, tkern.rms_norm_backward(x, w, dy), strict=True):
            assert np.array_equal(got, want)
            assert np.all(guarded[:32] == 7.0)
            assert np.all(guarded[-32:] == 7.0)


def test_runs_are_bit_identical(backend: str, rng: np.random.Generator) -> None:
    x, w, dy = draw(rng, 700, 129), draw(rng, 129), draw(rng, 700, 129)
    first = tkern.rms_norm_backward(x, w, dy)
    for _ in range(5):
        for a, b in zip(first, tkern.rms_norm_backward(x, w, dy), strict=True):
            assert a.tobytes() == b.tobytes()


def test_a_nan_stays_in_its_row(backend: str, rng: np.random.Generator) -> None:
    if backend == "metal":
        pytest.skip("Metal compiles with fast-math: a NaN that a caller passes in is not promised to come out")
    x, w, dy = draw(rng, 40, 50), draw(rng, 50), draw(rng, 40, 50)
    want = tkern.rms_norm_backward(x, w, dy)[0]
    x[11, 3] = np.nan
    dx, dw, _ = tkern.rms_norm_backward(x, w, dy)
    assert np.isnan(dx[11]).all()
    assert np.isnan(dw).all()
    others = np.arange(40) != 11
    assert np.array_equal(dx[others], want[others])


class _Shapes:
    # Few widths, so that few kernels are compiled; every number of rows.
    cols = st.sampled_from([1, 2, 7, 16, 31, 64, 65, 257])
    rows = st.integers(1, 70)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=_Shapes.rows,
    cols=_Shapes.cols,
    eps=st.sampled_from([0.0, 1e-6, 0.3, 5.0]),
    offset=st.sampled_from([0.0, 1.0, -2.5]),
    weighted=st.booleans(),
    saved=st.booleans(),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape_and_option(backend: str, **drawn: Any) -> None:
    rows, cols, weighted = drawn["rows"], drawn["cols"], drawn["weighted"]

    def make(rng: np.random.Generator) -> dict[str, Any]:
        rng = np.random.default_rng(drawn["seed"])
        inputs = {
            "x": np.float32(drawn["scale"]) * draw(rng, rows, cols),
            "weight": draw(rng, cols) if weighted else None,
            "dy": draw(rng, rows, cols),
            "eps": drawn["eps"],
            "offset": drawn["offset"] if weighted else 0.0,
        }
        if drawn["saved"]:
            # Near the row's own, as a forward pass would have saved it, but not that, so that ignoring it shows.
            own = tkern.oracle.rms_norm(inputs["x"], eps=drawn["eps"])[1]
            inputs["rstd"] = (own * rng.uniform(0.5, 2.0, rows)).astype(np.float32)
        return inputs

    result = parity.check_case(registry.all_ops()["rms_norm_backward"], Case("drawn", make), backend)
    assert result.held, result.problem


_X = np.ones((4, 6), np.float32)
_W = np.ones(6, np.float32)


@pytest.mark.parametrize(
    ("error", "argument", "change"),
    [
        (DTypeError, "x", {"x": [[1.0, 2.0]]}),
        (DTypeError, "x", {"x": _X.astype(np.float64)}),
        (DTypeError, "x", {"x": _X.astype(">f4")}),
        (DTypeError, "x", {"x": np.ma.masked_array(_X, _X > 2)}),
        (DTypeError, "dy", {"dy": _X.astype(np.float16)}),
        (DTypeError, "weight", {"weight": _W.astype(np.int32)}),
        (DTypeError, "rstd", {"rstd": 1.0}),
        (ShapeError, "x", {"x": np.array(1, np.float32)}),
        (ShapeError, "x", {"x": np.ones((4, 0), np.float32)}),
        (ShapeError, "dy", {"dy": np.ones((4, 5), np.float32)}),
        (ShapeError, "dy", {"dy": np.ones((3, 6), np.float32)}),
        (ShapeError, "dy", {"dy": np.ones(24, np.float32)}),
        (ShapeError, "weight", {"weight": np.ones(5, np.float32)}),
        (ShapeError, "weight", {"weight": np.ones((1, 6), np.float32)}),
        (ShapeError, "rstd", {"rstd": np.ones(3, np.float32)}),
        (OptionError, "eps", {"eps": -1e-6}),
        (OptionError, "eps", {"eps": float("nan")}),
        (OptionError, "eps", {"eps": "small"}),
        (OptionError, "eps", {"eps": 1e39}),
        (OptionError, "eps", {"eps": 1e-39}),
        (OptionError, "eps", {"eps": 10**400}),
        (OptionError, "offset", {"offset": float("inf")}),
        (OptionError, "offset", {"offset": True}),
        (OptionError, "offset", {"offset": 1.0, "weight": None}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_refusals_name_the_argument(error: type[Exception], argument: str, change: dict[str, Any]) -> None:
    inputs = {"x": _X, "weight": _W, "dy": _X, **change}
    with pytest.raises(error, match=rf"^{argument}: expected .*, got ") as caught:
        tkern.rms_norm_backward(**inputs)
    assert caught.value.argument == argument
    if argument not in ("dy", "rstd"):
        inputs.pop("dy")
        with pytest.raises(error, match=rf"^{argument}: "):
            tkern.rms_norm(**inputs)


def test_more_elements_than_an_index_reaches_are_refused(backend: str) -> None:
    limit = arrays.LIMITS[backend]
    assert limit <= (2**30 if backend in ("vulkan", "metal") else 2**31 - 1)
    for shape in ((limit // 4 + 1, 4), (1, limit + 1), (2**16, 2**16)):
        x = np.broadcast_to(np.float32(1), shape)
        with pytest.raises(SizeLimitError, match=f"^x: expected at most {limit} elements .*got {x.size} elements"):
            tkern.rms_norm_backward(x, np.broadcast_to(np.float32(1), shape[-1:]), x)


def test_very_long_rows_take_few_private_rows(backend: str) -> None:
    """Private rows of dweight are bounded by bytes, not only by programs, or a long row would take gigabytes."""
    for rows, cols in ((9, 17_000_000), (65, 2_100_000), (1, 2**29), (8, 2**27)):
        plan = plan_rows(backend, SIZES[backend], rows, cols)
        assert plan.partial_size <= max(2**26, 2 * (cols + 16))


def test_many_rows_of_one_sign_sum_accurately(backend: str) -> None:
    rows = 40_000 if backend in ("vulkan", "metal") else 200_000
    x, dy = np.full((rows, 8), 0.1, np.float32), np.full((rows, 8), 0.3, np.float32)
    dw = tkern.rms_norm_backward(x, np.ones(8, np.float32), dy)[1]
    want = tkern.oracle.rms_norm_backward(x, np.ones(8), dy)[1]
    np.testing.assert_allclose(dw, want, rtol=1e-6)


def test_expected_and_got_are_in_the_message() -> None:
    with pytest.raises(ShapeError, match=r"dy: expected shape \(4, 6\), got \(4, 5\)"):
        tkern.rms_norm_backward(_X, _W, np.ones((4, 5), np.float32))
    with pytest.raises(DTypeError, match="x: expected float32, got float64; convert it first"):
        tkern.rms_norm(_X.astype(np.float64))
