"""torch tensors on Apple's GPU: taken through the CPU, never wrong in silence. Runs on a Mac alone."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import tkern
from tests.conftest import why_no_mps
from tkern import runtime
from tkern.errors import BackendUnavailable, DTypeError
from tkern.ops.rms_norm import prepare_backward


@pytest.fixture
def torch() -> Any:
    """Return torch where it sees an Apple GPU; skip with the reason elsewhere."""
    if sys.platform != "darwin":
        pytest.skip("torch has MPS tensors on macOS alone")
    found = pytest.importorskip("torch")
    why_not = why_no_mps(found)
    if why_not:
        pytest.skip(why_not)
    return found


@pytest.fixture(params=("cpu", "metal"))
def on(request: pytest.FixtureRequest) -> str:
    """Run the test on the CPU and on Metal, where they are."""
    found = runtime.backend(request.param)
    if not found.available:
        pytest.skip(f"{request.param}: {found.why_not}")
    runtime.use(request.param)
    return str(request.param)


def _inputs(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return tuple(rng.standard_normal(s).astype(np.float32) for s in ((7, 5, 37), (37,), (7, 5, 37)))


def _same(got: Any, want: Any) -> None:
    for g, w in zip(got, want, strict=True):
        assert g.device.type == "mps"
        assert np.array_equal(g.cpu().numpy(), w)


def test_they_are_taken_and_results_are_there_too(torch: Any, on: str, rng: np.random.Generator) -> None:
    x, w, dy = _inputs(rng)
    want = tkern.rms_norm_backward(x, w, dy)
    given = [torch.from_numpy(a).to("mps") for a in (x, w, dy)]
    _same(tkern.rms_norm_backward(*given), want)
    for tensor, array in zip(given, (x, w, dy), strict=True):
        assert np.array_equal(tensor.cpu().numpy(), array)
    # Kinds mixed: results are of the kind of the first.
    _same(tkern.rms_norm_backward(given[0], w, dy), want)


def test_views_of_them_are_what_they_show(torch: Any, on: str, rng: np.random.Generator) -> None:
    x, w, dy = _inputs(rng)
    far = rng.standard_normal((9, 5, 40)).astype(np.float32)
    far[1:8, :, 2:39] = x
    views = [
        torch.from_numpy(far).to("mps")[1:8, :, 2:39],
        torch.from_numpy(np.ascontiguousarray(x.transpose(2, 0, 1))).to("mps").permute(1, 2, 0),
        torch.from_numpy(np.ascontiguousarray(x[::-1])).to("mps").flip(0),
    ]
    given = [torch.from_numpy(a).to("mps") for a in (w, dy)]
    for view in views:
        _same(tkern.rms_norm_backward(view, *given), tkern.rms_norm_backward(x, w, dy))
    expanded = torch.ones(1, device="mps").expand(7, 5, 37)
    _same(tkern.rms_norm_backward(expanded, *given), tkern.rms_norm_backward(np.ones_like(x), w, dy))


def test_what_torch_has_not_finished_is_waited_for(torch: Any, on: str, rng: np.random.Generator) -> None:
    a = torch.from_numpy(rng.standard_normal((1024, 1024)).astype(np.float32)).to("mps")
    product = a
    for _ in range(20):
        product = torch.nn.functional.normalize(product @ a)
    y, rstd = tkern.rms_norm(product)
    _same((y, rstd), tkern.rms_norm(product.cpu().numpy()))


def test_bytes_and_integers_cross_too(torch: Any, on: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 9, 8)).astype(np.float32)
    y, indices = tkern.max_pool2d(torch.from_numpy(x).to("mps"), 3, stride=2)
    _same((y, indices), tkern.max_pool2d(x, 3, stride=2))
    assert indices.dtype == torch.uint8


def test_what_cannot_be_done_with_them_is_refused(torch: Any, on: str, rng: np.random.Generator) -> None:
    x, w, dy = _inputs(rng)
    tensor = torch.from_numpy(x).to("mps")
    with pytest.raises(DTypeError, match="x: expected float32, got torch.float16"):
        tkern.rms_norm(tensor.half())
    out = tuple(torch.empty(shape, device="mps") for shape in ((7, 5, 37), (37,), (7, 5)))
    with pytest.raises(BackendUnavailable, match="dx: an array to be written on .* must live there"):
        prepare_backward(tensor, w, dy, out=out, backend=on)
