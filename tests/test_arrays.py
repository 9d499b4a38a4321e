"""Arrays of every kind, in and out, and outputs that a caller keeps."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tkern
from tests.conftest import why_no_mps
from tkern import arrays, pool, runtime
from tkern.errors import AliasError, BackendUnavailable, DTypeError, ShapeError
from tkern.ops.rms_norm import prepare_backward


def _inputs(rng: np.random.Generator, rows: int = 6, cols: int = 37) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(rng.standard_normal(s).astype(np.float32) for s in ((rows, cols), (cols,), (rows, cols)))  # type: ignore[return-value]


def _same(got: Any, want: Any) -> None:
    for g, w in zip(got, want, strict=True):
        assert np.array_equal(np.asarray(g), w)


def test_ti_ndarrays(backend: str, rng: np.random.Generator) -> None:
    import taichi as ti

    x, w, dy = _inputs(rng)
    want = tkern.rms_norm_backward(x, w, dy)
    for shape in ((6, 37), (2, 3, 37)):
        given = []
        for a in (x.reshape(shape), w, dy.reshape(shape)):
            array = ti.ndarray(ti.f32, a.shape)
            array.from_numpy(a)
            given.append(array)
        dx, dw, rstd = tkern.rms_norm_backward(*given)
        assert isinstance(dx, ti.ScalarNdarray)
        assert tuple(dx.shape) == shape
        assert tuple(rstd.shape) == shape[:-1]
        _same((dx.to_numpy().reshape(6, 37), dw.to_numpy(), rstd.to_numpy().reshape(6)), want)
        assert np.array_equal(given[0].to_numpy(), x.reshape(shape))


def test_a_single_row_as_ti_ndarray(backend: str) -> None:
    import taichi as ti

    x = ti.ndarray(ti.f32, (2,))
    x.from_numpy(np.array([1, 2], np.float32))
    _, rstd = tkern.rms_norm(x, eps=0.0)
    assert tuple(rstd.shape) == (1,)
    np.testing.assert_allclose(rstd.to_numpy(), 1 / np.sqrt(2.5), rtol=1e-6)
    # And back in, as a forward pass saved it.
    assert np.array_equal(tkern.rms_norm_backward(x, None, x, rstd=rstd)[2].to_numpy(), rstd.to_numpy())


def test_other_ti_arrays_are_refused(backend: str) -> None:
    import taichi as ti

    with pytest.raises(DTypeError, match="x: expected float32, got"):
        tkern.rms_norm(ti.ndarray(ti.f64 if backend == "cpu" else ti.i32, (2, 3)))
    with pytest.raises(DTypeError, match="x: expected float32, got"):
        tkern.rms_norm(ti.Vector.ndarray(4, ti.f32, (2, 3)))
    with pytest.raises(DTypeError, match="x: expected a float32 NumPy array, torch tensor or ti.ndarray, got taichi"):
        tkern.rms_norm(ti.Vector([1.0, 2.0]))


def test_torch_tensors(backend: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    x, w, dy = _inputs(rng)
    want = tkern.rms_norm_backward(x, w, dy)
    given = [torch.from_numpy(a.copy()) for a in (x, w, dy)]
    got = tkern.rms_norm_backward(*given)
    assert all(isinstance(g, torch.Tensor) for g in got)
    _same(got, want)
    assert np.array_equal(given[0].numpy(), x)
    # A leaf that needs a gradient, a transposed view, an expanded one, and kinds mixed.
    given[0].requires_grad_(True)
    _same(tkern.rms_norm_backward(given[0], w, dy), want)
    assert given[0].grad is None
    across = torch.from_numpy(np.ascontiguousarray(x.T)).t()
    assert not across.is_contiguous()
    _same(tkern.rms_norm_backward(across, given[1], given[2]), want)
    expanded = torch.ones(1).expand(6, 37)
    _same(tkern.rms_norm_backward(expanded, given[1], given[2]), tkern.rms_norm_backward(np.ones_like(x), w, dy))


def test_torch_tensors_of_other_types_are_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(DTypeError, match="x: expected float32, got torch.float64"):
        tkern.rms_norm(torch.ones(2, 3, dtype=torch.float64))
    with pytest.raises(DTypeError, match="x: expected float32, got torch.bfloat16"):
        tkern.rms_norm(torch.ones(2, 3, dtype=torch.bfloat16))
    with pytest.raises(DTypeError, match=r"x: expected a dense \(strided\) tensor"):
        tkern.rms_norm(torch.eye(3).to_sparse())


def test_torch_tensors_without_readable_data_are_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(DTypeError, match="x: expected a tensor whose data can be read"):
        tkern.rms_norm(torch.ones(2, 3, device="meta"))


def test_a_negated_view_of_a_tensor_keeps_its_sign(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rng.standard_normal((3, 5)).astype(np.float32))
    assert np.array_equal(tkern.rms_norm(torch._neg_view(x))[0], -tkern.rms_norm(x)[0])


def test_torch_on_a_gpu_stays_there(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    place = "cuda" if torch.cuda.is_available() else "mps"
    why_not = "" if place == "cuda" else why_no_mps(torch)
    if why_not:
        pytest.skip(why_not)
    x, w, dy = _inputs(rng)
    for backend in [b.name for b in tkern.backends() if b.available]:
        with tkern.using(backend):
            got = tkern.rms_norm_backward(*(torch.from_numpy(a).to(place) for a in (x, w, dy)))
            assert all(g.device.type == place for g in got)
            _same([g.cpu() for g in got], tkern.rms_norm_backward(x, w, dy))


def _launch(out: tuple[Any, Any, Any], x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> None:
    with runtime.using("cpu"):
        prepare_backward(x, w, dy, out=out, backend="cpu").run()


def test_outputs_that_cannot_be_written_are_refused(rng: np.random.Generator) -> None:
    x, w, dy = _inputs(rng)
    dx, dw, rstd = np.empty_like(x), np.empty_like(w), np.empty(6, np.float32)
    _launch((dx, dw, rstd), x, w, dy)
    _same((dx, dw, rstd), tkern.rms_norm_backward(x, w, dy))

    with pytest.raises(ShapeError, match=r"dx: expected shape \(6, 37\), got \(5, 37\)"):
        _launch((dx[:5], dw, rstd), x, w, dy)
    with pytest.raises(ShapeError, match=r"dweight: expected shape \(37,\), got \(36,\)"):
        _launch((dx, dw[:-1], rstd), x, w, dy)
    with pytest.raises(DTypeError, match="rstd: expected float32, got float64"):
        _launch((dx, dw, rstd.astype(np.float64)), x, w, dy)
    with pytest.raises(ShapeError, match="dx: expected a contiguous array"):
        _launch((np.empty((6, 74), np.float32)[:, ::2], dw, rstd), x, w, dy)
    read_only = dx.copy()
    read_only.flags.writeable = False
    with pytest.raises(AliasError, match="dx: expected an array that may be written, got a read-only one"):
        _launch((read_only, dw, rstd), x, w, dy)


def test_outputs_that_share_memory_are_refused(rng: np.random.Generator) -> None:
    x, w, dy = _inputs(rng)
    dx, dw, rstd = np.empty_like(x), np.empty_like(w), np.empty(6, np.float32)
    with pytest.raises(AliasError, match="dx: .* memory shared with x"):
        _launch((x, dw, rstd), x, w, dy)
    with pytest.raises(AliasError, match="dx: .* memory shared with dy"):
        _launch((dy, dw, rstd), x, w, dy)
    with pytest.raises(AliasError, match="dweight: .* memory shared with dx"):
        _launch((dx, dx[2], rstd), x, w, dy)
    whole = np.empty(100, np.float32)
    with pytest.raises(AliasError, match="rstd: .* memory shared with dweight"):
        _launch((dx, whole[:37], whole[36:42]), x, w, dy)
    _launch((dx, whole[:37], whole[37:43]), x, w, dy)


def test_host_outputs_on_a_gpu_are_refused(rng: np.random.Generator) -> None:
    others = [b.name for b in tkern.backends() if b.available and b.name != "cpu"]
    if not others:
        pytest.skip("no GPU backend here")
    x, w, dy = _inputs(rng)
    out = (np.empty_like(x), np.empty_like(w), np.empty(6, np.float32))
    with runtime.using(others[0]), pytest.raises(BackendUnavailable, match="dx: an array to be written on"):
        prepare_backward(x, w, dy, out=out, backend=others[0])


def test_results_are_aligned_and_apart(rng: np.random.Generator) -> None:
    with runtime.using("cpu"):
        for rows in (3, 9000):
            x, w, dy = _inputs(rng, rows)
            first, second = tkern.rms_norm_backward(x, w, dy)[0], tkern.rms_norm_backward(x, w, dy)[0]
            assert first.ctypes.data % 64 == 0
            assert not np.shares_memory(first, second)
            assert first.flags.writeable


def test_memory_of_results_is_used_again() -> None:
    pool.release()
    array = pool.empty(10**6)
    address = array.ctypes.data
    view = array[5:].reshape(-1)
    del array
    gc.collect()
    assert pool.kept_bytes() == 0, "a view still holds it"
    assert pool.empty(10**6).ctypes.data != address
    del view
    gc.collect()
    assert pool.kept_bytes() > 0
    again = pool.empty(10**6)
    assert pool.kept_bytes() < 2 * 4 * 10**6 + 200
    again[:] = 1
    pool.release()
    assert pool.kept_bytes() == 0
    assert np.all(again == 1)


def test_the_pool_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    pool.release()
    monkeypatch.setattr(pool, "MOST_KEPT", 10 * 2**20)
    held = [pool.empty(10**6) for _ in range(6)]
    del held
    gc.collect()
    assert 0 < pool.kept_bytes() <= 10 * 2**20
    pool.release()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow(rng: np.random.Generator) -> None:
    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096

    with runtime.using("cpu"):
        x, w, dy = _inputs(rng, 3000, 200)
        for _ in range(20):
            tkern.rms_norm_backward(x, w, dy)
        before = resident()
        for _ in range(300):
            tkern.rms_norm_backward(x, w, dy)
        assert resident() - before < 8 * 2**20


def test_a_launch_keeps_the_memory_it_reads(rng: np.random.Generator) -> None:
    import taichi as ti

    from tkern.ops.rms_norm import prepare_forward

    with runtime.using("cpu"):
        x = rng.standard_normal((2000, 300)).astype(np.float32)
        array = ti.ndarray(ti.f32, x.shape)
        array.from_numpy(x)
        launch = prepare_forward(array, backend="cpu")
        del array
        gc.collect()
        others = [ti.ndarray(ti.f32, x.shape) for _ in range(3)]
        launch.run()
        y = launch.results()[0].to_numpy()
        assert np.array_equal(y, tkern.rms_norm(x)[0])
        del others


def test_no_noise_when_a_result_outlives_the_interpreter() -> None:
    code = (
        "import numpy as np, tkern\n"
        "class Model(np.ndarray):\n    def run(self, x): return 1\n"
        "y = tkern.rms_norm(np.ones((512, 1024), np.float32))[0]\n"
        "import builtins; builtins.kept = y"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_shapes_are_written_as_in_python() -> None:
    assert arrays.shape_text(()) == "()"
    assert arrays.shape_text((3,)) == "(3,)"
    assert arrays.shape_text((3, 4)) == "(3, 4)"
