"""Max pooling by known values, every geometry, layouts, ties, and what it must refuse."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tkern
from tkern import arrays, parity, registry, runtime
from tkern.errors import AliasError, DTypeError, OptionError, ShapeError, SizeLimitError
from tkern.ops import max_pool2d as op
from tkern.spec import Case

TIES = ("first", "split", "all")


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def special(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Few values, so that many are equal, with NaN, both infinities and both zeros."""
    return rng.choice(
        f32(-1, 0, -0.0, 1, 2, np.nan, -np.inf, np.inf, 1e-40), shape, p=[0.15] * 5 + [0.03, 0.14, 0.03, 0.05]
    )


def test_one_row_by_hand(backend: str) -> None:
    x = f32(5, 3, 1, 2, 5).reshape(1, 1, 1, 5)
    y, indices = tkern.max_pool2d(x, (1, 2), stride=1)
    assert y.reshape(-1).tolist() == [5, 3, 2, 5]
    assert indices.reshape(-1).tolist() == [0, 0, 1, 1]
    assert indices.dtype == np.uint8
    dx = tkern.max_pool2d_backward(x, np.ones_like(y), (1, 2), stride=1)
    assert dx.reshape(-1).tolist() == [1, 1, 0, 1, 1]


@pytest.mark.parametrize("saved", [False, True])
def test_each_rule_for_ties_by_hand(saved: bool, backend: str) -> None:
    x = f32([1, 2], [2, 2]).reshape(1, 1, 2, 2)
    dy = np.ones((1, 1, 1, 1), np.float32)
    indices = tkern.max_pool2d(x, 2)[1] if saved else None
    third = np.float32(1) / np.float32(3)
    for ties, want in (("first", [0, 1, 0, 0]), ("split", [0, third, third, third]), ("all", [0, 1, 1, 1])):
        dx = tkern.max_pool2d_backward(x, dy, 2, ties=ties, indices=indices)
        np.testing.assert_allclose(dx.reshape(-1), want, rtol=2e-7)
    assert tkern.max_pool2d_backward(x, dy, 2).reshape(-1).tolist() == [0, 1, 0, 0]


def test_overlapping_windows_by_hand(backend: str) -> None:
    x = np.arange(1, 25, dtype=np.float32).reshape(1, 1, 4, 6)
    x[0, 0, 1, 1] = 88
    dy = np.ones((1, 1, 2, 3), np.float32)
    want = np.zeros((4, 6))
    want[1, 1], want[1, 5], want[3, 5] = 4, 1, 1
    dx = tkern.max_pool2d_backward(x, dy, 3, stride=2, padding=1)
    assert np.array_equal(dx[0, 0], want)


def test_a_nan_is_the_largest_and_equals_nothing(backend: str) -> None:
    x = f32([np.nan, 9, np.nan, 9]).reshape(1, 1, 1, 4)
    dy = f32(2).reshape(1, 1, 1, 1)
    y, indices = tkern.max_pool2d(x, (1, 4))
    assert np.isnan(y).all()
    assert indices.item() == 0
    for ties in TIES:
        assert tkern.max_pool2d_backward(x, dy, (1, 4), ties=ties).reshape(-1).tolist() == [2, 0, 0, 0]
    assert tkern.max_pool2d(x[..., ::-1].copy(), (1, 4))[1].item() == 1


def test_minus_infinity_is_a_value_and_padding_is_none(backend: str) -> None:
    x = np.full((1, 1, 3, 3), -np.inf, np.float32)
    y, indices = tkern.max_pool2d(x, 3, stride=2, padding=1)
    assert np.isneginf(y).all()
    assert indices[0, 0].tolist() == [[4, 3], [1, 0]]
    dy = f32([1, 2], [3, 4]).reshape(1, 1, 2, 2)
    first = tkern.max_pool2d_backward(x, dy, 3, stride=2, padding=1)
    assert first[0, 0].tolist() == [[1, 2, 0], [3, 4, 0], [0, 0, 0]]
    split = tkern.max_pool2d_backward(x, dy, 3, stride=2, padding=1, ties="split")
    assert split[0, 0].tolist() == [[0.25, 0.75, 0.5], [1, 2.5, 1.5], [0.75, 1.75, 1]]


def test_zeros_of_either_sign_tie(backend: str) -> None:
    x = f32([-0.0, 0.0]).reshape(1, 1, 1, 2)
    assert tkern.max_pool2d(x, (1, 2))[1].item() == 0
    assert tkern.max_pool2d_backward(x, f32(1).reshape(1, 1, 1, 1), (1, 2), ties="split").reshape(-1).tolist() == [
        0.5,
        0.5,
    ]


def test_cells_under_no_window_get_nothing(backend: str, rng: np.random.Generator) -> None:
    x = draw(rng, 2, 3, 11, 40)
    y, indices = tkern.max_pool2d(x, 2, stride=3)
    dx = tkern.max_pool2d_backward(x, np.ones_like(y), 2, stride=3, indices=indices)
    assert y.shape == (2, 3, 4, 13)
    assert not dx[..., 2::3, :].any()
    assert not dx[..., 2::3].any()
    assert dx.sum() == y.size


@pytest.mark.parametrize("shape", [(0, 3, 5, 6), (2, 0, 5, 6)])
def test_an_empty_batch(shape: tuple[int, ...], backend: str) -> None:
    x = np.empty(shape, np.float32)
    y, indices = tkern.max_pool2d(x, 2)
    assert y.shape == indices.shape == (*shape[:2], 2, 3)
    assert tkern.max_pool2d_backward(x, y, 2).shape == shape


def test_sizes_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for size in range(1, 12):
        for k, s, p, d, ceil in np.ndindex(4, 4, 2, 2, 2):
            kernel, stride, dilation = k + 1, s + 1, d + 1
            x = torch.arange(float(size)).reshape(1, 1, 1, size)
            options: dict[str, Any] = {"stride": (1, stride), "padding": (0, p), "dilation": (1, dilation)}
            try:
                y, flat = torch.nn.functional.max_pool2d(
                    x, (1, kernel), **options, ceil_mode=bool(ceil), return_indices=True
                )
            except RuntimeError:
                continue
            if torch.isinf(y).any() or y.numel() == 0:
                continue  # a window without a real cell
            got, indices = tkern.oracle.max_pool2d(x.numpy(), (1, kernel), **options, ceil_mode=bool(ceil))
            assert np.array_equal(got, y.numpy())
            offsets = tkern.max_pool2d_indices_from_flat(
                flat.numpy(), (1, 1, 1, size), (1, kernel), **options, ceil_mode=bool(ceil)
            )
            assert np.array_equal(offsets, indices)


def test_indices_to_flat_and_back(backend: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    x = draw(rng, 2, 3, 17, 23)
    options: dict[str, Any] = {"stride": 2, "padding": 1, "dilation": (1, 2)}
    _, indices = tkern.max_pool2d(x, 3, **options)
    flat = tkern.max_pool2d_indices_to_flat(indices, x.shape, 3, **options)
    want = torch.nn.functional.max_pool2d(torch.from_numpy(x), 3, **options, return_indices=True)[1]
    assert flat.dtype == np.int64
    assert np.array_equal(flat, want.numpy())
    back = tkern.max_pool2d_indices_from_flat(want, x.shape, 3, **options)
    assert back.dtype == torch.uint8
    assert np.array_equal(back.numpy(), indices)
    wrong = flat.copy()
    wrong[1, 2, 3, 4] += 40
    with pytest.raises(OptionError, match=r"^indices: .* at \(1, 2, 3, 4\)"):
        tkern.max_pool2d_indices_from_flat(wrong, x.shape, 3, **options)
    with pytest.raises(OptionError, match="^indices: "):
        tkern.max_pool2d_indices_to_flat(np.full_like(indices, 9), x.shape, 3, **options)


def test_windows_beyond_a_byte_have_int32_indices(backend: str, rng: np.random.Generator) -> None:
    x = draw(rng, 2, 17, 40)
    y, indices = tkern.max_pool2d(x, (17, 20), stride=(1, 3))
    assert indices.dtype == np.int32
    assert indices.max() > 255
    want = tkern.oracle.max_pool2d(x, (17, 20), stride=(1, 3))
    assert np.array_equal(indices, want[1])
    dx = tkern.max_pool2d_backward(x, y, (17, 20), stride=(1, 3), indices=indices)
    np.testing.assert_allclose(dx, tkern.oracle.max_pool2d_backward(x, y, (17, 20), stride=(1, 3)), atol=1e-5)


def _layouts(a: np.ndarray) -> dict[str, np.ndarray]:
    """Return views with the values of ``a`` in other layouts."""
    wide = np.empty((*a.shape[:-1], 2 * a.shape[-1] + 1), a.dtype)
    wide[..., 1::2] = a
    bytes_ = np.empty(a.nbytes + 1, np.uint8)
    misaligned = bytes_[1:].view(a.dtype).reshape(a.shape)
    misaligned[...] = a
    read_only = a.copy()
    read_only.flags.writeable = False
    return {
        "strided": wide[..., 1::2],
        "fortran": np.asfortranarray(a),
        "reversed": np.ascontiguousarray(a[..., ::-1])[..., ::-1],
        "not on a float boundary": misaligned,
        "read-only": read_only,
    }


@pytest.mark.parametrize("width", [60, 37])
def test_layouts_give_the_same_bits(width: int, backend: str, rng: np.random.Generator) -> None:
    x = draw(rng, 2, 3, 21, width)
    options: dict[str, Any] = {"stride": 2, "padding": 1}
    y, indices = tkern.max_pool2d(x, 3, **options)
    dy = draw(rng, *y.shape)
    want = tkern.max_pool2d_backward(x, dy, 3, **options, indices=indices)
    for name in _layouts(x):
        got = tkern.max_pool2d(_layouts(x)[name], 3, **options)
        assert np.array_equal(got[0], y), name
        assert np.array_equal(got[1], indices), name
        dx = tkern.max_pool2d_backward(
            _layouts(x)[name], _layouts(dy)[name], 3, **options, indices=_layouts(indices)[name]
        )
        assert dx.tobytes() == want.tobytes(), name
    again = tkern.max_pool2d_backward(x, dy, 3, **options)
    assert again.tobytes() == want.tobytes()


def test_expanded_inputs_give_the_same_bits(backend: str, rng: np.random.Generator) -> None:
    x = np.broadcast_to(draw(rng, 9, 33), (4, 9, 33))
    dy = np.broadcast_to(np.float32(0.3), (4, 8, 32))
    got = tkern.max_pool2d_backward(x, dy, 2, stride=1)
    assert got.tobytes() == tkern.max_pool2d_backward(x.copy(), dy.copy(), 2, stride=1).tobytes()


def test_torch_tensors(backend: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(draw(rng, 2, 2, 12, 50)).requires_grad_(True)
    y, indices = tkern.max_pool2d(x, 3, stride=2, padding=1)
    assert indices.dtype == torch.uint8
    want = torch.nn.functional.max_pool2d(x, 3, 2, 1)
    assert torch.equal(y, want)
    dy = torch.from_numpy(draw(rng, *y.shape))
    dx = tkern.max_pool2d_backward(x, dy, 3, stride=2, padding=1, indices=indices)
    torch.testing.assert_close(dx, torch.autograd.grad(want, x, dy)[0])


def test_taichi_arrays(backend: str, rng: np.random.Generator) -> None:
    import taichi as ti

    host = draw(rng, 2, 2, 12, 50)
    x = ti.ndarray(ti.f32, host.shape)
    x.from_numpy(host)
    y, indices = tkern.max_pool2d(x, 3, stride=2, padding=1)
    want = tkern.max_pool2d(host, 3, stride=2, padding=1)
    assert np.array_equal(y.to_numpy(), want[0])
    assert np.array_equal(indices.to_numpy(), want[1])
    dx = tkern.max_pool2d_backward(x, y, 3, stride=2, padding=1, indices=indices)
    assert np.array_equal(dx.to_numpy(), tkern.max_pool2d_backward(host, want[0], 3, stride=2, padding=1))


def test_nothing_beyond_the_arrays_is_touched(backend: str, rng: np.random.Generator) -> None:
    if backend != "cpu":
        pytest.skip("arrays of a caller are written in place on the CPU only")
    for shape in ((2, 3, 5, 7), (3, 20, 20), (1, 9, 70), (2, 41)):
        options: dict[str, Any] = {"stride": 1, "padding": 1}
        x = draw(rng, *shape)
        y, indices = tkern.max_pool2d(x, 3, **options)
        room = np.full(x.size + 64, 7.0, np.float32)
        out = room[32:-32].reshape(shape)
        launch = op.prepare_backward(x, y, 3, **options, indices=indices, out=(out,), backend=backend)
        launch.run()
        launch.results()
        assert np.array_equal(out, tkern.max_pool2d_backward(x, y, 3, **options))
        assert np.all(room[:32] == 7.0)
        assert np.all(room[-32:] == 7.0)
        with pytest.raises(AliasError, match="^dx: "):
            op.prepare_backward(x, y, 3, **options, out=(x,), backend=backend)


@pytest.mark.parametrize("ties", TIES)
def test_runs_are_bit_identical(ties: str, backend: str, rng: np.random.Generator) -> None:
    x = np.round(draw(rng, 8, 40, 44))
    dy = draw(rng, 8, 20, 22)
    first = tkern.max_pool2d_backward(x, dy, 3, stride=2, padding=1, ties=ties)
    for _ in range(5):
        assert tkern.max_pool2d_backward(x, dy, 3, stride=2, padding=1, ties=ties).tobytes() == first.tobytes()


def test_no_memory_beyond_the_indices(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = arrays.workspace

    def counted(count: int, backend: str, dtype: str = "float32") -> Any:
        asked.append(count * np.dtype(dtype).itemsize)
        return real(count, backend, dtype)

    monkeypatch.setattr(arrays, "workspace", counted)
    with tkern.using("cpu"):
        x = draw(rng, 8, 64, 64)
        y, indices = tkern.max_pool2d(x, 3, stride=1, padding=1)
        tkern.max_pool2d_backward(x, y, 3, stride=1, padding=1, indices=indices)
        assert not asked
        tkern.max_pool2d_backward(x, y, 3, stride=1, padding=1)
        assert asked == [y.size]
        asked.clear()
        tkern.max_pool2d_backward(x, y, 3, stride=1, padding=1, ties="split")
        assert sum(asked) <= 2 * y.size + 1


_axis = st.tuples(st.integers(1, 70), st.integers(1, 5), st.integers(1, 6), st.integers(0, 2), st.integers(1, 3))


def _run_drawn(backend: str, drawn: dict[str, Any]) -> None:
    (h, kh, sh, ph, dh), (w, kw, sw, pw, dw) = drawn["h"], drawn["w"]
    options: dict[str, Any] = {
        "kernel_size": (kh, kw),
        "stride": (sh, sw),
        "padding": (ph, pw),
        "dilation": (dh, dw),
        "ceil_mode": drawn["ceil_mode"],
    }
    rng = np.random.default_rng(drawn["seed"])
    x = special(rng, drawn["planes"], h, w) if drawn["special"] else draw(rng, drawn["planes"], h, w)
    try:
        y, indices = tkern.max_pool2d(x, **options)
    except OptionError as error:
        # Then the oracle has no answer either.
        if error.argument not in ("padding", "kernel_size"):
            raise
        with pytest.raises(ValueError):  # noqa: PT011 - the oracle's own, or NumPy's for less than no window
            tkern.oracle.max_pool2d(x, **options)
        return
    want_y, want_indices = tkern.oracle.max_pool2d(x, **options)
    assert np.array_equal(indices, want_indices)
    small = np.abs(want_y) < 1e-37  # rounded to 0, or not
    assert np.array_equal(np.where(small, 0, y), np.where(small, 0, want_y.astype(np.float32)), equal_nan=True)
    inputs = {"x": x, "dy": draw(rng, *y.shape), "ties": drawn["ties"], **options}
    if drawn["saved"]:
        inputs["indices"] = indices
    result = parity.check_case(registry.all_ops()["max_pool2d_backward"], Case("drawn", lambda _: inputs), backend)
    assert result.held, result.problem


_DRAWN: dict[str, Any] = {
    "planes": st.integers(1, 3),
    "ceil_mode": st.booleans(),
    "ties": st.sampled_from(TIES),
    "saved": st.booleans(),
    "special": st.booleans(),
    "seed": st.integers(0, 2**32 - 1),
}
_SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@_SETTINGS
@given(h=_axis, w=_axis, **_DRAWN)
def test_any_geometry(backend: str, **drawn: Any) -> None:
    """Every geometry by the kernels that take it as run-time numbers, so that few are compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(op.SIZES, backend, dataclasses.replace(op.SIZES[backend], fixed=(0, 0)))
        _run_drawn(backend, drawn)


# (kernel, stride, padding, dilation) that are compiled in; sizes decide whether windows reach as far as the image.
_FIXED = ((2, 2, 0, 1), (2, 3, 0, 1), (3, 2, 1, 1), (3, 1, 1, 1), (2, 3, 1, 2))


@settings(_SETTINGS, max_examples=40)
@given(h=st.integers(1, 40), w=st.integers(1, 70), fixed=st.sampled_from(_FIXED), **_DRAWN)
def test_any_size_of_usual_windows(backend: str, **drawn: Any) -> None:
    """Every size by the kernels that a usual geometry is compiled into."""
    _run_drawn(backend, {**drawn, **{axis: (drawn[axis], *drawn["fixed"]) for axis in "hw"}})


_X = np.ones((2, 3, 8, 9), np.float32)
_DY = np.ones((2, 3, 4, 4), np.float32)
_I = np.zeros((2, 3, 4, 4), np.uint8)


@pytest.mark.parametrize(
    ("error", "argument", "change"),
    [
        (DTypeError, "x", {"x": [[1.0, 2.0]]}),
        (DTypeError, "x", {"x": _X.astype(np.float64)}),
        (ShapeError, "x", {"x": np.ones(9, np.float32)}),
        (ShapeError, "x", {"x": np.ones((2, 3, 0, 9), np.float32)}),
        (DTypeError, "dy", {"dy": _DY.astype(np.float16)}),
        (ShapeError, "dy", {"dy": _DY[..., :3]}),
        (DTypeError, "indices", {"indices": _I.astype(np.int64)}),
        (DTypeError, "indices", {"indices": _I.astype(np.int32)}),
        (DTypeError, "indices", {"indices": 3}),
        (ShapeError, "indices", {"indices": _I[:1]}),
        (OptionError, "kernel_size", {"kernel_size": 0}),
        (OptionError, "kernel_size", {"kernel_size": 2.0}),
        (OptionError, "kernel_size", {"kernel_size": (2, 2, 2)}),
        (OptionError, "kernel_size", {"kernel_size": 10}),
        (OptionError, "kernel_size", {"kernel_size": True}),
        (OptionError, "stride", {"stride": 0}),
        (OptionError, "stride", {"stride": (2, -1)}),
        (OptionError, "padding", {"padding": -1}),
        (OptionError, "padding", {"padding": 2}),
        (OptionError, "padding", {"padding": ((1, 1), (1, 1))}),
        (OptionError, "padding", {"x": np.ones((1, 1), np.float32), "padding": 1, "dilation": 2}),
        (OptionError, "dilation", {"dilation": 0}),
        (OptionError, "ceil_mode", {"ceil_mode": 1}),
        (OptionError, "ties", {"ties": "last"}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_refusals_name_the_argument(error: type[Exception], argument: str, change: dict[str, Any]) -> None:
    inputs = {"x": _X, "dy": _DY, "kernel_size": 2, **change}
    with pytest.raises(error, match=rf"^{argument}: expected .*, got ") as caught:
        tkern.max_pool2d_backward(**inputs)
    assert caught.value.argument == argument  # type: ignore[attr-defined]
    if argument not in ("dy", "indices", "ties"):
        inputs.pop("dy")
        with pytest.raises(error, match=rf"^{argument}: "):
            tkern.max_pool2d(**inputs)


def test_more_elements_than_an_index_reaches_are_refused(backend: str) -> None:
    limit = arrays.LIMITS[backend]
    x = np.broadcast_to(np.float32(1), (limit // 16 + 1, 4, 4))
    with pytest.raises(SizeLimitError, match=f"^x: expected at most {limit} elements"):
        tkern.max_pool2d(x, 2)


def test_indices_of_no_cell_read_nothing_beyond_the_arrays(backend: str, rng: np.random.Generator) -> None:
    x = draw(rng, 2, 9, 9)
    indices = np.full((2, 4, 4), 255, np.uint8)
    for ties in TIES:
        tkern.max_pool2d_backward(x, draw(rng, 2, 4, 4), 3, stride=2, ties=ties, indices=indices)


def test_loops_that_a_software_device_ends_are_refused(backend: str) -> None:
    x = np.arange(300 * 300, dtype=np.float32).reshape(300, 300)
    if runtime.backend(backend).in_software:
        with pytest.raises(SizeLimitError, match="^x: expected at most 65535 steps"):
            tkern.max_pool2d(x, 300)
    else:
        y, indices = tkern.max_pool2d(x, 300)
        assert (y.item(), indices.item()) == (x.size - 1, x.size - 1)


def test_one_program_takes_what_many_take(backend: str, rng: np.random.Generator) -> None:
    x = draw(rng, 3, 21, 300)
    y, indices = tkern.max_pool2d(x, 3, stride=2, padding=1)
    dy = draw(rng, *y.shape)
    want = tkern.max_pool2d_backward(x, dy, 3, stride=2, padding=1, indices=indices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(op.SIZES, backend, dataclasses.replace(op.SIZES[backend], programs=(1,)))
        got = tkern.max_pool2d_backward(x, dy, 3, stride=2, padding=1, indices=indices)
    assert got.tobytes() == want.tobytes()
