"""Convolution's gradients by known values, every geometry, layouts, memory, and what they must refuse."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import tkern
from tkern import parity, registry
from tkern.errors import DTypeError, OptionError, ShapeError, SizeLimitError
from tkern.lang.convs import ConvTile
from tkern.ops.conv2d import plan
from tkern.ops.conv2d.sizes import IMAGE, WEIGHT
from tkern.spec import Case


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def f32(values: Any, *shape: int) -> np.ndarray:
    return np.array(values, np.float32).reshape(shape)


def test_five_by_five_by_hand(backend: str) -> None:
    x, w, dy = f32(np.arange(25), 1, 1, 5, 5), f32([1, 2, 3, 4], 1, 1, 2, 2), np.ones((1, 1, 2, 2), np.float32)
    dw = tkern.conv2d_backward_weight(x, dy, (1, 1, 2, 2), stride=2)
    assert np.array_equal(dw[0, 0], [[24, 28], [44, 48]])
    dx = tkern.conv2d_backward_input(dy, w, (1, 1, 5, 5), stride=2)
    assert np.array_equal(dx[0, 0, :4, :4], np.tile([[1, 2], [3, 4]], (2, 2)))
    assert not dx[..., 4, :].any()
    assert not dx[..., 4].any()


def test_two_groups_by_hand(backend: str) -> None:
    x, w, dy = f32(np.arange(32), 1, 2, 4, 4), np.ones((2, 1, 3, 3), np.float32), np.ones((1, 2, 2, 2), np.float32)
    options = {"groups": 2, "stride": 2, "padding": 1}
    dw = tkern.conv2d_backward_weight(x, dy, (2, 1, 3, 3), **options)
    assert np.array_equal(dw[0, 0], [[5, 10, 12], [10, 20, 24], [18, 36, 40]])
    assert np.array_equal(dw[1, 0], [[21, 42, 44], [42, 84, 88], [50, 100, 104]])
    dx = tkern.conv2d_backward_input(dy, w, (1, 2, 4, 4), **options)
    for channel in dx[0]:
        assert np.array_equal(channel, [[1, 2, 1, 1], [2, 4, 2, 2], [1, 2, 1, 1], [1, 2, 1, 1]])


def test_two_images_by_hand(backend: str) -> None:
    x, dy = f32([[1, 10], [100, 1000]], 2, 2, 1, 1), f32([[1, 2, 3], [4, 5, 6]], 2, 3, 1, 1)
    dw = tkern.conv2d_backward_weight(x, dy, (3, 2, 1, 1))
    assert np.array_equal(dw[..., 0, 0], [[401, 4010], [502, 5020], [603, 6030]])


def _axis(draw_: Any) -> tuple[int, int, int, int, tuple[int, int]]:
    """Draw size, kernel, stride, dilation and padding of an axis with an output."""
    kernel, dilation = draw_(st.integers(1, 5)), draw_(st.integers(1, 3))
    padding = draw_(st.tuples(st.integers(0, 4), st.integers(0, 4)))
    size = draw_(st.integers(1, 40))
    assume(size + sum(padding) >= dilation * (kernel - 1) + 1)
    return size, kernel, draw_(st.integers(1, 6)), dilation, padding


@st.composite
def _geometries(draw_: Any) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    vertical, horizontal = _axis(draw_), _axis(draw_)
    groups = draw_(st.sampled_from([1, 1, 2, 3, 7]))
    channels, outs = draw_(st.integers(1, 5)), draw_(st.integers(1, 9))
    batch = draw_(st.integers(0, 4))
    options = {
        "stride": (vertical[2], horizontal[2]),
        "dilation": (vertical[3], horizontal[3]),
        "padding": (vertical[4], horizontal[4]),
        "groups": groups,
    }
    return (
        (batch, groups * channels, vertical[0], horizontal[0]),
        (groups * outs, channels, vertical[1], horizontal[1]),
        options,
    )


# Sums of 320 products, one after another, were once beyond the tolerance.
_LONG_SUMS = ((1, 7, 32, 12), (7, 1, 1, 2), {"stride": 1, "dilation": (1, 2), "padding": 0, "groups": 7})


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@example(geometry=_LONG_SUMS, seed=235)
@given(geometry=_geometries(), seed=st.integers(0, 2**32 - 1))
def test_any_geometry(backend: str, geometry: Any, seed: int) -> None:
    x_shape, w_shape, options = geometry
    rng = np.random.default_rng(seed)
    x, w, bias = draw(rng, *x_shape), draw(rng, *w_shape), draw(rng, w_shape[0])
    dy = draw(rng, *tkern.oracle.conv2d(x, w, **options).shape)
    ungrouped = {name: value for name, value in options.items() if name != "groups"}
    inputs: dict[str, dict[str, Any]] = {
        "im2col": {"x": x, "kernel_size": w_shape[2:], **ungrouped},
        "conv2d": {"x": x, "weight": w, "bias": bias, **options},
        "conv2d_backward_weight": {"x": x, "dy": dy, "weight_shape": w_shape, **options},
        "conv2d_backward_input": {"dy": dy, "weight": w, "input_shape": x_shape, **options},
        "conv2d_backward_bias": {"dy": dy},
    }
    for name, given_ in inputs.items():
        result = parity.check_case(registry.all_ops()[name], Case("drawn", lambda _, g=given_: dict(g)), backend)
        assert result.held, f"{name}: {result.problem}"


def test_im2col_is_exact(backend: str, rng: np.random.Generator) -> None:
    x = draw(rng, 3, 5, 13, 17)
    for options in ({}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": ((0, 3), (2, 1)), "stride": (1, 3)}):
        for kernel in (1, 3, (2, 5), (7, 1)):
            want = tkern.oracle.im2col(x, kernel, dtype=np.float32, **options)
            assert np.array_equal(tkern.im2col(x, kernel, **options), want)


def test_the_gradient_is_what_the_matrix_gives(backend: str, rng: np.random.Generator) -> None:
    x, dy = draw(rng, 3, 4, 9, 8), draw(rng, 3, 5, 9, 8)
    cols = tkern.im2col(x, 3, padding=1).astype(np.float64)
    want = dy.transpose(1, 0, 2, 3).reshape(5, -1).astype(np.float64) @ cols
    got = tkern.conv2d_backward_weight(x, dy, (5, 4, 3, 3), padding=1)
    np.testing.assert_allclose(got.reshape(5, -1), want, atol=2e-4)


def test_cells_that_no_output_read_are_zero(backend: str, rng: np.random.Generator) -> None:
    dy, w = draw(rng, 2, 4, 3, 3), draw(rng, 4, 3, 2, 2)
    dx = tkern.conv2d_backward_input(dy, w, (2, 3, 14, 15), stride=5)
    read = np.zeros((14, 15), bool)
    for r, s in np.ndindex(2, 2):
        read[r : r + 11 : 5, s : s + 11 : 5] = True
    assert not dx[:, :, ~read].any()
    assert dx[:, :, read].all()


def test_what_is_not_finite_reaches_only_the_taps_that_read_it(backend: str, rng: np.random.Generator) -> None:
    if backend == "metal":
        pytest.skip("its compiler assumes that everything is finite")
    x, dy = draw(rng, 2, 3, 9, 20), draw(rng, 2, 3, 9, 20)
    x[1, 0, 4, 19], x[0, 1, 8, 0] = np.inf, np.nan
    options = {"padding": 1, "groups": 3}
    want = tkern.oracle.conv2d_backward_weight(x, dy, (3, 1, 3, 3), **options)
    assert 0 < np.isfinite(want).sum() < want.size
    got = tkern.conv2d_backward_weight(x, dy, (3, 1, 3, 3), **options)
    np.testing.assert_allclose(got, want, atol=2e-4)


def _views(a: np.ndarray) -> dict[str, np.ndarray]:
    """Return views with the values of ``a`` in other layouts."""
    wide = np.empty((*a.shape[:-1], 2 * a.shape[-1]), np.float32)
    wide[..., ::2] = a
    last = np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    off = np.empty(a.size + 1, np.float32)[1:].reshape(a.shape)
    off[...] = a
    fixed = a.copy()
    fixed.flags.writeable = False
    return {"strided": wide[..., ::2], "channels last": last, "off a boundary": off, "read-only": fixed}


def test_layouts_give_the_same_bits(backend: str, rng: np.random.Generator) -> None:
    x, w, dy = draw(rng, 2, 6, 9, 7), draw(rng, 5, 6, 3, 3), draw(rng, 2, 5, 9, 7)

    def results(x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> list[np.ndarray]:
        return [
            tkern.im2col(x, 3),
            tkern.conv2d(x, w, padding=1),
            tkern.conv2d_backward_weight(x, dy, w.shape, padding=1),
            tkern.conv2d_backward_input(dy, w, x.shape, padding=1),
            tkern.conv2d_backward_bias(dy),
        ]

    want = results(x, w, dy)
    for name in _views(x):
        for got, right in zip(results(_views(x)[name], _views(w)[name], _views(dy)[name]), want, strict=True):
            assert got.tobytes() == right.tobytes(), name
    spread = [np.broadcast_to(a, s) for a, s in ((x[:1, :1], x.shape), (w[:1], w.shape), (dy[:1, :, :1, :1], dy.shape))]
    for got, right in zip(results(*spread), results(*(a.copy() for a in spread)), strict=True):
        assert got.tobytes() == right.tobytes()


def test_torch_and_device_arrays_come_back_in_kind(backend: str, rng: np.random.Generator) -> None:
    import taichi as ti

    x, dy = draw(rng, 2, 3, 6, 5), draw(rng, 2, 4, 4, 3)
    want = tkern.conv2d_backward_weight(x, dy, (4, 3, 3, 3))
    on_device = [ti.ndarray(ti.f32, a.shape) for a in (x, dy)]
    for array, values in zip(on_device, (x, dy), strict=True):
        array.from_numpy(values)
    got = tkern.conv2d_backward_weight(*on_device, (4, 3, 3, 3))
    assert isinstance(got, ti.Ndarray)
    assert np.array_equal(got.to_numpy(), want)
    torch = pytest.importorskip("torch")
    got = tkern.conv2d_backward_weight(torch.from_numpy(x), torch.from_numpy(dy), torch.Size((4, 3, 3, 3)))
    assert isinstance(got, torch.Tensor)
    assert np.array_equal(got.numpy(), want)


def test_runs_are_bit_identical(backend: str, rng: np.random.Generator) -> None:
    x, dy, w = draw(rng, 4, 8, 20, 21), draw(rng, 4, 9, 20, 21), draw(rng, 9, 8, 3, 3)
    first = (
        tkern.conv2d_backward_weight(x, dy, w.shape, padding=1),
        tkern.conv2d_backward_input(dy, w, x.shape, padding=1),
    )
    for _ in range(5):
        assert tkern.conv2d_backward_weight(x, dy, w.shape, padding=1).tobytes() == first[0].tobytes()
        assert tkern.conv2d_backward_input(dy, w, x.shape, padding=1).tobytes() == first[1].tobytes()


_MEASURE = """
import resource, sys
import numpy as np, tkern
tkern.use("cpu")
small = [np.ones((2, 4, 6, 6), np.float32), np.ones((4, 4, 3, 3), np.float32)]
tkern.conv2d_backward_weight(small[0], small[0], small[1].shape, padding=1)
tkern.conv2d_backward_input(small[0], small[1], small[0].shape, padding=1)
x = np.full((32, 64, 112, 112), 0.5, np.float32)
dy = np.full((32, 64, 112, 112), 0.25, np.float32)
w = np.full((64, 64, 3, 3), 0.5, np.float32)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if sys.argv[1] == "weight":
    out = tkern.conv2d_backward_weight(x, dy, w.shape, padding=1)
    assert abs(out[3, 5, 1, 1] - 0.125 * 32 * 112 * 112) < 1, out[3, 5, 1, 1]
else:
    out = tkern.conv2d_backward_input(dy, w, x.shape, padding=1)
    assert out[3, 5, 50, 50] == 0.125 * 64 * 9, out[3, 5, 50, 50]
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) * 1024 - out.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark of memory is read as Linux gives it")
@pytest.mark.parametrize("which", ["weight", "input"])
def test_memory_beside_the_arrays_is_bounded(which: str) -> None:
    done = subprocess.run([sys.executable, "-c", _MEASURE, which], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 * 2**20


_X, _W, _DY = (np.ones(s, np.float32) for s in ((2, 4, 6, 5), (6, 4, 3, 3), (2, 6, 4, 3)))


@pytest.mark.parametrize(
    ("error", "argument", "expected", "change"),
    [
        (ShapeError, "x", "4 axes", {"x": _X[0]}),
        (ShapeError, "dy", r"\(2, 6, 4, 3\)", {"dy": _DY[0]}),
        (ShapeError, "dy", r"\(2, 6, 4, 3\)", {"dy": _DY[:1]}),
        (ShapeError, "dy", r"\(2, 6, 4, 3\)", {"dy": _DY[:, :5]}),
        (ShapeError, "dy", r"\(2, 6, 4, 3\)", {"dy": _DY[:, :, :3]}),
        (ShapeError, "dy", r"\(2, 6, 4, 3\)", {"dy": _DY.swapaxes(2, 3)}),
        (ShapeError, "dy", r"\(2, 6, 2, 2\)", {"stride": 2}),
        (ShapeError, "weight_shape", "four sizes", {"weight_shape": (6, 4, 3)}),
        (ShapeError, "weight_shape", "C/groups = 4/1 = 4", {"weight_shape": (6, 3, 3, 3)}),
        (ShapeError, "weight_shape", "C/groups = 4/2 = 2", {"groups": 2}),
        (ShapeError, "weight_shape", "spans at most 6", {"weight_shape": (6, 4, 7, 3)}),
        (ShapeError, "weight_shape", "spans at most 5", {"dilation": (1, 3)}),
        (ShapeError, "weight_shape", "at least 1", {"weight_shape": (6, 4, 0, 3)}),
        (ShapeError, "x", "groups = 3 divides", {"groups": 3}),
        (ShapeError, "weight_shape", "groups = 4 divides", {"groups": 4, "weight_shape": (6, 1, 3, 3)}),
        (OptionError, "groups", "at least 1", {"groups": 0}),
        (OptionError, "groups", "at least 1", {"groups": 1.0}),
        (OptionError, "stride", "at least 1", {"stride": 0}),
        (OptionError, "stride", "vertical, horizontal", {"stride": (1, 1, 1)}),
        (OptionError, "dilation", "at least 1", {"dilation": (1, 0)}),
        (OptionError, "padding", "at least 0", {"padding": -1}),
        (OptionError, "padding", r"\(top, bottom\)", {"padding": ((1, 1), (1,))}),
        (OptionError, "padding", "at least 0", {"padding": "same"}),
        (SizeLimitError, "padding", "padded height", {"padding": (2**30, 0)}),
        (DTypeError, "x", "float32", {"x": _X.astype(np.float64)}),
        (DTypeError, "dy", "float32", {"dy": [[1.0]]}),
    ],
)
def test_refusals_name_the_argument(
    error: type[Exception], argument: str, expected: str, change: dict[str, Any]
) -> None:
    inputs = {"x": _X, "dy": _DY, "weight_shape": _W.shape, **change}
    with pytest.raises(error, match=rf"^{argument}: expected .*{expected}") as caught:
        tkern.conv2d_backward_weight(**inputs)
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: tkern.conv2d_backward_input(_DY, _W[0], _X.shape), "weight"),
        (lambda: tkern.conv2d_backward_input(_DY, _W, _X.shape[1:]), "input_shape"),
        (lambda: tkern.conv2d_backward_input(_DY, _W, (2, 5, 6, 5)), "weight"),
        (lambda: tkern.conv2d_backward_input(_DY, _W, (2, 4, 7, 5)), "dy"),
        (lambda: tkern.conv2d_backward_input(_DY, _W, (3, 4, 6, 5)), "dy"),
        (lambda: tkern.conv2d_backward_input(_DY[:, :5], _W, _X.shape), "dy"),
        (lambda: tkern.conv2d_backward_bias(_DY[0]), "dy"),
        (lambda: tkern.conv2d(_X, _W[:, :3]), "weight"),
        (lambda: tkern.conv2d(_X, _W, np.ones(5, np.float32)), "bias"),
        (lambda: tkern.im2col(_X, (3, 0)), "kernel_size"),
        (lambda: tkern.im2col(_X, 7), "kernel_size"),
        (lambda: tkern.im2col(_X[0], 3), "x"),
    ],
)
def test_other_refusals(call: Any, argument: str) -> None:
    with pytest.raises((ShapeError, OptionError), match=rf"^{argument}: expected "):
        call()


def test_results_too_large_for_an_index_are_refused() -> None:
    x = np.broadcast_to(np.float32(1), (1, 1, 2**14, 2**14))
    with pytest.raises(SizeLimitError, match="^kernel_size: expected a result of at most"):
        tkern.im2col(x, 31)


def test_long_sums_of_few_cells_are_divided(backend: str, rng: np.random.Generator) -> None:
    """One or two tiles of an image keep no GPU busy: parts of each sum are made apart, and then added."""
    dy, w = draw(rng, 1, 40, 3, 4), draw(rng, 40, 8, 3, 3)
    want = tkern.oracle.conv2d_backward_input(dy, w, (1, 8, 3, 4), padding=1)
    first, second = (tkern.conv2d_backward_input(dy, w, (1, 8, 3, 4), padding=1) for _ in range(2))
    np.testing.assert_allclose(first, want, atol=2e-4)
    assert np.array_equal(first, second)


def test_a_lane_may_make_several_cells(backend: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_GPU_LANES", 1)
    x, w = draw(rng, 2, 3, 5, 7), draw(rng, 3, 1, 3, 3)
    want = tkern.oracle.conv2d(x, w, padding=1, groups=3)
    np.testing.assert_allclose(tkern.conv2d(x, w, padding=1, groups=3), want, atol=1e-4)


@pytest.mark.parametrize("sizes", [IMAGE, WEIGHT], ids=["image", "weight"])
def test_tiles_fit_the_memory_of_a_workgroup(sizes: dict[str, tuple[ConvTile, ...]]) -> None:
    for tile in (tile for tiles in sizes.values() for tile in tiles):
        assert 8 * tile.slice * (tile.rows + tile.cols + 8) + 12 * (max(tile.lanes, tile.rows) + 1) <= 2**15
        assert tile.lanes % tile.across == 0
        assert tile.cols % (4 * tile.across) == tile.rows % (4 * (tile.lanes // tile.across)) == 0
        assert tile.slice % tile.unrolled == 0
