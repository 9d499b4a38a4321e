"""Cross-entropy's gradient by known values, options, in place, and what it must refuse; sizes are parity's cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tkern
from tkern import arrays, parity, registry
from tkern.errors import (
    AliasError,
    BackendUnavailable,
    DTypeError,
    OptionError,
    ShapeError,
    SizeLimitError,
)
from tkern.ops.cross_entropy_backward import SIZES, prepare
from tkern.spec import Case


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def test_two_rows_by_hand(backend: str) -> None:
    # p = (1/4, 3/4) in both rows; the third is ignored and does not count.
    logits = np.log(np.array([[1, 3], [1, 3], [5, 1]], np.float32))
    labels = np.array([0, 1, -100])
    got = tkern.cross_entropy_backward(logits, labels)
    np.testing.assert_allclose(got, [[-0.375, 0.375], [0.125, -0.125], [0, 0]], atol=1e-7)
    got = tkern.cross_entropy_backward(logits, labels, 2.0, reduction="sum", label_smoothing=0.5)
    # q = (3/4, 1/4) and (1/4, 3/4).
    np.testing.assert_allclose(got, [[-1, 1], [0, 0], [0, 0]], atol=3e-7)
    each = np.array([1, -4, 9], np.float32)
    got = tkern.cross_entropy_backward(logits, labels, each, reduction="none")
    np.testing.assert_allclose(got, [[-0.75, 0.75], [-1, 1], [0, 0]], atol=3e-7)


def test_an_ignored_row_is_zero_whatever_is_in_it(backend: str, rng: np.random.Generator) -> None:
    for cols in (20, 48):
        logits, labels = draw(rng, 5, cols), np.array([1, -100, 3, -100, 0])
        want = tkern.cross_entropy_backward(logits, labels)
        logits[1], logits[3, 2] = np.nan, np.inf
        got = tkern.cross_entropy_backward(logits, labels)
        assert np.array_equal(got, want)
        assert not got[[1, 3]].any()
        assert not tkern.cross_entropy_backward(logits, np.full(5, -100)).any()


def test_large_logits_do_not_overflow(backend: str) -> None:
    logits = np.array([[3e4, 3e4, -3e4], [-1e8, -1e8, -3e8]], np.float32)
    got = tkern.cross_entropy_backward(logits, np.array([2, 0]), reduction="sum")
    np.testing.assert_allclose(got, [[0.5, 0.5, -1], [-0.5, 0.5, 0]], atol=1e-7)


def test_labels_of_both_types_and_layouts_give_the_same_bits(backend: str, rng: np.random.Generator) -> None:
    for cols in (48, 37):
        logits, labels = draw(rng, 21, cols), rng.integers(0, cols, 21)
        want = tkern.cross_entropy_backward(logits, labels)
        for change in (
            np.asfortranarray,
            lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
            lambda a: a[::-1].copy()[::-1],
            lambda a: np.concatenate([a.reshape(-1)[:1], a.reshape(-1)])[1:].reshape(a.shape),
        ):
            for dtype in (np.int64, np.int32):
                assert np.array_equal(tkern.cross_entropy_backward(change(logits), change(labels).astype(dtype)), want)
        one = np.broadcast_to(logits[0], logits.shape)
        assert np.array_equal(
            tkern.cross_entropy_backward(one, labels), tkern.cross_entropy_backward(one.copy(), labels)
        )
        assert np.array_equal(
            tkern.cross_entropy_backward(logits, labels, 2.0),
            tkern.cross_entropy_backward(logits, labels, np.array(2, np.float32)),
        )


def test_in_place_has_the_bits_of_a_new_array(backend: str, rng: np.random.Generator) -> None:
    import taichi as ti

    for rows, cols in ((9, 48), (9, 37), (3, 20001)):
        logits, labels = draw(rng, rows, cols), rng.integers(0, cols, rows)
        labels[1] = -100
        want = tkern.cross_entropy_backward(logits, labels, label_smoothing=0.1)
        array = ti.ndarray(ti.f32, (rows, cols))
        array.from_numpy(logits)
        got = tkern.cross_entropy_backward(array, labels, label_smoothing=0.1, in_place=True)
        assert got is array
        assert np.array_equal(array.to_numpy(), want)
        if backend == "cpu":
            room = np.full(rows * cols + 64, 7.0, np.float32)
            mine = room[32:-32].reshape(rows, cols)
            mine[...] = logits
            assert tkern.cross_entropy_backward(mine, labels, label_smoothing=0.1, in_place=True) is mine
            assert np.array_equal(mine, want)
            assert np.all(room[:32] == 7.0)
            assert np.all(room[-32:] == 7.0)
        elif backend != "cuda":
            with pytest.raises(BackendUnavailable, match=f"^logits: an array to be written on {backend} must live"):
                tkern.cross_entropy_backward(logits, labels, in_place=True)


def test_in_place_refuses_what_cannot_be_written(rng: np.random.Generator) -> None:
    logits, labels = draw(rng, 4, 6), np.arange(4)
    with tkern.using("cpu"):
        with pytest.raises(ShapeError, match="^logits: expected a contiguous array"):
            tkern.cross_entropy_backward(logits[:, ::2], labels % 3, in_place=True)
        with pytest.raises(AliasError, match="^logits: expected memory of its own: dout is still read"):
            tkern.cross_entropy_backward(logits, labels, logits[0, :4], reduction="none", in_place=True)
        with pytest.raises(OptionError, match="^in_place: "):
            prepare(logits, labels, out=(np.empty_like(logits),), in_place=True, backend="cpu")
        logits.flags.writeable = False
        with pytest.raises(AliasError, match="^logits: expected an array that may be written"):
            tkern.cross_entropy_backward(logits, labels, in_place=True)


def test_torch_in_and_out(backend: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    logits = torch.from_numpy(draw(rng, 9, 33)).requires_grad_(True)
    labels = torch.from_numpy(rng.integers(0, 33, 9))
    labels[2] = -100
    for options in ({}, {"label_smoothing": 0.2, "reduction": "sum"}, {"reduction": "none", "ignore_index": 5}):
        mine = labels.clamp(min=0) if "ignore_index" in options else labels
        loss = torch.nn.functional.cross_entropy(logits, mine, **options)
        dout = torch.from_numpy(np.asarray(draw(rng, *loss.shape), np.float32))
        (want,) = torch.autograd.grad(loss, logits, dout)
        got = tkern.cross_entropy_backward(logits, mine, dout, **options)  # type: ignore[arg-type]
        assert isinstance(got, torch.Tensor)
        assert not got.requires_grad
        torch.testing.assert_close(got, want, atol=2e-7, rtol=1e-5)
    if backend == "cpu":
        x = logits.detach().clone()
        version = x._version
        assert tkern.cross_entropy_backward(x, labels, in_place=True) is x
        assert x._version > version


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 70),
    # Few widths, so that few kernels are compiled; every number of rows.
    cols=st.sampled_from([1, 2, 7, 16, 31, 64, 65, 257]),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    ignore=st.sampled_from([-100, 0, 2**40]),
    spread=st.sampled_from([0.01, 1.0, 40.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape_and_option(backend: str, **drawn: Any) -> None:
    rows, cols = drawn["rows"], drawn["cols"]

    def make(rng: np.random.Generator) -> dict[str, Any]:
        rng = np.random.default_rng(drawn["seed"])
        labels = rng.integers(0, cols, rows)
        labels[rng.random(rows) < 0.2] = drawn["ignore"]
        return {
            "logits": np.float32(drawn["spread"]) * draw(rng, rows, cols),
            "labels": labels,
            "dout": draw(rng, rows) if drawn["reduction"] == "none" else np.asarray(rng.uniform(1, 2), np.float32),
            "ignore_index": drawn["ignore"],
            "label_smoothing": drawn["smoothing"],
            "reduction": drawn["reduction"],
        }

    result = parity.check_case(registry.all_ops()["cross_entropy_backward"], Case("drawn", make), backend)
    assert result.held, result.problem


_Z = np.ones((4, 6), np.float32)
_L = np.array([0, 5, -100, 2])


@pytest.mark.parametrize(
    ("error", "argument", "change"),
    [
        (DTypeError, "logits", {"logits": [[1.0, 2.0]]}),
        (DTypeError, "logits", {"logits": _Z.astype(np.float64)}),
        (DTypeError, "labels", {"labels": [0, 1, 2, 3]}),
        (DTypeError, "labels", {"labels": _L.astype(np.float32)}),
        (DTypeError, "labels", {"labels": _L.astype(np.int16)}),
        (DTypeError, "dout", {"dout": np.array(1.0)}),
        (DTypeError, "dout", {"dout": 1.0, "reduction": "none"}),
        (ShapeError, "logits", {"logits": np.ones(6, np.float32)}),
        (ShapeError, "logits", {"logits": np.ones((4, 0), np.float32)}),
        (ShapeError, "logits", {"logits": np.ones((4, 6, 2), np.float32)}),
        (ShapeError, "labels", {"labels": _L[:3]}),
        (ShapeError, "labels", {"labels": _L[:, None]}),
        (ShapeError, "dout", {"dout": np.ones(4, np.float32)}),
        (ShapeError, "dout", {"dout": np.ones(3, np.float32), "reduction": "none"}),
        (OptionError, "labels", {"labels": np.array([0, 6, 1, 2])}),
        (OptionError, "labels", {"labels": np.array([0, -1, 1, 2])}),
        (OptionError, "labels", {"labels": np.array([0, 2**32, 1, 2])}),
        (OptionError, "labels", {"ignore_index": -1}),
        (OptionError, "dout", {"dout": "one"}),
        (OptionError, "ignore_index", {"ignore_index": 1.5}),
        (OptionError, "label_smoothing", {"label_smoothing": 1.5}),
        (OptionError, "label_smoothing", {"label_smoothing": -0.1}),
        (OptionError, "reduction", {"reduction": "max"}),
        (OptionError, "in_place", {"in_place": 1}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_refusals_name_the_argument(error: type[Exception], argument: str, change: dict[str, Any]) -> None:
    with pytest.raises(error, match=rf"^{argument}: expected .*, got ") as caught:
        tkern.cross_entropy_backward(**{"logits": _Z, "labels": _L, **change})
    assert caught.value.argument == argument


def test_more_elements_than_an_index_reaches_are_refused(backend: str) -> None:
    logits = np.broadcast_to(np.float32(1), (arrays.LIMITS[backend] // 4 + 1, 4))
    with pytest.raises(SizeLimitError, match="^logits: expected at most"):
        tkern.cross_entropy_backward(logits, _L)


def test_metals_sizes_have_a_reason_of_their_own() -> None:
    assert "tkern msl" in SIZES["metal"].reason
